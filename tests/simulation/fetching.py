"""Data sets on their way to simulated hosts: slow, broken off by whoever stops them, refused, or without room.

The cache is the production code, on a real disk; its threads are strands, and its network is a shelf on which each
chunk takes its time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulation.strand import HangUp, Strand
from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER, VALIDATION_FILE, job_identity, reads
from training.fleet.client.answers import Damaged, Refused, Unreachable
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.dataset_listing import Listing, cut
from training.fleet.worker.datasets import FLOOR_BYTES, DatasetCache, NotGiven, Order, Stopped
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure

if TYPE_CHECKING:
    from simulation.host import Host

_FROM, _EVERY, _WITH = 120, 7, 2  # so that fleets that planted bugs name go on meaning what they meant
_CHUNK = 100
_FILES = (VALIDATION_FILE, FEATURES_FILE, SCHEMA_FILE, f"{TENSORS_FOLDER}/tensors.npy", "notes.txt")


def has_data(seed: int) -> bool:
    """Return True when every other job of this seed's fleet names a data set."""
    return seed >= _FROM and seed % _EVERY == _WITH


def _listing(number: int) -> tuple[Listing, dict[str, bytes]]:
    chunks = {}
    files = []
    for at, path in enumerate(_FILES):
        parts = [f"{number} {path} {part} ".encode().ljust(_CHUNK, b".") for part in range(1 + (number + at) % 2)]
        file = cut(path, parts)
        files.append(file)
        chunks |= dict(zip(file.pieces, parts, strict=True))
    return Listing(tuple(sorted(files, key=lambda file: file.path))), chunks


_SHELF = [_listing(number) for number in range(3)]
DATA = {listing.dataset_id: (listing, chunks) for listing, chunks in _SHELF}
_SIZE = max(listing.size for listing, _ in _SHELF)


def with_data_sets(simulation: Any) -> None:
    """For ``run_seed(prepare=…)``: every other job names a data set, and has its id and its fate for that."""
    scenario = simulation.scenario
    fates = (scenario.work_s, scenario.illness.poison_s, scenario.illness.appetite)
    for number, job in enumerate([*scenario.jobs, *scenario.later_jobs][::2]):
        before, job["dataset"] = job["job_id"], [*DATA][number % len(DATA)]
        job["job_id"] = job_identity(job)
        for fate in fates:
            if before in fate:
                fate[job["job_id"]] = fate.pop(before)


class _Stop:
    """What :class:`threading.Event` is to an order, in simulated time."""

    def __init__(self, data: HostData) -> None:
        self._data, self._set = data, False
        self._go_on: Callable[[Any], None] = lambda _: None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        go_on, self._go_on = self._go_on, lambda _: None
        self._data.later(0.0, lambda: go_on(None))

    def wait(self, seconds: float) -> bool:
        def begin(go_on: Callable[[Any], None]) -> HangUp:
            def once(_: Any) -> None:
                cancel()
                self._go_on = lambda _: None
                go_on(None)

            cancel = self._data.later(seconds, lambda: once(None))
            self._go_on = once
            return cancel

        if not self._set:
            Strand.current().wait(begin)
        return self._set


class _Turns:
    """What a lock is to strands: who waits for it waits in simulated time."""

    def __init__(self, data: HostData) -> None:
        self._data = data
        self._held = False
        self._waiting: list[Callable[[Any], None]] = []

    def __enter__(self) -> None:
        if self._held:
            Strand.current().wait(self._queue_up)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = bool(self._waiting)
        if self._waiting:
            go_on = self._waiting.pop(0)
            self._data.later(0.0, lambda: go_on(None))

    def _queue_up(self, go_on: Callable[[Any], None]) -> HangUp:
        self._waiting.append(go_on)
        return lambda: None


class HostData:
    """The data sets on one host, and their fetches."""

    def __init__(self, host: Host, root: Path) -> None:
        self._world, self._host, self._part_s = host.world, host, host.scenario.measure_s
        self._chance = host.world.chance(f"data {host.machine}")
        at_once = self._chance.choice([1, 2, 3])  # of several slots all data sets find room
        free = self._chance.choice([2**50, 2**50, FLOOR_BYTES + 2**29])
        self.folder = root
        self.cache = DatasetCache(
            root,
            (len(DATA) if host.has_slots else at_once) * _SIZE,
            chance=self._chance.random,
            free_bytes=lambda _: free,
            in_use=self.in_use,
        )
        self._strands: list[Strand] = []
        self._orders: dict[str, Order] = {}  # of the jobs in hand, by claim
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.cache._one_at_a_time = _Turns(self)  # type: ignore[assignment]

    def in_use(self) -> set[str]:
        """List the data sets of the jobs in hand, as the worker's shell does."""
        works = self._host.state.works.values()
        return {work.assignment.dataset for work in works if work.assignment.dataset is not None}

    def later(self, seconds: float, thunk: Callable[[], None]) -> HangUp:
        """Let it happen after so long, if the program still runs then."""
        return self._host.soon(seconds, thunk).cancel

    # ── the worker's shell ──────────────────────────────────────────────────────────────────

    def fetch(self, assignment: t.Assignment, there: Callable[[], None]) -> None:
        """Fetch a job's data set; ends in ``there`` or in one SpawnFailed."""
        claim, dataset_id = assignment.claim_id, str(assignment.dataset)
        lacks: list[bool] = []

        def progress(done: int, size: int) -> None:
            lacks.append(True)
            self._tell(t.Fetching(claim_id=claim, done=done, size=size))

        def over(error: Exception | None) -> None:
            if error is None:
                self._world.tally["data sets fetched" if lacks else "data sets that were there"] += 1
                there()
                return
            broken = isinstance(error, Stopped)
            self._world.tally["fetches broken off" if broken else "fetches that failed"] += 1
            reason = EndReason.UPLOAD_FAILED if isinstance(error, NotGiven) else EndReason.SPAWN_FAILED
            self._tell(t.SpawnFailed(claim_id=claim, failure=Failure(reason, str(error))))

        order = Order(
            progress,
            _Stop(self),  # type: ignore[arg-type]
            wanted=partial(reads, assignment.spec),
        )
        self._orders[claim] = order
        self._run(lambda: self.cache.provide(dataset_id, _Shelf(self, dataset_id), order), over)

    def stop(self, claim_id: str) -> None:
        """Nobody wants it any more."""
        if order := self._orders.get(claim_id):
            order.stopped.set()

    def end(self) -> None:
        """The program is over; what has arrived stays."""
        strands, self._strands = self._strands, []
        for strand in strands:
            strand.end()
        self._orders.clear()
        self._begin_anew()

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _tell(self, event: t.Event) -> None:
        self.later(0.0, lambda: self._host.take(event))

    def _run(self, work: Callable[[], object], done: Callable[[Exception | None], None]) -> None:
        def over(error: Exception | None) -> None:
            if strand in self._strands:
                self._strands.remove(strand)
            if isinstance(error, AssertionError | AttributeError | TypeError) or type(error).__name__ == "Violation":
                raise error
            done(error)

        strand = Strand(work, over)
        self._strands.append(strand)
        strand.begin()

    def trouble(self) -> tuple[int, Callable[[], Exception]]:
        """Draw what goes wrong with a fetch, and at which of its requests."""
        kinds: tuple[Callable[[], Exception], ...] = (
            lambda: Refused(403, "not_yours", "the receiver does not give the data set", {}),
            lambda: OSError(errno.EIO, "the disk of this host fails"),
            lambda: Unreachable("nobody answers"),
            lambda: Damaged("a flipped bit"),
        )
        at = self._chance.randint(0, 3) if not self._host.calm and self._chance.random() < 0.3 else -1
        return at, self._chance.choice(kinds)

    def wait(self) -> None:
        """Wait for a chunk, on its strand."""
        seconds = self._chance.random() * self._part_s
        Strand.current().wait(lambda go_on: self.later(seconds, lambda: go_on(None)))


class _Shelf:
    """The receiver's data sets, for one fetch."""

    def __init__(self, data: HostData, dataset_id: str) -> None:
        self._data, self._dataset_id = data, dataset_id
        self._listing, self._chunks = DATA[dataset_id]
        self._at, self._trouble = data.trouble()
        self._requests = 0

    def listing(self, dataset_id: str, *, tries: int | None = None) -> Listing:
        self._answer("")
        return self._listing

    def piece(self, dataset_id: str, sha256: str, *, tries: int | None = None) -> bytes:
        self._answer(sha256)
        return self._chunks[sha256]

    def _answer(self, sha256: str) -> None:
        host = self._data._host
        host.all.chunk_asked(host, self._dataset_id, sha256)
        self._data.wait()
        host.all.chunk_came(host, self._dataset_id)
        self._requests += 1
        if self._requests - 1 == self._at:
            raise self._trouble()
