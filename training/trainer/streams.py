"""The incidents of scored windows, stream by stream, and the small file that keeps their state from one run of a
program to the next.

A stream is a recording of one host, or the samples of a host that is watched. Windows that a stream has processed
before change nothing, so scoring a recording in pieces, one after the other, gives the same incidents as scoring it at
once. The file also keeps the record of stretches (`changes.Record`) of the latest ``MOST_HOSTS`` hosts.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypedDict

import msgspec

from training.data.values import Json, JsonDict
from training.files import write_whole
from training.trainer.changes import Record, ToldChange
from training.trainer.contract import BadArguments
from training.trainer.incident_rule import Incident, JoinRule, StreamState, StreamStep, Window, step

FORMAT = "cis490-incidents"
VERSION = 1
MOST_STREAMS = 1_000  # kept; the ones that were fed longest ago go first
MOST_HOSTS = 100  # whose records are kept, of some 100 KB each
LARGEST = 64 << 20
LONGEST_NOTE = 64  # bytes


class StreamsError(BadArguments):
    """The state file cannot be read, or is no state file of this version."""


class Undelivered(TypedDict):
    """A call to a person, ``told``, that the hook ``to`` has not delivered."""

    to: str
    told: JsonDict


@dataclass
class Streams:
    """The states of streams by name, for one checkpoint and rule, and the records of hosts.

    ``undelivered`` has the calls that a hook has not delivered yet.
    """

    checkpoint: str  # its digest
    rule: JoinRule
    states: dict[str, StreamState] = field(default_factory=dict)
    undelivered: list[Undelivered] = field(default_factory=list)
    hosts: dict[str, Record] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION

    def knows(self, stream: str, window: Window) -> bool:
        """Tell whether a window begins no later than the last one that its stream has processed."""
        state = self.states.get(stream)
        return state is not None and state.last is not None and window.t_start <= state.last.t_start

    def record(self, host: str) -> Record:
        """Return the record of a host, a new one if it has none; beyond ``MOST_HOSTS`` the one used longest ago is
        dropped."""
        found = self.hosts[host] = self.hosts.pop(host, Record())
        if len(self.hosts) > MOST_HOSTS:
            self.hosts.pop(next(iter(self.hosts)))
        return found

    def confirm(self, host: str) -> ToldChange | None:
        """Accept a host's reported change as its usual work from now on; return the change, None if none was
        reported."""
        record = self.hosts.get(host, Record())
        if record.told is not None:
            self.hosts[host] = record.confirmed()
        return record.told

    def feed(self, stream: str, window: Window) -> StreamStep:
        """Process the next window of a stream; beyond ``MOST_STREAMS`` drop the state of the stream fed longest ago."""
        found = step(self.rule, self.states.pop(stream, StreamState()), window)
        self.states[stream] = found.state
        if len(self.states) > MOST_STREAMS:
            self.states.pop(next(iter(self.states)))
        return found

    def identity(self, stream: str, incident: Incident) -> str:
        """Return the id of an incident: the same incident of a model and stream always gets the same id."""
        return _id(self.checkpoint, stream, f"{incident.raised:.6f}")

    def name_of(self, host: str, told: ToldChange) -> str:
        """Return the id of a change: the same change of a host, reported with the same model, always gets the same
        id."""
        return _id(self.checkpoint, host, "changed", str(told.at), str(told.window))

    def save(self, path: Path) -> None:
        """Write the file ``path`` atomically; its folder is made if it is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(self) + b"\n")

    def load(self, path: Path) -> str | None:
        """Resume from the file if it exists and belongs to this checkpoint and rule.

        If the file belongs to another checkpoint or rule, take only its undelivered calls, and return a sentence that
        says so; otherwise return None. Raises StreamsError for a file that cannot be read or is no state file of this
        version. Loading never changes the file.
        """
        try:
            if path.stat().st_size > LARGEST:
                raise StreamsError(f"{path} is too large for a state file: name another one with --state")
            kept = msgspec.json.decode(path.read_bytes(), type=Streams)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StreamsError(f"{path} cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise StreamsError(f"{path} is no state file: remove it, or name another one with --state") from None
        if (kept.format, kept.version) != (FORMAT, VERSION):
            raise StreamsError(f"{path} is no state file of this version: remove it, or name another one with --state")
        if (kept.checkpoint, kept.rule) != (self.checkpoint, self.rule):
            self.undelivered = kept.undelivered  # whoever raised them, somebody is still to be called
            return f"{path} belongs to another model: its incidents and changes are not used"
        self.states, self.undelivered, self.hosts = kept.states, kept.undelivered, kept.hosts
        return None


def _id(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def rule_of(document: Json) -> JoinRule:
    """Read the incident rule in the checkpoint of a model with a threshold. Raises ValueError for a damaged one."""
    return msgspec.convert(document["incidents"], JoinRule)


class Called(NamedTuple):
    """A stream's incident in its latest form; ``over`` is True once a later window showed its end."""

    id: str
    stream: str
    host: str
    incident: Incident
    over: bool = False


def feed_all(streams: Streams, windows: Iterable[tuple[str, str, Window]]) -> list[Called]:
    """Process windows (stream, host, window) in order; return, in its latest form, each incident that was open after
    one of them or ended at one."""
    by_id = {}

    def note(stream: str, host: str, incident: Incident, *, over: bool) -> None:
        known = streams.identity(stream, incident)
        by_id[known] = Called(known, stream, host, incident, over)

    for stream, host, window in windows:
        found = streams.feed(stream, window)
        if found.over is not None:
            note(stream, host, found.over, over=True)
        if found.state.open is not None:
            note(stream, host, found.state.open, over=False)
    return list(by_id.values())


# -- confirming a change -----------------------------------------------------------------------------------------------
# A watch may be running, and its state file is then its alone. So a note beside the file names the change that a person
# has read: one that is told in between is not confirmed with it.


def note_of(state: Path) -> Path:
    return state.with_name(f"{state.name}.confirm")


def leave_note(state: Path, streams: Streams, host: str) -> ToldChange:
    """Write a note beside the file ``state`` by which `take_note` will confirm the change of ``host`` that the file
    reports.

    ``streams`` must be new and of the same model. Return the named change. Raises ``BadArguments`` if the file has no
    reported change of the host, or is another model's.
    """
    other = streams.load(state)
    told = streams.record(host).told
    if other is not None or told is None:
        raise BadArguments(f"{other or f'{state} knows no change of {host}'}: there is nothing to confirm")
    write_whole(note_of(state), streams.name_of(host, told).encode())
    return told


def take_note(state: Path, streams: Streams, host: str, *, keep: Callable[[ToldChange], object]) -> ToldChange | None:
    """Confirm the host's reported change if a note beside ``state`` names it, and call ``keep`` with the change to save
    it.

    The note is removed, whether it names the reported change or not. Return the confirmed change; None if there is no
    note, or its change is not the reported one.
    """
    note = note_of(state)
    try:
        with note.open("rb") as file:
            named = file.read(LONGEST_NOTE)
    except FileNotFoundError:
        return None
    told = streams.record(host).told
    if told is not None and streams.name_of(host, told).encode() == named:
        streams.confirm(host)
        keep(told)
    else:
        told = None
    note.unlink(missing_ok=True)
    return told
