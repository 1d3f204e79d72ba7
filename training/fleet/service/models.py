"""Views of results: the figures in a job's report, and a comparison of models that were judged on the same test.
Read-only."""

import json

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.scheduling.job import JobStatus
from training.fleet.service.catalogue import artifact_of
from training.fleet.service.output_views import gone_of
from training.fleet.service.rotations import Rotations, result_of
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.errors import StoreError
from training.fleet.wire import reports
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.views import (
    Figure,
    ModelsReply,
    ModelView,
    NamedJob,
    ReportView,
    ResultView,
    TestView,
    TwinView,
)
from training.fleet.wire.words import name_of_test
from training.strict_json import Json

PAGE_MAX = 200  # models in one answer
PAGE = 50
TESTS_MAX = 20
WITHOUT_NAMED = 4
MANY, MANY_S = 5000, 10.0  # of more models than that, tests are counted at most so often
FIRST, TIED, BEHIND, UNKNOWN = "first", "tied", "behind", "unknown"


class Models:
    """Queries about results, on the last committed state."""

    def __init__(self, database: Database, clock: Clock, store: ArtifactStore | None) -> None:
        self._db, self._clock, self._store = database, clock, store
        self._rotations = Rotations(database, clock)
        self._known: tuple[list[TestView], int, list[NamedJob]] = [], 0, []
        self._known_as_of, self._counted_at = (-1, -1), 0.0  # an event and a plan; when

    def result(self, job: Json) -> ResultView | None:
        """Return the main figures of a completed job's report; ``job`` is its row. Return None for other jobs, or
        without a stored report."""
        if job["status"] != JobStatus.COMPLETED:
            return None
        row = self._db.one("result", job_id=job["job_id"], attempt=job["attempt"])
        return None if row is None else result_of(row["figures"])

    def report(self, job_id: str, attempt: int | None = None) -> ReportView | None:
        """Return a job's report; None if none is stored. If the store cannot read it, the view contains the error."""
        try:
            return reports.read(self.report_bytes(job_id, attempt))
        except StoreError as error:
            return ReportView(result=ResultView(why=str(error)))
        except Refusal:
            return None

    def report_bytes(self, job_id: str, attempt: int | None = None) -> bytes:
        """Return a report exactly as its trainer wrote it. Raise Refusal if none is stored, StoreError if it cannot be
        read."""
        job = self._db.one("job", job_id=job_id)
        assert job is not None
        row = self._db.one("result", job_id=job_id, attempt=attempt or job["attempt"])
        if row is None or self._store is None:
            raise Refusal(
                ProblemType.NO_ARTIFACT,
                f"no report of job {job['name']} is kept here; `cis490-jobs get` fetches what its bundle holds",
            )
        return self._store.report(artifact_of(row), row["report"])

    def models(self, *, test: str | None = None, after: str = "", limit: int = PAGE) -> ModelsReply:
        """Return a page of the models judged on a test, the best first; by default the test on which most of the
        plan's models were judged."""
        most = max(1, min(limit, PAGE_MAX))
        tests, without, named = self._tests()
        chosen = tests[0].test if test is None and tests else test or ""
        place, job_id = _place(after)
        key = {"test": chosen or None}
        rows = self._db.all("results_ranked", **key, place=place, job_id=job_id, most=most + 1)
        first = self._db.all("results_ranked", **key, place=-2.0, job_id="", most=1)
        best = result_of(first[0]["figures"]).auroc if first and chosen else Figure()
        shown = rows[:most]
        return ModelsReply(
            test=chosen,
            tests=tests,
            models=[
                self._model(row, best, leads=bool(chosen) and row["job_id"] == first[0]["job_id"]) for row in shown
            ],
            without=without,
            without_jobs=named,
            now=self._clock.now(),
            rotations=[] if after else self._rotations.all(),
            next_after=f"{shown[-1]['place']!r},{shown[-1]['job_id']}" if len(rows) > most else None,
        )

    def _model(self, row: Row, best: Figure, *, leads: bool) -> ModelView:
        result = result_of(row["figures"])
        return ModelView.of(
            row,
            in_manifest=bool(row["in_manifest"]),
            standing=FIRST if leads else standing(result.auroc, best),
            result=result,
            twin=self._twin(row, result),
            removed=gone_of(row),
        )

    def _twin(self, row: Row, result: ResultView) -> TwinView | None:
        other = self._db.one("result_twin", twin=row["twin"], mode=row["mode"], job_id=row["job_id"])
        if other is None:
            return None
        found = result_of(other["figures"])
        return TwinView.of(
            other,
            in_manifest=bool(other["in_manifest"]),
            auroc=found.auroc,
            same_test=bool(result.test) and result.test == found.test,
        )

    def _tests(self) -> tuple[list[TestView], int, list[NamedJob]]:
        """Return the tests, the number of completed jobs without a report, and the first few of these jobs. The result
        is cached until the next event, or longer if there are many models."""
        head = self._db.number("newest_event"), self._db.number("edition")
        models, age_s = sum(each.models for each in self._known[0]), self._clock.monotonic() - self._counted_at
        if self._known_as_of != head and (models <= MANY or age_s >= MANY_S):
            names = {row["dataset_id"]: row["name"] for row in self._db.all("plan_datasets")}
            tests = [
                TestView(
                    test=each["test"] or "",
                    models=each["n"],
                    name=name_of_test(json.loads(each["spec"]), names) if each["test"] else "unknown test",
                )
                for each in self._db.all("results_tests", most=TESTS_MAX)
            ]
            missing = self._db.all("results_missing", most=WITHOUT_NAMED)
            named = [NamedJob.of(each, in_manifest=bool(each["in_manifest"])) for each in missing]
            self._known = tests, missing[0]["n"] if missing else 0, named
            self._known_as_of, self._counted_at = head, self._clock.monotonic()
        return self._known


def standing(figure: Figure, best: Figure) -> str:
    """Compare a model with the best one on the same test: tied if their confidence intervals overlap, behind if not,
    unknown without intervals.

    The comparison of intervals is cautious: two models may differ although their intervals overlap, which a paired
    comparison of their scores shows (`training.trainer.compare`).
    """
    if figure.high is None or best.low is None:
        return UNKNOWN
    return TIED if figure.high >= best.low else BEHIND


def auroc_of(row: Json) -> Figure | None:
    """Return the AUROC with its interval from a row of a job list; None if the row has none."""
    if "auroc" not in row.keys() or row["auroc"] is None:  # noqa: SIM118 - a database's row iterates over its values
        return None
    return Figure(value=row["auroc"], low=row["auroc_low"], high=row["auroc_high"])


def _place(text: str) -> tuple[float, str]:
    """Read a place in the list of models (value and job id) from an address; an invalid text means the beginning."""
    number, _, job_id = text.partition(",")
    try:
        return float(number[:30]), job_id[:128]
    except ValueError:
        return -2.0, ""
