"""The questions that pages ask: the receiver's views answer them, and a copy of a fleet for pages without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from training.fleet.service.views import Counted, Event, JobFilter, Move, Place, Waiting
from training.fleet.wire.messages import (
    CurveReply,
    ExplainReply,
    JobDetail,
    JobView,
    LogReply,
    ModelsReply,
    WorkersReply,
)
from training.fleet.wire.views import ReportView


class ResultSource(Protocol):
    """The results of jobs."""

    def report(self, job_id: str, attempt: int | None = None) -> ReportView | None: ...

    def models(self, *, test: str | None = None, after: str = "", limit: int = 50) -> ModelsReply: ...


class Source(Protocol):
    """All that pages show; what each answers is written where :class:`Views` does."""

    @property
    def models(self) -> ResultSource: ...

    def counts(self) -> dict[str, int]: ...

    def job(self, job_id: str) -> JobDetail: ...

    def curve(self, job_id: str, *, attempt: int | None = None, points: int = 500) -> CurveReply: ...

    def explain(self, job_id: str) -> ExplainReply: ...

    def log_end(self, job_id: str, attempt: int, most: int) -> LogReply: ...

    def live(self) -> list[JobView]: ...

    def waiting(self) -> list[Waiting]: ...

    def moves(self, most: int) -> list[Move]: ...

    def workers(self, *, after: str = "", limit: int = 200) -> WorkersReply: ...

    def found(self, wanted: JobFilter, sort: str, after: Place, most: int) -> tuple[list[JobView], Place | None]: ...

    def counted(self, text: str = "") -> Sequence[Counted]: ...

    def held(self, wanted: JobFilter | None = None) -> int: ...

    def events(
        self, *, before: int | None = None, job_id: str = "", host: str = "", transition: str = "", limit: int
    ) -> list[Event]: ...
