"""Access to endpoints: one table for all, and a request without a row in it is refused.

On loopback without TLS nobody proves to be a host, and whoever reaches the address may do what hosts and onlookers
may; operators always prove themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from training.fleet.protocol import Refusal, Slug
from training.fleet.trust.identity import Principal


class Access(StrEnum):
    """The callers that an endpoint serves."""

    WORKER = "worker"  # hosts, each under its own name
    OPERATOR = "operator"
    READER = "reader"  # operators; hosts for jobs they have worked on
    ANYONE = "anyone"  # whoever the transport admits
    OWNER = "owner"  # whoever shows a certificate, for this certificate
    JOINING = "joining"  # whoever reaches the address: there is no certificate yet


_JOB = "/v1/job/{job_id}"
_DATASET = "/v1/dataset/{dataset_id}"

POLICY: Mapping[tuple[str, str], Access] = {
    ("POST", "/v1/job/claim"): Access.WORKER,
    ("POST", f"{_JOB}/heartbeat"): Access.WORKER,
    ("POST", f"{_JOB}/complete"): Access.WORKER,
    ("POST", f"{_JOB}/deliver"): Access.WORKER,
    ("POST", f"{_JOB}/fail"): Access.WORKER,
    ("POST", f"{_JOB}/log"): Access.WORKER,
    ("PUT", "/v1/model/{job_id}"): Access.WORKER,
    ("HEAD", "/v1/model/{job_id}"): Access.READER,  # an upload's offset only for its own claim
    ("GET", "/v1/model/{job_id}"): Access.READER,
    ("GET", "/v1/jobs"): Access.ANYONE,
    ("GET", "/v1/workers"): Access.ANYONE,
    ("GET", "/v1/health"): Access.ANYONE,
    ("GET", "/v1/openapi.json"): Access.ANYONE,
    ("GET", "/v1/jobs/{job_id}"): Access.READER,
    ("GET", _JOB): Access.READER,
    ("GET", f"{_JOB}/log"): Access.READER,
    ("GET", f"{_JOB}/explain"): Access.READER,
    ("POST", f"{_JOB}/cancel"): Access.OPERATOR,
    ("POST", f"{_JOB}/requeue"): Access.OPERATOR,
    ("POST", f"{_JOB}/hold"): Access.OPERATOR,
    ("POST", f"{_JOB}/unhold"): Access.OPERATOR,
    ("POST", "/v1/workers/{host_id}/release"): Access.OPERATOR,
    ("POST", "/v1/manifest/reload"): Access.OPERATOR,
    ("GET", "/v1/datasets"): Access.ANYONE,
    ("PUT", _DATASET): Access.OPERATOR,
    ("GET", _DATASET): Access.READER,  # hosts: what they may be given to train on
    ("PUT", f"{_DATASET}/piece/{{sha256}}"): Access.OPERATOR,
    ("PUT", f"{_DATASET}/pieces"): Access.OPERATOR,
    ("PUT", f"{_DATASET}/patch/{{sha256}}"): Access.OPERATOR,
    ("GET", f"{_DATASET}/chunks"): Access.OPERATOR,
    ("GET", f"{_DATASET}/piece/{{sha256}}"): Access.READER,
    ("POST", f"{_DATASET}/publish"): Access.OPERATOR,
    ("POST", f"{_DATASET}/remove"): Access.OPERATOR,
    ("POST", f"{_DATASET}/unname"): Access.OPERATOR,
    ("GET", "/v1/authority"): Access.JOINING,
    ("POST", "/v1/join"): Access.JOINING,
    ("POST", "/v1/renew"): Access.OWNER,
    ("POST", "/v1/invitations"): Access.OPERATOR,
    ("POST", "/v1/revoke"): Access.OPERATOR,
    ("GET", "/v1/certificates"): Access.OPERATOR,
    ("GET", "/v1/tokens"): Access.OPERATOR,
    ("POST", "/v1/tokens"): Access.OPERATOR,
    ("POST", "/v1/tokens/revoke"): Access.OPERATOR,
    ("GET", "/v1/audit"): Access.OPERATOR,
}


def access_of(method: str, path: str) -> Access | None:
    """The table's word; a HEAD without a row of its own is the GET."""
    found = POLICY.get((method, path))
    return POLICY.get(("GET", path)) if found is None and method == "HEAD" else found


def check(access: Access, principal: Principal | None) -> None:
    """Raise Refusal unless ``principal`` may use an address of this kind. Operators' proofs are checked before."""
    if access is Access.JOINING:
        return
    if principal is None:
        raise Refusal(
            Slug.NO_CERTIFICATE,
            "this receiver serves hosts and operators who show a certificate (`cis490-jobs enroll` on its machine "
            "prints the line that gets one) or an operator's token, in $CIS490_OPERATOR_TOKEN (there it is in "
            "/etc/cis490/receiver.env)",
        )
    if access is Access.OPERATOR and principal.operator is None:
        raise Refusal(
            Slug.OPERATOR_TOKEN,
            "the operator token is missing or wrong; set CIS490_OPERATOR_TOKEN to the receiver's",
        )
    if access is Access.WORKER and principal.host_id is None and not principal.anybody:
        raise Refusal(
            Slug.WRONG_ROLE,
            "only a training host may call this; an operator's certificate or token cannot",
        )


def acting_host(principal: Principal | None, said: str | None) -> str | None:
    """The host a request acts for: the proven one, never another. Without proof, what the request says."""
    if principal is None or principal.host_id is None:
        return said
    if said not in (None, principal.host_id):
        raise Refusal(
            Slug.HOST_MISMATCH,
            f"the certificate is {principal.host_id}'s and the request says {said[:80]!r}; "
            "start the worker with the --host-id it was enrolled with",
        )
    return principal.host_id
