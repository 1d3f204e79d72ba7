"""Facts that tests read from a store of models."""

from contextlib import suppress

from training.fleet.store.artifacts import PROVENANCE
from training.fleet.store.provenance import BrokenSeal, unsealed


def provenance_of(store, artifact):
    """Yield the record of each attempt that delivered this bundle; unreadable ones are left out."""
    folder = (store.root / artifact.path).parent / PROVENANCE
    for name in store._fs.names(folder):
        with suppress(OSError, BrokenSeal):
            yield unsealed(b"".join(store._fs.read(folder / name)))
