"""Watching this host with a trained model: processor time and memory, and what is not loaded.

    python bench/watch.py [--seconds 60] [--json]

A short `gbt` on the recorded sample, a reference of 25 s of this host, then the watch as a user starts it. Counted from
its first windows on: processor seconds of the process by seconds of the clock, and its resident memory at the most.
Bars: at most 3 % of a core, at most 220 MiB, no torch.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from trainers import ROOT, Table, arguments, own_python, train, words_of, workplace
from watching import used_s

CORE, MIB = 0.03, 220
WARM_S = 15.0  # imports, model and reference: behind it only windows are scored


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the watch that are counted")
    args = parser.parse_args()
    columns = {"model": 8, "of a core": 12, "MiB at most": 12, "torch": 6}
    table = Table(f"watching this host for {args.seconds:.0f} s", columns, as_json=args.json)
    with workplace() as folder:
        data = folder / "data"
        python = own_python()
        build = [python, "-m", "training.data.build", str(ROOT / "examples" / "telemetry-sample")]
        words_of([*build, "--out-dir", str(data), "--json"])
        train("gbt", data, folder / "out", mode="realistic")
        record = [python, "-m", "training.data.record", "--baseline", "--duration-s", "25", "--host", "here"]
        words_of([*record, "--out", str(folder / "reference")])
        checkpoint = next((folder / "out").rglob("gbt_realistic.ckpt.json"))
        core, most, torch = watched(checkpoint, folder, args.seconds)
    good = core <= CORE and most <= MIB and not torch
    table.row("gbt", f"{core:.2%}", f"{most:.0f}", "yes" if torch else "no", core=core, mib=most, torch=torch)
    table.end(missed=int(not good))
    return 0 if good else 1


def watched(checkpoint: Path, folder: Path, seconds: float) -> tuple[float, float, bool]:
    command = [own_python(), "-m", "training.watch", str(checkpoint), "--host", "here"]
    command += ["--reference", str(folder / "reference"), "--state", str(folder / "state")]
    process = subprocess.Popen([*command, "--for", str(WARM_S + seconds + 5)], cwd=ROOT, stderr=subprocess.DEVNULL)
    time.sleep(WARM_S)
    before, began = used_s(process.pid), time.monotonic()
    time.sleep(seconds)
    core = (used_s(process.pid) - before) / (time.monotonic() - began)
    status = Path(f"/proc/{process.pid}/status").read_text()
    most = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    torch = "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
    if process.wait():
        raise SystemExit(f"the watch ended with {process.returncode}")
    return core, most, torch


if __name__ == "__main__":
    sys.exit(main())
