"""Transfer a trainer's saved state between hosts: fetch it before the start, upload it during training and after an end
without success.

A job that is handed back resumes on another host from the uploaded state. If a transfer fails, only time is lost: the
trainer then starts from this host's own state, or from nothing.
"""

import errno
import json
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from training.files import LocalFs, free_bytes, plain_bytes, remove_tree, write_whole
from training.fleet.client.answers import ClientError
from training.fleet.client.datasets import StateCalls
from training.fleet.wire.dataset_listing import Listing
from training.fleet.wire.progress import point_in
from training.fleet.wire.states import StateView, Stretch, joined
from training.fleet.worker import saved_states
from training.fleet.worker.datasets import Order
from training.fleet.worker.state import events as t
from training.printable import one_line
from training.strict_json import Json, JsonObject

log = logging.getLogger(__name__)

# After a trainer's end, before the job is handed back: grace_s and this stay below the patience with one that stops.
LAST_S = 7.0
FLOOR_BYTES = 256 * 1024**2  # of disk that stay free
_NOTE_MAX = 1024**2  # bytes of a file of stretches
_INCOMING = ".incoming"  # beside the files, and no file of a state: its name begins with a dot


@dataclass
class StateTransfer:
    """Transfers the saved state of one attempt. Only :meth:`fetch` raises an error, Stopped. ``folder`` is the job's
    folder on this host; ``calls`` returns the object for requests as the holder of the claim. ``turn`` is one lock for
    all jobs of a worker: their last states are uploaded one after another, so that most of them arrive whole."""

    assignment: t.Assignment
    folder: Path
    host: str
    calls: Callable[[], StateCalls]
    turn: threading.Lock = field(default_factory=threading.Lock)
    _begun: tuple[Json, ...] = ()
    _begins: int | None = None  # the epoch after which this trainer began
    _epoch: int | None = None
    _kept: str | None = None  # the state that was brought last
    _closed: bool = False

    def __post_init__(self) -> None:
        self._busy, self._noting = threading.Lock(), threading.Lock()

    @property
    def every_s(self) -> float:
        """Return the seconds between uploads of the state while a trainer runs; 0 means no uploads."""
        return self.assignment.state_every_s or 0.0

    # ── before ──────────────────────────────────────────────────────────────────────────────

    def fetch(self, order: Order) -> None:
        """Fetch the state named in the assignment into the job's folder, unless the folder has it. If this host saved
        the named state, any state in the folder is enough.

        Raises Stopped; other errors are logged.
        """
        from training.fleet.client.push import FolderError

        known, here = self.assignment.state, None
        try:
            here = self._listing()
            if known is not None:
                if here is None or (known.host != self.host and here.dataset_id != known.state_id):
                    self._fetch(known, order)
                    here = self._listing()
                log.info("%s resumes from the state that %s saved", self.assignment.name, known.host)
        except (ClientError, FolderError, OSError) as error:
            log.warning(
                "%s: the state that %s saved cannot be fetched (%s); it starts from this host's own, if any",
                self.assignment.name, known.host if known else self.host, one_line(error),
            )  # fmt: skip
        if here is None:
            self._begins = 0
        else:
            self._begun = _stretches_in(saved_states.stretches_of(self.folder))

    def _fetch(self, known: StateView, order: Order) -> None:
        calls, incoming = self.calls(), self.folder / _INCOMING
        if free_bytes(self.folder) < FLOOR_BYTES + known.size:
            raise OSError(errno.ENOSPC, "no room for a saved state", str(self.folder))
        listing = calls.listing(known.state_id)
        remove_tree(incoming)
        for file in listing.files:
            path = incoming / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                for sha256 in file.pieces:
                    order.check()
                    out.write(calls.piece(known.state_id, sha256))
        self._note_here([each.to_dict() for each in known.stretches])
        for old in self.folder.iterdir():
            if old != incoming:
                remove_tree(old)
                if old.exists():
                    raise OSError(errno.ENOTEMPTY, "a file of another state cannot be deleted", str(old))
        for new in incoming.iterdir():
            LocalFs().replace(new, self.folder / new.name)
        incoming.rmdir()

    # ── while, and after ────────────────────────────────────────────────────────────────────

    def heed(self, lines: Iterable[str]) -> None:
        """Record the epoch that the training has reached, if these lines of the trainer's output report one."""
        for line in lines:
            if (point := point_in(line)) is not None:
                self._epoch = point.epoch
                if self._begins is None:
                    self._begins = max(0, point.epoch - 1)

    def begin_bringing(self) -> None:
        """Upload the present state on a thread of its own, unless an upload is running; return at once."""
        if not self._busy.locked():
            self._on_a_thread(self.bring)

    def bring_last(self) -> None:
        """Upload the last state of an ended trainer when it is its turn, but wait for that no longer than
        :data:`LAST_S` seconds; log when that was not enough."""

        def bring() -> None:
            with self.turn:
                self.bring()

        thread = self._on_a_thread(bring)
        thread.join(LAST_S)
        if thread.is_alive():
            log.warning(
                "%s: the saved state was not uploaded within %.0f s; it stays here", self.assignment.name, LAST_S
            )

    def _on_a_thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"state {self.assignment.name}", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Record that the attempt has ended, so that an upload that still runs writes no note beside another attempt's
        state."""
        with self._noting:
            self._closed = True

    def bring(self) -> None:
        """Upload the present state, unless there is none or this attempt uploaded it last; wait first for an upload
        that runs. Errors are logged."""
        from training.fleet.client.push import FolderError, send

        with self._busy:
            try:
                listing = None if self._closed else self._listing()
                if listing is None or listing.dataset_id == self._kept:
                    return
                stretches = self._stretches()
                self._note_here(stretches)
                calls = self.calls()
                for _ in send(calls, self.folder, listing, tries=1):
                    pass
                calls.keep(listing.dataset_id, stretches=stretches, tries=1)
            except (ClientError, FolderError, OSError, LookupError, TypeError) as error:
                log.info(
                    "%s: the saved state was not uploaded (%s); it stays here", self.assignment.name, one_line(error)
                )
                return
            self._kept = listing.dataset_id

    def _listing(self) -> Listing | None:
        """Return the listing of the files that the trainer saved; None if there are none."""
        from training.fleet.client.push import read_folder  # not needed by a worker at rest

        with suppress(FileNotFoundError):
            if self.holds_a_state:
                return read_folder(self.folder, lambda _done, _whole: None)
        return None

    @property
    def holds_a_state(self) -> bool:
        """Return True if the job's folder holds a saved state: any entry whose name does not begin with a dot."""
        try:
            return not self.folder.is_symlink() and any(each.name[:1] != "." for each in self.folder.iterdir())
        except OSError:
            return False

    # ── the record ──────────────────────────────────────────────────────────────────────────

    def note(self, path: Path) -> None:
        """Save which attempt trained which epochs beside the state; for a continued training also to ``path``, where
        the session that packs the bundle reads it for the record."""
        stretches = self._stretches()
        self._note_here(stretches)
        if self._begun:
            with suppress(OSError):
                path.write_text(json.dumps(stretches), encoding="utf-8")

    def _stretches(self) -> list[JsonObject]:
        """Return, for each attempt that has worked on this training, its host and the epochs that it trained."""
        begins = self._begins
        if begins is None and self._begun:
            begins = self._begun[-1]["ends"]  # None, too, where nobody noted it: the first epoch will tell
        own = {"attempt": self.assignment.attempt, "host": self.host, "begins": begins, "ends": self._epoch}
        return joined(self._begun, own)

    def _note_here(self, stretches: Sequence[Json]) -> None:
        """Save beside the state which host trained which epochs, for another attempt on this host."""
        path = saved_states.stretches_of(self.folder)
        with self._noting, suppress(OSError):
            if not self._closed:
                write_whole(path, json.dumps(stretches).encode(), durable=False)


def stretches_noted(path: Path, output: Path) -> JsonObject:
    """Return what :meth:`StateTransfer.note` saved, for the attempt's record; empty if the attempt did not continue an
    earlier one.

    A killed worker has not noted the last epoch of its trainer; that epoch is then read from the trainer's ``output``.
    """
    stretches = _stretches_in(path)
    if not stretches:
        return {}
    *earlier, own = stretches
    if own["ends"] is None:
        own = _by_output(own, output)
    return {"stretches": joined(earlier, own)}


def note_end(folder: Path, assignment: t.Assignment, output: Path) -> None:
    """Add the epochs in a trainer's ``output`` to the note beside its state, if this attempt is the note's last: a
    killed worker could not.

    The next attempt on this host may find nothing left to train, and then reports no epoch that would show it.
    """
    path = saved_states.stretches_of(folder)
    stretches = _stretches_in(path)
    if stretches and stretches[-1]["attempt"] == assignment.attempt:
        with suppress(OSError):
            write_whole(path, json.dumps(joined(stretches[:-1], _by_output(stretches[-1], output))).encode())


def _by_output(own: Json, output: Path) -> Json:
    """Return an attempt's part of the training with the first and last epoch that its ``output`` reports; unchanged if
    it reports none."""
    with suppress(OSError), output.open(encoding="utf-8", errors="replace") as lines:
        epochs = [point.epoch for line in lines if (point := point_in(line)) is not None]
        if epochs:
            return {**own, "begins": max(0, epochs[0] - 1), "ends": epochs[-1]}
    return own


def _stretches_in(path: Path) -> tuple[Json, ...]:
    """Return which attempt trained which epochs, as noted in the file; empty if the file is missing or invalid."""
    with suppress(OSError, msgspec.MsgspecError, RecursionError):
        return tuple(each.to_dict() for each in msgspec.json.decode(plain_bytes(path, _NOTE_MAX), type=list[Stretch]))
    return ()
