"""The promises about data sets on hosts: fetched once, one at a time, jobs first, and never from under a trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.fetching import DATA
from simulation.witness import Checker
from training.contract import reads
from training.fleet.worker.state import events as t

if TYPE_CHECKING:
    from simulation.host import Host


class OneFetchAtATime(Checker):
    """On a host one data set is on its way at a time; what has arrived is not fetched again."""

    def prepare(self) -> None:
        self._on_its_way: dict[str, str] = {}  # machine → data set

    def ended(self, host: Host) -> None:
        self._on_its_way.pop(host.machine, None)

    def chunk_asked(self, host: Host, dataset_id: str, sha256: str) -> None:
        other = self._on_its_way.get(host.machine)
        self.demand(other is None, f"{host.machine} fetches {dataset_id[:8]} while {str(other)[:8]} is on its way")
        self._on_its_way[host.machine] = dataset_id
        if not sha256:
            return
        listing, chunks = DATA[dataset_id]
        for place in listing.places():
            for kind in ("sets", "fetching"):
                path = host.data.folder / kind / dataset_id / place.path
                if place.sha256 == sha256 and path.is_file():
                    there = path.read_bytes()[place.offset : place.offset + place.length]
                    self.demand(there != chunks[sha256], f"{host.machine} fetches a chunk that is there")

    def chunk_came(self, host: Host, dataset_id: str) -> None:
        self._on_its_way.pop(host.machine, None)


class DataInUseStays(Checker):
    """What a trainer reads is there for as long as it runs."""

    def event(self, host: Host, event: t.Event) -> None:
        for trainer in host.trainers.values():
            job = trainer.assignment
            if job.dataset is None or trainer.over:
                continue
            listing, _ = DATA[job.dataset]
            for file in listing.files:
                if reads(job.spec, file.path):
                    path = host.data.folder / "sets" / job.dataset / file.path
                    self.demand(path.is_file(), f"{file.path} is gone under the trainer of {job.job_id[:8]}")
