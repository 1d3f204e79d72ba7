"""From the manifest's file to what the service acts on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from training.fleet.database import Writer
from training.fleet.datasets.pieces import Catalogue, UnknownDataset
from training.fleet.datasets.shelf import DatasetShelf
from training.fleet.edits import sentence
from training.fleet.job import Needs
from training.fleet.manifest import JobSpec, Manifest, ManifestError, load_manifest
from training.fleet.plans.describe import Describer, describe_command
from training.fleet.protocol import Refusal, ReloadReply, Slug
from training.fleet.roster import Plan
from training.fleet.service import Service
from training.fleet.storage.errors import StoreError
from training.fleet.trust.audit import Act, AuditLog

logger = logging.getLogger(__name__)

_NOT_THERE = "not there: "


@dataclass(frozen=True)
class Reloader:
    """Reads the manifest and makes it the plan. A bad file changes nothing."""

    path: Path
    service: Service
    writer: Writer
    describer: Describer
    audit: AuditLog
    shelf: DatasetShelf | None = None  # None: the plan may name data sets by their ids alone

    def __call__(self, who: str, *, hopeful: bool = False) -> ReloadReply:
        """Raises Refusal(bad_manifest) with every mistake. The audit names ``who`` when something changed.

        ``hopeful``, at a start, leaves out the jobs whose data set is not there, because a receiver must run for it
        to be pushed; and names of data sets stand for what they stood for: a start alone makes no job anew.
        """
        try:
            known = Catalogue() if self.shelf is None else self.shelf.catalogue()
            if hopeful:
                known = Hopeful(known.ids, {**known.names, **self._as_before(known)})
            jobs, plan = load_plan(self.path, self.describer, known)
        except StoreError as error:
            raise Refusal(Slug.UNAVAILABLE, str(error)) from error
        except ManifestError as error:
            mistakes = [mistake.to_dict() for mistake in error.mistakes]
            raise Refusal(
                Slug.BAD_MANIFEST, f"the manifest was not taken: {error}", mistakes=mistakes
            ) from None
        counts = self.writer.submit(lambda: self._apply(jobs, plan, who)).result()
        logger.info(
            "manifest %s: %d new, %d changed, %d unchanged, %d removed",
            self.path,
            counts.inserted,
            counts.updated,
            counts.unchanged,
            counts.removed,
        )
        for note in counts.notes:
            logger.warning("manifest %s: %s", self.path, note)
        for edit in counts.edits:
            logger.info("%s", sentence(msgspec.to_builtins(edit)))
        saved_at, now = self._saved_at(), self.service.queue.clock.now()
        return msgspec.structs.replace(counts, file=str(self.path), saved_at=saved_at, now=now)

    def _as_before(self, known: Catalogue) -> dict[str, str]:
        """What names of data sets stood for when the plan was read last, as far as that is still there."""
        before = self.writer.submit(self.service.queue.plan_datasets).result()
        kept = {name: each for name, each in before.items() if each in known.ids}
        for name, dataset_id in kept.items():
            if known.names.get(name, dataset_id) != dataset_id:
                logger.warning(
                    "data set %s stands for %s since the plan was read; until a reload its jobs train on %s",
                    name,
                    known.names[name][:12],
                    dataset_id[:12],
                )
        return kept

    def _saved_at(self) -> float | None:
        with contextlib.suppress(OSError):
            return self.path.stat().st_mtime
        return None

    def _apply(self, jobs: list[dict[str, Any]], plan: Plan, who: str) -> ReloadReply:
        counts = self.service.reload(jobs, plan)
        if counts.changed:
            after = {key: n for key, n in msgspec.to_builtins(counts).items() if isinstance(n, int)}
            self.audit.write(who, Act.RELOAD, str(self.path), after=after)
        return counts


class Hopeful(Catalogue):
    """A catalogue for which every data set that could be pushed one day is there, under an id that none has."""

    __slots__ = ()

    def resolve(self, reference: str) -> str:
        try:
            return Catalogue.resolve(self, reference)
        except UnknownDataset as unknown:
            logger.warning("%s: push it and reload; until then its jobs are left out", unknown)
            return f"{_NOT_THERE}{reference}"


@dataclass(frozen=True, slots=True)
class Noting(Catalogue):
    """A catalogue that remembers the names it was asked for, and what they stand for."""

    of: Catalogue = field(default_factory=Catalogue)
    named: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", self.of.names)  # a refusal shows them

    def resolve(self, reference: str) -> str:
        found = self.of.resolve(reference)
        if self.of.names.get(reference) == found:
            self.named[reference] = found
        return found


def load_plan(
    path: Path, describer: Describer, datasets: Catalogue
) -> tuple[list[dict[str, Any]], Plan]:
    """The manifest as job dicts and as the service's plan; raises ManifestError."""
    asked = Noting(of=datasets)
    manifest = load_manifest(path, describer=describer, datasets=asked)
    jobs = []
    there = [job for job in manifest.jobs if not (job.dataset or "").startswith(_NOT_THERE)]
    for job in there:
        own = manifest.trainers.get(job.model)
        jobs.append(job.to_dict() | ({} if own is None else {"trainer": own.to_dict()}))
    models = {
        program: frozenset(describer(describe_command(program)).models)
        for program in manifest.flag_digests
    }
    hosts = {name: host.to_dict() for name, host in manifest.hosts.items()}
    own_trainers = {name: trainer.to_dict() for name, trainer in manifest.trainers.items()}
    digests = dict(manifest.flag_digests)
    return jobs, Plan(
        hosts,
        digests,
        models,
        own_trainers,
        _readers(there),
        dataset_names=asked.named,
        named_hosts=_named_hosts(manifest),
    )


def _named_hosts(manifest: Manifest) -> dict[str, str]:
    """Every host that a job names, with the first place where one does."""
    found: dict[str, str] = {}
    for job in manifest.jobs:
        for key, names in (("allowed", job.allowed_hosts), ("denied", job.denied_hosts)):
            for name in names:
                found.setdefault(name, f"{key}_hosts of job {job.name}")
    return found


def _readers(jobs: Iterable[JobSpec]) -> dict[str, frozenset[Needs]]:
    """Data set → by model and lists alone, who trains on it."""
    found: dict[str, set[Needs]] = {}
    for job in jobs:
        if job.dataset is not None:
            allowed, denied = frozenset(job.allowed_hosts), frozenset(job.denied_hosts)
            needs = Needs(model=job.model, allowed_hosts=allowed, denied_hosts=denied)
            found.setdefault(job.dataset, set()).add(needs)
    return {dataset_id: frozenset(needs) for dataset_id, needs in found.items()}
