"""Make text from elsewhere safe to show: a job's error must not move a cursor, set a title or reorder a line."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from training.streams import has_seen_enough, write_no_more

# Characters that count as printable and yet show nothing: fillers, joiners and variation selectors.
_SINGLY = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
_UNSEEN = frozenset((*_SINGLY, *map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))))


def printable(text: object) -> str:
    """Return ``text`` in one line, with control, bidirectional and invisible characters written out as escapes."""
    plain = str(text)
    if plain.isprintable() and (plain.isascii() or _UNSEEN.isdisjoint(plain)):
        return plain  # as nearly all text, at a tenth of the price
    return "".join(c if c.isprintable() and c not in _UNSEEN else c.encode("unicode_escape").decode() for c in plain)


def one_line(text: object, chars_max: int = 300) -> str:
    """Return the non-empty lines of ``text`` joined by ``|`` and made printable. If the result exceeds ``chars_max``
    characters, its middle is replaced by ``…``."""
    joined = " | ".join(line.strip() for line in str(text).splitlines() if line.strip())
    shown = printable(joined)
    if len(shown) <= chars_max:
        return shown
    head = chars_max // 3
    return f"{shown[:head]} … {shown[len(shown) - (chars_max - head - 3) :]}"


def first_line(error: object) -> str:
    """Return the first line of an error's text, at most 300 characters, or the name of the error's class if the text is
    empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def printable_lines(text: object) -> list[str]:
    """Return each line of ``text`` made printable; tabs become blanks and Windows' line ends are removed."""
    return [printable(line.rstrip("\r").expandtabs(8)) for line in str(text).split("\n")]


def duration(seconds: float) -> str:
    """Return a length of time as text, such as ``2 h 05 min``, rounded: to seconds below two minutes, to minutes below
    a day, else to hours."""
    left = max(0, round(seconds))
    if left < 120:
        return f"{left} s" if left < 60 else f"1 min {left % 60} s" if left > 60 else "1 min"
    minutes, hours = _nearest(left, 60), _nearest(left, 3600)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 1440:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def _nearest(count: int, unit: int) -> int:
    return (count + unit // 2) // unit


def clock_time(at: float, now: float, *, here: bool = False) -> str:
    """Return the time ``at`` as text for a person who reads it at ``now`` (epoch seconds). Seconds are shown within 10
    minutes of now, the date beyond 20 hours.

    ``here``: show this machine's time zone, instead of UTC.
    """
    away = abs(at - now)
    form = "%H:%M:%S" if away < 600 else "%H:%M" if away < 72_000 else "%Y-%m-%d %H:%M"
    try:
        then = datetime.fromtimestamp(at, UTC)
        return then.astimezone().strftime(form) if here else then.strftime(f"{form} UTC")
    except (OverflowError, OSError, ValueError):
        return "a time that no clock shows"


def left_to(by: object, name: object, *, done: str, here: str, free: str = "") -> str:
    """Return the reason why this host does not get the job ``name``: the host ``by`` will have finished it at ``done``,
    this one only at ``here``. ``free`` is the time at which this host gets the job at the latest. ``done``, ``here``
    and ``free`` are times as text."""
    done = f"{by} will have {name} done at {done}, here it would take until {here}"
    return f"{done}; free for this host at {free} at the latest" if free else done


def size(count: float) -> str:
    """Return a number of bytes as text, in the first of B, KiB and MiB in which it is below 1024, or else in GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def json_text(value: Any) -> str:
    """Return ``value`` as JSON that is also safe on a terminal: all characters outside plain ASCII are escaped."""
    return json.dumps(value, indent=2, ensure_ascii=True)


def say(text: str) -> None:
    """Print ``text``. A reader that closes the pipe (``| head``) is no error."""
    try:
        print(text, flush=True)
    except OSError as error:
        if not has_seen_enough(error):
            raise
        write_no_more()


def some(names: Sequence[object], most: int = 3, in_all: int = 0) -> str:
    """Return the first ``most`` of ``names`` as text, and the number of the others. ``in_all`` is the total if it
    exceeds the number of ``names``."""
    rest = max(in_all, len(names)) - len(names[:most])
    return ", ".join(map(str, names[:most])) + (f" and {rest} more" if rest > 0 else "")


def counted(count: int, things: str) -> str:
    """Return a count with its noun, as ``1 job`` or ``2 files of output``; ``things`` is the plural."""
    noun, of, rest = things.partition(" of ")
    return f"{count} {noun[:-1] if count == 1 else noun}{of}{rest}"
