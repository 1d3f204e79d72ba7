"""Checks of workers' requests, and the sentences of their refusals."""

import re
import sys
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from training.contract import FINAL_EXITS, spec_hash
from training.fleet.manifest.reader import closest
from training.fleet.scheduling.job import AMOUNTS, REPORTABLE, Attempt, EndReason, Job
from training.fleet.scheduling.quarantine import RAM, VRAM, Cause, Quarantine
from training.fleet.wire.attempts import ClaimRequest, FailRequest
from training.fleet.wire.constants import HOST_ID_PATTERN, ID_PATTERN, VERSION, ProblemType, Refusal
from training.printable import duration, one_line

T = TypeVar("T")
CHANGE_DIGITS_LEAST = 6  # of an id, for a call that changes something
DESCRIPTION_MAX = 8 * 1024  # bytes of a host's capability, as JSON; ours are about 1 KiB
HOUR_S = 3600.0
CRASHED_CLAIMS_MAX = 16  # bundles that one claim may name
_HANDED_BACK = frozenset({EndReason.SPAWN_FAILED, EndReason.INTERRUPTED, EndReason.WORKER_SHUTDOWN})


def check_pace(first_at: float | None, now: float, host: str, most: int) -> None:
    """Raise Refusal for a new incident of a host that has reported ``most`` within the hour. ``first_at`` is when the
    first of the host's last ``most`` incidents came; None if there were fewer."""
    wait_s = 0.0 if first_at is None else first_at + HOUR_S - now
    if wait_s > 0:
        raise Refusal(
            ProblemType.SLOW_DOWN,
            f"{host} has reported {most} new incidents within the hour; this one is accepted later",
            retry_after_s=min(wait_s, HOUR_S),
        )


def check_id(name: str, value: str | None) -> None:
    """Raise Refusal for a malformed id in the request's member ``name``; an absent id (None) passes."""
    if value is not None and not re.fullmatch(ID_PATTERN, value):
        raise Refusal(ProblemType.BAD_REQUEST, f"$.{name}: 1 to 128 letters, digits, dots, dashes, underscores")


def whole_number(name: str, text: str | None, default: T) -> int | T:
    """Parse a whole number from an address or a header; return ``default`` if ``text`` is None, and raise Refusal for
    any other text."""
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(ProblemType.BAD_REQUEST, f"{name}: expected a whole number of at most 15 digits")
    return int(text)


def refuse_host(host: str | None, what: str) -> None:
    """Raise Refusal if the caller is a training host (``host``), because a host may see only jobs that it has worked
    on; None passes."""
    if host is not None:
        raise Refusal(ProblemType.NOT_YOURS, f"host {host} may look at jobs that it has worked on, not at {what}")


def incidents_for(mine: str | None, host: str) -> str:
    """Return the host whose incidents the caller gets, empty for all hosts. A training host (``mine``) gets only its
    own, and Refusal if it asks for another's."""
    if mine is not None and host not in ("", mine):
        raise Refusal(ProblemType.NOT_YOURS, f"host {mine} may look at its own incidents, not at those of others")
    return mine or host


def check_claim(request: ClaimRequest) -> None:
    """Raise Refusal for a malformed claim. Claims are checked before their host is stored, because every other host's
    claim reads stored hosts."""
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
    """Return the first member of a capability that has a wrong type, with the right type; None if all are right. The
    text "false" would otherwise count as true."""
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
    """Return the refusal for a name that differs from a known host's name only by case, because the plan treats both as
    one host."""
    return Refusal(
        ProblemType.HOST_ID_CONFLICT,
        f"host {known} is known here, and {host_id} differs from it by case only; start this worker with "
        f"--host-id {known} if it is the same machine, or with a name of its own",
    )


def other_protocol(request: ClaimRequest) -> Refusal | None:
    """Return the refusal for a worker that speaks another version of the protocol; None if it speaks this one, or does
    not say."""
    theirs = request.capability.get("protocol", VERSION)
    if theirs == VERSION:
        return None
    late = "the receiver" if isinstance(theirs, int) and theirs > VERSION else f"the worker on {request.host_id}"
    return Refusal(
        ProblemType.PROTOCOL_MISMATCH,
        f"host {request.host_id} speaks protocol {one_line(theirs, 20)}, this receiver {VERSION}: upgrade {late} to "
        "the other's version, and restart it",
    )


def reported_reason(request: FailRequest) -> EndReason:
    """Return the reason of a failure report as an end reason, or raise Refusal; callers of the simple form write
    `worker shutdown` in the error."""
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
    """Return the kind of memory (``RAM`` or ``VRAM``) that ran out, if that ended the trainer; None otherwise, for an
    unknown word, and where the exit code blames arguments or data."""
    named = reason is EndReason.TRAINER_FAILED and request.out_of_memory in (RAM, VRAM)
    return request.out_of_memory if named and request.exit_code not in FINAL_EXITS else None


def trained_s(request: FailRequest, reason: EndReason) -> float | None:
    """Return the seconds that the trainer ran, as a failure report states them; None if they are unknown.

    Without a stated running time, an attempt that was handed back, interrupted or could not be started counts as never
    run (0 seconds).
    """
    said = (request.record or {}).get("train_s")
    good = isinstance(said, int | float) and not isinstance(said, bool) and 0 <= said < 1e9
    never = 0.0 if reason in _HANDED_BACK else None
    return float(said) if good else never  # type: ignore[arg-type]


def ran_too_long(host: str, held_s: float, limit_s: float) -> str:
    """Return the sentence which explains why the receiver ended an attempt that exceeded its time."""
    return (
        f"host {host} has had it for {duration(held_s)}, and it may run for {duration(limit_s)}, and the worker did "
        "not stop it; restart that worker, raise max_run_s in the manifest, or give it less to do"
    )


def the_one_meant(ref: str, found: list[tuple[str, str]]) -> str:
    """Return the id of the job that ``ref`` names among ``found`` (ids and names). A whole id comes first, then a whole
    name, then the beginning of an id; raise Refusal unless exactly one matches."""
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
    """Return the id of the job to change; ``ref`` must be a whole id, a whole name, or at least ``CHANGE_DIGITS_LEAST``
    digits of an id. A reference with fewer digits may be a mistyped name."""
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
    """Raise Refusal if no known host has this name."""
    if name not in known:
        near = closest(name, known)
        raise Refusal(
            ProblemType.UNKNOWN_NAME,
            f"no host is called {name[:80]!r}; "
            + (f"did you mean {near}? " if near else "")
            + "`cis490-jobs workers` shows them all",
        )


def check_release(name: str, held: Quarantine | None, known: Collection[str]) -> str:
    """Return why the host is in quarantine; raise Refusal if it is not, or if only a healthy report of the host ends
    its quarantine."""
    check_known(name, known)
    if held is None:
        raise Refusal(ProblemType.WRONG_STATE, f"host {name} is not quarantined; nothing is to be released")
    if held.cause is Cause.SELF_TEST:
        raise Refusal(ProblemType.WRONG_STATE, f"host {name} is {held.sentence()}")
    return held.reason


def check_spec(job: Job, said: str | None) -> None:
    """Raise Refusal if the hash of the trained spec is not the job's; a hash that was not said (None) passes."""
    if said not in (None, spec_hash(job.spec)):
        raise Refusal(
            ProblemType.SPEC_MISMATCH, f"what was trained is not what job {job.name} asks for; fail the attempt instead"
        )


def refuse_another(attempt: Attempt, artifact_id: str) -> None:
    """Raise Refusal if the attempt was completed by another artifact than this one."""
    if attempt.artifact_id != artifact_id:
        accepted = str(attempt.artifact_id)[:12]
        raise Refusal(
            ProblemType.RESULT_CONFLICT, f"the job was completed by another artifact ({accepted}…); drop this one"
        )


def ended(attempt: Attempt) -> Refusal:
    """Return the refusal for a caller whose attempt has ended."""
    if attempt.end_reason is EndReason.CANCELLED:
        return Refusal(ProblemType.JOB_CANCELLED, "the job was cancelled; stop the trainer and drop the work")
    reason = "" if attempt.end_reason is None else f" ({attempt.end_reason})"
    return Refusal(
        ProblemType.LEASE_SUPERSEDED,
        f"attempt {attempt.attempt} of host {attempt.host} is no longer live{reason}; drop the work",
    )
