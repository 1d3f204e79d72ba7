"""``make engines``: the whole suite on a real Dask, Ray and Slurm, recorded in docs/engines.json and docs/executors.md.

    python -m tests.engines [dask] [ray] [slurm] [--show]

Without names all three are tried; ``--show`` only writes the page from what is recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
RECORD, PAGE = ROOT / "docs" / "engines.json", ROOT / "docs" / "executors.md"
ENGINES = ("dask", "ray", "slurm")
BEGIN, END = "<!-- engines: written by python -m tests.engines -->", "<!-- engines end -->"


class Outcomes:
    """The tests of a run: how many came to which end."""

    def __init__(self):
        self.passed, self.failed, self.seconds = 0, list[str](), 0.0

    def pytest_runtest_logreport(self, report):
        self.seconds += report.duration
        if report.when == "call" and report.passed:
            self.passed += 1
        elif not report.passed:  # a skipped one shows nothing either
            self.failed.append(report.nodeid.rpartition("::")[2])


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__.split("\n")[0])
    parser.add_argument("engines", nargs="*", choices=[*ENGINES, []], help="dask, ray, slurm (default: all)")
    parser.add_argument("--show", action="store_true", help="write the page only")
    args = parser.parse_args()
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for engine in () if args.show else args.engines or ENGINES:
        outcomes = Outcomes()
        pytest.main(["-q", "-p", "no:randomly", str(FOLDER / f"on_{engine}.py")], plugins=[outcomes])
        record[engine] = {
            "version": engine_version(engine),
            "passed": outcomes.passed,
            "failed": outcomes.failed,
            "seconds": round(outcomes.seconds),
            "load": round(os.getloadavg()[0], 1),
            "commit": _said("git", "rev-parse", "--short=8", "HEAD"),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        }
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")
    return int(any(run["failed"] or not run["passed"] for run in record.values()))


def engine_version(engine):
    if engine == "slurm":
        return f"{_said('slurmctld', '-V').removeprefix('slurm-wlm ')}, submitit {version('submitit')}"
    return version({"dask": "distributed"}.get(engine, engine))


def _said(*command):
    path = f"{os.environ['PATH']}:/usr/sbin"
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    return done.stdout.strip()


def table(record):
    """The record as a Markdown table, a row an engine."""
    lines = ["| engine | version | passed | failed | took | of commit |", "|---|---|---|---|---|---|"]
    for engine in ENGINES:
        run = record.get(engine)
        if run is None:
            lines.append(f"| {engine} | – | not run yet | – | – | – |")
            continue
        took = f"{run['seconds']} s on {run['cores']} cores"
        failed = ", ".join(run["failed"]) or "0"
        lines.append(f"| {engine} | {run['version']} | {run['passed']} | {failed} | {took} | {run['commit']} |")
    return "\n".join(lines)


def rendered(text, record):
    """The page with the table of the record."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(record)}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.exit(main())
