"""Load the manifest's file as the service's plan.

The plan is also stored in a file, so that a restart need not read a long manifest again. The stored plan's key is a
digest of its sources: the manifest's bytes, the data sets, this program, and the jobs in the database. If a source has
changed, or the file is missing or damaged, the stored plan is not used.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from training.checkout import stamps
from training.files import write_whole
from training.fleet.capability.describe import Describer
from training.fleet.database.writer import Database, Writer
from training.fleet.manifest.channels import NotifyChannel
from training.fleet.manifest.load import parse_manifest, read_manifest
from training.fleet.manifest.notes import notes
from training.fleet.manifest.types import JobSpec, Manifest, ManifestError
from training.fleet.queue.plan_write import PlanWrite
from training.fleet.scheduling.edits import sentence
from training.fleet.scheduling.job import Needs
from training.fleet.service.audit import Act, AuditLog
from training.fleet.service.hosts import Plan
from training.fleet.service.notify.secret import unreadable
from training.fleet.service.references import KnownReferences, unknown
from training.fleet.service.service import Service
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.errors import StoreError
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.dataset_listing import Catalogue
from training.fleet.wire.messages import ReloadReply
from training.installed import own_version
from training.printable import counted
from training.strict_json import JsonObject, canonical

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reloader:
    """Reads the manifest and puts it into force as the plan. A file with mistakes changes nothing."""

    path: Path
    service: Service
    writer: Writer
    describer: Describer
    audit: AuditLog
    dataset_store: DatasetStore | None = None  # None: the plan may name data sets by their ids alone
    kept: Path | None = None  # where the plan is kept for the next start
    reader: Database | None = None  # a connection beside the writer's; None: there is none

    def __call__(self, who: str, *, starting: bool = False) -> ReloadReply:
        """Reload the manifest and return what changed; Refusal(bad_manifest) lists every mistake. If something changed,
        the audit names ``who``.

        With ``starting``, names keep the data sets that the last reload found for them, and the stored plan is used if
        none of its sources has changed.
        """
        with _uncollected():
            return self._reload(who, starting=starting)

    def _reload(self, who: str, *, starting: bool) -> ReloadReply:
        with _refusing():
            references, recorded = self._references(starting=starting), self._recorded()
            source, here = read_manifest(self.path), self._here(references)
            made_from = partial(origin, source, references, recorded)
            if starting and (taken := self._as_kept(made_from, references.remembered, here)) is not None:
                return taken
            jobs, plan = load_plan(self.path, self.describer, references, recorded, source)
        draft = self.service.queue.plan.draft(jobs, self.reader)  # on this thread, so that claims wait only shortly
        write = self.writer.submit(lambda: self.service.queue.plan.write(draft)).result()
        while write.is_long:
            self.writer.submit(write.write_part).result()
        counts = self.writer.submit(lambda: self._apply(write, plan, here, who)).result()
        moved = references.moved()
        if self.kept is not None and not moved:  # every start reports moved names
            keep(self.kept, made_from(plan.dataset_names, draft.plan_jobs().digest), plan)
        for name, dataset_id in moved.items():
            ids = (dataset_id[:12], references.found[name][:12])
            logger.warning("data set %s is %s now; until a reload the plan has %s", name, *ids)
        counted_so = counts.inserted, counts.updated, counts.unchanged, counts.removed
        logger.info("manifest %s: %d new, %d changed, %d unchanged, %d removed", self.path, *counted_so)
        for note in counts.notes:
            logger.warning("manifest %s: %s", self.path, note)
        for edit in counts.edits:
            logger.info("%s", sentence(msgspec.to_builtins(edit)))
        saved_at, now = self._saved_at(), self.service.queue.clock.now()
        return msgspec.structs.replace(counts, file=str(self.path), saved_at=saved_at, now=now)

    def read(self, check: Callable[[Describer, KnownReferences], Manifest] | None = None) -> PlanProposal:
        """Return the plan of the manifest, or the plan that ``check`` makes, as a reload would read it; change nothing.

        Raise Refusal as a reload does.
        """
        with _refusing():
            references, recorded = self._references(), self._recorded()
            if check is None:
                jobs, plan = load_plan(self.path, self.describer, references, recorded)
            else:
                jobs, plan = taken_over(check(self.describer, references), references, recorded)
        return PlanProposal(jobs, plan, self._here(references))

    def _here(self, references: KnownReferences) -> frozenset[str] | None:
        return None if self.dataset_store is None else references.ids

    def _references(self, *, starting: bool = False) -> KnownReferences:
        known = Catalogue() if self.dataset_store is None else self.dataset_store.catalogue()
        remembered = self.writer.submit(self.service.queue.plan.datasets).result()
        return KnownReferences(known.ids, known.names, remembered, starting)

    def _recorded(self) -> dict[str, Sequence[str]]:
        sets = () if self.dataset_store is None else self.dataset_store.sets()
        return {each.dataset_id: each.about.hosts for each in sets if each.about.hosts}

    def _as_kept(
        self,
        made_from: Callable[[Mapping[str, str], str], str],
        remembered: Mapping[str, str],
        here: frozenset[str] | None,
    ) -> ReloadReply | None:
        """Put the stored plan into force if none of its sources has changed, and return the reply; else return None."""
        if self.kept is None:
            return None
        jobs = self.writer.submit(self.service.queue.plan.jobs).result()
        plan = kept(self.kept, made_from(remembered, jobs.digest))
        if plan is None:
            return None
        if here is not None:
            self.service.host_registry.datasets = here
        same = self.service.resume(plan, jobs.count)
        logger.info("manifest %s: as it was taken over, %s", self.path, counted(jobs.count, "jobs"))
        for note in same.notes:
            logger.warning("manifest %s: %s", self.path, note)
        return same

    def _saved_at(self) -> float | None:
        with contextlib.suppress(OSError):
            return self.path.stat().st_mtime
        return None

    def _apply(self, write: PlanWrite, plan: Plan, here: frozenset[str] | None, who: str) -> ReloadReply:
        if here is not None:
            self.service.host_registry.datasets = here
        counts = self.service.reload(write, plan)
        if counts.changed:
            after = {key: n for key, n in msgspec.to_builtins(counts).items() if isinstance(n, int)}
            self.audit.write(who, Act.RELOAD, str(self.path), after=after)
        return counts


class PlanProposal(NamedTuple):
    """A plan that is not in force: its job dicts, the plan, and the data sets that the receiver has (None: not
    checked)."""

    jobs: list[JsonObject]
    plan: Plan
    here: frozenset[str] | None


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch off Python's garbage collection in the ``with`` block: it would scan all values of a long plan again and
    again, and free none."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn errors of the manifest or the store in the ``with`` block into refusals."""
    try:
        yield
    except StoreError as error:
        raise Refusal(ProblemType.UNAVAILABLE, str(error)) from error
    except ManifestError as error:
        mistakes = [mistake.to_dict() for mistake in error.mistakes]
        detail = f"the manifest was not taken: {error}"
        raise Refusal(ProblemType.BAD_MANIFEST, detail, mistakes=mistakes) from None


def load_plan(
    path: Path,
    describer: Describer,
    datasets: KnownReferences,
    recorded: Mapping[str, Sequence[str]] = MappingProxyType({}),
    source: str | None = None,
) -> tuple[list[JsonObject], Plan]:
    """Load the manifest as job dicts and as the service's plan; raise ManifestError for mistakes.

    Jobs on an unknown data set have no id, and are left out. ``source`` is the file's text, if it was read already.
    """
    text = read_manifest(path) if source is None else source
    manifest = parse_manifest(text, path=path, describer=describer, datasets=datasets)
    return taken_over(manifest, datasets, recorded)


def taken_over(
    manifest: Manifest, datasets: KnownReferences, recorded: Mapping[str, Sequence[str]]
) -> tuple[list[JsonObject], Plan]:
    """Convert a checked manifest to job dicts and the service's plan; jobs on an unknown data set are left out."""
    there = [job for job in manifest.jobs if unknown(job.dataset) is None]
    jobs = [manifest.job_dict(job) for job in there]
    hosts = {name: host.to_dict() for name, host in manifest.hosts.items()}
    own_trainers = {name: trainer.to_dict() for name, trainer in manifest.trainers.items()}
    digests: dict[str, str] = {}
    for each in manifest.programs.values():
        digests |= each.digests
    return jobs, Plan(
        hosts,
        digests,
        own_trainers,
        _readers(there),
        dataset_names=dict(datasets.found),
        dataset_jobs=_dataset_jobs(manifest.jobs, datasets.found),
        notes=(*notes(manifest, recorded), *_unreadable_secrets(manifest.channels)),
        named_hosts=_named_hosts(manifest),
        channels=manifest.channels,
        retention=manifest.retention,
        scheduling=manifest.scheduling,
        bound_by=dict(manifest.bound_by),
    )


def _unreadable_secrets(channels: Iterable[NotifyChannel]) -> Iterator[str]:
    """Yield a warning for each notice channel that could send nothing because its secret cannot be read."""
    for channel in channels:
        if (why := unreadable(channel)) is not None:
            yield f"[notify.{channel.name}] can send nothing: {why}"


def _dataset_jobs(jobs: Iterable[JobSpec], found: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Map each data set, or unknown name, to the plan's reference for it and the number of its jobs."""
    called = {dataset_id: reference for reference, dataset_id in found.items()}
    counts = Counter(job.dataset for job in jobs if job.dataset is not None)
    return {each: (called.get(each, unknown(each) or each), n) for each, n in counts.items()}


def _named_hosts(manifest: Manifest) -> dict[str, str]:
    """Map every host in a job's lists of hosts to a text that names the first such list."""
    found: dict[str, str] = {}
    for job in manifest.jobs:
        for key, names in (("allowed", job.allowed_hosts), ("denied", job.denied_hosts)):
            for name in names:
                found.setdefault(name, f"{key}_hosts of job {job.name}")
    return found


def _readers(jobs: Iterable[JobSpec]) -> dict[str, frozenset[Needs]]:
    """Map each data set to the requirements of the jobs that train on it; these contain only the model and the lists of
    hosts."""
    found: dict[str, set[Needs]] = {}
    for job in jobs:
        if job.dataset is not None:
            needs = Needs(model=job.model, allowed_hosts=job.allowed_hosts, denied_hosts=job.denied_hosts)
            found.setdefault(job.dataset, set()).add(needs)
    return {dataset_id: frozenset(needs) for dataset_id, needs in found.items()}


def kept_beside(db: Path) -> Path:
    """Return the path of the file in which the plan of a database is stored."""
    return db.with_name(f"{db.name}.plan")


def origin(
    source: str, known: Catalogue, recorded: Mapping[str, Sequence[str]], remembered: Mapping[str, str], jobs: str
) -> str:
    """Return a digest of the sources of a plan, and of this program's version.

    ``source`` is the manifest, ``recorded`` the hosts in each data set, ``remembered`` the ids behind the plan's names
    of data sets. ``jobs`` is the digest of the plan's jobs in the queue.
    """
    made_from = {
        "manifest": hashlib.sha256(source.encode()).hexdigest(),
        "datasets": sorted(known.ids),
        "names": dict(known.names),
        "recorded": {each: list(hosts) for each, hosts in recorded.items()},
        "remembered": dict(remembered),
        "jobs": jobs,
        # another version may understand a plan otherwise
        "program": [own_version(), sys.version, *stamps()],
    }
    return hashlib.sha256(canonical(made_from).encode()).hexdigest()


def keep(file: Path, made_from: str, plan: Plan) -> None:
    """Store the plan in a file with the digest of its sources. If the disk fails, only the next start is slower."""
    body = msgspec.json.encode(plan)
    head = f"{made_from} {hashlib.sha256(body).hexdigest()}\n".encode()
    with contextlib.suppress(OSError):
        write_whole(file, head + body, durable=False, mode=0o600)  # variables may hold secrets


def kept(file: Path, made_from: str) -> Plan | None:
    """Return the plan that the file stores for this digest of sources; None if the digest differs, or the file is
    missing or damaged."""
    try:
        head, _, body = file.read_bytes().partition(b"\n")
        if head != f"{made_from} {hashlib.sha256(body).hexdigest()}".encode():
            return None
        return msgspec.json.decode(body, type=Plan)
    except (OSError, msgspec.DecodeError):
        return None
