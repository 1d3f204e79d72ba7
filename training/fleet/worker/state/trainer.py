"""PURE: handle the trainer's events: output, limits, end."""

from training.fleet.process.ended import Ended
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.constants import LOG_LINE_CHARS_MAX
from training.fleet.wire.progress import parse_progress
from training.fleet.worker.state import events as t
from training.fleet.worker.state import halts, no_answer
from training.fleet.worker.state.exit_code import LAST_WORDS, Failure, crowded_out, judge
from training.fleet.worker.state.state import SHUTDOWN, WITH_TRAINER, Phase, StateStep, is_due
from training.printable import duration

MEASURE_S = 10.0
FIRST_BEAT_S = 0.25  # after its start; a shorter trainer is heard of with its result
STEP_MAX_S = 60.0  # the time between two looks at a trainer counts up to this: the host may have slept
COMPANY_S = 60.0  # two that run out of memory together are heard to end one after the other
CPU_SHARE = 0.001  # share of its limit on silence: less CPU time counts as none


def news(transition: StateStep, event: t.News) -> None:
    """Handle an event of the current trainer. An event that its phase does not expect is ignored."""
    match event:
        case t.Printed():
            _printed(transition, event.lines)
        case t.Measured() if transition.phase is Phase.RUNNING:
            meter = transition.work.used.add(event.used, transition.now)
            memory = transition.work.memory.add(event.used)
            transition.set_work(used=meter, memory=memory, resumable=event.resumable)
            _measured(transition, event.used.cpu_s)
        case t.Fetching() if transition.phase is Phase.STARTING:
            progress = {"event": "fetch", "bytes": event.done, "bytes_total": event.size}
            transition.set_work(progress=progress)
        case t.Spawned() if transition.phase is Phase.STARTING:
            _spawned(transition)
        case t.SpawnFailed() if transition.phase is Phase.STARTING:
            _over(transition, SHUTDOWN if transition.state.signals else transition.work.failure or event.failure)
        case t.TrainerEnded() if transition.phase in WITH_TRAINER:
            _ended(transition, event.ended)
        case t.Unbearable() if transition.phase is Phase.RUNNING:
            _stop(transition, event.failure)
        case t.Packed() if transition.phase is Phase.PACKING:
            _packed(transition, event)
        case t.PackFailed() if transition.phase is Phase.PACKING:
            _over(transition, event.failure)
        case _:
            pass


def catch_up(transition: StateStep) -> None:
    """Kill a trainer that does not stop in time; give up one that survives the kill."""
    if transition.phase is not Phase.STOPPING or not is_due(no_answer.stop_by(transition), transition.now):
        return
    if not transition.work.killed:
        transition.kill()
        return
    name = transition.work.assignment.name
    transition.say(f"{name}: the trainer cannot be ended and is left behind", warning=True)
    _ended(transition, Ended())


def _spawned(transition: StateStep) -> None:
    transition.set(phase=Phase.RUNNING)
    transition.set_work(started_at=transition.now)
    if transition.work.dropped:
        transition.kill()
        return
    first = transition.now + FIRST_BEAT_S
    transition.set_work(beat_at=first if transition.work.beat_at is None else min(first, transition.work.beat_at))
    if transition.work.progress is not None:  # the fetch's progress, which is over; a silent trainer reports none
        transition.set_work(progress={"event": "training"})
    if transition.state.signals or transition.work.failure is not None:
        transition.stop()


def _stop(transition: StateStep, failure: Failure) -> None:
    """Ask a trainer that breaks a limit to stop, so that it may save its state; ``failure`` is reported unless the
    trainer still exits with 0."""
    transition.say(f"stopping {transition.work.assignment.name}: {failure.error}", warning=True)
    transition.set_work(failure=failure)
    transition.stop()


def _printed(transition: StateStep, lines: tuple[str, ...]) -> None:
    heed(transition, lines)
    transition.set_work(printed=transition.work.printed + len(lines), quiet_s=0.0)


def _measured(transition: StateStep, cpu_s: float) -> None:
    """Add the time since the last measurement, and check the limits. A pause counts neither as running nor as
    silence."""
    work = transition.work
    step_s = min(transition.now - (transition.now if work.measured_at is None else work.measured_at), STEP_MAX_S)
    most_run_s = limit_s(work.assignment, "max_run_s", 0.0)
    most_quiet_s = limit_s(work.assignment, "max_silence_s", transition.settings.max_silence_s)
    transition.set_work(measured_at=transition.now)
    if work.stood_at is not None:
        return
    computes = abs(cpu_s - work.cpu_s) > CPU_SHARE * most_quiet_s
    run_s, quiet_s = work.run_s + step_s, 0.0 if computes else work.quiet_s + step_s
    transition.set_work(run_s=run_s, quiet_s=quiet_s, cpu_s=cpu_s if computes else work.cpu_s)
    if most_run_s and run_s >= most_run_s:
        words = (
            f"the trainer ran for {duration(run_s)} and may run for {duration(most_run_s)}; "
            "raise max_run_s in the manifest, or give the trainer less to do"
        )
        _stop(transition, Failure(EndReason.TRAINER_FAILED, words, goes_on=True))
    elif most_quiet_s and quiet_s >= most_quiet_s:
        words = (
            f"the trainer printed nothing and used no CPU for {duration(quiet_s)}: it hangs; fix it, or raise "
            "max_silence_s in the manifest if it waits for something"
        )
        _stop(transition, Failure(EndReason.TRAINER_FAILED, words))


def measure_s(assignment: t.Assignment, settings: t.WorkerSettings) -> float:
    """Return the seconds between two measurements of the trainer, so few that no limit is exceeded by much."""
    limits = (limit_s(assignment, "max_run_s", 0.0), limit_s(assignment, "max_silence_s", settings.max_silence_s))
    return min([MEASURE_S, *(limit / 4 for limit in limits if limit)])


def limit_s(assignment: t.Assignment, key: str, otherwise: float) -> float:
    """Return the limit ``key`` of the job's spec in seconds, or ``otherwise`` if it has none; 0 means no limit."""
    value = assignment.spec.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    return otherwise


def heed(transition: StateStep, lines: tuple[str, ...]) -> None:
    """Take progress, error and last lines of the current job from these lines of its trainer's output."""
    work = transition.work
    progress, complaint = work.progress, work.complaint
    for fields in filter(None, map(parse_progress, lines)):
        if fields["event"] == "error":
            complaint = str(fields.get("message") or "") or complaint
        elif fields["event"] != "interrupted":
            progress = fields
    transition.set_work(
        progress=progress,
        complaint=complaint,
        last_words=tuple(line[:LOG_LINE_CHARS_MAX] for line in (work.last_words + lines)[-LAST_WORDS:]),
    )


def _ended(transition: StateStep, ended: Ended) -> None:
    work = transition.work
    usage: dict[str, float] = {"cpu_s": ended.cpu_s, **work.memory.record(ended.max_rss_kib)}
    if work.started_at is not None:
        usage["train_s"] = round(transition.now - work.started_at - halts.stood_s(work, transition.now), 3)
    transition.set_work(usage=usage, stop_by=None, paused=False, halted_at=None, stood_at=None)
    if ended.left:
        words = f"{work.assignment.name}: {ended.left} processes that its trainer started cannot be ended"
        transition.say(f"{words}; look for them with ps and end them as root", warning=True)
    failure = judge(ended, work.last_words, work.complaint)
    if failure is not None and failure.out_of_memory is not None and _had_company(transition):
        transition.set_work(crowded=True)
        failure = crowded_out(failure)
    if failure is not None and transition.phase is Phase.STOPPING:
        failure = work.failure or SHUTDOWN  # it ended on our request, for that reason
    _over(transition, failure)


def _had_company(transition: StateStep) -> bool:
    """Return True when another trainer of this worker ran within the last :data:`COMPANY_S` seconds."""
    beside_at = transition.work.beside_at
    return beside_at is not None and transition.now - beside_at <= COMPANY_S


def _over(transition: StateStep, failure: Failure | None) -> None:
    """Handle the end of the trainer or of packing: discard a dropped job, pack the output, or report the failure."""
    if transition.work.dropped:
        transition.finish()
    elif failure is None:
        transition.set(phase=Phase.PACKING)
        transition.do(t.Pack(assignment=transition.work.assignment))
    else:
        transition.fail(failure)


def _packed(transition: StateStep, event: t.Packed) -> None:
    delivery = t.Delivery(
        assignment=transition.work.assignment,
        path=event.path,
        sha256=event.sha256,
        size=event.size,
        record={**transition.work.usage, **event.record},
    )
    transition.set_work(delivery=delivery)
    if transition.work.dropped:
        transition.set_aside("its claim ended while it was packed")
        transition.finish()
        return
    transition.persist(t.Saved(delivery=delivery))
    transition.deliver(Phase.UPLOADING)
