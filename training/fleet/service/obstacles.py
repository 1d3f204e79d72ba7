"""Obstacles of jobs: no host fits, the hosts that fit are silent, or a running job's host would not get it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from training.fleet.database.writer import Database
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import LIVE, Host, Job, Needs
from training.fleet.scheduling.orders import Out
from training.fleet.service.service import Service
from training.fleet.service.speeds import SpeedViews
from training.fleet.service.unavailable import taken_out
from training.printable import duration


@dataclass(frozen=True, slots=True)
class Outlook:
    """The obstacle of a class's pending jobs; None if they only wait for their turn."""

    obstacle: str | None = None  # no known host can run them
    waits_for: str | None = None  # who could is silent


def outlook(needs: Needs, hosts: Mapping[Host, float | None], out: Mapping[str, Out]) -> Outlook:
    """Find the obstacle of pending jobs with these needs; ``hosts`` has each host's silence, None: it is not silent."""
    if not hosts:
        return Outlook("no worker has asked for work yet; start one")
    reasons, silent = [], []
    for host, unheard_s in hosts.items():
        misfit = rules.fits(needs, host)
        if misfit is not None or host.name in out:
            reasons.append(f"{host.name}: {misfit or out[host.name].sentence()}")
        elif unheard_s is None:
            return Outlook()
        else:
            silent.append((unheard_s, host.name))
    if not silent:
        return Outlook("; ".join(reasons))
    named = [f"{name}, not seen for {duration(unheard_s)}" for unheard_s, name in sorted(silent)]
    more = f" or {len(named) - 3} more" if len(named) > 3 else ""
    return Outlook(waits_for=f"waits for {' or '.join(named[:3])}{more}")


class Obstacles:
    """Finds the obstacles of waiting and running jobs, given the hosts as they are."""

    def __init__(self, database: Database, service: Service, durations: SpeedViews) -> None:
        self._db, self._service, self._clock, self._durations = database, service, service.clock, durations

    def out(self) -> dict[str, Out]:
        """Return the hosts that get no jobs now."""
        return taken_out(self._db, self._service.host_registry)

    def unheard(self) -> dict[Host, float | None]:
        """List the known hosts, each with its silence if that is longer than a lease."""
        now = self._clock.now()
        return {
            self._service.host_of(known): None if self._service.alive(known) else now - known.last_seen
            for known in self._service.known_hosts()
        }

    def of_classes(self) -> dict[int, Outlook]:
        """Map each requirement class with waiting jobs to its obstacle."""
        hosts, out = self.unheard(), self.out()
        found = {}
        for row in self._db.all("pending_classes"):
            needs = Needs.of(json.loads(row["needs"]))
            lacks = rules.lacks_data(needs, self._service.host_registry.datasets)
            found[row["class_id"]] = Outlook(lacks) if lacks else outlook(needs, hosts, out)
        return found

    def remark(self, job: Job) -> str | None:
        """Say of a running job that it takes long, or that its host would not get it again because the plan has
        changed."""
        known = self._service.host_registry.known.get(job.worker_hostname or "")
        if job.status not in LIVE or known is None:
            return None
        misfit = rules.fits_for_good(job.needs, self._service.host_of(known))
        if misfit is None:
            return self._durations.overdue(job)
        return f"it continues on {known.name}, which would not get it again ({misfit}); requeue it to move it"
