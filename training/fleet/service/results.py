"""Convert trainers' reports to rows and views; each report is read once, when it arrives."""

from __future__ import annotations

import msgspec

from training.fleet.queue.results import KeptReport
from training.fleet.wire import reports
from training.fleet.wire.views import ResultView


def kept_of(digest: str, body: bytes) -> KeptReport:
    """Convert a report to its row; invalid parts are left out."""
    result = reports.read(body).result
    return KeptReport(
        report=digest,
        bytes=len(body),
        figures=msgspec.json.encode(result).decode(),
        test=result.test or None,
        auroc=result.auroc.value,
        auroc_low=result.auroc.low,
        auroc_high=result.auroc.high,
    )


def result_of(figures: str) -> ResultView:
    """Convert the row's figures to a view; figures in another form count as not readable."""
    try:
        return msgspec.json.decode(figures, type=ResultView)
    except (msgspec.MsgspecError, RecursionError):
        return ResultView(why="another release kept its figures; the report itself is in the store")
