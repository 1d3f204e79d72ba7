"""The sizes of everything on the receiver that grows, each with its limit and, if there is one, the command that makes
room."""

from collections.abc import Iterator
from pathlib import Path

from training.fleet.recovery.unlinked import strange_root
from training.fleet.service.plan import kept_beside
from training.fleet.service.state import Deployment, noted_beside
from training.fleet.store.artifacts import INCOMING
from training.fleet.store.logs import LOGS
from training.fleet.wire.constants import LOG_BYTES_MAX
from training.printable import size
from training.sizes import Grown, measured, walk
from training.strict_json import Json

_BY_HAND = "remove by hand what you will not need"
_HISTORY = "kept without limit: it is the history"
_RETENTION = "none but the plan's [retention]"
_GC = "cis490-jobs gc"


def grown_files(state: Deployment) -> Iterator[Grown]:
    """Yield the size of each kind of file that grows on the receiver's disk; links inside its folders are not
    followed."""
    uploads = state.models / INCOMING
    yield _files("uploads on their way", uploads, "a week after the last byte, or the end of the attempt")
    logs = state.models / LOGS
    yield _files("files of models", state.models, _RETENTION, _GC, without=(uploads, logs))
    yield _files("files of output", logs, f"{size(LOG_BYTES_MAX)} of text an attempt, a tenth of that on the disk", _GC)
    yield _files("data sets", state.datasets, "none", "cis490-jobs dataset remove NAME")
    yield _files("saved states of trainers", state.saved_states, "the newest of each job that is not over, 4 GiB a job")
    name = state.db.name
    ours = (".lock", kept_beside(state.db).suffix, noted_beside(state.db).suffix)
    beside = [path for path in state.db.parent.glob(f"{name}.*") if path.suffix not in ours]
    yield measured("copies of the database", beside, "none", _BY_HAND)
    log = [Path(f"{state.db}{each}") for each in ("", "-wal")]
    yield measured("the database", log, "none: its rows are listed below")


def grown_rows(row: Json) -> Iterator[Grown]:
    """Yield the number of rows of each kind that grows in the database; ``row`` is the result of the query
    ``doctor_grown``."""
    yield Grown("jobs", row["jobs"], None, _HISTORY)
    yield Grown("attempts", row["attempts"], None, _HISTORY)
    yield Grown("events", row["events"], None, _RETENTION, _GC)
    lines = f"{size(LOG_BYTES_MAX)} of text an attempt, and the plan's [retention]"
    yield Grown("lines of output", row["lines"] + row["filed"], None, lines, _GC)
    yield Grown("rows of the audit", row["audit"], None, _HISTORY)
    yield Grown("hosts", row["hosts"], None, "one for each name that ever asked for work")


def _files(what: str, root: Path, bound: str, verb: str = "", *, without: tuple[Path, ...] = ()) -> Grown:
    found = () if strange_root(root) else walk(root)
    paths = (Path(each.path) for each in found)
    return measured(what, [each for each in paths if not any(other in each.parents for other in without)], bound, verb)
