"""The promise about workers that share a machine: nobody touches what another one uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.witness import Checker
from training.fleet.worker.state.events import Assignment
from training.fleet.worker.state_folder import AttemptFolders

if TYPE_CHECKING:
    from simulation.host import Host


class NobodyElsesFolder(Checker):
    """No worker removes or writes a folder of another one's attempt, and no two workers hold one folder at once.

    Workers of one machine with names of their own are never in each other's way: none of them is refused.
    """

    def prepare(self) -> None:
        self._attempts: dict[tuple[str, str], AttemptFolders] = {}  # by machine and claim

    def refused(self, host: Host, why: str) -> None:
        self.demand(False, f"{host.machine} was refused beside another worker: {why}")

    def second(self, host: Host, refusal: str | None) -> None:
        self.demand(refusal is not None, f"a second worker took folders of {host.machine}")
        told = refusal is not None and "another worker uses" in refusal
        self.demand(told, f"a second worker was refused with other words: {refusal}")

    def ended(self, host: Host) -> None:
        for key in [key for key in self._attempts if key[0] == host.machine]:
            del self._attempts[key]

    def used_disk(self, host: Host, begun: Assignment | None, over: Assignment | None) -> None:
        if over is not None:
            self._attempts.pop((host.machine, over.claim_id), None)
        if begun is not None and host.disk is not None:
            folders = host.disk.folders(begun)
            self.demand(folders not in self._attempts.values(), f"two attempts on {host.machine} share a folder")
            self._attempts[host.machine, begun.claim_id] = folders
        for (machine, claim), folders in self._attempts.items():
            there = folders.out.is_dir() and folders.reports.is_dir() and folders.log.is_file()
            self.demand(there, f"{host.machine} removed a folder of {claim[:8]} on {machine}")
            if machine != host.machine:
                self.world.tally["pruned or made beside a running attempt"] += 1
