"""Confirming a change: a note beside the state file, which the watch that keeps the file takes up.

The watch may be running, and its state file is then its alone. A note names the change that a person has read, so that
one that is told in between is not confirmed with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from training.files import write_whole
from training.trainer.changed import Told
from training.trainer.contract import BadArguments
from training.trainer.streams import StateError, Streams

LONGEST = 64  # bytes of a note


def note_of(state: Path) -> Path:
    return state.with_name(f"{state.name}.confirm")


def leave(state: Path, streams: Streams, host: str) -> Told:
    """Leave a note that confirms the change that ``state`` tells of ``host``. Raises ``BadArguments``.

    ``streams`` are empty ones of the model.
    """
    try:
        other = streams.load(state)
    except StateError as error:
        raise BadArguments(str(error)) from None
    told = streams.record(host).told
    if other is not None or told is None:
        raise BadArguments(f"{other or f'{state} knows no change of {host}'}: there is nothing to confirm")
    write_whole(note_of(state), streams.name_of(host, told).encode())
    return told


def take_up(state: Path, streams: Streams, host: str, *, keep: Callable[[Told], object]) -> Told | None:
    """Confirm what a note beside ``state`` names, if it is told; ``keep`` the streams, and remove the note."""
    note = note_of(state)
    try:
        with note.open("rb") as file:
            named = file.read(LONGEST)
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
