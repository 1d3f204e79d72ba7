"""Previews of a plan: what a reload would change, and which host could take which jobs. Nothing is written.

A preview and a reload use the same code to read (:meth:`Reloader.read`), to judge
(:mod:`training.fleet.queue.plan_diff`) and to describe changes (:mod:`training.fleet.service.changes`).
"""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from training.files import mark_of
from training.fleet.capability.describe import Describer
from training.fleet.database.writer import Database
from training.fleet.manifest.channels import digests
from training.fleet.manifest.load import check_values
from training.fleet.manifest.types import Manifest
from training.fleet.queue.plan_diff import Foreseen, foresee, planned_ids
from training.fleet.queue.rows import jobs_by_host
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.edits import EditKind
from training.fleet.scheduling.job import LIVE, Host, Job, JobStatus, Needs
from training.fleet.scheduling.orders import Out
from training.fleet.service.changes import told
from training.fleet.service.hosts import HostRegistry
from training.fleet.service.memory import advise
from training.fleet.service.obstacles import misfit_of, outlook
from training.fleet.service.output_views import bundle_gone
from training.fleet.service.plan import PlanProposal, Reloader
from training.fleet.service.references import KnownReferences
from training.fleet.service.rotations import planned
from training.fleet.wire.plans import (
    HOSTS_MAX,
    ROTATIONS_MAX,
    SHOWN_MAX,
    TAKEN_MAX,
    HostOutlook,
    PlannedJob,
    PlanReply,
    PlanRequest,
)
from training.fleet.wire.views import RemovedView
from training.printable import duration

NEW = "new"


@dataclass
class Previews:
    """Computes what a reload of the manifest, or of a plan that an operator sends, would change. ``reader`` is a
    separate connection, not the writer's."""

    reloader: Reloader
    reader: Database
    _planned: tuple[int, frozenset[str]] = field(default=(-1, frozenset()), init=False)  # by the queue's edition

    def own(self) -> PlanReply:
        """Return what a reload of the receiver's own manifest file would change now; raise Refusal as a reload does."""
        mark = mark_of(self.reloader.path)
        return self._answer(self.reloader.read(), mark)

    def given(self, request: PlanRequest) -> PlanReply:
        """Return what a plan that came over the network would change. The plan's tables are plain data, which the
        receiver checks again; no command in them is run."""
        told_nothing = digests(self.reloader.service.plan.channels)  # they count as they are
        channels = told_nothing if request.notify is None else request.notify
        return self._answer(self._proposed(request), mark_of(self.reloader.path), channels)

    def foreseen(self, request: PlanRequest) -> tuple[HostRegistry, list[Foreseen]]:
        """Return the hosts, and each job of the plan, as they would be if the requested plan were in force."""
        proposal = self._proposed(request)
        return self._registry(proposal), foresee(self.reader, proposal.jobs, self._planned_ids())[1]

    def _proposed(self, request: PlanRequest) -> PlanProposal:
        values = request.tables

        def check(describer: Describer, datasets: KnownReferences) -> Manifest:
            return check_values(values, path=Path(request.file), describer=describer, datasets=datasets)

        return self.reloader.read(check)

    def _registry(self, proposal: PlanProposal) -> HostRegistry:
        """Return the known hosts under the proposed plan."""
        service = self.reloader.service
        registry = HostRegistry(list(service.host_registry.known.values()), proposal.plan)
        registry.datasets = service.host_registry.datasets if proposal.here is None else proposal.here
        return registry

    def _answer(self, proposal: PlanProposal, mark: str | None, channels: Mapping[str, str] | None = None) -> PlanReply:
        service = self.reloader.service
        registry = self._registry(proposal)
        synced, jobs = foresee(self.reader, proposal.jobs, self._planned_ids())
        held = jobs_by_host(self.reader)
        reload = told(synced, service.compared_with, registry, held, channels)
        waiting = _waiting(jobs)
        hosts, nowhere = self._outlooks(waiting, registry)
        return PlanReply(
            changed=reload.changed,
            reload=reload,
            states=dict(Counter(each.status or NEW for each in jobs)),
            jobs=[_planned(each, self._removed(each.job)) for each in jobs[:SHOWN_MAX]],
            waiting=sum(map(len, waiting.values())),
            hosts=hosts[:HOSTS_MAX],
            nowhere=nowhere,
            rotations=planned(proposal.jobs)[:ROTATIONS_MAX],
            memory=advise(proposal.jobs, service.learned(self.reader)),
            file=str(self.reloader.path.absolute()),
            mark=mark,
            machine=platform.node(),
            now=service.queue.clock.now(),
        )

    def _removed(self, job: Job | None) -> RemovedView | None:
        """Return when and why retention deleted a job's bundle; None if it did not, or there is none."""
        if job is None or job.artifact_id is None:
            return None
        return bundle_gone(self.reader, job.model, job.mode, job.artifact_id)

    def _planned_ids(self) -> frozenset[str]:
        """Return the ids of the present plan's jobs, read once after each reload."""
        edition = self.reader.number("edition")  # with this connection: that of the writer is ahead
        if self._planned[0] != edition:
            self._planned = (edition, planned_ids(self.reader))
        return self._planned[1]

    def _outlooks(
        self, waiting: Mapping[Needs, Sequence[str]], registry: HostRegistry
    ) -> tuple[list[HostOutlook], dict[str, str]]:
        """Return for each host which pending jobs it could take, and map jobs that no host could take, at most
        ``SHOWN_MAX``, to their obstacle."""
        service = self.reloader.service
        out = service.taken_out(self.reader)
        known = sorted(registry.known.values(), key=lambda each: each.name)
        unheard = {registry.host(each): service.silent_s(each) for each in known}
        hosts = [_outlook_of(host, silent, waiting, out) for host, silent in unheard.items()]
        nowhere: dict[str, str] = {}
        for needs, names in waiting.items():
            obstacle = rules.lacks_data(needs, registry.datasets) or outlook(needs, unheard, out).obstacle
            if obstacle is not None:
                nowhere |= dict.fromkeys(names[: SHOWN_MAX - len(nowhere)], obstacle)
        return hosts, nowhere


def _planned(each: Foreseen, removed: RemovedView | None) -> PlannedJob:
    job, spec = each.job, each.spec
    keys = [key for edit in each.change.edits if edit.kind is EditKind.JOB for key in edit.keys]
    common = {"name": str(spec["name"]), "job_id": spec["job_id"], "state": each.status or NEW}
    if job is None:
        return PlannedJob(**common, outcome=each.change.outcome)
    return PlannedJob.of(
        job,
        **common,
        outcome=each.change.outcome,
        host=None if each.status is JobStatus.PENDING else job.worker_hostname,
        at=job.claimed_at if each.status in LIVE else job.finished_at,
        removed=removed,
        keys=keys,
        was=next((edit.was for edit in each.change.edits if edit.kind is EditKind.RENAME), None),
    )


def _waiting(jobs: Sequence[Foreseen]) -> dict[Needs, list[str]]:
    """Group the names of the jobs that would wait for a host by the jobs' needs."""
    found: dict[Needs, list[str]] = {}
    for each in jobs:
        if each.waits:
            found.setdefault(each.needs, []).append(str(each.spec["name"]))
    return found


def _outlook_of(
    host: Host, unheard_s: float | None, waiting: Mapping[Needs, Sequence[str]], out: Mapping[str, Out]
) -> HostOutlook:
    jobs: list[str] = []
    obstacles: Counter[str] = Counter()
    for needs, names in waiting.items():
        misfit = misfit_of(needs, host, out)
        if misfit is None:
            jobs += names
        else:
            obstacles[misfit] += len(names)
    note = None if unheard_s is None else f"not seen for {duration(unheard_s)}"
    return HostOutlook(host=host.name, takes=len(jobs), jobs=jobs[:TAKEN_MAX], obstacles=dict(obstacles), note=note)
