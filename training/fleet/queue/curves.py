"""The curves of attempts: a row for each epoch that a trainer reported, and samples of the resources that the trainer
used.

The number of rows is limited. If an attempt has too many epochs, they are thinned evenly, keeping the lowest and
highest figures of each group of epochs. The longer an attempt runs, the further apart are its samples.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from training.fleet.database.writer import Database, Row
from training.fleet.scheduling.job import Attempt
from training.strict_json import Json

POINTS_KEPT = 20_000  # epochs of one attempt; beyond these, half of them
SAMPLES_APART_S = 1.0  # two samples of an attempt at least …
SAMPLES_APART_SHARE = 0.001  # … and this share of its age: all heartbeats of eight hours, and never many thousands
_A_POINT_BUCKET = 4  # rows of a bucket: lowest and highest loss and metric
_A_SAMPLE_BUCKET = 8  # lowest and highest CPU, memory, GPU, GPU memory


@dataclass
class Curves:
    """The rows of curves and samples in the queue's database."""

    _db: Database

    def add(self, attempt: Attempt, points: Iterable[tuple[int, Json]]) -> None:
        """Store the points of these output lines, as pairs of line number and point; a figure of an epoch that was
        reported before is replaced, unless the new one is None.

        A point has ``epoch``, ``loss``, ``metric`` and ``seconds``, the last three perhaps None.
        """
        self._keep("add_point", attempt, [{"line": line, **point} for line, point in points])

    def hear(self, attempt: Attempt, point: Json) -> None:
        """Store a point that a heartbeat reports before its output line arrives; a point from a line is not
        replaced."""
        self._keep("hear_point", attempt, [point])

    def add_sample(self, attempt: Attempt, seq: int, seconds: float, used: Json) -> None:
        """Store what the attempt used of its host ``seconds`` after its grant, unless the last sample is too recent.
        Repeating a heartbeat changes nothing."""
        apart_s = max(SAMPLES_APART_S, SAMPLES_APART_SHARE * seconds)
        self._db.run("add_sample", **attempt.key, seq=seq, seconds=seconds, apart_s=apart_s, **used)

    def of_job(self, job_id: str, attempt: int | None, most: int) -> list[Row]:
        """Return at most ``most`` points of a job's curve, or of one attempt's, in the order of epochs; of too many,
        those with the lowest and highest figures of each group of epochs.

        Of each attempt, only the epochs before the first epoch of every later attempt are returned.
        """
        buckets = max(1, (most - 2) // _A_POINT_BUCKET)
        return self._db.all("curve", job_id=job_id, attempt=attempt, most=most, buckets=buckets)

    def samples(self, job_id: str, attempt: int, most: int) -> list[Row]:
        """Return at most ``most`` samples of an attempt, in the order of time; of too many, those with the lowest and
        highest figures of each span of time."""
        buckets = max(1, (most - 2) // _A_SAMPLE_BUCKET)
        return self._db.all("samples", job_id=job_id, attempt=attempt, most=most, buckets=buckets)

    def _keep(self, statement: str, attempt: Attempt, points: list[Json]) -> None:
        if not points:
            return
        key = attempt.key
        with self._db.transaction():
            for point in points:
                self._db.run(statement, **key, **point)
            if self._db.number("count_points", **key) > POINTS_KEPT:
                self._db.run("thin_points", **key, buckets=POINTS_KEPT // 2 // _A_POINT_BUCKET)
