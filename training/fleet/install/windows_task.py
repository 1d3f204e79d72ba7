"""The program of the Scheduled Task: run the worker with the settings in the installer's file, and with a log of
bounded size.

Task Scheduler does not store a program's output. This program writes its log and all other output to one file, which is
rotated at 2 MiB; five older files are kept. This module can be imported on every system, so that tests need no Windows.
"""

import argparse
import io
import logging
import logging.handlers
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training import strict_json
from training.streams import complain, replace_unprintable

LOG_BYTES = 2 * 1024**2
LOGS_KEPT = 5
FORMAT = "%(asctime)s %(levelname)s %(message)s"

log = logging.getLogger("training.fleet.install.windows_task")


class LineLog(io.TextIOBase):
    """A stream that writes each line that is not blank to the log."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._unfinished = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            if line.strip():
                log.log(self._level, "%s", line)
        return len(text)


def worker_arguments(settings: dict[str, Any]) -> list[str]:
    """Return the worker's command-line arguments. Raises KeyError, TypeError or ValueError when settings are missing or
    malformed."""
    base = Path(settings["base"])
    return [
        *("--receiver-url", settings["receiver_url"], "--host-id", settings["host_id"]),
        *("--artifacts-dir", str(base / "artifacts"), "--reports-dir", str(base / "reports")),
        *("--state-dir", str(base / "state")),
        *(part.strip('"') for part in shlex.split(settings["flags"], posix=False)),
    ]


def log_to(path: Path) -> logging.Handler:
    """Send this program's log and all its output to the file ``path``. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8")
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    sys.stdout, sys.stderr = LineLog(logging.INFO), LineLog(logging.ERROR)
    return handler


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker and return its exit code; 2 if the settings cannot be used, 1 if the worker raises an
    exception."""
    replace_unprintable()
    parser = argparse.ArgumentParser(prog="python -m training.fleet.install.windows_task", allow_abbrev=False)
    parser.add_argument("--settings", type=Path, required=True, help="the settings file that the installer wrote")
    args = parser.parse_args(argv)
    try:
        settings = strict_json.loads(args.settings.read_text("utf-8"))
        arguments = worker_arguments(settings)
        log_to(Path(settings["log"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        complain(f"{args.settings} cannot be used ({error}); install again")
        return 2
    from training.fleet.worker import daemon

    try:
        return daemon.main(arguments)
    except SystemExit as error:  # the parser refused a flag and said so
        return error.code if isinstance(error.code, int) else 2
    except Exception:
        log.exception("the worker ended by a mistake of its own; it is started again in five minutes")
        return 1


if __name__ == "__main__":
    sys.exit(main())
