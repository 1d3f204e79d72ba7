"""PURE: what the trainer does, says and leaves."""

from __future__ import annotations

from training.fleet.process.ended import Ended, EndKind
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.constants import LOG_LINE_CHARS_MAX
from training.fleet.worker.state import events as t
from training.fleet.worker.state.outcome import LAST_WORDS, Failure, judge, parse_progress
from training.fleet.worker.state.state import SHUTDOWN, WITH_TRAINER, Phase, Turn, is_due

News = (
    t.Fetching | t.Spawned | t.SpawnFailed | t.Printed | t.Measured | t.TrainerEnded | t.Unbearable
    | t.Packed | t.PackFailed
)  # fmt: skip

MEASURE_S = 10.0
STEP_MAX_S = 60.0  # of what lies between two looks at a trainer counts so much: the host may have slept
CPU_SHARE = 0.001  # of its limit on silence; a trainer that computes less than that in it computes nothing


def news(turn: Turn, event: News) -> None:
    """Something happened to the trainer in hand. What comes when its phase is over is ignored."""
    match event:
        case t.Printed():
            _printed(turn, event.lines)
        case t.Measured() if turn.phase is Phase.RUNNING:
            _measured(turn, event.cpu_s)
        case t.Fetching() if turn.phase is Phase.STARTING:
            progress = {"event": "fetch", "bytes": event.done, "bytes_total": event.size}
            turn.set_work(progress=progress)
        case t.Spawned() if turn.phase is Phase.STARTING:
            _spawned(turn)
        case t.SpawnFailed() if turn.phase is Phase.STARTING:
            _over(turn, SHUTDOWN if turn.state.signals else event.failure)
        case t.TrainerEnded() if turn.phase in WITH_TRAINER:
            _ended(turn, event.ended)
        case t.Unbearable() if turn.phase is Phase.RUNNING:
            _stop(turn, event.failure)
        case t.Packed() if turn.phase is Phase.PACKING:
            _packed(turn, event)
        case t.PackFailed() if turn.phase is Phase.PACKING:
            _over(turn, event.failure)
        case _:
            pass


def catch_up(turn: Turn) -> None:
    """Lose patience with a trainer that does not stop."""
    if turn.phase is not Phase.STOPPING or not is_due(turn.work.stop_by, turn.now):
        return
    if not turn.work.killed:
        turn.kill()
        return
    name = turn.work.assignment.name
    turn.say(f"{name}: the trainer cannot be ended and is left behind", warning=True)
    _ended(turn, Ended(EndKind.LOST))


def _spawned(turn: Turn) -> None:
    turn.set(phase=Phase.RUNNING)
    if turn.work.dropped:
        turn.kill()
        return
    turn.set_work(beat_at=turn.now)
    if turn.work.progress is not None:  # of the data on its way, which is over; a silent trainer says nothing newer
        turn.set_work(progress={"event": "training"})
    if turn.state.signals:
        turn.stop()


def _stop(turn: Turn, failure: Failure) -> None:
    """Stop the trainer for what it does; politely first, so that it may save what it has learnt."""
    turn.say(f"stopping {turn.work.assignment.name}: {failure.error}", warning=True)
    turn.set_work(failure=failure)
    turn.stop()


def _printed(turn: Turn, lines: tuple[str, ...]) -> None:
    heed(turn, lines)
    turn.set_work(printed=turn.work.printed + len(lines), quiet_s=0.0)


def _measured(turn: Turn, cpu_s: float) -> None:
    """Add what was seen since the last look, and see whether it is too much. A pause is nobody's silence."""
    work = turn.work
    step_s = min(turn.now - (turn.now if work.measured_at is None else work.measured_at), STEP_MAX_S)
    most_run_s = limit_s(work.assignment, "max_run_s", 0.0)
    most_quiet_s = limit_s(work.assignment, "max_silence_s", turn.settings.max_silence_s)
    turn.set_work(measured_at=turn.now)
    if work.paused:
        return
    computes = abs(cpu_s - work.cpu_s) > CPU_SHARE * most_quiet_s
    run_s, quiet_s = work.run_s + step_s, 0.0 if computes else work.quiet_s + step_s
    turn.set_work(run_s=run_s, quiet_s=quiet_s, cpu_s=cpu_s if computes else work.cpu_s)
    if most_run_s and run_s >= most_run_s:
        words = (
            f"it ran for {in_time(run_s)} and may run for {in_time(most_run_s)}; "
            "raise max_run_s in the manifest, or give it less to do"
        )
        _stop(turn, Failure(EndReason.TRAINER_FAILED, words, goes_on=True))
    elif most_quiet_s and quiet_s >= most_quiet_s:
        words = (
            f"it said nothing and used no CPU for {in_time(quiet_s)}: it hangs; mend it, or raise "
            "max_silence_s in the manifest if it waits for something"
        )
        _stop(turn, Failure(EndReason.TRAINER_FAILED, words))


def measure_s(assignment: t.Assignment, settings: t.Settings) -> float:
    """Return how often to look at the trainer, so that no limit is overstepped by much."""
    limits = (
        limit_s(assignment, "max_run_s", 0.0),
        limit_s(assignment, "max_silence_s", settings.max_silence_s),
    )
    return min([MEASURE_S, *(limit / 4 for limit in limits if limit)])


def limit_s(assignment: t.Assignment, key: str, otherwise: float) -> float:
    """Return a limit of the job in seconds; 0 is none."""
    value = assignment.spec.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    return otherwise


def in_time(seconds: float) -> str:
    """``31 minutes``."""
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} seconds"


def heed(turn: Turn, lines: tuple[str, ...]) -> None:
    """Take from the trainer's lines what it says of its progress, of its error, and last."""
    work = turn.work
    progress, complaint = work.progress, work.complaint
    for fields in filter(None, map(parse_progress, lines)):
        if fields["event"] == "error":
            complaint = str(fields.get("message") or "") or complaint
        elif fields["event"] != "interrupted":
            progress = fields
    turn.set_work(
        progress=progress,
        complaint=complaint,
        last_words=tuple(line[:LOG_LINE_CHARS_MAX] for line in (work.last_words + lines)[-LAST_WORDS:]),
    )


def _ended(turn: Turn, ended: Ended) -> None:
    work = turn.work
    usage: dict[str, float] = {"cpu_s": ended.cpu_s, "max_rss_kib": ended.max_rss_kib}
    if work.started_at is not None:
        usage["train_s"] = round(turn.now - work.started_at, 3)
    turn.set_work(usage=usage, stop_by=None, paused=False)
    if ended.left:
        words = f"{work.assignment.name}: {ended.left} processes that its trainer started cannot be ended"
        turn.say(f"{words}; look for them with ps and end them as root", warning=True)
    failure = judge(ended, work.last_words, work.complaint)
    if failure is not None and turn.phase is Phase.STOPPING:
        failure = work.failure or SHUTDOWN  # it ended because we asked, and for that reason
    _over(turn, failure)


def _over(turn: Turn, failure: Failure | None) -> None:
    """No trainer runs any more. Forget it, pack what it made, or say why there is nothing to pack."""
    if turn.work.dropped:
        turn.finish()
    elif failure is None:
        turn.set(phase=Phase.PACKING)
        turn.do(t.Pack(assignment=turn.work.assignment))
    else:
        turn.fail(failure)


def _packed(turn: Turn, event: t.Packed) -> None:
    delivery = t.Delivery(
        assignment=turn.work.assignment,
        path=event.path,
        sha256=event.sha256,
        size=event.size,
        record={**turn.work.usage, **event.record},
    )
    turn.set_work(delivery=delivery)
    if turn.work.dropped:
        turn.set_aside("its claim ended while it was packed")
        turn.finish()
        return
    turn.persist(t.Saved(delivery=delivery))
    turn.set(phase=Phase.UPLOADING, call_at=turn.now, tries=0)
