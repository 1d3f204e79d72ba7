"""Watch this host with a trained model, print its incidents, and deliver them to hooks.

    python -m training.watch artifacts/gbt_realistic.ckpt.json --reference data/episodes

The watch reads the recorder's channels from psutil, /proc and, in a container, its control group; only hooks send
anything off the host. The watch computes windows, features, scores and incidents as ``training.trainer.score`` does.
The watch prints a line when an incident is raised, when an incident is over, and when the host's usual work changes;
notes go to standard error. Ctrl-C and SIGTERM end the watch. A watch that is started again resumes from its state file;
a call repeated after a crash has the same id.
"""

import argparse
import contextlib
import io
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from training.clock import SystemClock
from training.command_line import parser_of
from training.streams import complain, replace_unprintable
from training.trainer.contract import Interrupted, Progress, Stop, limit_threads, perform

PROGRAM = "training.watch"


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    names = _parser().parse_args(argv)
    limit_threads(max(names.threads, 1))

    def work(_progress: Progress, stop: Stop) -> None:
        # Imported late: numerical libraries read the number of threads when they are imported.
        from training.watch.watching import confirm, prepare, samples

        if names.confirm_change:
            complain(f"note: {confirm(names)}")
            return
        with contextlib.ExitStack() as held:
            try:
                with stop.at_once():
                    watch, collector, hz = prepare(names, held)
            except Interrupted:
                return
            held.callback(watch.close)
            samples(watch, collector, hz=hz, clock=SystemClock(), sleep=time.sleep, stop=stop, for_s=names.for_s)

    return perform(work, out=sys.stderr if names.json else io.StringIO())


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(PROGRAM, description="Watch this host with a trained model.")
    add = parser.add_argument
    add("checkpoint", type=Path, help="file <model>_realistic.ckpt.json of a trained model")
    add(
        "--reference", action="append", default=[], metavar="PATH",
        help="reference recording of this host, or a folder of them (record --baseline makes one); may be repeated",
    )  # fmt: skip
    add("--host", default=platform.node() or "host", help="name of this host (default: its own)")
    add(
        "--view", choices=["auto", "machine", "container"], default="auto",
        help="measure the whole machine or this container, as the reference did (default: as record chooses)",
    )  # fmt: skip
    add("--state", type=Path, help="file that keeps open incidents across restarts (default: see docs)")
    add("--for", dest="for_s", type=float, default=None, metavar="SECONDS", help="end after so many seconds")
    add("--json", action="store_true", help="print JSON lines")
    add("--exec", dest="command", help="command to start for each raised incident, with it as JSON on its input")
    webhook = parser.add_mutually_exclusive_group()
    webhook.add_argument(
        "--webhook-file", type=Path, metavar="FILE",
        help="file with one line, the address to which each raised incident is posted as JSON",
    )  # fmt: skip
    webhook.add_argument(
        "--webhook", metavar="URL", help="the webhook's address itself, which every user of this machine can then read"
    )
    add("--receiver-url", metavar="URL", help="address of the fleet's receiver, which gets each incident and change")
    add("--tls-dir", metavar="DIR", help="folder of this host's certificate for the receiver (default: join's folder)")
    add(
        "--confirm-change", action="store_true",
        help="accept the reported change of this host as its ordinary work from now on, and end; the watch "
        "with the same state file confirms the change at its next window",
    )  # fmt: skip
    add("--threads", type=int, default=1, help="number of CPU threads (default 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
