"""Views of attempts' output and curves, and of what retention deleted."""

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.queue.curves import POINTS_KEPT, Curves
from training.fleet.scheduling.job import LIVE, JobStatus
from training.fleet.service.logs import Logs, Page
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.views import CurveAttempt, CurvePoint, CurveReply, LogReply, RemovedView, UsageSample
from training.printable import one_line
from training.strict_json import Json

CURVE_POINTS = 500  # in one answer, unless told
CURVE_POINTS_LEAST = 10


class OutputViews:
    """Queries about output and curves, on the last committed state."""

    def __init__(self, database: Database, clock: Clock, logs: Logs) -> None:
        self._db, self._clock, self.logs, self._curves = database, clock, logs, Curves(database)

    def log(self, job_id: str, *, attempt: int | None = None, after: int = 0) -> LogReply:
        """Return a page of output lines of an attempt (by default the last), from line number ``after`` on; the first
        line has the number 0."""
        row = job_row(self._db, job_id)
        number = _attempt(row, attempt)
        return self._log(row, number, self.logs.page(job_id, number, after))

    def curve(self, job_id: str, *, attempt: int | None = None, points: int = CURVE_POINTS) -> CurveReply:
        """Return a job's curve, or one attempt's: at most ``points`` epochs, and as many samples of the resources used.

        ``points`` is brought into the range from 10 to 20,000. Thinning keeps the lowest and highest value of each
        series in each group of neighbours. The samples are those of ``attempt``, or of the last attempt.
        """
        row = job_row(self._db, job_id)
        most = max(CURVE_POINTS_LEAST, min(points, POINTS_KEPT))
        number = _attempt(row, attempt)
        attempts = {each["attempt"]: each for each in self._db.all("attempts_of_job", job_id=job_id)}
        rows = self._db.all("curve_spans", job_id=job_id, attempt=attempt)
        spans = [each for each in rows if each["attempt"] in attempts]
        return CurveReply(
            job_id=job_id,
            name=row["name"],
            status=row["status"],
            attempts=[_in_curve(attempts[each["attempt"]], each) for each in spans],
            points=[CurvePoint(**dict(each)) for each in self._curves.of_job(job_id, attempt, most)],
            epochs=sum(each["n"] for each in spans),
            usage_attempt=number,
            usage=self.samples(job_id, number, most),
            now=self._clock.now(),
            removed=_gone(self._db, "curve", job_id, number),
        )

    def samples(self, job_id: str, attempt: int, most: int) -> list[UsageSample]:
        """Return at most ``most`` samples of what an attempt used of its host, in the order of time."""
        return [UsageSample(**dict(each)) for each in self._curves.samples(job_id, attempt, most)]

    def log_end(self, job_id: str, attempt: int, most: int) -> LogReply:
        """Return the last ``most`` lines, at most, of an attempt's output."""
        return self._log(job_row(self._db, job_id), attempt, self.logs.end(job_id, attempt, most))

    def _log(self, row: Row, attempt: int, page: Page) -> LogReply:
        live = JobStatus(row["status"]) in LIVE and attempt == row["attempt"]
        about = self._db.one("attempt_of_job", job_id=row["job_id"], attempt=attempt)
        complete = about is not None and _is_complete(about)
        gone = None if page.lines else _gone(self._db, "log", row["job_id"], attempt)
        return LogReply.of(page, job_id=row["job_id"], attempt=attempt, live=live, complete=complete, removed=gone)


def job_row(db: Database, job_id: str) -> Row:
    """Read a job's row with the columns that lists show; raise Refusal for an unknown id."""
    row = db.one("job_shown", job_id=job_id)
    if row is None:
        raise Refusal(ProblemType.UNKNOWN_JOB, f"no job has the id {job_id[:80]!r}")
    return row


def _attempt(row: Row, number: int | None) -> int:
    """Return the number of the requested attempt, by default the job's last (0 if it was never granted); raise Refusal
    for a number that no attempt has."""
    last = int(row["attempt"])
    if number is not None and not 1 <= number <= last:
        known = f"the last one is {last}" if last else "it has not been granted yet"
        raise Refusal(ProblemType.NOT_FOUND, f"{one_line(row['name'], 60)} has no attempt {number}; {known}")
    return last if number is None else number


def bundle_gone(db: Database, model: str, mode: str, artifact_id: str) -> RemovedView | None:
    """Return when and why retention deleted a bundle; None if it did not."""
    return _gone(db, "bundle", f"{model}_{mode}/{artifact_id}", 0)


def gone_of(row: Json) -> RemovedView | None:
    """Return when and why retention deleted the bundle of a job list's row; None if it was not deleted."""
    if row["removed_at"] is None:
        return None
    return RemovedView(what="bundle", attempt=row["attempt"], at=row["removed_at"], why=row["removed_why"])


def _gone(db: Database, what: str, subject: str, number: int) -> RemovedView | None:
    row = db.one("removal", what=what, subject=subject, number=number)
    return None if row is None else RemovedView.of(row, what=what, attempt=number)


def _in_curve(row: Row, span: Row) -> CurveAttempt:
    return CurveAttempt.of(row, first=span["first"], last=span["last"], epochs=span["n"], complete=_is_complete(row))


def _is_complete(row: Row) -> bool | None:
    """Return True if an attempt has ended and all its output has arrived, False if not, None if it has ended and the
    amount of its output is unknown."""
    if row["ended_at"] is None:
        return False
    return None if row["log_total"] is None else bool(row["log_next"] >= row["log_total"])
