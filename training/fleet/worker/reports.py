"""The trainer's report, stored beside the packed bundle until both are delivered."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from training.files import write_whole
from training.fleet.wire.constants import REPORT_BYTES_MAX
from training.printable import size


def beside(bundle: str | Path) -> Path:
    """Return where the report of the bundle at this path is stored."""
    return Path(f"{bundle}.report.json")


def keep(found: Iterable[Path], bundle: Path) -> str | None:
    """Store the first of these files that exists beside the bundle, or return why there is no report to send.
    OSError."""
    beside(bundle).unlink(missing_ok=True)
    path = next((each for each in found if each.is_file()), None)
    if path is None:
        return "the trainer left none"
    if path.stat().st_size > REPORT_BYTES_MAX:
        return f"it is larger than {size(REPORT_BYTES_MAX)}, the most that is kept beside a bundle"
    body = path.read_bytes()
    if _sent(body) is None:
        return "it is no text"
    write_whole(beside(bundle), body)
    return None


def read(bundle: str | Path) -> str | None:
    """Read the report to be sent with the bundle at this path; None when there is none."""
    with suppress(OSError):
        path = beside(bundle)
        if path.stat().st_size <= REPORT_BYTES_MAX:
            return _sent(path.read_bytes())
    return None


def _sent(body: bytes) -> str | None:
    """Return the text in the form in which it is sent; None if escapes would more than double it."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if len(json.dumps(text, ensure_ascii=False).encode()) <= 2 * REPORT_BYTES_MAX else None
