"""Checks of workers' requests, and the sentences of their refusals."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from training.fleet.manifest.reader import closest
from training.fleet.scheduling.job import AMOUNTS, REPORTABLE, Attempt, EndReason
from training.fleet.scheduling.quarantine import RAM, VRAM, Cause, Quarantine
from training.fleet.wire.attempts import ClaimRequest, FailRequest
from training.fleet.wire.constants import HOST_ID_PATTERN, ID_PATTERN, ProblemType, Refusal
from training.printable import duration

T = TypeVar("T")
CHANGE_DIGITS_LEAST = 6  # of an id, for a call that changes something
DESCRIPTION_MAX = 8 * 1024  # bytes of a host's capability, as JSON; ours are about 1 KiB
HOUR_S = 3600.0
CRASHED_CLAIMS_MAX = 16  # bundles that one claim may name
_HANDED_BACK = frozenset({EndReason.SPAWN_FAILED, EndReason.INTERRUPTED, EndReason.WORKER_SHUTDOWN})


def check_pace(first_at: float | None, now: float, host: str, most: int) -> None:
    """Refuse another incident of a host that reported ``most`` within the hour, the first of them at ``first_at``."""
    wait_s = 0.0 if first_at is None else first_at + HOUR_S - now
    if wait_s > 0:
        raise Refusal(
            ProblemType.SLOW_DOWN,
            f"{host} has reported {most} new incidents within the hour; this one is accepted later",
            retry_after_s=min(wait_s, HOUR_S),
        )


def check_id(name: str, value: str | None) -> None:
    """Refuse a malformed id, by its member's name; an absent one passes."""
    if value is not None and not re.fullmatch(ID_PATTERN, value):
        raise Refusal(ProblemType.BAD_REQUEST, f"$.{name}: 1 to 128 letters, digits, dots, dashes, underscores")


def whole_number(name: str, text: str | None, default: T) -> int | T:
    """Parse a whole number of an address or a header; a default where it is absent."""
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(ProblemType.BAD_REQUEST, f"{name}: expected a whole number")
    return int(text)


def refuse_host(host: str | None, what: str) -> None:
    """Refuse a training host a view that covers all jobs: it may see only jobs that it has worked on."""
    if host is not None:
        raise Refusal(ProblemType.NOT_YOURS, f"host {host} may look at jobs that it has worked on, not at {what}")


def incidents_for(mine: str | None, host: str) -> str:
    """Return the host whose incidents a caller may see: a training host (``mine``) only its own, all others those of
    every host."""
    if mine is not None and host not in ("", mine):
        raise Refusal(ProblemType.NOT_YOURS, f"host {mine} may look at its own incidents, not at those of others")
    return mine or host


def check_claim(request: ClaimRequest) -> None:
    """Check a claim before its host is stored, because every other host's claim reads stored hosts."""
    if not re.fullmatch(HOST_ID_PATTERN, request.host_id):
        raise Refusal(
            ProblemType.BAD_REQUEST,
            "$.host_id: a host id has 1 to 64 letters, digits, dots, dashes and underscores; choose one with --host-id",
        )
    for name in ("instance_id", "session_id", "request_id"):
        check_id(name, getattr(request, name))
    for use in request.training:
        check_id("training", use.claim_id)
    for name in ("capability", "trainer_digests"):
        size = len(msgspec.json.encode(getattr(request, name)))
        if size > DESCRIPTION_MAX:
            raise Refusal(
                ProblemType.BAD_REQUEST,
                f"$.{name}: at most {DESCRIPTION_MAX // 1024} KiB as JSON, these are {size // 1024}; "
                "every host is remembered with it",
            )
    odd = _odd_member(request.capability)
    if odd is not None:
        raise Refusal(
            ProblemType.BAD_REQUEST, f"{odd}; `python -m training.fleet.capability` prints what this host should send"
        )


# The members that scheduling reads. Absent, or null, is 0 or false; other members are for people.
_NUMBERS = ("ram_total_gib", *(amount.capability for amount in AMOUNTS.values()))
_TRUTHS = ("cuda_available", "healthy")
_DEVICE_NUMBERS = ("vram_total_gib", "vram_free_gib")


def _odd_member(capability: Mapping[str, Any]) -> str | None:
    """Find the member that has a wrong type, and name the right type; the text "false" would count as true."""
    for name in _TRUTHS:
        if not isinstance(capability.get(name), bool | None):
            return f"$.capability.{name}: true or false"
    numbers = {name: capability.get(name) for name in _NUMBERS}
    devices = capability.get("cuda_devices")
    if not isinstance(devices, list | tuple | None):
        return "$.capability.cuda_devices: a list of objects"
    for place, device in enumerate(devices or ()):
        if not isinstance(device, Mapping):
            return f"$.capability.cuda_devices[{place}]: an object"
        numbers |= {f"cuda_devices[{place}].{name}": device.get(name) for name in _DEVICE_NUMBERS}
    odd = (name for name, value in numbers.items() if not _is_finite(value))
    return next((f"$.capability.{name}: a finite number" for name in odd), None)


def _is_finite(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def refuse_twin(host_id: str, known: str) -> Refusal:
    """Refuse a name that differs from a known host's name only by case: the plan treats both as one host."""
    return Refusal(
        ProblemType.HOST_ID_CONFLICT,
        f"host {known} is known here, and {host_id} differs from it by case only; start this worker with "
        f"--host-id {known} if it is the same machine, or with a name of its own",
    )


def reported_reason(request: FailRequest) -> EndReason:
    """Return the reported reason; callers of the simple form write `worker shutdown` in the error."""
    if request.error.strip().lower() == "worker shutdown":
        return EndReason.WORKER_SHUTDOWN
    try:
        reason = EndReason(request.reason.strip().lower().replace(" ", "_"))
    except ValueError:
        reason = None
    if reason not in REPORTABLE:
        known = ", ".join(sorted(REPORTABLE))
        raise Refusal(ProblemType.BAD_REQUEST, f"$.reason: expected one of {known}")
    return reason


def ran_out_of(request: FailRequest, reason: EndReason) -> str | None:
    """Return which kind of memory ran out, if that ended the trainer; an unknown word counts as none."""
    named = reason is EndReason.TRAINER_FAILED and request.out_of_memory in (RAM, VRAM)
    return request.out_of_memory if named else None


def trained_s(request: FailRequest, reason: EndReason) -> float | None:
    """Return the reported running time of a trainer that may have ended long before the report, or never begun.

    A job returned without a running time counts as never run: the answer to the claim may have been lost until then.
    """
    said = (request.record or {}).get("train_s")
    good = isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said < 1e9
    never = 0.0 if reason in _HANDED_BACK else None
    return float(said) if good else never  # type: ignore[arg-type]


def ran_too_long(host: str, trained_s: float, limit_s: float) -> str:
    """Explain why the receiver ended an attempt that exceeded its time."""
    return (
        f"it was seen training for {duration(trained_s)} on host {host} and may run for {duration(limit_s)}, and the "
        "worker did not stop it; restart that worker, raise max_run_s in the manifest, or give it less to do"
    )


def the_one_meant(ref: str, found: list[tuple[str, str]]) -> str:
    """Choose the job that ``ref`` names: first by whole id, then by whole name, then by the beginning of an id."""
    exact = [job_id for job_id, _ in found if ref == job_id]
    exact = exact or [job_id for job_id, name in found if ref == name]
    if len(exact) == 1 or len(found) == 1:
        return (exact or [found[0][0]])[0]
    if not ref:
        raise Refusal(ProblemType.UNKNOWN_JOB, "name a job: its name, its id, or a unique prefix of the id")
    if not found:
        raise Refusal(ProblemType.UNKNOWN_JOB, f"no job is called {ref[:80]!r}; `cis490-jobs list` shows them all")
    names = ", ".join(f"{name} ({job_id[:12]})" for job_id, name in found[:5])
    raise Refusal(ProblemType.UNKNOWN_JOB, f"{ref[:80]!r} may mean {names}; use a longer prefix of the id")


def the_one_to_change(ref: str, found: list[tuple[str, str]]) -> str:
    """Choose the job for a change; it must be named by whole id or name, since a few digits may be a mistyped name."""
    job_id = the_one_meant(ref, found)
    name = dict(found)[job_id]
    if ref not in (job_id, name) and len(ref) < CHANGE_DIGITS_LEAST:
        raise Refusal(
            ProblemType.UNKNOWN_JOB,
            f"no job is called {ref[:80]!r}, and what changes a job takes its whole name or at least "
            f"{CHANGE_DIGITS_LEAST} digits of its id; only {name} ({job_id[:12]}) has an id that begins so",
        )
    return job_id


def check_known(name: str, known: Collection[str]) -> None:
    """Refuse a name that is not a known host's."""
    if name not in known:
        near = closest(name, known)
        raise Refusal(
            ProblemType.UNKNOWN_NAME,
            f"no host is called {name[:80]!r}; "
            + (f"did you mean {near}? " if near else "")
            + "`cis490-jobs workers` shows them all",
        )


def check_release(name: str, held: Quarantine | None, known: Collection[str]) -> str:
    """Return why the host is in quarantine; refuse a host that is not, or that the operator cannot release."""
    check_known(name, known)
    if held is None:
        raise Refusal(ProblemType.WRONG_STATE, f"host {name} is not quarantined; it gets work")
    if held.cause is Cause.SELF_TEST:
        raise Refusal(ProblemType.WRONG_STATE, f"host {name} is {held.sentence()}")
    return held.reason


def refuse_another(attempt: Attempt, artifact_id: str) -> None:
    """Refuse a second artifact of an attempt."""
    if attempt.artifact_id != artifact_id:
        accepted = str(attempt.artifact_id)[:12]
        raise Refusal(
            ProblemType.RESULT_CONFLICT, f"the job was completed by another artifact ({accepted}…); drop this one"
        )


def ended(attempt: Attempt) -> Refusal:
    """Make the refusal for a caller whose attempt has ended."""
    if attempt.end_reason is EndReason.CANCELLED:
        return Refusal(ProblemType.JOB_CANCELLED, "the job was cancelled; stop the trainer and drop the work")
    reason = "" if attempt.end_reason is None else f" ({attempt.end_reason})"
    return Refusal(
        ProblemType.LEASE_SUPERSEDED,
        f"attempt {attempt.attempt} of host {attempt.host} is no longer live{reason}; drop the work",
    )
