"""Tables larger than memory: what an ingest needs of memory and time, beside Polars reading the same file whole.

    python bench/ingest.py [--gigabytes 0.5,1,5] [--columns 60] [--parquet] [--shuffled]

Made are tables of ten hosts at 10 Hz whose recordings hold two classes. Each contender is a process of its own; counted
is the most memory that was resident, mapped pages of files among it. Polars only reads its file (once); the ingest
reads it twice, sorts, cuts, judges and writes 2-second windows with their features. The bar: 1 GiB.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
from trainers import ROOT, Table, arguments, own_python, workplace

HOSTS, HZ, PART = 10, 10, 50_000
LIMIT = 2**30
READ = "import polars, sys; polars.read_{kind}(sys.argv[1])"


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--gigabytes", default="0.5,1,5", help="sizes of the tables as text, with commas")
    parser.add_argument("--columns", type=int, default=60, help="channels")
    parser.add_argument("--parquet", action="store_true", help="the same rows as Parquet")
    parser.add_argument("--shuffled", action="store_true", help="rows in any order")
    parser.add_argument("--no-peer", action="store_true", help="leave Polars out, which may need more than there is")
    args = parser.parse_args()
    shape = f"{args.columns} channels, {'Parquet' if args.parquet else 'text'}{', shuffled' * args.shuffled}"
    columns = {"table": 10, "rows": 12, "MiB, peak": 10, "s": 7, "Polars MiB": 11, "Polars s": 9, "ratio": 6}
    table = Table(shape, columns, as_json=args.json)
    missed = 0
    for size in map(float, args.gigabytes.split(",")):
        with workplace() as folder:
            path, rows = made(folder, int(size * 1e9), args.columns, shuffled=args.shuffled)
            if args.parquet:
                pl.scan_csv(path).sink_parquet(path.with_suffix(".parquet"), row_group_size=100_000)
                path.unlink()
                path = path.with_suffix(".parquet")
            ingest = (own_python(), "-m", "training.data.ingest", str(path), "--window-s", "2")
            code, peak, seconds = measured(*ingest, "--out-dir", str(folder / "data"))
            if code:
                return code
            other, other_s = 0, float("nan")
            if not args.no_peer:
                read = READ.format(kind="parquet" if args.parquet else "csv")
                _, other, other_s = measured(own_python(), "-c", read, str(path))
            missed += peak > LIMIT
            shown = f"{peak / 2**20:,.0f}", f"{seconds:,.0f}", f"{other / 2**20:,.0f}", f"{other_s:,.1f}"
            ratio = f"{peak / other:.2f}" if other else ""
            table.row(f"{size:g} GB", f"{rows:,}", *shown, ratio, peak_bytes=peak)
            shutil.rmtree(folder, ignore_errors=True)
    table.end(missed=missed)
    return 1 if missed else 0


def made(folder: Path, size: int, width: int, *, shuffled: bool) -> tuple[Path, int]:
    """A table of text of about so many bytes, and its number of rows."""
    rng = np.random.default_rng(0)
    path = folder / "table.csv"
    rows = at = 0
    with path.open("wb") as file:
        while file.tell() < size:
            names = [f"c{number:02}" for number in range(width)]
            t = (at + np.arange(PART)) / HZ
            attack = (t // 300).astype(np.int64) % 3 == 0
            noise = rng.standard_normal((PART, width)).astype(np.float32)
            noise[attack] += 0.3
            for host in range(HOSTS):
                values = {name: np.round(np.roll(noise[:, place], host), 4) for place, name in enumerate(names)}
                values = {name: np.roll(one, 7 * host) + host / 100 for name, one in values.items()}
                part = pl.DataFrame(
                    {"t": 1.7e9 + t, "host": [f"web{host}"] * PART, "label": np.where(attack, "attack", "normal")}
                    | values
                )
                if shuffled:
                    part = part[rng.permutation(PART)]
                part.write_csv(file, include_header=rows == 0, float_precision=4)
                rows += PART
                if file.tell() >= size:
                    break
            at += PART
    return path, rows


def measured(*command: str) -> tuple[int, int, float]:
    """Exit code, peak of resident bytes, and seconds of a process."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_maxrss * 1024, time.perf_counter() - begun


if __name__ == "__main__":
    raise SystemExit(main())
