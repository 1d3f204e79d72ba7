"""Recordings on disk: what is written is read again, and nothing that is broken is read as something else."""

import errno
import io
import random
import re
import tarfile
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import telemetry_builders as made
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from training.data import episode
from training.data.errors import DataError


def test_folder_and_packed_file_are_the_same_episode(tmp_path):
    folder = made.write_episode(tmp_path)
    packed = tmp_path / f"{folder.name}.tar.zst"
    episode.pack(folder, packed)
    one, other = episode.read(folder), episode.read(packed)
    assert one.meta == other.meta
    assert one.digest == other.digest
    np.testing.assert_array_equal(one.values, other.values)
    t, values = made.signal()
    np.testing.assert_array_equal(one.t, t)
    np.testing.assert_array_equal(one.values, values)
    assert list(zip(one.label_t, one.label_phase, strict=True)) == [(0.0, "idle"), (10.0, "beacon")]


def test_no_flipped_bit_of_a_packed_episode_is_taken_for_data(tmp_path):
    folder = made.write_episode(tmp_path)
    packed = tmp_path / f"{folder.name}.tar.zst"
    episode.pack(folder, packed)
    sound, digest = packed.read_bytes(), episode.read(packed).digest
    bits = range(8 * len(sound))
    for bit in [*bits[:160], *bits[160::97], *bits[-64:]]:
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        packed.write_bytes(damaged)
        try:
            found = episode.digest_of(episode.read_members(packed))
        except episode.EpisodeError:
            continue
        assert found == digest, f"bit {bit} was accepted with other data"


def test_an_episode_that_carries_no_checksum_is_refused(tmp_path):
    folder = made.write_episode(tmp_path)
    packed = tmp_path / f"{folder.name}.tar.zst"
    episode.pack(folder, packed)
    raw = zstandard.ZstdDecompressor().decompress(packed.read_bytes())
    packed.write_bytes(zstandard.ZstdCompressor(level=19).compress(raw))
    with pytest.raises(episode.EpisodeError, match="it carries no checksum: pack it again with one"):
        episode.read(packed)


def test_equal_recordings_have_equal_bytes(tmp_path):
    packed = []
    for name in ("a", "b"):
        target = tmp_path / f"{name}.tar.zst"
        episode.pack(made.write_episode(tmp_path / name), target)
        packed.append(target.read_bytes())
    assert packed[0] == packed[1]


def test_a_folder_is_found_before_its_packed_twin_and_all_in_order_of_id(tmp_path):
    for number in (2, 0, 1):
        made.write_episode(tmp_path, number=number)
    episode.pack(tmp_path / made.IDS[1], tmp_path / f"{made.IDS[1]}.tar.zst")
    (tmp_path / "notes.txt").write_text("not an episode")
    found = episode.find_episodes(tmp_path)
    assert [p.name for p in found] == made.IDS[:3]


def test_a_folder_that_cannot_be_looked_into_is_named_and_not_left_out(tmp_path, monkeypatch):
    shut = made.write_episode(tmp_path, number=1)
    made.write_episode(tmp_path, number=0)
    stat = Path.stat

    def refusing(path, **how):
        if path.parent == shut:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", refusing)
    with pytest.raises(DataError, match=f"{shut.name}.*Permission denied"):
        episode.find_episodes(tmp_path)


def test_episodes_below_another_folder_are_counted_not_read(tmp_path):
    made.write_episode(tmp_path, number=0)
    (tmp_path / "empty").mkdir()
    assert episode.deeper(tmp_path) is None
    made.write_episode(tmp_path / "day2", number=1)
    (tmp_path / "day2" / f"{made.IDS[2]}.tar.zst").write_bytes(b"")
    assert len(episode.find_episodes(tmp_path)) == 1
    assert "(2 in day2)" in episode.deeper(tmp_path)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir()])
def test_no_episodes_is_said_in_one_sentence(tmp_path, make):
    make(tmp_path / "none")
    with pytest.raises(episode.EpisodeError, match="none"):
        episode.find_episodes(tmp_path / "none")


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (written("meta.json", b'{"schema_version": "one"}'), r"meta\.json"),
        (written("meta.json", b'{"notes":' + b"[" * 100_000), r"meta\.json"),
        (written("meta.json", b'{"host": "\xff"}'), r"meta\.json"),
        (written("telemetry.parquet", b"PAR1 and then nothing of the kind PAR1"), "Parquet"),
        (lambda folder: copy(folder / "labels.parquet", folder / "telemetry.parquet"), "no column 'cpu_user'"),
        (lambda folder: (folder / "labels.parquet").unlink(), r"labels\.parquet is missing"),
    ],
    ids=["wrong meta", "deep meta", "meta not UTF-8", "broken Parquet", "other columns", "a file missing"],
)
def test_damage_is_named(tmp_path, damage, says):
    folder = made.write_episode(tmp_path)
    damage(folder)
    with pytest.raises(episode.EpisodeError, match=says):
        episode.read(folder)


def test_a_truncated_or_foreign_archive_is_refused(tmp_path):
    folder = made.write_episode(tmp_path)
    packed = tmp_path / "x.tar.zst"
    episode.pack(folder, packed)
    whole = packed.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not zstd at all"):
        packed.write_bytes(damaged)
        with pytest.raises(episode.EpisodeError):
            episode.read(packed)


def test_archive_members_outside_the_closed_list_are_never_touched(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("../escape.txt")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"hi"))
        link = tarfile.TarInfo("meta.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    packed = tmp_path / "in" / "x.tar.zst"
    packed.parent.mkdir()
    packed.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(buffer.getvalue()))
    with pytest.raises(episode.EpisodeError, match=r"meta\.json is missing"):
        episode.read(packed)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "x.tar.zst"]


@given(st.lists(st.floats(0, 2e9), min_size=2, max_size=5), st.integers())
def test_ids_are_ulids_that_sort_by_time(times, seed):
    clock, rng = made.TickingClock(), random.Random(seed)
    ids = []
    for at in sorted(times):
        clock.at = at
        ids.append((int(at * 1000), episode.new_ulid(clock, rng)))
    assert all(re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", one) for _, one in ids)
    assert [ms for ms, _ in sorted(ids, key=lambda pair: pair[1][:10])] == [ms for ms, _ in ids]
