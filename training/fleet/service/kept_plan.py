"""The plan in force, stored in a file, so that a restart need not read a long manifest again.

Its key is a digest of its sources: the manifest's bytes, the data sets, this program, and the jobs in the database.
After a change of one of these, or damage, nothing is found.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from training.checkout import stamps
from training.files import write_whole
from training.fleet.service.hosts import Plan
from training.fleet.wire.dataset_listing import Catalogue
from training.installed import own_version
from training.strict_json import canonical


def kept_beside(db: Path) -> Path:
    """Return the file in which the plan of a database is kept."""
    return db.with_name(f"{db.name}.plan")


def origin(
    source: str, known: Catalogue, recorded: Mapping[str, Sequence[str]], remembered: Mapping[str, str], jobs: str
) -> str:
    """Digest everything that determines a plan.

    ``source`` is the manifest, ``recorded`` the hosts in each data set, ``remembered`` what the plan's names of data
    sets stand for, ``jobs`` the digest of the plan's jobs in the queue.
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
    """Keep the plan under its sources' digest. A failing disk only makes the next start slower."""
    body = msgspec.json.encode(plan)
    head = f"{made_from} {hashlib.sha256(body).hexdigest()}\n".encode()
    with contextlib.suppress(OSError):
        write_whole(file, head + body, durable=False, mode=0o600)  # variables may hold secrets


def kept(file: Path, made_from: str) -> Plan | None:
    """Return the plan stored under this digest, if it is undamaged."""
    try:
        head, _, body = file.read_bytes().partition(b"\n")
        if head != f"{made_from} {hashlib.sha256(body).hexdigest()}".encode():
            return None
        return msgspec.json.decode(body, type=Plan)
    except (OSError, msgspec.DecodeError):
        return None
