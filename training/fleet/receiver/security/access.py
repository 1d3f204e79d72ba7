"""Decide whether a caller may use an endpoint, and for which host a request acts.

On loopback without TLS hosts prove no identity, and every process of this machine has the rights of hosts and readers.
Operators must always prove their identity.
"""

from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.identity import Principal
from training.fleet.wire.routes import Access

_OF_WATCHERS = (Access.REPORTER, Access.MEMBER, Access.OWNER)


def check(access: Access, principal: Principal | None) -> None:
    """Raise Refusal unless ``principal`` may use an endpoint that serves ``access``. ``principal`` was authenticated
    before; None means a caller without any proof."""
    if access is Access.JOINING:
        return
    if principal is None:
        raise Refusal(
            ProblemType.NO_CERTIFICATE,
            "this receiver serves hosts, operators and readers who show a certificate (`cis490-jobs enroll` on its "
            "machine prints the line that gets one) or a token, in $CIS490_OPERATOR_TOKEN (there the operator's is in "
            "/etc/cis490/receiver.env)",
        )
    if principal.watcher is not None and access not in _OF_WATCHERS:
        raise Refusal(
            ProblemType.WRONG_ROLE,
            "a watched host may only report its own incidents; call this with an operator's certificate or token",
        )
    if access is Access.OPERATOR and principal.operator is None:
        raise Refusal(
            ProblemType.OPERATOR_TOKEN,
            "the operator token is missing or wrong; set CIS490_OPERATOR_TOKEN to the receiver's"
            if principal.reader is None
            else "a reader looks and changes nothing; use an operator's certificate or token",
        )
    if access is Access.WORKER and principal.host_id is None and not principal.anybody:
        raise Refusal(
            ProblemType.WRONG_ROLE,
            "only a training host may call this, not the holder of another certificate or of a token",
        )
    if access is Access.REPORTER and not (principal.host_id or principal.watcher or principal.anybody):
        raise Refusal(
            ProblemType.WRONG_ROLE,
            "only a host may report its incidents; `cis490-jobs enroll --watcher NAME` admits one",
        )
    if access is Access.FETCHER and principal.reader is not None:
        raise Refusal(
            ProblemType.WRONG_ROLE,
            "a reader sees jobs and hosts and fetches no data; use an operator's certificate or token",
        )


def acting_host(principal: Principal | None, said: str | None) -> str | None:
    """Return the host that a request acts for: the one that the caller proved, or if there is none ``said``, the one in
    the request. Raises Refusal if the proven host and ``said`` differ."""
    proven = None if principal is None else principal.host_id or principal.watcher
    if principal is None or proven is None:
        return said
    if said not in (None, proven):
        raise Refusal(
            ProblemType.HOST_MISMATCH,
            f"the certificate is {proven}'s and the request says {said[:80]!r}; start the "
            + ("worker with the --host-id" if principal.watcher is None else "watch with the --host")
            + " it was enrolled with",
        )
    return proven
