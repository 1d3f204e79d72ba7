"""The storage of trainers' output: each line once, each epoch that a line reports, and progress that never goes
back."""

from collections.abc import Sequence

from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.job import Attempt
from training.fleet.wire.attempts import CompleteRequest, FailRequest, LogLines
from training.fleet.wire.constants import LOG_LINE_CHARS_MAX, LOG_LINES_MAX
from training.fleet.wire.progress import point_in, point_of
from training.strict_json import Json


def keep_lines(queue: JobQueue, attempt: Attempt, log: LogLines | None) -> int:
    """Store output lines and the epochs that they report; return the number of the next line that is not stored."""
    if log is None:
        return attempt.log_next
    if log.total is not None and log.total >= attempt.log_next and log.total > (attempt.log_total or -1):
        # A late word, or that of a copied disk, knows of fewer lines; none was taken back.
        queue.attempts.note_total(attempt, log.total)
    if not log.lines:
        return attempt.log_next
    first = max(0, log.first)
    lines = [
        line[:LOG_LINE_CHARS_MAX].replace("\n", " ")  # or one line would be stored as two
        for line in log.lines[:LOG_LINES_MAX]
    ]
    after = queue.attempts.append_log(attempt, first, lines)
    queue.attempts.correct_total(attempt, after)
    keep_points(queue, attempt, max(first, attempt.log_next), lines[max(0, attempt.log_next - first) :])
    return after


def keep_points(queue: JobQueue, attempt: Attempt, first: int, lines: Sequence[str]) -> None:
    """Store the epochs that these output lines report; ``first`` is the number of the first line."""
    found = ((number, point_in(line)) for number, line in enumerate(lines, first))
    queue.curves.add(attempt, [(number, point._asdict()) for number, point in found if point is not None])


def keep_progress(queue: JobQueue, attempt: Attempt, seq: int, progress: Json | None) -> None:
    """Store the epoch that a heartbeat's progress reports, if the heartbeat is newer than the last stored one."""
    point = point_of(progress)
    if point is not None and seq > attempt.seq:
        queue.curves.hear(attempt, point._asdict())


def keep_last_words(queue: JobQueue, attempt: Attempt, request: CompleteRequest | FailRequest) -> None:
    """Store the output and progress that accompany a completion or failure report, also when the report is repeated."""
    keep_progress(queue, attempt, request.seq, request.progress)
    keep_lines(queue, attempt, request.log)
    if request.progress is not None:
        queue.attempts.note_progress(attempt, request.seq, request.progress)
