"""The choice of a host's job: the best of the heads of every requirement class and gate, never a scan of all.

A class that does not fit the host costs one comparison, one that fits one step into an index for each gate; a
property test holds the outcome equal to a full scan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.fleet.database.writer import Database, Row
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import Host, Needs
from training.fleet.scheduling.policy import Fleet, Policy

_ABOVE_ALL = 2**62  # above every priority
_OPEN = ""  # the gate of the jobs that avoid no host

Head = tuple[tuple[int, float, int], str]  # rank and id of a job


@dataclass(frozen=True, slots=True)
class NoJob:
    """The reason for which nothing was granted; ``retry_after_s`` when time alone will change that."""

    reason: str
    retry_after_s: float | None = None


class Chooser:
    """Looks at the queue on behalf of a host that asks."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._needs: dict[int, Needs] = {}  # of each class; a class never changes

    def choose(self, host: Host, fleet: Fleet, policy: Policy, now: float) -> str | NoJob:
        """The id of the best job that ``host`` may have now. To be called in the granting transaction."""
        gates = self._gates(now)
        heads: list[Head] = []
        obstacle: str | None = None
        waits: list[tuple[float, str]] = []
        for class_id, needs in self._pending_needs():
            misfit = rules.fits(needs, host)
            if misfit is not None:
                obstacle = obstacle or misfit
                continue
            held = rules.hold(needs, host, fleet, policy)
            for gate, until in ((_OPEN, now), *gates.get(class_id, ())):
                if rules.must_avoid(needs, gate, host, fleet):
                    waits.append((until - now, "it failed here, another host goes first"))
                    continue
                head, wait_s = self._head(class_id, gate, held.seconds, now)
                if head is not None:
                    heads.append(head)
                if wait_s is not None:
                    waits.append((wait_s, held.reason or "it failed a moment ago"))
        return min(heads)[1] if heads else self._nothing(waits, obstacle)

    def _pending_needs(self) -> list[tuple[int, Needs]]:
        """The requirement classes with a pending job."""
        return [(row["class_id"], self._needs_of(row)) for row in self._db.all("pending_classes")]

    def _gates(self, now: float) -> dict[int, list[tuple[str, float]]]:
        """For each class the hosts that some of its jobs avoid, and until when the first of these jobs does."""
        self._db.run("open_gates", now=now)
        gates: dict[int, list[tuple[str, float]]] = {}
        for row in self._db.all("gates", now=now):
            gates.setdefault(row["class_id"], []).append((row["avoid_host"], row["until"]))
        return gates

    def _head(self, class_id: int, gate: str, hold_s: float, now: float) -> tuple[Head | None, float | None]:
        """The best job of a class and gate that has been claimable for ``hold_s``, or how long until one is.

        Within a priority the oldest comes first, so if that one must wait, so must all others of its priority.
        """
        below, shortest = _ABOVE_ALL, None
        while True:
            row = self._db.one("head", class_id=class_id, avoid_host=gate, below=below)
            if row is None:
                return None, shortest
            wait_s = row["claimable_at"] + hold_s - now
            if wait_s <= 0:
                rank = rules.rank(row["priority"], row["claimable_at"], row["seq"])
                return (rank, row["job_id"]), shortest
            shortest = wait_s if shortest is None else min(shortest, wait_s)
            below = row["priority"]

    def _nothing(self, waits: list[tuple[float, str]], obstacle: str | None) -> NoJob:
        if waits:
            wait_s, reason = min(waits)
            return NoJob(f"the next job waits {wait_s:.0f} s more: {reason}", wait_s)
        if obstacle is not None:
            return NoJob(f"none of the pending jobs fits this host: {obstacle}")
        row = self._db.one("held_pending")
        if row is not None and row["n"]:
            return NoJob("every pending job is held by the operator")
        return NoJob("no job is pending")

    def _needs_of(self, row: Row) -> Needs:
        needs = self._needs.get(row["class_id"])
        if needs is None:
            needs = self._needs[row["class_id"]] = Needs.of(json.loads(row["needs"]))
        return needs


def eligible(
    *,
    spec: Mapping[str, Any],
    hostname: str,
    capability: Mapping[str, Any],
    host_spec: Mapping[str, Any] | None = None,
    prefer_cuda_grace_s: float = 300.0,
    job_age_s: float = 0.0,
) -> tuple[bool, str]:
    """Judge if this host may take this job now: ``(True, "ok")``, or ``(False, reason)``.

    ``job_age_s`` is how long the job has been claimable; ``prefer_cuda`` holds hosts without CUDA back until then.
    """
    needs, host = Needs.of(spec), Host.of(hostname, capability, host_spec)
    misfit = rules.fits(needs, host)
    if misfit is not None:
        return False, misfit
    held = rules.hold(needs, host, rules.NOBODY_ELSE, Policy(prefer_cuda_grace_s=prefer_cuda_grace_s))
    if job_age_s < held.seconds:
        return False, f"{held.reason}, {held.seconds - job_age_s:.0f} s more"
    return True, "ok"
