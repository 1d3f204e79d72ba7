"""Copying data sets between stores, for backups: only missing chunks, each hashed first."""

from __future__ import annotations

from dataclasses import dataclass, field

from training.fleet.recovery.files import Progress
from training.fleet.service.state import RecoveryError
from training.fleet.store.datasets import DatasetStore, Shelved
from training.fleet.store.errors import ChunksMissing, NoDataset, StoreError
from training.fleet.wire.dataset_listing import parse, together


@dataclass
class CopyResult:
    """The result of a copy; ``lost`` are sentences."""

    sets: int = 0
    bytes_copied: int = 0
    lost: list[str] = field(default_factory=list)


def copy_datasets(source: DatasetStore, target: DatasetStore, progress: Progress) -> CopyResult:
    """Copy every data set of ``source`` to ``target``, under its present names. Raises RecoveryError."""
    done = CopyResult()
    try:
        sets = sorted(source.sets(), key=lambda each: each.about.pushed_at)
        for number, shelved in enumerate(sets):
            progress("data sets", number, len(sets))
            try:
                done.bytes_copied += _copy(source, target, shelved)
                done.sets += 1
            except (NoDataset, ChunksMissing) as error:  # rotten, or removed meanwhile
                done.lost.append(f"data set {shelved.dataset_id[:12]}: {error}")
    except StoreError as error:
        raise RecoveryError(f"the data sets were not copied: {error}") from error
    return done


def _copy(source: DatasetStore, target: DatasetStore, shelved: Shelved) -> int:
    dataset_id, copied = shelved.dataset_id, 0
    document = source.listing(dataset_id)
    length_of = parse(document).length_of
    while missing := target.begin(dataset_id, document).missing:
        for group in together(missing, lambda sha256: length_of(sha256) or 0):
            chunks = [(sha256, source.piece(dataset_id, sha256)) for sha256 in group]
            target.put(dataset_id, chunks)
            copied += sum(len(data) for _, data in chunks)
    for name in shelved.names or (None,):
        target.publish(dataset_id, name, shelved.about.pushed_at, shelved.about.hosts)
    return copied
