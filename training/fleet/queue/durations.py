"""The completed attempts from which :mod:`training.fleet.scheduling.durations` learns, read from the database. Attempts
that may have continued an earlier one's training are left out."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from training.fleet.database.writer import Database, Row
from training.fleet.queue.rows import booked_of
from training.fleet.scheduling.calibrations import Calibrations
from training.fleet.scheduling.durations import Speeds
from training.fleet.scheduling.resources import NOT_KNOWN, Peak
from training.fleet.scheduling.threads import speedup
from training.fleet.scheduling.workload import Workload
from training.strict_json import Json

LEARNED_FROM = 2_000  # attempts, the newest; up to twice as many in a process that runs long
_KIB_PER_GIB = 1024**2
_NOT_CALIBRATED = Calibrations()


@dataclass(slots=True)
class OfKind:
    """The completed attempts of a kind of job, summed up: the newest one's job dict, their number, and the most memory
    used."""

    job: str  # the newest's job dict, as JSON, without what names it
    attempts: int = 0
    ram_gib: float | None = None  # the most that a trainer held; None: not known
    vram_gib: float | None = None  # the same of a GPU's memory

    @property
    def spec(self) -> Json:
        """Return the job dict of the newest attempt, without name, id and seed."""
        spec: Json = json.loads(self.job)
        return spec


class Learned:
    """The durations and memory learned so far. :meth:`speeds`, :meth:`kinds` and :meth:`version` first learn from the
    attempts that completed since the last update.

    At the first use in each process, all is computed from the newest completed attempts, at most ``most``. Only one
    thread may use an object of this class.
    """

    def __init__(
        self,
        db: Database,
        most: int = LEARNED_FROM,
        data_bytes: Callable[[str], float | None] = lambda _dataset_id: None,
        calibrations: Callable[[], Calibrations] = lambda: _NOT_CALIBRATED,
    ) -> None:
        """``data_bytes`` returns the size of the data set with this id in bytes, or None if it is not known.

        ``calibrations`` returns the hosts' own measurements: the same object until one of them changes.
        """
        self._db, self._most, self._speeds = db, most, Speeds()
        self._data_bytes, self._calibrations = data_bytes, calibrations
        self._kinds: dict[str, OfKind] = {}
        self.attempts = self._begun = 0  # attempts that taught something
        self._seen = -1  # the last event that was looked at

    def speeds(self) -> Speeds:
        """Return what is known about durations, brought up to date."""
        self._look()
        return self._speeds

    def kinds(self) -> Mapping[str, OfKind]:
        """Return the kinds of jobs learned so far, by their canonical names; the kind of the attempt learned last is
        last."""
        self._look()
        return self._kinds

    def peak(self, kind: str) -> Peak:
        """Return the most memory that trainers of a kind were seen to use, as of the last update."""
        known = self._kinds.get(kind)
        return NOT_KNOWN if known is None else Peak(known.ram_gib, known.vram_gib)

    def workload(self, spec: Json) -> Workload:
        """Return the facts in a job dict that determine how long the job takes."""
        dataset = spec.get("dataset")
        return Workload.of(spec, self._data_bytes(dataset) if isinstance(dataset, str) and dataset else None)

    def version(self) -> tuple[int, int]:
        """Return a value that changes whenever a newly completed attempt or a changed calibration was learned."""
        self._look()
        return self._begun, self.attempts

    def _look(self) -> None:
        """Learn from the attempts that completed since the last update, in the order of events, independently of any
        clock."""
        newest, calibrations = self._db.number("newest_event"), self._calibrations()
        if calibrations is not self._speeds.calibrations:
            self._speeds.calibrate(calibrations)
            self._begun += 1
        if newest == self._seen:
            return
        if 0 <= self._seen < newest and self.attempts < 2 * self._most:
            rows = self._db.all("attempts_timed_since", after=self._seen)
        else:  # the first look, or one after so many that most of what is held is out of date
            self._speeds = Speeds(calibrations=calibrations)
            self._kinds, self.attempts, self._begun = {}, 0, self._begun + 1
            # In the order in which they completed; the oldest may have no event any more.
            rows = sorted(self._db.all("attempts_timed", most=self._most), key=lambda row: (row["seq"], row["age"]))
        works: dict[str, Workload] = {}
        for row in rows:
            self._learn(row, works)
        self._seen = max(newest, rows[-1]["seq"] if rows else 0)  # some may have completed since the first statement

    def _learn(self, row: Row, works: dict[str, Workload]) -> None:
        """Learn from one completed attempt. ``works`` caches the workloads of earlier job dicts."""
        seconds = _positive(row["train_s"])
        if seconds is None:
            return
        job = row["job"]
        work = works.get(job)
        if work is None:
            work = works[job] = self.workload(json.loads(job))
        known = self._kinds.pop(work.kind, None) or OfKind(job)
        self._kinds[work.kind] = known  # moved to the end
        known.job = job
        known.attempts += 1
        known.ram_gib = _higher(known.ram_gib, row["max_rss_kib"])
        known.vram_gib = _higher(known.vram_gib, row["max_vram_kib"])
        self.attempts += 1
        on_one = seconds * speedup(work.family, booked_of(row))
        self._speeds.learn(work, row["host"], on_one)


def _higher(gib: float | None, kib: object) -> float | None:
    """Return the higher of a known peak in GiB and one that a worker's record states in KiB; an invalid statement does
    not count."""
    told = _positive(kib)
    return gib if told is None else max(told / _KIB_PER_GIB, gib or 0.0)


def _positive(value: object) -> float | None:
    """Return a finite number above zero from a worker's record as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        return None
    return float(value)
