"""The time of the last backup: noted in the database's folder by ``backup``, read by the receiver."""

from __future__ import annotations

import contextlib
from pathlib import Path

from training import strict_json
from training.files import write_whole


def noted_beside(db: Path) -> Path:
    """Return the file in which the last backup of a database is noted."""
    return db.with_name(f"{db.name}.backed-up")


def note_backup(db: Path, at: float) -> None:
    """Record that a backup made at ``at`` (epoch seconds) is complete. If the record cannot be written, the time of the
    backup stays unknown."""
    with contextlib.suppress(OSError):
        write_whole(noted_beside(db), strict_json.canonical({"at": at}).encode() + b"\n", durable=False, mode=0o600)


def backed_up_at(db: Path) -> float | None:
    """Return the time of the last backup; None if none is known."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(strict_json.loads(noted_beside(db).read_bytes())["at"])
    return None
