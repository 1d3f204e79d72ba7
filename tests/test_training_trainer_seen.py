"""Where the data that a model has seen are known by content: in splits, checkpoints, scores and comparisons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trainer_builders import arguments

from training.data.dataset import WindowSet, write_processed
from training.data.schema import ChannelSpec
from training.trainer import flags
from training.trainer.arguments import parse
from training.trainer.contract import BadData
from training.trainer.families import Takes
from training.trainer.inputs import Inputs, read_inputs, split_inputs

MODES = ("oracle", "realistic")


def write(
    folder: Path,
    X: np.ndarray,
    episode: np.ndarray,
    *,
    label: np.ndarray | None = None,
    host: np.ndarray | None = None,
    t_start: np.ndarray | None = None,
    names: tuple[str, ...] = ("x", "lab"),
    hz: float = 1.0,
) -> Path:
    """A processed data set of these windows; the last channel is the laboratory's."""
    start = np.zeros(len(X)) if t_start is None else t_start
    ids = episode.astype(str)
    specs = [
        ChannelSpec(name=n, unit="1", kind="gauge", modes=(*MODES[: 2 if n != "lab" else 1],))
        for n in names
    ]
    write_processed(
        folder,
        WindowSet(
            X=X.astype(np.float32),
            episode=ids,
            host=np.full(len(X), "h") if host is None else host,
            t_start=start,
            t_end=start + X.shape[2] / hz,
            label=np.array(["benign", "malicious"])[
                (np.arange(len(X)) % 2) if label is None else label
            ],
        ),
        channels=specs,
        sample_hz=hz,
        window_s=X.shape[2] / hz,
        stride_s=X.shape[2] / hz,
        target="malicious",
        label_names=["benign", "malicious"],
        normaliser={"kind": "none"},
        validation_rows=[
            {"episode_id": one, "baseline": False, "ok": True, "reasons": []}
            for one in sorted(set(ids.tolist()))
        ],
    )
    return folder


def noise(windows: int = 80, channels: int = 2, samples: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(windows, channels, samples))


def inputs_of(data: Path, mode: str = "oracle") -> Inputs:
    args = parse(arguments("gbt", data, data, mode=mode), program="x", models=flags.RUN_MODELS)
    return read_inputs(args, takes=Takes.FEATURES)


def sides(data: Path, *, seed: int = 0, recipe: str = "sample", mode: str = "oracle") -> np.ndarray:
    found = inputs_of(data, mode)
    split = split_inputs(found, recipe=recipe, train_hosts=(), seed=seed, supervised=False)
    side = np.full(found.y.size, "none", dtype="U5")
    for name in ("train", "val", "cal", "test"):
        side[getattr(split, name)] = name
    return side


# -- splits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_copies_stand_on_one_side_in_every_split_and_mode(tmp_path: Path, mode: str) -> None:
    X, episode = noise(), np.arange(80) // 4
    X[60:] = X[:20]  # five recordings again, under other names
    data = write(tmp_path / "d", X, episode)
    for seed in range(12):
        side = sides(data, seed=seed, mode=mode)
        np.testing.assert_array_equal(side[60:], side[:20])


def test_overlapping_windows_without_a_recording_stand_on_one_side(tmp_path: Path) -> None:
    series = np.random.default_rng(1).normal(size=(12, 2, 40)).cumsum(axis=2)
    X = np.stack([line[:, b : b + 8] for line in series for b in range(0, 33, 4)])
    recording = np.repeat(np.arange(12), 9)
    data = write(tmp_path / "d", X, np.arange(len(X)), label=recording % 2)
    found = inputs_of(data)
    assert np.unique(found.episode).size == 12, "intervals count recordings, not windows"
    assert np.unique(found.episode_id).size == len(X)
    for seed in range(6):
        side = sides(data, seed=seed)
        assert all(np.unique(side[recording == n]).size == 1 for n in range(12))
    split = split_inputs(found, recipe="sample", train_hosts=(), seed=0, supervised=False)
    assert any("so that of 108 there are 12" in note for note in split.notes)


def test_one_recording_cut_into_many_cannot_be_divided(tmp_path: Path) -> None:
    line = np.random.default_rng(1).normal(size=(2, 400)).cumsum(axis=1)
    X = np.stack([line[:, b : b + 8] for b in range(0, 392, 4)])
    data = write(tmp_path / "d", X, np.arange(len(X)) // 10)
    with pytest.raises(BadData, match=r"training side needs .* count as one"):
        sides(data)


def test_recordings_of_one_host_at_one_time_stand_on_one_side(tmp_path: Path) -> None:
    episode = np.arange(80) // 4
    t = 1.7e9 + 100.0 * episode + 8.0 * (np.arange(80) % 4)
    t[40:] = t[:40] + 1  # a second recorder, at the same times
    data = write(tmp_path / "d", noise(), episode, t_start=t)
    for seed in range(6):
        side = sides(data, seed=seed)
        np.testing.assert_array_equal(side[40:], side[:40])


def test_one_recording_under_two_hosts_is_refused(tmp_path: Path) -> None:
    X, host = noise(), np.array(["a"] * 40 + ["b"] * 40)
    X[76:] = X[:4]
    data = write(tmp_path / "d", X, np.arange(80) // 4, host=host)
    with pytest.raises(BadData, match="'0' of a and '19' of b hold the same samples"):
        sides(data)
