"""From plan to model: how many jobs a second one worker with one slot gets done, and what lies between two of them.

The limit is a bare loop that starts the same trainer, writes as it does, and does nothing else: no queue, no lease, no
upload, no fsync. The peer is HyperQueue, which has a queue and no upload. All run in turn in one go. The trainer of the
first question is a shell that leaves one small file; that of the second is a Python interpreter that notes when it
began and when it ended.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from receivers import fill, receiver
from turnaround import in_hyperqueue

SHELL = 'while [ "$1" != --out-dir ]; do shift; done; echo done > "$2/out"'
# Begin and end as one clock of the machine counts them, for all processes.
PYTHON = (
    "import sys,time; b=time.monotonic(); a=sys.argv; "
    "open(a[a.index('--out-dir')+1]+'/out','w').write('done'); print('bench',repr(b),repr(time.monotonic()),flush=True)"
)
COMMANDS = {"sh": ["sh", "-c", SHELL, "sh"], "python": [sys.executable, "-I", "-S", "-c", PYTHON]}


def manifest(trainer: str, jobs: int) -> str:
    """A plan of so many equal jobs for a trainer of one's own."""
    command = ", ".join(f"'{word}'" if "'" not in word else f"'''{word}'''" for word in COMMANDS[trainer])
    head = f'schema_version = 1\nname = "bench"\n[trainers.bench]\ncommand = [{command}]\noutputs = ["out"]\n'
    head += "[hosts.bench]\nslots = 1\n"
    entry = '[[jobs]]\nname = "j{0}"\nmodel = "bench"\nmode = "oracle"\nseed = {0}\npriority = 99\n'
    return head + "".join(entry.format(number) for number in range(jobs))


@contextlib.contextmanager
def worker(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """One worker as it is installed, one slot."""
    places = {"artifacts-dir": "artifacts", "reports-dir": "reports", "state-dir": "state"}
    flags = [each for name, file in places.items() for each in (f"--{name}", str(folder / file))]
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "training.fleet.worker", "--host-id", "bench", *flags),
                *("--receiver-url", f"http://127.0.0.1:{port}", "--log-level", "WARNING"),
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def fleet(folder: Path, trainer: str, jobs: int, backlog: int) -> tuple[float, float, list[float]]:
    """Jobs a second between the first and the last; seconds from nothing running to the first job; the gaps in ms."""
    if backlog:
        fill(folder / "jobs.db", backlog)
    begun = time.monotonic()
    with (
        receiver(folder, plan=manifest(trainer, jobs)) as served,
        worker(folder, served.port) as process,
    ):
        ends: list[float] = []
        reader = sqlite3.connect(f"file:{folder / 'jobs.db'}?mode=ro", uri=True)
        first = 0.0
        while len(ends) < jobs:
            if process.poll() is not None:
                raise SystemExit((folder / "worker.log").read_text()[-2000:])
            rows = reader.execute("SELECT finished_at FROM jobs WHERE status = 'completed' ORDER BY finished_at")
            ends = [row[0] for row in rows]
            if ends and not first:
                first = time.monotonic() - begun
            failed = reader.execute("SELECT name, error FROM jobs WHERE status = 'failed'").fetchone()
            if failed is not None:
                raise SystemExit("{}: {}".format(*failed))
            time.sleep(0.02)
        texts = [text for (text,) in reader.execute("SELECT text FROM log_chunks")]
        texts += [gzip.decompress(path.read_bytes()).decode() for path in (folder / "models").glob("logs/*/*.log.gz")]
        marks = [line.split()[1:] for text in texts for line in text.split("\n") if "bench" in line]
        reader.close()
    spans = sorted((float(begin), float(end)) for begin, end in marks)
    gaps = [(after[0] - before[1]) * 1e3 for before, after in itertools.pairwise(spans)]
    return (jobs - 1) / (ends[-1] - ends[0]), first, gaps


def loop(folder: Path, trainer: str, jobs: int) -> tuple[float, list[float]]:
    """The limit: the same processes, one after the other."""
    begun, spans = time.monotonic(), []
    for _ in range(jobs):
        command = [*COMMANDS[trainer], "--out-dir", str(folder)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
        spans += [tuple(map(float, line.split()[1:])) for line in said.splitlines()]
    gaps = [(after[0] - before[1]) * 1e3 for before, after in itertools.pairwise(spans)]
    return jobs / (time.monotonic() - begun), gaps


def hyperqueue(folder: Path, jobs: int) -> float:
    """Jobs a second between the first and the last, by the files that they leave: its client looks once a second."""
    for number in range(jobs):
        (folder / str(number)).mkdir()
    in_hyperqueue(folder, jobs, [*COMMANDS["sh"], "--out-dir", f"{folder}/{{n}}"])
    ends = sorted((folder / str(number) / "out").stat().st_mtime_ns / 1e9 for number in range(jobs))
    return (jobs - 1) / (ends[-1] - ends[0])


def main() -> int:
    """Print a line a question, with the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--backlog", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {"loop": [], "hyperqueue": [], "fleet": [], "backlog": []}
    firsts, gaps, bare = [], [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="cis490-bench-") as name:
            root = Path(name)
            for each in ("loop", "hyperqueue", "fleet", "backlog", "gaps"):
                (root / each).mkdir()
            rates["loop"].append(loop(root / "loop", "sh", options.jobs)[0])
            rates["hyperqueue"].append(hyperqueue(root / "hyperqueue", options.jobs))
            rate, first, _none = fleet(root / "fleet", "sh", options.jobs, 0)
            rates["fleet"].append(rate)
            firsts.append(first)
            rates["backlog"].append(fleet(root / "backlog", "sh", options.jobs, options.backlog)[0])
            bare += loop(root / "loop", "python", options.jobs // 4)[1]
            gaps += fleet(root / "gaps", "python", options.jobs // 4, 0)[2]
    middle = {name: statistics.median(values) for name, values in rates.items()}
    print(f"jobs a second, one slot, trainer of a shell: {middle['fleet']:.0f} (bar 150)")
    print(f"  a bare loop of the same processes: {middle['loop']:.0f}, ratio {middle['fleet'] / middle['loop']:.2f}")
    print(f"  HyperQueue: {middle['hyperqueue']:.0f}, ratio {middle['fleet'] / middle['hyperqueue']:.2f}")
    print(
        f"  behind it {options.backlog:,} more jobs: {middle['backlog']:.0f}, "
        f"ratio {middle['backlog'] / middle['fleet']:.2f}"
    )
    print(f"nothing running to the first job done: {statistics.median(firsts):.2f} s")
    between, limit = statistics.median(gaps), statistics.median(bare)
    print(
        f"end of one trainer to the next one's first line, Python: {between:.0f} ms, in a bare loop {limit:.0f} ms, "
        f"{between - limit:.0f} ms above (bar 50)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
