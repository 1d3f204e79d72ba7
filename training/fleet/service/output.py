"""Storing trainers' output: each line once, progress never moved back."""

from __future__ import annotations

from training.fleet.queue.attempts import Attempts
from training.fleet.scheduling.job import Attempt
from training.fleet.wire.messages import (
    LOG_LINE_CHARS_MAX,
    LOG_LINES_MAX,
    CompleteRequest,
    FailRequest,
    LogLines,
)


def keep_lines(attempts: Attempts, attempt: Attempt, log: LogLines | None) -> int:
    """Store output lines; returns the number of the next one that is not stored."""
    if log is None or not log.lines:
        return attempt.log_next
    lines = [
        line[:LOG_LINE_CHARS_MAX].replace("\n", " ")  # or one line would be stored as two
        for line in log.lines[:LOG_LINES_MAX]
    ]
    return attempts.append_log(attempt, max(0, log.first), lines)


def keep_last_words(attempts: Attempts, attempt: Attempt, request: CompleteRequest | FailRequest) -> None:
    """Store the output that comes with a report; also when the same report comes again."""
    keep_lines(attempts, attempt, request.log)
    if request.progress is not None:
        attempts.note_progress(attempt, request.seq, request.progress)
