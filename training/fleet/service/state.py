"""The paths of a receiver's state, and the time of its last backup."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from training import strict_json
from training.files import write_whole
from training.fleet.store.locking import lock_of, store_lock
from training.frozen import frozen
from training.locking import LockedError, exclusive

DEFAULT = Path("/var/lib/cis490")
DATABASE = "training_jobs.db"
MANIFEST = Path("/etc/cis490/training_manifest.toml")


_COMMAND = re.compile(r"`(cis490-jobs (doctor|backup|restore|rebuild)\b[^`]*)`")


class RecoveryError(Exception):
    """A backup, restore or rebuild failed. The text is one sentence."""


@frozen
class Deployment:
    """The paths of the database, the store, and the folder of keys and certificates (which may be absent)."""

    db: Path
    models: Path
    tls: Path
    given: tuple[str, ...] = field(default=(), compare=False)  # the flags that set them
    plan: tuple[str, ...] = field(default=(), compare=False)  # the same, for commands that read the plan

    @classmethod
    def of(
        cls, folder: Path, db: Path | None = None, models: Path | None = None, manifest: Path = MANIFEST
    ) -> Deployment:
        """Return the receiver's default paths in ``folder``, except those given."""
        place = folder / DATABASE if db is None else db
        store = folder / "models" if models is None else models
        said = (
            ("--state-dir", None if folder == DEFAULT else folder),
            ("--db", None if place == folder / DATABASE else db),
            ("--models-dir", None if store == folder / "models" else models),
        )
        given = tuple(part for flag, path in said if path is not None for part in (flag, str(path)))
        plan = () if manifest == MANIFEST else ("--manifest", str(manifest))
        return cls(place, store, place.parent / "tls", given, plan)

    def typed(self, text: str) -> str:
        """Return ``text`` with this deployment's flags added to the `cis490-jobs` commands in it that work on the
        state."""

        def typed(found: re.Match[str]) -> str:
            flags = (*self.given, *(self.plan if found[2] == "rebuild" else ()))
            return f"`{' '.join([found[1], *map(shlex.quote, flags)])}`"

        return _COMMAND.sub(typed, text)

    @property
    def datasets(self) -> Path:
        """Return the default folder of data sets."""
        return self.models.with_name("datasets")

    @property
    def saved_states(self) -> Path:
        """Return the folder of trainers' saved states, which backups leave out."""
        return self.models.with_name("states")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the state for the ``with`` block, as a receiver does; raise RecoveryError while a receiver, a restore or
        a rebuild holds the lock."""
        try:
            self.db.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as stack:
                stack.enter_context(exclusive(lock_of(self.db)))
                if self.models.is_dir():
                    stack.enter_context(exclusive(store_lock(self.models)))
                yield
        except LockedError:
            raise RecoveryError(
                f"{self.db} is in use: stop the receiver (systemctl stop cis490-trainer-receiver) or let a recovery end"
            ) from None


def noted_beside(db: Path) -> Path:
    """Return the path of the file that records a database's last backup."""
    return db.with_name(f"{db.name}.backed-up")


def note_backup(db: Path, at: float) -> None:
    """Record that a backup made at ``at`` (epoch seconds) is complete. If the record cannot be written, the time of the
    backup stays unknown."""
    with contextlib.suppress(OSError):
        write_whole(noted_beside(db), strict_json.canonical({"at": at}).encode() + b"\n", durable=False, mode=0o600)


def backed_up_at(db: Path) -> float | None:
    """Return the time of the last backup in epoch seconds; None if none is known."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(strict_json.loads(noted_beside(db).read_bytes())["at"])
    return None
