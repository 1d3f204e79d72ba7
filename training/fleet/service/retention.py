"""Carry out the plan's [retention]: read facts, decide, write rows, delete files.

The order of the steps keeps a crash harmless. First a row records what is deleted, when and why; after the row's
commit, a note in the bundle's folder repeats that for a rebuild. Then the file is deleted, and the row records that
this is done. A crash between two steps leaves at worst a file that a row calls removed; the next run deletes this file.
A crash never leaves a missing file that no row calls removed. Each transaction deletes only a few items, so that a
claim never waits long.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from training.crashpoint import crashpoint
from training.fleet.database.writer import Database, Row
from training.fleet.scheduling import retention as rules
from training.fleet.scheduling.job import FINAL, JobStatus
from training.fleet.scheduling.retention import (
    BundleShare,
    Output,
    Removal,
    RemovalKind,
    RetainedBundle,
    RetainedDataset,
    Rules,
)
from training.fleet.service.catalogue import artifact_of
from training.fleet.service.data_use import check_unused
from training.fleet.service.delivery import Decide, Disk, Look, Steps
from training.fleet.service.service import Service
from training.fleet.store.artifacts import Artifact, ArtifactStore, Removed
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.errors import NoDataset, StoreError
from training.fleet.wire.constants import Refusal

logger = logging.getLogger(__name__)

STEP = 50  # removals in one transaction
EVENTS_STEP = 2_000
EVENTS_KEPT = 1_000  # the newest, whatever their age
_ALL = 2**62


class RemovalProposal(NamedTuple):
    """Everything that the plan's retention would delete now, and sentences about models that are kept only because they
    lack a figure."""

    removals: list[Removal]
    notes: list[str]


class Retention:
    """Finds and deletes what the plan's [retention] does not keep.

    :meth:`proposal` reads while the writer works; the kind of each step decides on which thread it runs.
    """

    def __init__(self, service: Service, store: ArtifactStore, datasets: DatasetStore | None, reader: Database) -> None:
        self._service, self._store, self._datasets, self._reader = service, store, datasets, reader
        self._db, self._clock = service.queue.db, service.queue.clock

    @property
    def rules(self) -> Rules:
        return self._service.plan.retention

    def proposal(self) -> RemovalProposal:
        """Decide from the present rows what to delete; change nothing."""
        now, asked = self._clock.now(), self.rules
        bundles = self._bundles(self._reader, asked)
        removals = [
            *rules.bundles_to_remove(bundles, asked, now),
            *rules.outputs_to_remove(self._outputs(asked, now), asked, now),
            *rules.datasets_to_remove(self._shelved(asked), asked, now),
        ]
        before = rules.events_before(asked, now)
        if before is not None and (row := self._old_events(self._reader, before, _ALL)) is not None:
            removals.append(rules.events_removal(row["last"], row["n"], asked))
        notes = [
            f"{n} of {model} {mode} {'has' if n == 1 else 'have'} no validation figure, and "
            f"{'is' if n == 1 else 'are'} kept"
            for (model, mode), n in sorted(rules.without_figure(bundles, asked).items())
        ]
        return RemovalProposal(removals, notes)

    # -- steps --------------------------------------------------------------------------------------------------

    def collect(self, most: int = _ALL) -> Steps[list[Removal]]:
        """Delete at most ``most`` items that the plan no longer keeps; return what was deleted."""
        yield from self.finish()
        if self.rules.keeps_all:
            return []
        proposal: RemovalProposal = yield Look(self.proposal)
        wanted, gone = proposal.removals[:most], list[Removal]()
        for first in range(0, len(wanted), STEP):
            some = wanted[first : first + STEP]
            gone += yield Decide(partial(self._let_go, some), "retention")
        if any(each.kind is RemovalKind.EVENTS for each in gone):
            while (yield Decide(self._forget_events, "retention")):
                pass
        crashpoint("retention.decided")
        yield from self.finish()
        if gone:
            logger.info("retention: %d removed, %d bytes", len(gone), sum(each.size for each in gone))
        return gone

    def finish(self) -> Steps[None]:
        """Delete the files of removed items, including those that a crash left."""
        after = 0
        while rows := (yield Look(partial(self._reader.all, "unfinished_removals", after=after, most=STEP))):
            after = rows[-1]["seq"]
            noted = yield Disk(partial(_those, self._noted, rows))
            crashpoint("retention.noted")
            unlinked = yield Decide(partial(_those, self._unlink, noted), "retention")
            crashpoint("retention.unlinked")
            gone = yield Disk(partial(_those, self._settle, unlinked))
            yield Decide(partial(self._finished, gone), "retention")

    def learn(self) -> Steps[int]:
        """Record, from the store's notes, deletions that this copy of the database lacks; return their number."""
        found = yield Look(lambda: list(dict.fromkeys(map(artifact_of, self._reader.all("bundle_facts")))))
        told = yield Disk(lambda: [each for each in map(self._told, found) if each is not None])
        if told:
            yield Decide(partial(self._learn, told), "retention")
        return len(told)

    # -- facts --------------------------------------------------------------------------------------------------

    def _bundles(self, db: Database, asked: Rules, artifact_id: str = "") -> list[RetainedBundle]:
        """Return the bundles that are in the store, or none if the rules keep all bundles. Figures are computed only
        for a model and mode with more models than the plan keeps."""
        if asked.best is None and asked.keep_superseded_days is None:
            return []
        found: dict[Artifact, list[Row]] = {}
        rows = db.all("bundle_facts_of", artifact_id=artifact_id) if artifact_id else db.all("bundle_facts")
        for row in rows:
            found.setdefault(artifact_of(row), []).append(row)
        bundles = [_bundle(artifact, rows) for artifact, rows in found.items()]
        crowded = rules.groups_above(bundles, asked.best)
        return [
            _with_figures(db, each, found[artifact]) if (each.model, each.mode) in crowded else each
            for artifact, each in zip(found, bundles, strict=True)
        ]

    def _outputs(self, asked: Rules, now: float) -> Iterator[Output]:
        for kind, statement, days in (
            (RemovalKind.LOG, "old_logs", asked.keep_logs_days),
            (RemovalKind.CURVE, "old_curves", asked.keep_curves_days),
        ):
            rows = () if days is None else self._reader.all(statement, before=now - days * 86_400.0)
            for row in rows:
                ended = JobStatus(row["status"]) in FINAL
                key = row["job_id"], row["attempt"], row["name"], row["ended_at"]
                yield Output(kind, *key, row["size"], ended, row["held_at"] is not None)

    def _shelved(self, asked: Rules) -> Iterator[RetainedDataset]:
        if asked.keep_datasets_days is None or self._datasets is None:
            return
        users = {row["dataset_id"]: row for row in self._reader.all("dataset_users")}
        for each in self._datasets.sets():
            row = users.get(each.dataset_id)
            needed = each.dataset_id in self._service.plan.datasets or (row is not None and bool(row["needed"]))
            pushed_at = max(each.about.pushed_at, each.about.again_at)
            used_at = max(pushed_at, 0.0 if row is None else row["used_at"] or 0.0)
            yield RetainedDataset(each.dataset_id, each.names, each.about.size, needed, used_at)

    def _old_events(self, db: Database, before: float, most: int) -> Row | None:
        row = db.one("oldest_events", before=before, most=most, kept=EVENTS_KEPT)
        return None if row is None or not row["n"] else row

    # -- rows: on the thread of the writer ----------------------------------------------------------------------

    def _let_go(self, some: Sequence[Removal]) -> list[Removal]:
        """Record that these items are deleted, and return those recorded; leave out items that must stay after all.
        Curves, events and lines of logs in the database are deleted at once; files of logs, bundles and data sets are
        deleted later."""
        return [each for each in some if self._one(each)]

    def _one(self, each: Removal) -> bool:
        if each.kind is RemovalKind.BUNDLE:
            return self._let_bundle_go(each)
        if each.kind is RemovalKind.DATASET:
            try:
                check_unused(self._service, each.subject)
            except Refusal:
                return False
            self._db.run("removal_back", what=RemovalKind.DATASET, subject=each.subject, now=self._clock.now())
            return self._note(each)
        if each.kind is RemovalKind.EVENTS:
            return self._forget_events()
        settled = self._db.one("is_settled", job_id=each.subject)
        if settled is None:
            return False
        key = {"job_id": each.subject, "attempt": each.number}
        if each.kind is RemovalKind.LOG:
            row = self._db.one("log_length", **key)
            self._service.queue.logs.expire(each.subject, each.number, 0 if row is None else row["log_next"])
        else:
            self._keep_figures(each.subject)
            self._db.run("forget_curve", **key)
            self._db.run("forget_samples", **key)
        self._note(each, done=True)
        return True

    def _let_bundle_go(self, each: Removal) -> bool:
        artifact_id = each.subject.rpartition("/")[2]
        now = Rules(keep_superseded_days=0.0)  # facts alone
        there = [bundle for bundle in self._bundles(self._db, now, artifact_id) if bundle.subject == each.subject]
        return bool(there) and not there[0].untouchable and self._note(each)

    def _note(self, each: Removal, *, done: bool = False, newest: float | None = None) -> bool:
        now = self._clock.now()
        row = {"what": each.kind, "subject": each.subject, "number": each.number, "size": each.size, "why": each.why}
        return self._db.run("add_removal", **row, at=now, newest=newest, done_at=now if done else None) > 0

    def _keep_figures(self, job_id: str) -> None:
        """Store a job's figures before its curve is deleted, because its models are still judged by them."""
        for row in self._db.all("completed_attempts", job_id=job_id):
            figure = figure_of(self._db, job_id, row)
            if figure is not None:
                self._db.run("keep_figure", job_id=job_id, attempt=row["attempt"], figure=figure)

    def _forget_events(self) -> bool:
        """Delete some of the oldest events, but none of the newest ``EVENTS_KEPT`` or that notices have not read;
        record that. Return False if none may go."""
        asked, now = self.rules, self._clock.now()
        before = rules.events_before(asked, now)
        row = None if before is None else self._old_events(self._db, before, EVENTS_STEP)
        if row is None:
            return False
        self._db.run("forget_events", last=row["last"])
        said = rules.events_removal(row["last"], row["n"], asked)
        told = {"at": now, "number": said.number, "why": said.why, "newest": row["newest"]}
        if not self._db.run("widen_removal", **told):
            self._note(said, done=True, newest=row["newest"])
        return True

    def _unlink(self, row: Row) -> bool:
        """Delete a bundle's file, or check that a data set may go; return False if the item was delivered or pushed
        again, or is needed.

        This method runs on the writer's thread, which also writes the rows of new deliveries, so that none comes
        between the look and the deletion.
        """
        if self._db.one("standing_removal", seq=row["seq"]) is None:
            return False
        if row["what"] == RemovalKind.DATASET:
            return self._may_forget_dataset(row)
        self._store.remove(Artifact.at(row["subject"]))
        return True

    def _may_forget_dataset(self, row: Row) -> bool:
        """Return True if the data set may still be deleted: no job of the plan and no unfinished job names it, and no
        push has brought it again."""
        assert self._datasets is not None
        here = next((each for each in self._datasets.sets() if each.dataset_id == row["subject"]), None)
        try:
            check_unused(self._service, row["subject"])
        except Refusal:
            needed = True
        else:
            needed = here is not None and max(here.about.pushed_at, here.about.again_at) > row["at"]
        if needed:
            self._db.run("removal_back", what=RemovalKind.DATASET, subject=row["subject"], now=self._clock.now())
        return not needed

    def _finished(self, gone: Iterable[Row]) -> None:
        for row in gone:
            self._db.run("finish_removal", seq=row["seq"], now=self._clock.now())
        if self._datasets is not None and any(row["what"] == RemovalKind.DATASET for row in gone):
            self._service.host_registry.datasets = self._datasets.catalogue().ids

    # -- files --------------------------------------------------------------------------------------------------

    def _noted(self, row: Row) -> None:
        """Write a durable note of a bundle's deletion into the bundle's folder, for a rebuild; for other items, do
        nothing."""
        if row["what"] == RemovalKind.BUNDLE:
            artifact = replace(Artifact.at(row["subject"]), size=row["size"])
            self._store.note_removed(Removed(artifact, row["at"], row["why"]))

    def _settle(self, row: Row) -> None:
        """Make a bundle's deletion durable, or delete a data set."""
        with suppress(NoDataset):  # removed before a crash
            if row["what"] == RemovalKind.BUNDLE:
                self._store.settle_removed(Artifact.at(row["subject"]))
            elif self._datasets is not None:
                self._datasets.remove(row["subject"])

    # -- an older copy of the database --------------------------------------------------------------------------

    def _told(self, artifact: Artifact) -> Removed | None:
        name, model, mode = artifact.artifact_id, artifact.model, artifact.mode
        return None if self._store.find(name, model=model, mode=mode) else self._store.removed_note(artifact)

    def _learn(self, told: Iterable[Removed]) -> None:
        for each in told:
            note_removed(self._db, each)


def note_removed(db: Database, removed: Removed) -> None:
    """Record in the database what a note in the store says about a deleted bundle."""
    said = {"what": RemovalKind.BUNDLE, "subject": removed.artifact.place, "number": 0, "size": removed.artifact.size}
    db.run("add_removal", **said, why=removed.why, at=removed.at, newest=None, done_at=removed.at)


def _those(done: Callable[[Row], bool | None], rows: Iterable[Row]) -> list[Row]:
    """Call ``done`` with each row; return the rows for which it did not return False. A row for which the store fails
    is left for the next run."""
    taken = []
    for row in rows:
        try:
            if done(row) is not False:
                taken.append(row)
        except StoreError as error:
            logger.warning("retention: left for the next time: %s", error)
    return taken


def _bundle(artifact: Artifact, rows: Sequence[Row]) -> RetainedBundle:
    return RetainedBundle(artifact.place, artifact.model, artifact.mode, artifact.size, tuple(map(_delivery, rows)))


def _delivery(row: Row) -> BundleShare:
    ended, current = JobStatus(row["status"]) in FINAL, bool(row["current"])
    # A bundle that completes no job is of no use since the job was completed by another, or ended.
    since = row["finished_at"] or row["stored_at"]
    return BundleShare(
        job_id=row["job_id"],
        attempt=row["attempt"],
        name=row["name"],
        ended=ended,
        held=row["held_at"] is not None,
        current=current,
        since=since if current else max(since, row["stored_at"]),
        figure=row["figure"],
        host=row["host"],
    )


def _with_figures(db: Database, bundle: RetainedBundle, rows: Sequence[Row]) -> RetainedBundle:
    deliveries = []
    for each, row in zip(bundle.deliveries, rows, strict=True):
        if each.current and each.figure is None:
            each = replace(each, figure=figure_of(db, row["job_id"], row))
        deliveries.append(each)
    return replace(bundle, deliveries=tuple(deliveries))


def figure_of(db: Database, job_id: str, attempt: Row) -> float | None:
    """Return the best validation figure on the curve of an attempt; None if it has none."""
    found = db.one("validation_figure", job_id=job_id, attempt=attempt["attempt"], generation=attempt["generation"])
    return None if found is None else found["figure"]
