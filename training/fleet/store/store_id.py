"""A store's mark: the id of the database whose bundles it holds; receivers with another database refuse the store."""

import json
import re
from pathlib import Path

from training.files import Fs, replace_whole
from training.fleet.store.errors import BadMark, disk_errors
from training.fleet.wire.constants import DATABASE_ID_PATTERN

MARK = "database.json"


def read_mark(fs: Fs, root: Path) -> str | None:
    """Return the id of the database to which the store belongs; None if the store has no mark.

    Raises BadMark, and StoreError when the file cannot be read.
    """
    path = root / MARK
    with disk_errors(f"reading {path}"):
        if fs.size(path) is None:
            return None
        text = b"".join(fs.read(path))
    try:
        found = json.loads(text)["database_id"]
        if re.fullmatch(DATABASE_ID_PATTERN, found):
            return str(found)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise BadMark(
        f"{path} does not name the database of this store; if the store is yours, remove that file and start again"
    )


def write_mark(fs: Fs, root: Path, temporary: Path, database_id: str) -> None:
    """Mark the store as a database's, durably."""
    body = json.dumps({"database_id": database_id}).encode() + b"\n"
    with disk_errors(f"writing {root / MARK}"):
        replace_whole(fs, temporary, root / MARK, [body])
        fs.sync_folder(root)


def another_database(root: Path, marked: str, database: str) -> str:
    """Return the error's text for a store of another database, without the remedy."""
    return f"the store {root} belongs to the database {marked[:12]}…, and this is the database {database[:12]}…"
