"""The trainer's report: stored beside the packed bundle, sent when the job is completed, and set aside or deleted with
the bundle."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from training.files import write_whole
from training.fleet.wire.constants import REPORT_BYTES_MAX
from training.printable import size


def beside(bundle: str | Path) -> Path:
    """Return the path at which the report of the bundle at this path is stored."""
    return Path(f"{bundle}.report.json")


def keep(found: Iterable[Path], bundle: Path) -> str | None:
    """Copy the first existing file of ``found`` to the report's place beside ``bundle`` and return None, or return why
    no report is sent. Raises OSError."""
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
    """Return the report to be sent with the bundle at this path; None when there is none that can be sent."""
    with suppress(OSError):
        path = beside(bundle)
        if path.stat().st_size <= REPORT_BYTES_MAX:
            return _sent(path.read_bytes())
    return None


def _sent(body: bytes) -> str | None:
    """Return the report as text; None if it is not UTF-8, or if JSON needs more than twice :data:`REPORT_BYTES_MAX` for
    it."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if len(json.dumps(text, ensure_ascii=False).encode()) <= 2 * REPORT_BYTES_MAX else None
