"""Files are written whole, durably, and patiently where somebody reads them."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from training.files import (
    INODES_KEPT,
    LocalFs,
    cause_of,
    free_bytes,
    keep_others_out,
    remove_tree,
    scarce,
    settle,
    to_free,
    write_whole,
)


@pytest.fixture
def done(monkeypatch):
    """The operations whose order is the promise, as they happen."""
    seen = []
    for name in ("fsync", "sync_file", "replace", "sync_folder"):
        real = getattr(LocalFs, name)

        def spy(*args, name=name, real=real):
            seen.append(name)
            return real(*args)

        monkeypatch.setattr(LocalFs, name, spy)
    return seen


def test_a_file_is_synced_renamed_and_its_folder_synced(tmp_path, done):
    write_whole(tmp_path / "a", b"1")
    (tmp_path / "part").write_bytes(b"2")
    settle(tmp_path / "part", tmp_path / "b")
    write_whole(tmp_path / "a", b"3", durable=False)
    assert done == ["fsync", "replace", "sync_folder", "sync_file", "replace", "sync_folder", "replace"]  # fmt: skip
    assert sorted((each.name, each.read_bytes()) for each in tmp_path.iterdir()) == [("a", b"3"), ("b", b"2")]


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o600), (0o644, 0o644), (None, 0o640)])
def test_permissions_are_as_asked_or_as_the_umask_leaves(tmp_path, mode, expected):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", b"1", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == expected


def test_what_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    write_whole(tmp_path / "a", b"old")

    monkeypatch.setattr(LocalFs, "write", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a", b"new")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"]


def test_two_that_write_one_file_at_once_have_unfinished_files_of_their_own(tmp_path):
    (tmp_path / "a.part").write_bytes(b"the other's")
    write_whole(tmp_path / "a", b"1", part=tmp_path / "a.mine")
    left = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert left == {"a": b"1", "a.part": b"the other's"}


def test_the_room_of_a_place_that_is_not_there_yet_is_its_disks(tmp_path):
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(free_bytes(tmp_path), rel=0.5)


def test_a_file_system_without_inodes_has_no_room_and_says_why(tmp_path, monkeypatch):
    found = SimpleNamespace(f_files=400, f_favail=INODES_KEPT, f_bavail=9, f_blocks=9, f_bfree=9, f_frsize=9)
    monkeypatch.setattr(os, "statvfs", lambda _: found, raising=False)
    place = tmp_path / "not" / "yet"
    assert free_bytes(place) > 0
    full = OSError(errno.ENOSPC, "No space left on device")
    assert "inodes" not in to_free(place) + scarce(place, 0) + cause_of(full, place)
    found.f_favail -= 1
    assert free_bytes(place) == 0
    assert "inodes" in to_free(place)
    assert {scarce(place, 0), cause_of(full, place)} == {"too few inodes are free"}
    assert cause_of(OSError(errno.EACCES, "Permission denied"), place) == "Permission denied"
    found.f_files = 0  # one that counts none
    assert free_bytes(place) > 0


@pytest.mark.skipif(os.name == "nt", reason="Windows syncs no folder")
def test_a_file_system_that_cannot_sync_folders_is_named_once(tmp_path, monkeypatch, caplog):
    why = [errno.EINVAL, errno.EINVAL, errno.EIO]

    def refused(_):
        raise OSError(why.pop(0), "as it says")

    monkeypatch.setattr(os, "fsync", refused)
    monkeypatch.setattr("training.files._unsynced", set())
    LocalFs().sync_folder(tmp_path)
    LocalFs().sync_folder(tmp_path)
    assert caplog.text.count(f"the file system of {tmp_path} cannot sync folders") == 1
    with pytest.raises(OSError, match="as it says"):
        LocalFs().sync_folder(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize(("umask", "narrowed"), [(0, 0o022), (0o020, 0o022), (0o002, 0o002), (0o077, 0o077)])
def test_no_umask_lets_others_write(tmp_path, umask, narrowed):
    before = os.umask(umask)
    try:
        LocalFs().mkdir(tmp_path / "models" / "gbt_oracle")
        keep_others_out()
    finally:
        found = os.umask(before)
    made = [tmp_path / "models", tmp_path / "models" / "gbt_oracle"]
    assert [each.stat().st_mode & 0o077 for each in made] == [0, 0]
    assert found == narrowed


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalFs, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space") as failed:
        write_whole(tmp_path / "a", b"1")
    assert failed.value.filename == str(tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="folders of POSIX")
def test_a_tree_is_removed_at_any_depth_and_what_its_links_name_stays(tmp_path, dig):
    kept = tmp_path / "kept"
    kept.write_bytes(b"1")
    for name in ("tree", "tree/a", "tree/a/b", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        (tmp_path / name / "link").symlink_to(tmp_path / "other")
    dig(tmp_path / "tree/a")
    for name in ("twice" * 40, "thrice" * 40):  # as deep again in several places
        (tmp_path / "tree/a" / name).mkdir()
        dig(tmp_path / "tree/a" / name)
    (tmp_path / "tree/a/b").chmod(0o500)
    for name in ("tree", "no-such-folder", "other/link", "other/file"):
        remove_tree(tmp_path / name)
        assert not (tmp_path / name).exists()
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["kept", "other"]


@pytest.mark.skipif(os.name == "nt", reason="folders of POSIX")
def test_a_link_that_a_program_puts_in_place_of_a_folder_is_not_followed(tmp_path, monkeypatch):
    tree, listed = tmp_path / "tree", os.scandir
    for name in ("tree/a", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    (tmp_path / "other").chmod(0o755)

    def scandir(folder):
        found = list(listed(folder))
        if not (tree / "a").is_symlink():
            (tree / "a").rename(tmp_path / "a")
            (tree / "a").symlink_to(tmp_path / "other")
        return found

    monkeypatch.setattr(os, "scandir", scandir)
    remove_tree(tree)
    assert (tmp_path / "other" / "file").exists()
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o755
