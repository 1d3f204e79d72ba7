"""A data build beside others: windows a second of processor, beside tsfresh, pandas, and reading and decoding alone.

    python bench/build.py [--hours 24] [--json]

Recordings of an hour are made from the sample (bench/large.py). Counted is processor time: of the whole build, from
files to the data set on the disk; of reading and decoding the same recordings, which no build can do without; and of
the features alone, ours, tsfresh's (its efficient settings; no other process) and the same as ours in pandas, each of
as many windows as it does in a while. tsfresh and pandas go into an environment of their own. Bars: 20 times tsfresh,
and two processes 1.8 times as fast as one where two cores are idle; beside it, how much faster two processes are here
that share nothing and compute features alone. ``--memory`` builds from a folder of recordings instead, and says how
much memory its processes had at the most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from trainers import ONE_THREAD, ROOT, Table, arguments, own_python, workplace
from watching import MIB, children_s, watched

PEERS = ("tsfresh==0.21.2", "pandas==2.3.3")
TIMES, SCALES = 20.0, 1.8
WHILE_S = 10.0
PASSES = 40


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--hours", type=int, default=24, help="of each of four hosts")
    parser.add_argument("--memory", type=Path, metavar="FOLDER", help="recordings (bench/large.py) to build from")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.memory is not None:
        return memory(args.memory, args.jobs, as_json=args.json)
    import large  # not in the environment of the peers

    columns = {"what": 34, "windows": 8, "CPU s": 7, "windows a CPU s": 15, "ours : it": 9}
    table = Table("a data build", columns, as_json=args.json)
    with workplace() as folder:
        large.make(folder / "in", hosts=4, hours=args.hours)
        own_s, wall_1, windows = built(folder, 1)
        _, wall_2, _ = built(folder, 2)
        rate = windows / own_s
        table.row("the build, one process", windows, f"{own_s:.1f}", f"{rate:,.0f}", "")
        read_s = spent(lambda: read_all(folder / "in"))
        decoded = f"{windows / read_s:,.0f}"
        table.row("reading and decoding alone", windows, f"{read_s:.1f}", decoded, f"{read_s / own_s:.3f}")
        X, names = some_windows(folder / "out-1")
        ours = features_a_second(X, names)
        table.row("features alone", "", "", f"{ours:,.0f}", "")
        np.savez(folder / "windows.npz", X=X, hz=8.0)
        ratios = {}
        for peer in ("tsfresh", "pandas"):
            count, seconds = json.loads(_peer(peer, folder / "windows.npz"))
            ratios[peer] = ours * seconds / count
            table.row(f"… {peer}'s", count, f"{seconds:.1f}", f"{count / seconds:,.1f}", f"{ratios[peer]:,.0f}")
        whole = rate / (ours / ratios["tsfresh"])
        table.row("the whole build : tsfresh's features", "", "", "", f"{whole:,.0f}")
        scaled = wall_1 / wall_2
        table.row("two processes : one, by the clock", "", "", "", f"{scaled:.2f}")
        table.row("… of features alone", "", "", "", f"{two_beside_one(X, names):.2f}")
    missed = (whole < TIMES) + (scaled < SCALES)
    table.end(missed=missed)
    return 1 if missed else 0


def built(folder: Path, jobs: int) -> tuple[float, float, int]:
    """Processor seconds and seconds of a build, and its windows."""
    out = folder / f"out-{jobs}"
    command = [own_python(), "-m", "training.data.build", str(folder / "in"), "--out-dir", str(out)]
    before, begun = children_s(), time.perf_counter()
    alone = ONE_THREAD | {"POLARS_MAX_THREADS": "1"}
    done = subprocess.run(
        [*command, "--jobs", str(jobs), "--json"], cwd=ROOT, env=os.environ | alone, capture_output=True, check=True
    )
    took = time.perf_counter() - begun
    return children_s() - before, took, json.loads(done.stdout)["windows"]


def spent(work: Callable[[], object]) -> float:
    """Processor seconds of this process."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def read_all(folder: Path) -> None:
    from training.data.episode import find_episodes, read

    for path in find_episodes(folder):
        read(path)


def some_windows(out: Path) -> tuple[np.ndarray, list[str]]:
    """Some windows of a data set (n, C, T), and its channels."""
    from training.contract import SCHEMA_FILE
    from training.data.schema import read_schema

    X = np.load(out / "tensor_window_v1" / "tensors.npy", mmap_mode="r")
    rows = np.random.default_rng(0).permutation(len(X))[:4096]
    return np.asarray(X[np.sort(rows)]), list(read_schema(out / SCHEMA_FILE).channel_names)


def features_a_second(X: np.ndarray, names: list[str]) -> float:
    """Windows of which the product computes the features in a second of processor."""
    features_once(X, names)
    begun, count = time.process_time(), 0
    while time.process_time() - begun < 1.0:
        features_once(X, names)
        count += len(X)
    return count / (time.process_time() - begun)


def features_once(X: np.ndarray, names: list[str]) -> None:
    from training.data.features import extract
    from training.data.schema import ChannelSpec

    channels = tuple(ChannelSpec(name=name, unit="1", kind="gauge", modes=("oracle", "realistic")) for name in names)
    extract(X, channels, 8.0)


def two_beside_one(X: np.ndarray, names: list[str]) -> float:
    """Say how much faster two processes are than one on this machine when they share no file and wait for nothing."""
    with ProcessPoolExecutor(2) as pool:
        for each in [pool.submit(_features_for_a_while, X, names) for _ in range(2)]:
            each.result()
        begun = time.perf_counter()
        pool.submit(_features_for_a_while, X, names).result()
        alone_s = time.perf_counter() - begun
        begun = time.perf_counter()
        for each in [pool.submit(_features_for_a_while, X, names) for _ in range(2)]:
            each.result()
        return 2 * alone_s / (time.perf_counter() - begun)


def _features_for_a_while(X: np.ndarray, names: list[str]) -> None:
    for _ in range(PASSES):
        features_once(X, names)


# -- the peers, in their environment ----------------------------------------------------------------------------------


def _peer(name: str, windows: Path) -> str:
    """Windows and processor seconds of a peer, as JSON."""
    command = [str(_peers_python()), __file__, "--as", name, str(windows)]
    return subprocess.run(command, env=os.environ | ONE_THREAD, check=True, capture_output=True, text=True).stdout


def _peers_python() -> Path:
    """The interpreter of an environment with the peers, made at first use."""
    folder = Path.home() / ".cache" / "cis490-bench" / f"features-{sys.version_info.major}.{sys.version_info.minor}"
    python, mark = folder / "bin" / "python", folder / "complete"
    if not mark.exists() or mark.read_text() != "\n".join(PEERS):
        print(f"installing {', '.join(PEERS)} into {folder} …", file=sys.stderr)
        venv.create(folder, clear=True)
        install = (sys.executable, "-m", "pip", "--python", str(python), "install", "-q")
        subprocess.run([*install, *PEERS], check=True)
        mark.write_text("\n".join(PEERS))
    return python


def _as_peer(name: str, windows: str) -> None:
    """Compute features of windows for a while, in the peers' environment."""
    stored = np.load(windows)
    X, hz = stored["X"], float(stored["hz"])
    work = {"tsfresh": _tsfresh, "pandas": _pandas}[name]
    work(X[:1], hz)
    count, step, begun = 0, 2, time.process_time()
    while time.process_time() - begun < WHILE_S and count + step <= len(X):
        work(X[count : count + step], hz)
        count += step
        step *= 2
    print(json.dumps([count, time.process_time() - begun]))


def _long(X: np.ndarray) -> dict[str, np.ndarray]:
    """Windows (n, C, T) as columns of a long table: a row a sample."""
    count, width, samples = X.shape
    columns = {f"c{i}": X[:, i].ravel().astype(np.float64) for i in range(width)}
    return {"id": np.repeat(np.arange(count), samples), "t": np.tile(np.arange(samples), count)} | columns


def _tsfresh(X: np.ndarray, _hz: float) -> None:
    import warnings

    import pandas as pd
    from tsfresh import extract_features
    from tsfresh.feature_extraction import EfficientFCParameters

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extract_features(
            pd.DataFrame(_long(X)),
            column_id="id",
            column_sort="t",
            default_fc_parameters=EfficientFCParameters(),
            n_jobs=0,
            disable_progressbar=True,
        )


def _pandas(X: np.ndarray, hz: float) -> None:
    """Compute our features as one writes them with groupby."""
    import pandas as pd

    table = pd.DataFrame(_long(X)).drop(columns="t")
    samples = X.shape[2]
    groups = table.groupby("id")
    mean = groups.transform("mean")
    values = table.drop(columns="id")
    centred = values - mean
    own = table["id"]
    steps = groups.diff()
    time_s = pd.Series(np.tile((np.arange(samples) - (samples - 1) / 2) / hz, len(X)))
    squares = (centred**2).groupby(own).sum()
    parts = [groups.mean(), groups.std(ddof=0), groups.min(), groups.max()]
    parts.append(centred.mul(time_s, axis=0).groupby(own).sum() / float((time_s[:samples] ** 2).sum()))
    quantiles = groups.quantile([0.1, 0.25, 0.5, 0.75, 0.9]).unstack()
    parts += [quantiles, steps.abs().groupby(own).mean(), steps.groupby(own).std(ddof=0)]
    lagged = centred.groupby(own).shift(1)
    parts.append((centred * lagged).groupby(own).sum() / squares.clip(lower=1e-9))

    def bands(group: pd.DataFrame) -> pd.Series:
        power = np.abs(np.fft.rfft(group.to_numpy(), axis=0)[1:]) ** 2 / samples
        edges = np.unique(np.geomspace(1, len(power) + 1, 5).round().astype(int)) - 1
        return pd.Series(np.concatenate([np.log1p(power[a:b].mean(axis=0)) for a, b in pairwise(edges)]))

    parts.append(centred.groupby(own).apply(bands))
    leading = table[["id", *values.columns[:12]]]
    parts.append(leading.groupby("id").corr().unstack())
    pd.concat(parts, axis=1)


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(recordings: Path, jobs: int, *, as_json: bool) -> int:
    """Build from a folder of recordings, and look at the memory of the processes ten times a second."""
    columns = {"windows": 9, "s": 6, "CPU s": 7, "own MiB, one process": 20, "resident": 9, "of all": 7}
    table = Table(f"a build of {recordings}, {jobs} processes", columns, as_json=as_json)
    with workplace() as folder:
        command = ["training.data.build", str(recordings), "--out-dir", str(folder / "out"), "--jobs", str(jobs)]
        took = watched([*command, "--json"], folder / "build.log")
        windows = json.loads(took.said)["windows"]
        table.row(f"{windows:,}", *took.shown(), f"{took.together / MIB:,.0f}")
    table.end(peak_bytes=took.resident)
    return int(took.resident > 600 * MIB)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        _as_peer(*sys.argv[2:4])
    else:
        raise SystemExit(main())
