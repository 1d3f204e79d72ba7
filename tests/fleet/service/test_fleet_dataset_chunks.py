"""A file that changed a little has few new chunks, so little of it travels, in both directions."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from receiver_running import running
from test_fleet_dataset import QUIET, lengths_of, pushed

from training.data.dataset import Labelling, Sampling, WindowSet, write_processed
from training.data.rows import Rows
from training.data.schema import ChannelSpec
from training.fleet.client.push import push, read_folder
from training.fleet.store import datasets as store
from training.fleet.wire import chunking
from training.fleet.wire.chunking import COARSE, FINE, ChunkSizes, sizes_for
from training.fleet.worker.datasets import DatasetCache, Order

SMALL = ChunkSizes(2_000, 20_000, FINE.mark)


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


@pytest.fixture
def receiver(tmp_path):
    (tmp_path / "receiver").mkdir()
    with running(tmp_path / "receiver") as receiver:
        yield receiver


@pytest.fixture
def table(tmp_path):
    """The one file of the data set that is pushed."""
    (tmp_path / "processed").mkdir()
    return tmp_path / "processed" / "table"


def cut(blocks, sizes=SMALL):
    return [bytes(chunk) for chunk in chunking.chunks(blocks, sizes)]


# ── cutting ─────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20)
@given(st.lists(st.integers(0, 70_000), max_size=5), st.integers(0, 2**32))
def test_chunks_are_the_file_however_it_comes_in_blocks(sizes, seed):
    blocks = [noise(size, seed + n) for n, size in enumerate(sizes)]
    whole = b"".join(blocks)
    found = cut(blocks)
    assert b"".join(found) == whole
    assert found == cut([whole])
    assert all(len(each) <= SMALL.most for each in found)
    assert all(len(each) > SMALL.least for each in found[:-1])


@pytest.mark.parametrize("sizes", [FINE, COARSE])
def test_bytes_are_cut_alike_wherever_they_lie(sizes):
    old = noise(20 * sizes.least)
    at = 8 * sizes.least
    new = old[:at] + b"some bytes that came in" + old[at + 500 :]
    assert sum(map(len, set(cut([new], sizes)) - set(cut([old], sizes)))) < 6 * sizes.least


def test_without_marks_nothing_breaks():
    assert [len(each) for each in cut([bytes(600_000)], FINE)] == [262_144, 262_144, 75_712]


def test_a_large_data_set_is_cut_coarsely():
    assert [sizes_for(total) for total in (0, 64 * 1024**2, 64 * 1024**2 + 1)] == [FINE, FINE, COARSE]


# ── pushing and fetching ────────────────────────────────────────────────────────────────────


def test_bytes_that_come_in_cost_little_of_a_push_and_of_a_fetch(receiver, table, tmp_path):
    client, cache = receiver.client(), DatasetCache(tmp_path / "cache", 10**9)
    calls, fetched = receiver.client(token=None).datasets, list[int]()
    sound = calls.piece

    def piece(dataset_id, sha256, *, tries=None):
        data = sound(dataset_id, sha256, tries=tries)
        fetched.append(len(data))
        return data

    calls.piece = piece
    old = noise(4_000_000)
    for content in (old, old[:1_500_000] + b"a row more" + old[1_500_000:]):
        table.write_bytes(content)
        dataset_id, sent = pushed(client, table.parent)
        fetched.clear()
        assert (cache.provide(dataset_id, calls, Order(QUIET)) / "table").read_bytes() == content
        assert sum(fetched) == sent
    assert 0 < sent < 0.1 * len(old)
    cache.close()


def test_many_missing_chunks_are_named_a_few_at_a_time(receiver, table, monkeypatch):
    monkeypatch.setattr(store, "MISSING_MAX", 3)
    client = receiver.client()
    table.write_bytes(noise(800_000))
    listing, told = read_folder(table.parent, QUIET), list[tuple[int, int]]()
    draft = client.datasets.announce(listing)
    assert len(draft["missing"]) == 3 < listing.distinct_count
    assert draft["missing_bytes"] == 800_000
    _, sent = push(client.datasets, table.parent, listing, "one", lambda *how: told.append(how))
    assert sent == 800_000
    assert told[-1] == (800_000, 800_000)
    assert client.datasets.announce(listing)["missing"] == []


def test_one_changed_episode_of_a_data_set_moves_a_tenth_of_it_at_most(tmp_path):
    """The feature table is what makes it hard: its columns lie one after the other, each with all episodes."""
    folder = tmp_path / "processed"
    rng = np.random.default_rng(3)
    episodes, windows = 150, 16
    of_window = np.repeat(np.arange(episodes), windows)
    X = rng.normal(size=(of_window.size, 12, 32)).astype(np.float32)
    modes = ("oracle", "realistic")
    channels = [ChannelSpec(name=f"c{n}", unit="1", kind="gauge", modes=modes) for n in range(12)]

    def build():
        write_processed(
            folder,
            WindowSet(
                X=X,
                rows=Rows.of(
                    episode=np.array([f"e{n:03}" for n in of_window]),
                    host=np.full(of_window.size, "pi"),
                    t_start=np.arange(of_window.size) * 4.0,
                    t_end=np.arange(of_window.size) * 4.0 + 4.0,
                    label=np.where(of_window % 2 == 0, "benign", "malicious"),
                ),
            ),
            Sampling(channels=channels, sample_hz=8.0, window_s=4.0, stride_s=4.0),
            Labelling(target="malicious", names=["benign", "malicious"]),
            validation_rows=[],
        )
        return read_folder(folder, QUIET)

    first = lengths_of(build())
    X[of_window == 40] *= 1.01
    second = build()
    sent = sum(length for sha256, length in lengths_of(second).items() if sha256 not in first)
    assert 0 < sent <= 0.1 * second.size, f"{100 * (sent / second.size):.1f} % of it would travel"
