"""From the end of one job to the begin of the next, which needs a data set of its own: fetched ahead, and not.

    python bench/data_ahead.py [--mib 200] [--train-s 20] [--rounds 3] [--json]

A receiver and a worker with one slot, as processes; the first job sleeps, the second notes when its trainer begins. The
peer is the same worker without fetches ahead, in turn in the same run, each with an empty cache.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from datasets import TOKEN, make, push_command
from receivers import MIB, Report, arguments, receiver, workplace

from training.fleet.client.client import FleetClient

TRAINER = (
    "import sys,time; b=time.monotonic(); a=sys.argv; time.sleep(float(a[a.index('--sleep')+1])); "
    "open(a[a.index('--out-dir')+1]+'/out','w').write('done'); print('bench',repr(b),repr(time.monotonic()),flush=True)"
)
PLAN = """schema_version = 1
name = "bench"
[trainers.bench]
command = ['{python}', '-I', '-S', '-c', '''{trainer}''']
outputs = ["out"]
[hosts.bench]
slots = 1
[[jobs]]
name = "first"
model = "bench"
mode = "oracle"
hyper.sleep = {train_s}
priority = 99
[[jobs]]
name = "second"
model = "bench"
mode = "oracle"
hyper.sleep = 0
dataset = "data"
"""
WITHOUT = (
    "from training.fleet.worker.state import ahead; ahead.decide = lambda ahead, **_: (ahead, None); "
    "from training.fleet.worker.daemon import main; raise SystemExit(main())"
)


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--mib", type=int, default=200)
    parser.add_argument("--train-s", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ["CIS490_OPERATOR_TOKEN"] = TOKEN
    report, gaps = Report("data_ahead", args.json), {True: list[float](), False: list[float]()}
    load = os.getloadavg()[0]
    with workplace() as folder:
        data = folder / "data"
        data.mkdir()
        make(data / "numbers.bin", args.mib * MIB)
        for number, ahead in itertools.product(range(args.rounds), (True, False)):
            place = folder / f"{number}-{ahead}"
            place.mkdir()
            gaps[ahead].append(gap(place, data, args.train_s, ahead=ahead))
    middle = {ahead: statistics.median(found) for ahead, found in gaps.items()}
    report.row(f"{args.mib} MiB not fetched ahead: end of one job to begin of the next", middle[False], "s", load=load)
    report.row("… fetched ahead", middle[True], "s", "", load=os.getloadavg()[0], rounds=args.rounds)
    report.row("… ratio", middle[True] / middle[False], "×")
    report.end()


def gap(folder: Path, data: Path, train_s: float, *, ahead: bool) -> float:
    """Seconds from the end of the first trainer to the begin of the second."""
    plan = PLAN.format(python=sys.executable, trainer=TRAINER, train_s=train_s)
    with receiver(folder, plan="schema_version = 1\n") as served:
        subprocess.run(push_command(served, data), check=True, stdout=subprocess.DEVNULL)
        (folder / "manifest.toml").write_text(plan)
        client = FleetClient(f"http://127.0.0.1:{served.port}", operator_token=TOKEN)
        client.reload()
        with worker(folder, served.port, ahead=ahead):
            while client.job("second")["job"]["status"] != "completed":
                time.sleep(0.2)
        marks = []
        for name in ("first", "second"):
            (line,) = (one for one in client.log(name)["lines"] if "bench" in str(one))
            marks.append([float(number) for number in re.findall(r"\d+\.\d+", str(line))])
        client.close()
    return marks[1][0] - marks[0][1]


@contextlib.contextmanager
def worker(folder: Path, port: int, *, ahead: bool) -> Iterator[None]:
    program = ("-m", "training.fleet.worker") if ahead else ("-c", WITHOUT)
    places = {"artifacts-dir": "artifacts", "reports-dir": "reports", "state-dir": "state"}
    flags = [each for name, file in places.items() for each in (f"--{name}", str(folder / file))]
    flags += ["--host-id", "bench", "--receiver-url", f"http://127.0.0.1:{port}", "--log-level", "WARNING"]
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *program, *flags], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    main()
