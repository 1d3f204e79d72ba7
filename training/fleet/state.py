"""Where a receiver keeps what it knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.fleet.storage.locking import LockedError, exclusive

DEFAULT = Path("/var/lib/cis490")
DATABASE = "training_jobs.db"


class RecoveryError(Exception):
    """Something could not be backed up, restored or rebuilt. The text is one sentence; nothing was lost."""


@dataclass(frozen=True, slots=True)
class State:
    """The database, the store, and the folder of keys and certificates (which may be absent)."""

    db: Path
    models: Path
    tls: Path

    @classmethod
    def of(cls, folder: Path, db: Path | None = None, models: Path | None = None) -> State:
        """The receiver's defaults in ``folder``, unless something lies elsewhere."""
        place = folder / DATABASE if db is None else db
        return cls(place, folder / "models" if models is None else models, place.parent / "tls")

    @property
    def datasets(self) -> Path:
        """Where a receiver keeps them unless it was told otherwise."""
        return self.models.with_name("datasets")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the state as a receiver does; RecoveryError while one runs."""
        try:
            self.db.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as stack:
                stack.enter_context(exclusive(self.db.with_name(f"{self.db.name}.lock")))
                yield
        except LockedError:
            raise RecoveryError(
                f"a receiver is using {self.db}; stop it first (systemctl stop cis490-trainer-receiver)"
            ) from None
