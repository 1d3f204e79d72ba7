"""Training on more windows than are held in memory: small data sets forced the long way by injected limits."""

from __future__ import annotations

from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.trainer_builders import SHORT, StopAfter, arguments, ends_like, run, trained
from training.contract import Exit
from training.trainer import gbt, score, scoring, windows
from training.trainer.normalise import RobustAsinh
from training.trainer.task import LIMITS, MemoryLimits
from training.trainer.windows import Pooled, Resident, to_learn_from

pytestmark = pytest.mark.usefixtures("one_anomaly_method")

CPU = torch.device("cpu")
NOTHING_HELD = MemoryLimits(held_bytes=0, pool_bytes=16_000, page_bytes=4_000, run=4)


@pytest.mark.parametrize("model", [pytest.param("gbt", marks=pytest.mark.thorough), "mlp", "transformer_ssl"])
def test_a_run_beyond_memory_repeats_and_goes_on_after_a_stop(model, data, tmp_path):
    trained(model, data, tmp_path / "a", limits=NOTHING_HELD)
    argv = arguments(model, data, tmp_path / "b", *SHORT[model])
    ends_like(tmp_path / "a", argv, (3, 8, 24), tmp_path / "b", NOTHING_HELD)


def test_pages_change_no_tree(data, tmp_path):
    held, paged = (
        trained("gbt", data, tmp_path / name, limits=limits).checkpoint.with_name("gbt_oracle.xgb.json").read_bytes()
        for name, limits in (("held", LIMITS), ("paged", NOTHING_HELD))
    )
    assert held == paged


def test_pages_leave_no_file_and_a_full_disk_is_one_sentence(data, tmp_path, monkeypatch):
    (tmp_path / "large").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "large"))
    monkeypatch.setattr("tempfile.tempdir", None)
    ended = run(arguments("gbt", data, tmp_path, *SHORT["gbt"]), stop=StopAfter(8), limits=NOTHING_HELD)
    assert ended.code == Exit.INTERRUPTED
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=1_000))
    ended = run(arguments("gbt", data, tmp_path, *SHORT["gbt"]), limits=NOTHING_HELD)
    assert ended.code == Exit.NO_ACCESS
    assert "No space left on device" in ended.sentence
    assert not list((tmp_path / "large").iterdir())


def pages_in(folder, bins):
    """Three pages of a thousand windows each, and the room that they take."""
    X = np.random.default_rng(0).normal(size=(3_000, 7)).astype(np.float32)
    rows, page = np.arange(3_000), gbt.bytes_of_page(1_000, 7, bins)
    weights, files = np.ones(2), folder / "bins"
    return gbt.Pages(X, rows, rows % 2, weights, step=1_000, files=files, page_bytes=page), 3 * page


def test_a_disk_that_others_fill_is_noticed_before_the_page(tmp_path, monkeypatch):
    pages, _ = pages_in(tmp_path, 64)
    free = chain((10**9,), repeat(1_000))
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=next(free)))
    with pytest.raises(OSError, match="No space left on device"):
        xgboost.ExtMemQuantileDMatrix(pages, max_bin=64, nthread=1, missing=np.nan)


@pytest.mark.parametrize("bins", [64, 300])
def test_the_room_that_pages_take_is_known_beforehand(tmp_path, bins):
    pages, room = pages_in(tmp_path, bins)
    matrix = xgboost.ExtMemQuantileDMatrix(pages, max_bin=bins, nthread=1, missing=np.nan)
    taken = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert matrix.num_row() == 3_000
    assert 0.8 * room < taken <= room


def test_a_state_of_other_limits_is_not_taken_up(data, tmp_path):
    argv = arguments("mlp", data, tmp_path, *SHORT["mlp"])
    assert run(argv, stop=StopAfter(8), limits=NOTHING_HELD).code == Exit.INTERRUPTED
    assert "afresh" in [event["event"] for event in run(argv, stop=StopAfter(8)).events]


# -- pools of shuffled runs --------------------------------------------------------------------------------------------


def pooled(count, limits):
    X = np.random.default_rng(0).normal(size=(count + 3, 2, 4)).astype(np.float32)
    normal = RobustAsinh(2)
    normal.fit(X, np.arange(count))
    found = to_learn_from(X, np.arange(count) + 3, normal, CPU, limits)
    assert isinstance(found, Pooled)
    return found, np.asarray(normal(torch.from_numpy(X[3:])))


@settings(max_examples=40)
@given(
    count=st.integers(1, 90),
    batch=st.integers(1, 40),
    run_of=st.integers(1, 20),
    pool=st.integers(32, 2_000),
    seed=st.integers(0, 9),
)
def test_an_epoch_takes_every_window_once_and_each_batch_from_one_pool(count, batch, run_of, pool, seed):
    given_, whole = pooled(count, MemoryLimits(held_bytes=0, pool_bytes=pool, run=run_of))
    order = given_.order(torch.Generator().manual_seed(seed), batch)
    assert sorted(order.tolist()) == list(range(count))
    for rows in order.split(batch):
        assert np.allclose(given_.take(rows).numpy(), whole[rows.numpy()], atol=1e-6)
        assert len(given_._data) * 32 <= max(pool, 32 * batch)
    assert torch.equal(order, given_.order(torch.Generator().manual_seed(seed), batch))


def test_a_pool_holds_runs_from_all_over_the_data():
    windows, _ = pooled(4_096, MemoryLimits(held_bytes=0, pool_bytes=32 * 512, run=16))
    first = windows.order(torch.Generator().manual_seed(0), 64)[:512].numpy()
    assert np.bincount(first // 512, minlength=8).min() > 0
    assert (np.diff(first) != 1).mean() > 0.9  # and neighbours are apart


@pytest.mark.parametrize("block", [1, 3, 1_024])
@pytest.mark.parametrize(
    "limits", [MemoryLimits(), MemoryLimits(held_bytes=0, pool_bytes=640, run=4)], ids=["held", "pooled"]
)
def test_windows_are_read_in_blocks_of_any_size(limits, block, monkeypatch):
    monkeypatch.setattr(windows, "BLOCK", block)
    X = np.random.default_rng(0).normal(size=(23, 2, 4)).astype(np.float32)
    normal = RobustAsinh(2)
    normal.fit(X, np.arange(20))
    found = to_learn_from(X, np.arange(20) + 3, normal, CPU, limits)
    for _ in range(2):
        order = found.order(torch.Generator().manual_seed(0), 5)
        taken = np.concatenate([found.take(part).numpy() for part in order.split(5)])
        np.testing.assert_array_equal(taken, normal(torch.from_numpy(X[3:]))[order].numpy())


@pytest.mark.parametrize(("held", "kind"), [(320, Resident), (319, Pooled)])
def test_size_alone_decides(held, kind):
    X = np.zeros((12, 2, 4), dtype=np.float32)
    assert isinstance(to_learn_from(X, np.arange(10), RobustAsinh(2), CPU, MemoryLimits(held_bytes=held)), kind)


# -- scores ------------------------------------------------------------------------------------------------------------


def test_scores_in_parts_are_those_at_once(data, tmp_path, monkeypatch):
    checkpoint = str(trained("gbt", data, tmp_path).checkpoint)
    for name, rows in (("once", 1 << 18), ("parts", 50)):
        monkeypatch.setattr(scoring, "PART_ROWS", rows)
        for kind in ("csv", "json", "parquet"):
            assert score.main([checkpoint, str(data), "--out", str(tmp_path / f"{name}.{kind}")]) == 0
    for kind in ("csv", "json"):
        assert (tmp_path / f"once.{kind}").read_bytes() == (tmp_path / f"parts.{kind}").read_bytes()
    once = pl.read_parquet(tmp_path / "once.parquet")
    assert once.equals(pl.read_parquet(tmp_path / "parts.parquet"))
    assert once.height == 216
    assert {"window_id", "host", "score", "alarm"} <= set(once.columns)
