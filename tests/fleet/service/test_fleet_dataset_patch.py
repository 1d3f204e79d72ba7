"""A file that changed a little travels as patches of its older form, and arrives to the byte."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from receiver_running import Receiver, running

from training.data.dataset import Labelling, Sampling, WindowSet, write_processed
from training.data.rows import Rows
from training.data.schema import ChannelSpec
from training.fleet.client.client import FleetClient, Refused
from training.fleet.client.push import push, read_folder
from training.fleet.client.retry import Caller
from training.fleet.wire import patches
from training.fleet.wire.dataset_listing import CHUNK_BYTES, BadListing, File, Listing
from training.fleet.wire.patches import Part, Patch, digests, known, parts_of, placed, read_patch

QUIET = lambda done, whole: None  # noqa: E731 - a progress that nobody watches


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    (tmp_path / "receiver").mkdir()
    with running(tmp_path / "receiver") as receiver:
        yield receiver


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The one file of the data set that is pushed."""
    (tmp_path / "processed").mkdir()
    return tmp_path / "processed" / "table"


def pushed(client: FleetClient, folder: Path) -> tuple[str, int]:
    view, sent = push(client.datasets, folder, read_folder(folder, QUIET), "processed", QUIET)
    return str(view["dataset_id"]), sent


# ── cutting ─────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20)
@given(st.lists(st.integers(0, 400_000), max_size=5), st.integers(0, 2**32))
def test_chunks_are_the_file_however_it_comes_in_blocks(sizes: list[int], seed: int) -> None:
    blocks = [noise(size, seed + n) for n, size in enumerate(sizes)]
    whole = b"".join(blocks)
    found = list(patches.chunks(blocks))
    assert b"".join(found) == whole
    assert found == list(patches.chunks([whole]))
    assert all(len(each) <= patches.MOST for each in found)
    assert all(len(each) > patches.LEAST for each in found[:-1])


def test_bytes_are_cut_alike_wherever_they_lie() -> None:
    old = noise(3_000_000)
    new = old[:700_000] + b"some bytes that came in" + old[700_500:]
    there = known(placed(digests([old])))
    lacking = sum(size for sha256, size in digests([new]) if sha256 not in there)
    assert lacking < 2 * patches.MOST


def test_without_marks_nothing_breaks() -> None:
    assert [len(each) for each in patches.chunks([bytes(600_000)])] == [262_144, 262_144, 75_712]


@settings(max_examples=30)
@given(st.data())
def test_a_piece_is_made_again_from_its_parts(data: st.DataObject) -> None:
    old = noise(900_000)
    cut, gone = data.draw(st.integers(0, 900_000)), data.draw(st.integers(0, 50_000))
    new = old[:cut] + data.draw(st.binary(max_size=100)) + old[cut + gone :]
    first = data.draw(st.integers(0, len(new)))
    piece = new[first : first + 500_000]
    parts = parts_of(first, len(piece), placed(digests([new])), known(placed(digests([old]))))
    made, at = bytearray(), 0
    for part in parts:
        source = piece[at : at + part.length]
        made += source if part.offset is None else old[part.offset : part.offset + part.length]
        at += part.length
    assert made == piece


class Counted(list[Any]):
    """A list that counts how often it is looked into."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


def test_a_piece_of_a_large_file_is_found_without_looking_through_it() -> None:
    new = Counted(placed((f"{n}", 64 * 1024) for n in range(16_384)))
    there = known(new)
    new.looks = 0
    assert parts_of(700 * CHUNK_BYTES, CHUNK_BYTES, new, there) == (Part(CHUNK_BYTES, 700 * CHUNK_BYTES),)
    assert new.looks < 100


@given(st.integers(0, 5), st.integers(0, 40), st.integers(0, 40))
def test_the_places_of_some_bytes_are_those_of_all_that_hold_them(pieces: int, first: int, length: int) -> None:
    size = max(0, pieces * 8 - 3)
    files = [File(name, size, tuple(f"{name}{n}" for n in range(pieces))) for name in "ab"]
    listing, last = Listing(tuple(files), piece_bytes=8), first + length
    assert list(listing.places_within("b", first, last)) == [
        place
        for place in listing.places()
        if place.path == "b" and first < last and place.offset < last and first < place.offset + place.length
    ]
    assert not list(listing.places_within("c", first, last))


# ── the wire ────────────────────────────────────────────────────────────────────────────────


def test_a_patch_comes_out_of_a_body_as_it_went_in() -> None:
    patch = Patch("a" * 64, "t/x.npy", (Part(5, 7), Part(3)), b"new")
    assert read_patch(patch.body) == patch


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}\n",
        b"[1]\nabc",
        b'{"like":"a","parts":[[3,null]],"path":"x"}\nab',
        b'{"like":"a","parts":[[-1,4]],"path":"x"}\n',
        b'{"like":"a","parts":[[2.0,4]],"path":"x"}\n',
        b'{"like":"a","parts":[[1048577,0]],"path":"x"}\n',
        b'{"like":1,"parts":[],"path":"x"}\n',
    ],
)
def test_what_is_no_patch_is_refused(body: bytes) -> None:
    with pytest.raises(BadListing):
        read_patch(body)


@given(st.binary(max_size=300))
def test_no_body_is_a_traceback(body: bytes) -> None:
    try:
        read_patch(body)
    except BadListing:
        return


# ── pushing ─────────────────────────────────────────────────────────────────────────────────


def test_a_few_bytes_that_come_in_move_few_bytes(receiver: Receiver, table: Path) -> None:
    folder, client = table.parent, receiver.client()
    old = noise(4 * CHUNK_BYTES)
    table.write_bytes(old)
    first, _ = pushed(client, folder)
    new = old[:1_500_000] + b"a row more" + old[1_500_000:]
    table.write_bytes(new)
    second, sent = pushed(client, folder)
    assert second != first
    assert 0 < sent < 0.1 * len(new)
    listing = client.datasets.listing(second)
    fetched = b"".join(client.datasets.piece(second, p.sha256) for p in listing.places())
    assert fetched == new


def test_what_an_older_form_holds_is_asked_only_for_what_is_missing(
    receiver: Receiver, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, client, asked = table.parent, receiver.client(), list[str]()
    table.write_bytes(noise(2 * CHUNK_BYTES))
    send = Caller.send

    def counted(self: Caller, method: str, path: str, **how: Any) -> Any:
        asked.append(f"{method} {path.replace(dataset_id, 'ID')}")
        return send(self, method, path, **how)

    dataset_id, _ = pushed(client, folder)
    monkeypatch.setattr(Caller, "send", counted)
    assert pushed(client, folder) == (dataset_id, 0)
    assert asked == ["PUT /v1/dataset/ID", "POST /v1/dataset/ID/publish"]
    asked.clear()
    table.write_bytes(noise(2 * CHUNK_BYTES) + b"more")
    assert pushed(client, folder)[1] == 4
    assert asked.count("GET /v1/datasets") == 0, "a piece that is quicker sent than looked for"


def test_an_older_form_that_is_damaged_costs_a_whole_piece_and_no_more(
    receiver: Receiver, table: Path, tmp_path: Path
) -> None:
    folder, client = table.parent, receiver.client()
    old = noise(2 * CHUNK_BYTES)
    table.write_bytes(old)
    first, _ = pushed(client, folder)
    sha256 = client.datasets.listing(first).files[0].pieces[0]
    (rotten,) = (tmp_path / "receiver").rglob(f"pieces/*/{sha256}")
    rotten.write_bytes(b"rot" + old[3:CHUNK_BYTES])
    table.write_bytes(b"x" + old)
    second, sent = pushed(client, folder)
    assert sent >= 2 * CHUNK_BYTES
    listing = client.datasets.listing(second)
    assert b"".join(client.datasets.piece(second, p.sha256) for p in listing.places()) == b"x" + old


def test_a_patch_that_makes_another_piece_is_refused(receiver: Receiver, table: Path) -> None:
    folder, client = table.parent, receiver.client()
    table.write_bytes(noise(1000))
    first, _ = pushed(client, folder)
    table.write_bytes(noise(1000, 2))
    listing = read_folder(folder, QUIET)
    client.datasets.announce(listing)
    (sha256,) = listing.lengths
    for patch in (
        Patch(first, "table", (Part(1000, 0),), b""),
        Patch(first, "table", (Part(1000, 500),), b""),
        Patch(first, "no such file", (Part(1000, 0),), b""),
        Patch("0" * 64, "table", (Part(1000, 0),), b""),
    ):
        with pytest.raises(Refused):
            client.datasets._put(f"/v1/dataset/{listing.dataset_id}/patch/{sha256}", patch.body, 1, answers=False)
    assert client.datasets.announce(listing)["missing"] == [sha256]
    whole = Patch(first, "table", (Part(1000),), noise(1000, 2))
    assert client.datasets.patch(listing.dataset_id, sha256, whole.body) > 1000
    assert hashlib.sha256(noise(1000, 2)).hexdigest() == sha256
    assert client.datasets.announce(listing)["missing"] == []


def test_one_changed_episode_of_a_data_set_moves_a_tenth_of_it_at_most(receiver: Receiver, tmp_path: Path) -> None:
    """The feature table is what makes it hard: its columns lie one after the other, each with all episodes."""
    folder, client = tmp_path / "processed", receiver.client()
    rng = np.random.default_rng(3)
    episodes, windows = 150, 16
    of_window = np.repeat(np.arange(episodes), windows)
    X = rng.normal(size=(of_window.size, 12, 32)).astype(np.float32)
    modes = ("oracle", "realistic")
    channels = [ChannelSpec(name=f"c{n}", unit="1", kind="gauge", modes=modes) for n in range(12)]

    def build() -> None:
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

    build()
    first, _ = pushed(client, folder)
    X[of_window == 40] *= 1.01
    build()
    second, sent = pushed(client, folder)
    assert second != first
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert 0 < sent <= 0.1 * size, f"{sent / size:.1%} of it travelled"
