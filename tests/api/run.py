"""One run: a receiver with some jobs, calls that Schemathesis makes up from the document, and every check it has.

Answers that lead on (a grant to its heartbeat, upload, completion) are followed, because the document links them.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from builders import a_capability, a_job
from fakes import FakeClock
from receiver_running import TOKEN, Receiver
from tls_world import SecureReceiver

from training.clock import SystemClock
from training.contract import spec_hash
from training.fleet.client.credentials import new_request
from training.fleet.client.push import push, read_folder
from training.fleet.receiver.http import endpoints
from training.fleet.receiver.security.authentication import FailureLimit, Quota
from training.fleet.receiver.security.tls import Security
from training.fleet.wire.constants import HEADER_CLAIM_ID, HEADER_HOST_ID, HOST_ID_PATTERN

JOBS = tuple(f"job-{n}" for n in range(60))
HOSTS = ("pi", "desktop")
PATH = "/v1/openapi.json"
STATE = ["2xx", "401", "403", "404", "409", "410", "413", "422", "429", "507"]
REFUSED = ["400", "403", "404", "405", "409", "410", "413", "422", "429"]


class Target(StrEnum):
    """The target of the calls."""

    APP = "app"  # the application, in this process
    PLAIN = "plain"  # a receiver that listens on loopback
    TLS = "tls"  # one that wants certificates; calls show a host's and an operator's token


_DEEP = ("/v1/model/{job_id}", "/complete")  # where a claim that has ended leads nowhere


@dataclass
class Result:
    """The findings of a run. ``statuses``: answers by operation and status; ``failures``: sentences, each once."""

    calls: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other):
        self.calls += other.calls
        self.statuses += other.statuses
        self.checks += other.checks
        self.failures += [each for each in other.failures if each not in self.failures]


class Restless(FakeClock):
    """Every look is a minute later, so that no limit by time keeps the calls from being looked at."""

    def monotonic(self):
        self.advance(60.0)
        return super().monotonic()


@contextmanager
def receiver(folder, kind):
    """With jobs, one of them completed, and a data set; without waiting for work."""
    before, endpoints.WAIT_S_MAX = endpoints.WAIT_S_MAX, 0.0
    jobs = [a_job(name) for name in JOBS]
    try:
        with SecureReceiver(folder, jobs) if kind is Target.TLS else Receiver(folder, jobs, host="testserver") as found:
            if found.hub.authority is None:
                security = Security(folder / "tls", ["localhost"], SystemClock())
                found.hub.authority = security.authority
            found.hub.authenticator.limit, found.hub.authenticator.quota = FailureLimit(Restless()), Quota(Restless())
            _complete_one(found, folder)
            yield found, _push(found, folder)
    finally:
        endpoints.WAIT_S_MAX = before


def _complete_one(target, folder):
    client = target.client()
    if isinstance(target, SecureReceiver):
        client = target.showing(target.admitted("pi")[0])
    bundle = folder / "bundle"
    bundle.write_bytes(b"model" * 1000)
    grant = client.claim(a_capability())
    client.complete(grant.job_id, artifact_id=client.upload_artifact(grant.job_id, bundle))


def _claims(target):
    """A claim that lives, whatever the calls before it did to the others: for calls that need one to lead anywhere."""
    client, orders = target.client(), target.client()
    if isinstance(target, SecureReceiver):
        client, orders = (target.showing(target.admitted("pi")[0]), target.showing(None, TOKEN))

    def claim():
        for job in target.plan:
            orders.requeue(job["job_id"])
            if (grant := client.claim(a_capability())) is not None:
                return grant.job_id, grant.claim_id, client.host_id
        return "", "", ""

    return claim


def _push(target, folder):
    """A data set of one small piece; what it consists of."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    (data / "values.bin").write_bytes(b"values" * 100)
    client = target.client()
    if isinstance(target, SecureReceiver):
        client = target.showing(None, TOKEN)
    listing = read_folder(data, lambda _done, _whole: None)
    push(client.datasets, data, listing, "small", lambda _done, _whole: None)
    return listing


def configuration(target, folder, examples, seed):
    """All checks, all phases. What a valid request may meet besides success is the state of the job (``STATE``)."""
    from schemathesis.config import SchemathesisConfig

    given = {
        "seed": seed,
        "continue-on-failure": True,
        "warnings": False,
        "suppress-health-check": ["all"],
        "auth": {"openapi": {"token": {"api_key": TOKEN.encode().decode("latin-1")}}},
        "checks": {
            "positive_data_acceptance": {"expected-statuses": STATE},
            "negative_data_rejection": {"expected-statuses": REFUSED},
        },
        # No schema tells a certificate request from other text, or a listing from other bytes.
        "operations": [
            {"include-path": path, "checks": {"positive_data_acceptance": {"enabled": False}}}
            for path in ("/v1/join", "/v1/renew", "/v1/dataset/{dataset_id}")
        ]
        # Hundreds of combinations of two bodies with many members: the long run makes them.
        + [
            {"include-path": path, "phases": {"coverage": {"enabled": examples > 1}}}
            for path in ("/v1/forecast", "/v1/manifest/plan")
        ],
        "generation": {
            "max-examples": examples,
            "database": "none",
            "no-shrink": True,
            "allow-extra-parameters": False,
        },
    }
    if isinstance(target, SecureReceiver):
        shown = folder / "host.pem"
        shown.write_bytes(target.admitted("pi")[0])
        given |= {"tls-verify": str(target.tls / "ca.pem"), "request-cert": str(shown)}
    return SchemathesisConfig.from_dict(given)


def as_served(target):
    """The application with the headers that its server puts before every answer."""
    app = target.server.config.app

    async def served(scope, receive, send):
        async def with_headers(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*target.server.config.encoded_headers, *message["headers"]]}
            await send(message)

        await app(scope, receive, with_headers)

    return served


def load(config, target, kind):
    from schemathesis import openapi

    if kind is Target.APP:
        return openapi.from_asgi(PATH, as_served(target), config=config)
    return openapi.from_url(f"{target.url}{PATH}", config=config)


def run(folder, examples, seed, *, kind=Target.APP, paths="", tell=lambda _calls: None):
    """``examples`` generated inputs an operation; ``tell`` hears how many calls were made so far.

    ``paths`` is a pattern of the addresses to call, all by default.
    """
    from schemathesis.engine import events, from_schema

    result = Result()
    with receiver(folder, kind) as (target, pushed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library's own ways, not of the receiver's
        schema = load(configuration(target, folder, examples, seed), target, kind)
        if paths:
            schema = schema.exclude(lambda context: re.search(paths, context.operation.path) is None)
        aim = Aim(target, pushed, lambda: _push(target, folder), _claims(target))
        schema.hook("map_case")(lambda context, case: aim.case(context, case))
        schema.hook("after_call")(lambda context, case, response: aim.answered(context, case, response))
        for event in from_schema(schema).execute():
            if isinstance(event, events.ScenarioFinished):
                _note(event.recorder, result)
                tell(result.calls)
            elif isinstance(event, (events.NonFatalError, events.FatalError)):
                result.failures.append(f"{getattr(event, 'label', '')}: {event}")
    return result


class Aim:
    """Bends some of the made-up calls towards what there is: jobs, hosts, the claims that were granted meanwhile.

    What was valid stays valid; a call that is to be refused for its form keeps what is wrong with it.
    """

    def __init__(self, target, pushed, again, claim):
        self._push_again, self._claim = again, claim
        self._plan, self._target = target.plan, target
        self._pushed = {"dataset_id": pushed.dataset_id, "sha256": pushed.files[0].pieces[0]}
        self._turn = 0
        self._granted = []  # job, claim, host
        self._artifact = "0" * 64
        self._brought = None
        self._request = new_request("pi")[1]

    def case(self, _context, case):
        from schemathesis.core.parameters import ParameterLocation

        self._turn += 1
        n = self._turn
        parameters = case.path_parameters
        wrong = case.meta is not None and case.meta.is_negative_at(ParameterLocation.PATH)
        if parameters and "job_id" in parameters and n % 3 and not wrong:
            job = self._plan[n % len(self._plan)]
            parameters["job_id"] = job["job_id"] if n % 2 else job["name"]
            if case.method == "PUT" and case.path.endswith(_DEEP):
                self._granted = [*self._granted[-5:], self._claim()]
            if self._granted and (n % 3 == 1 or case.path.endswith(_DEEP)):
                whole = case.meta is None or not case.meta.is_negative_at(ParameterLocation.BODY)
                newest = self._granted[-1 if case.path.endswith(_DEEP) else n % len(self._granted)]
                brought = self._brought if case.path.endswith("/complete") else None
                self._claimed(case, *(brought or newest), whole=whole)
        if parameters and not wrong and n % 3 and not case.path.endswith("/remove"):
            parameters.update({name: self._pushed[name] for name in self._pushed if name in parameters})
        if isinstance(case.body, dict) and n % 2:
            self._body(case.body, n)
        return case

    def _claimed(self, case, job_id, claim_id, host, *, whole):
        """Of a granted claim; what lacks in a body that is not ``whole`` goes on lacking."""
        if case.method not in ("PUT", "HEAD", "POST"):
            return
        case.path_parameters["job_id"] = job_id
        if case.path.endswith("/deliver") and not whole:
            return  # a wrong claim's form is what is wrong with it
        if isinstance(case.body, dict):
            found = {"claim_id": claim_id, "host_id": host, "artifact_id": self._artifact}
            found["spec_hash"] = spec_hash(self._plan[0])
            for name, value in found.items():
                if isinstance(case.body.get(name, "" if whole else None), str):
                    case.body[name] = value
        elif case.method != "POST":
            case.headers[HEADER_CLAIM_ID] = claim_id
            case.headers.pop(HEADER_HOST_ID, None)

    def _body(self, body, n):
        host = body.get("host_id")
        if isinstance(host, str) and re.fullmatch(HOST_ID_PATTERN, host) and "claim_id" not in body:
            body["host_id"] = HOSTS[n % 8 // 6]
        if isinstance(body.get("resting"), str) and n % 8 != 1:
            body["resting"] = None  # or hardly a claim is granted
        if isinstance(body.get("capability"), dict):
            body["capability"] = a_capability()
        if isinstance(body.get("csr"), str):
            body["csr"] = self._request

    def answered(self, _context, case, response):
        if response.status_code == 200 and case.path.endswith("/remove"):
            self._push_again()
        if response.status_code == 200 and case.path.endswith(("/pause", "/drain")):
            service, host = self._target.service, response.json()["host"]
            self._target.writer.submit(lambda: service.resume_host(host, "nobody")).result()  # or it gets no more jobs
        if response.status_code != 200 or case.path not in ("/v1/job/claim", "/v1/model/{job_id}"):
            return
        if case.method == "PUT":
            self._artifact = response.json()["artifact_id"]
            claim_id = case.headers.get(HEADER_CLAIM_ID)
            self._brought = next((one for one in self._granted if one[1] == claim_id), None)
        elif case.method == "POST" and (found := response.json())["job_id"]:
            granted = found["job_id"], found["claim_id"], case.body.get("host_id", "pi")
            self._granted = [*self._granted[-5:], granted]


def _is_no_fault(check, case):
    """The library takes an absent body for a wrong one where there need be none."""
    absent = type(case.body).__name__ == "NotSet"
    return (
        check.name == "negative_data_rejection" and absent and not any(each.is_required for each in case.operation.body)
    )


def _note(recorder, result):
    for case_id, interaction in recorder.interactions.items():
        result.calls += 1
        label = recorder.cases[case_id].value.operation.label
        status = None if interaction.response is None else interaction.response.status_code
        result.statuses[f"{label} {status}"] += 1
    for case_id, checks in recorder.checks.items():
        for check in checks:
            result.checks[check.name] += 1
            if check.failure_info is None or _is_no_fault(check, recorder.cases[case_id].value):
                continue
            failure = check.failure_info.failure
            label = recorder.cases[case_id].value.operation.label
            said = " ".join(str(failure.message).split())[:600]
            sentence = f"{label}: {check.name}: {failure.title}: {said}"
            if any(each.startswith(sentence) for each in result.failures):
                continue
            response = recorder.interactions[case_id].response
            answer = "" if response is None else response.content[:300]
            result.failures.append(f"{sentence}\n  {check.failure_info.code_sample}\n  {answer!r}")
