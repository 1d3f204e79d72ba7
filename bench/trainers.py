"""The shared parts of the trainers' benchmarks: libraries to compare with, the product as its users run it, and tables.

The libraries (skorch, Lightning, aeon, seglearn) get an environment of their own under the user's cache folder, made
once. It sees the project's environment, so that all contenders run on the same torch; torch itself is never installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEERS = ("skorch==1.4.0", "pytorch-lightning==2.6.6", "aeon==1.6.0", "seglearn==1.2.5")
ROOT = Path(__file__).resolve().parents[1]
OWN_PYTHON = "CIS490_BENCH_PYTHON"  # the project's interpreter, for a benchmark that runs in the peers'
FAMILIES = ("gbt", "mlp", "cnn", "gru", "lstm", "transformer", "transformer_ssl")
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}


def own_python() -> str:
    return os.environ.get(OWN_PYTHON, sys.executable)


# -- the libraries compared with ------------------------------------------------------------------------------------


def among_peers(threads: int = 1) -> None:
    """Go on in the environment that holds the libraries; returns there, with so many threads."""
    wanted = ONE_THREAD | {"OMP_NUM_THREADS": str(threads)}
    python = peers_python()
    if OWN_PYTHON in os.environ and all(os.environ.get(k) == v for k, v in wanted.items()):
        return
    environment = os.environ | wanted | {OWN_PYTHON: own_python()}
    os.execve(python, [str(python), *sys.argv], environment)


def peers_python() -> Path:
    """The interpreter of that environment, made at first use."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = Path.home() / ".cache" / "cis490-bench" / f"trainers-{version}"
    python, mark = folder / "bin" / "python", folder / "complete"
    text = "\n".join((*PEERS, _site_packages(sys.executable)))
    if OWN_PYTHON in os.environ or (mark.exists() and mark.read_text() == text):
        return python
    print(f"installing {', '.join(PEERS)} into {folder} …", file=sys.stderr)
    venv.create(folder, clear=True)
    see = f"import site; site.addsitedir({_site_packages(sys.executable)!r})\n"
    Path(_site_packages(str(python)), "project.pth").write_text(see)
    install = (sys.executable, "-m", "pip", "--python", str(python), "install", "-q")
    torch = _version_of("torch")
    subprocess.run([*install, *PEERS, f"torch=={torch}"], check=True)
    mark.write_text(text)
    return python


def _site_packages(python: str) -> str:
    show = "import site; print(site.getsitepackages()[0])"
    return subprocess.run([python, "-c", show], check=True, capture_output=True, text=True).stdout.strip()


def _version_of(package: str) -> str:
    from importlib.metadata import version

    return version(package)


# -- the product ----------------------------------------------------------------------------------------------------


def ingest(file: Path, folder: Path, *more: str) -> dict[str, Any]:
    """``python -m training.data.ingest``: a file of windows becomes a data set; what it says of it."""
    command = [own_python(), "-m", "training.data.ingest", str(file), "--out-dir", str(folder)]
    return json.loads(_run([*command, "--json", *more]).stdout)


def words_of(command: Sequence[str]) -> str:
    """Run a command of the product and return what it prints."""
    return _run(command).stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of one training: its report, and what it cost."""

    report: Mapping[str, Any]
    seconds: float  # from the start of the program to a trained model
    cpu_s: float  # of the whole command: reading, training, judging, baselines, pages
    peak_mib: float  # of all memory resident, files mapped included

    def metric(self, name: str) -> float | None:
        return self.report["metrics"]["test"][name]["value"]

    def baseline(self, which: str, name: str) -> float | None:
        return self.report["baselines"].get(which, {}).get(name, {}).get("value")


def train(model: str, data: Path, out: Path, *more: str, mode: str = "oracle") -> Trained:
    """``python -m training.trainer.run`` as a worker starts it; one thread unless told otherwise."""
    own = model == "transformer_ssl"
    command = [own_python(), "-m", "training.trainer.run_ssl" if own else "training.trainer.run"]
    command += [] if own else ["--model", model]
    command += ["--mode", mode, "--validation", str(data / "validation_v1.parquet")]
    command += ["--summary", str(data / "features_window_v1.parquet")]
    command += ["--tensors", str(data / "tensor_window_v1")]
    command += ["--out-dir", str(out), "--reports-dir", str(out), *more]
    ended = _run(command)
    kind = "pretrain" if own else "train"
    report = json.loads((out / f"{model}_{mode}_{kind}.json").read_text())
    timing = json.loads((out / f"{model}_{mode}_timing.json").read_text())
    return Trained(report=report, seconds=timing["trained_s"], cpu_s=ended.cpu_s, peak_mib=ended.peak_mib)


@dataclass(frozen=True, slots=True)
class Ended:
    stdout: str
    cpu_s: float
    peak_mib: float


def _run(command: Sequence[str]) -> Ended:
    """Run a command of the product; a failure ends the benchmark with the command's last words."""
    # Started through a process of its own, so that its use of time and memory is its alone.
    code = (
        "import json, resource, subprocess, sys; ended = subprocess.run(sys.argv[1:], capture_output=True, text=True); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(json.dumps([ended.returncode, ended.stdout, ended.stderr, used.ru_utime + used.ru_stime, "
        "used.ru_maxrss]))"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ONE_THREAD}
    shell = [own_python(), "-c", code, *command]
    said = subprocess.run(shell, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    status, stdout, stderr, cpu_s, kib = json.loads(said.stdout)
    if status != 0:
        last = (stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise SystemExit(f"{' '.join(command)}\nended with {status}: {last}")
    return Ended(stdout, cpu_s, kib / 1024)


# -- measuring and telling ------------------------------------------------------------------------------------------


def cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def mean_and_spread(values: Sequence[float | None]) -> str:
    """``0.857 ±0.004``: mean and standard deviation; a dash where a value is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return "–"
    spread = f" ±{statistics.pstdev(known):.3f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.3f}{spread}"


class Table:
    """Rows for people as they come, and all of them as JSON at the end when asked for."""

    def __init__(self, title: str, columns: Mapping[str, int], *, as_json: bool) -> None:
        self._out = sys.stderr if as_json else sys.stdout
        self._as_json, self._columns = as_json, columns
        self.rows: list[dict[str, Any]] = []
        self.say(f"{title} — load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
        self.say("  ".join(f"{name:<{width}}" for name, width in columns.items()))

    def say(self, text: str) -> None:
        print(text.rstrip(), file=self._out, flush=True)

    def row(self, *shown: object, **facts: Any) -> None:
        """``shown`` in the order of the columns; ``facts`` for machines."""
        cells = zip(shown, self._columns.values(), strict=False)
        self.say("  ".join(f"{cell!s:<{width}}" for cell, width in cells))
        self.rows.append(dict(zip(self._columns, shown, strict=False)) | facts)

    def end(self, **facts: Any) -> None:
        if self._as_json:
            print(json.dumps({"load": os.getloadavg()[0], "rows": self.rows, **facts}, indent=1))


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description.split("\n\n")[0],
        epilog=description.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="machine-readable, on standard output")
    return parser


@contextlib.contextmanager
def workplace(kept: Path | None = None) -> Iterator[Path]:
    """A folder that goes when the benchmark ends, or one that is kept."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="cis490-bench-") as folder:
        yield Path(folder)


def peak_mib() -> float:
    """Of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
