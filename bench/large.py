"""Large recordings made of the sample: hour after hour of each host, with noise of its own in every episode.

    python bench/large.py FOLDER --hosts 10 --hours 24     about 0.4 million windows of the usual length
    python bench/large.py FOLDER --hosts 3 --hours 168     about 0.9 million

An hour is made of recordings of one host of the sample in any order, one behind the other. What a counter grew by and
what a gauge showed is multiplied by noise, so no two episodes hold the same samples. Each host has a reference of ten
minutes. Equal arguments give equal files.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from training.data.episode import LABELS, META, TELEMETRY, Episode, find_episodes, read

SAMPLE = Path(__file__).resolve().parents[1] / "examples" / "telemetry-sample"
BEGIN = 1_790_000_000.0  # of the first hour, in epoch seconds
HOUR, REFERENCE_S = 3600.0, 600.0
NOISE = 0.05  # of a value, its standard deviation
ATTACKS = 0.2  # of the recordings drawn have a malicious phase


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="new folder of the episodes")
    parser.add_argument("--hosts", type=int, default=10)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    args = parser.parse_args()
    make(args.folder, hosts=args.hosts, hours=args.hours, jobs=args.jobs)
    return 0


def make(folder: Path, *, hosts: int, hours: int, jobs: int = 2) -> None:
    """Lay the episodes into a folder that is made."""
    folder.mkdir(parents=True)
    numbers = [(host, hour) for host in range(hosts) for hour in range(-1, hours)]
    with ProcessPoolExecutor(jobs) as pool:
        for _ in pool.map(partial(_one, folder), numbers, chunksize=8):
            pass


_known: dict[str, list[Episode]] = {}


def _recordings() -> dict[str, list[Episode]]:
    """The sample's recordings by host, references left out; read once in a process."""
    if not _known:
        for path in find_episodes(SAMPLE):
            episode = read(path)
            if not episode.meta.baseline:
                _known.setdefault(episode.meta.host, []).append(episode)
    return _known


def _one(folder: Path, number: tuple[int, int]) -> None:
    """Write one hour of a host; hour -1 is its reference."""
    host, hour = number
    rng = np.random.default_rng((host, hour + 1))
    by_host = _recordings()
    like = sorted(by_host)[host % len(by_host)]
    is_reference, length = hour < 0, REFERENCE_S if hour < 0 else HOUR
    attacks = [e for e in by_host[like] if "malicious" in (e.meta.phases[p] for p in e.label_phase)]
    benign = {id(e) for e in by_host[like]} - {id(e) for e in attacks}
    others = [e for e in by_host[like] if id(e) in benign]
    t, values, label_t, phases = _in_a_row(others, others if is_reference else attacks, length, rng)
    meta = others[0].meta
    start = BEGIN + hour * HOUR
    episode = f"{int(start * 1000):012d}H{host:03d}"
    kinds = {p: kind for e in by_host[like] for p, kind in e.meta.phases.items()}
    meta = msgspec.structs.replace(
        meta,
        episode_id=episode,
        host=f"{like}-{host}",
        started_at=start,
        duration_s=length,
        scenario="reference" if is_reference else "hour",
        baseline=is_reference,
        phases={p: kind for p, kind in kinds.items() if kind == "benign" or not is_reference},
        notes={},
    )
    target = folder / episode
    target.mkdir()
    (target / META).write_bytes(msgspec.json.encode(meta))
    frame = pl.DataFrame({"t": t} | {c.name: values[:, i] for i, c in enumerate(meta.channels)})
    _parquet(frame, target / TELEMETRY)
    _parquet(pl.DataFrame({"t": label_t, "phase": phases}), target / LABELS)


def _in_a_row(
    others: Sequence[Episode], attacks: Sequence[Episode], length: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[float], list[str]]:
    """Times, values and labels of recordings in any order, one behind the other, with noise."""
    counters = np.array([c.kind == "counter" for c in others[0].meta.channels])
    times, rows, label_t, phases = [], [], list[float](), list[str]()
    begin, level = 0.0, np.zeros(counters.size)
    while begin < length:
        drawn = attacks if rng.random() < ATTACKS else others
        one = drawn[int(rng.integers(len(drawn)))]
        noise = np.maximum(0.0, 1 + NOISE * rng.standard_normal(one.values.shape))
        steps = np.diff(one.values, axis=0, prepend=one.values[:1])
        grown = level + np.cumsum(np.maximum(steps, 0) * noise, axis=0)
        rows.append(np.where(counters, grown, one.values * noise))
        level = np.where(counters, grown[-1], 0.0)
        times.append(begin + one.t - one.t[0] + 1e-6)
        label_t += [begin + float(at) for at in one.label_t]
        phases += one.label_phase
        begin = float(times[-1][-1]) + 1 / one.meta.sample_hz
    t, values = np.concatenate(times), np.concatenate(rows)
    keep = t < length
    labels = [number for number, at in enumerate(label_t) if at < length]
    digits = values[keep].astype(np.float32).astype(np.float64)  # no recorder measures more
    return t[keep], digits, [label_t[n] for n in labels], [phases[n] for n in labels]


def _parquet(frame: pl.DataFrame, path: Path) -> None:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=3, statistics=False)
    path.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    raise SystemExit(main())
