"""PURE: what the trainer does, says and leaves."""

from __future__ import annotations

from training.fleet import worker_types as t
from training.fleet.outcome import LAST_WORDS, Ended, EndKind, Failure, judge, parse_progress
from training.fleet.worker_turn import SHUTDOWN, WITH_TRAINER, Phase, Turn, is_due

News = (
    t.Spawned | t.SpawnFailed | t.Printed | t.TrainerEnded | t.Unbearable | t.Packed | t.PackFailed
)


def news(turn: Turn, event: News) -> None:
    """Something happened to the trainer in hand. What comes when its phase is over is ignored."""
    match event:
        case t.Printed():
            _printed(turn, event.lines)
        case t.Spawned() if turn.phase is Phase.STARTING:
            _spawned(turn)
        case t.SpawnFailed() if turn.phase is Phase.STARTING:
            _over(turn, SHUTDOWN if turn.state.signals else event.failure)
        case t.TrainerEnded() if turn.phase in WITH_TRAINER:
            _ended(turn, event.ended)
        case t.Unbearable() if turn.phase is Phase.RUNNING:
            turn.say(f"stopping {turn.work.assignment.name}: {event.failure.error}", warning=True)
            turn.set_work(failure=event.failure)
            turn.stop()
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
    if turn.state.signals:
        turn.stop()


def _printed(turn: Turn, lines: tuple[str, ...]) -> None:
    work = turn.work
    progress, complaint = work.progress, work.complaint
    for fields in filter(None, map(parse_progress, lines)):
        if fields["event"] == "error":
            complaint = str(fields.get("message") or "") or complaint
        elif fields["event"] != "interrupted":
            progress = fields
    waiting = work.lines + lines
    too_many = max(0, len(waiting) - turn.settings.lines_kept)
    turn.set_work(
        progress=progress,
        complaint=complaint,
        lines=waiting[too_many:],
        first=work.first + too_many,
        last_words=(work.last_words + lines)[-LAST_WORDS:],
    )


def _ended(turn: Turn, ended: Ended) -> None:
    work = turn.work
    usage = {
        "train_s": round(turn.now - work.started_at, 3),
        "cpu_s": ended.cpu_s,
        "max_rss_kib": ended.max_rss_kib,
    }
    turn.set_work(usage=usage, stop_by=None, paused=False)
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
    if turn.work.dropped:
        turn.finish()
        return
    delivery = t.Delivery(
        assignment=turn.work.assignment,
        path=event.path,
        sha256=event.sha256,
        size=event.size,
        record={**turn.work.usage, **event.record},
    )
    turn.persist(t.Saved(delivery=delivery))
    turn.set_work(delivery=delivery)
    turn.set(phase=Phase.UPLOADING, call_at=turn.now, tries=0)
