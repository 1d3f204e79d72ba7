"""Foreign text and links in an installation: no escape reaches root's terminal, no link is followed as root."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from systems import make_link

from training.fleet import join
from training.fleet.client.answers import Refused
from training.fleet.install import __main__ as install
from training.fleet.install import system as install_system
from training.fleet.install.steps import Ran

ODD = "\x1b]0;owned\x07\x1b[2J\u202e\u200bok"
JOB = {"delivery": {"assignment": {"job_id": ODD + "0123456789ab"}}}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="of Linux alone")
as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")


class Talker:
    """A machine whose every command fails with the words of somebody else."""

    def run(self, *_, **__):
        return Ran(1, f"fine\n{ODD}\n")

    def pause(self, seconds): ...

    def own(self, path, user): ...

    def owns(self, path, user):
        return False


def harmless(text):
    return all(line.isprintable() for line in text.removesuffix("\n").split("\n"))


def uninstall(image):
    """Up to the first command, which fails."""
    return install.main(["--uninstall", "--system", "linux", "--image", str(image)], machine=Talker())


@pytest.fixture
def saved(tmp_path):
    """Make the folder of the worker's user; and a unit, so that there is something to stop."""
    unit = tmp_path / "etc/systemd/system/cis490-trainer-worker.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    path = tmp_path / "var/lib/cis490-worker/state/saved.json"
    path.parent.mkdir(parents=True)
    return path


@on_linux
def test_no_word_of_a_command_moves_the_cursor(tmp_path, capsys):
    unit = tmp_path / "etc/systemd/system/cis490-trainer-worker.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    assert uninstall(tmp_path) == 1
    told = capsys.readouterr()
    assert "could not stop it: " in told.err
    assert harmless(told.out)
    assert harmless(told.err)


@on_linux
def test_no_word_of_the_workers_notes_does(tmp_path, saved, capsys):
    saved.write_text(json.dumps(JOB))
    assert uninstall(tmp_path) == 1
    told = capsys.readouterr().err
    assert "has not reached the receiver yet" in told
    assert harmless(told)


@on_linux
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "large", "no text", "absent"])
def test_notes_that_are_no_plain_small_file_cannot_be_read(tmp_path, saved, capsys, kind):
    body = json.dumps(JOB).encode()
    (tmp_path / "elsewhere").write_bytes(body)
    match kind:
        case "link":
            make_link(saved, tmp_path / "elsewhere")
        case "pipe":
            os.mkfifo(saved)
        case "folder":
            saved.mkdir()
        case "large":
            saved.write_bytes(body + b" " * install_system.NOTES_MAX)
        case "no text":
            saved.write_bytes(b"\xff" + body)
    assert uninstall(tmp_path) == 1
    assert "could not stop it" in capsys.readouterr().err, "it went on to the first step"


@on_linux
def test_notes_as_large_as_they_may_be_are_read_and_no_pipe(tmp_path):
    (tmp_path / "notes").write_bytes(b"x" * install_system.NOTES_MAX)
    assert len(install_system.notes(tmp_path / "notes")) == install_system.NOTES_MAX
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no plain file"):
        install_system.notes(tmp_path / "pipe")


def test_no_word_of_a_server_nobody_has_verified_does(monkeypatch, capsys):
    monkeypatch.setattr(join, "join", Mock(side_effect=Refused(409, "no", ODD + "x" * 10**6 + "\nsecond line", {})))
    line = ["--receiver-url", "https://pi.lan:1", "--host-id", "pi", "--code", "c"]
    assert join.main([*line, "--fingerprint", "sha256:" + "5f" * 32]) == 1
    told = capsys.readouterr().err
    assert told.startswith("join: ")
    assert told.count("\n") == 1
    assert harmless(told)
    assert len(told) < 2000


@as_root
def test_what_is_swapped_for_a_link_meanwhile_is_not_given_away(tmp_path, monkeypatch):
    folder, system, chown = tmp_path / "state", tmp_path / "etc", os.chown
    for place in (folder / "inner", system):
        place.mkdir(parents=True)
        for name in "abc":
            (place / name).touch()

    def slowly(path, *how, **more):
        chown(path, *how, **more)
        if Path(path).name in "abc" and not (folder / "inner").is_symlink():
            (folder / "inner").rename(folder / "before")
            make_link(folder / "inner", system)

    monkeypatch.setattr(install_system, "_entry", lambda _: SimpleNamespace(pw_uid=12345, pw_gid=12345))
    monkeypatch.setattr(install_system.shutil, "chown", lambda path, *_: chown(path, 12345, 12345))
    monkeypatch.setattr(os, "chown", slowly)
    install_system.LocalMachine().own(folder, "cis490-worker")
    assert {path.stat().st_uid for path in (system, *system.iterdir())} == {0}
    assert {path.stat().st_uid for path in (folder, *(folder / "before").iterdir())} == {12345}


@as_root
def test_a_folder_that_root_moved_to_another_disk_is_given_with_all_in_it(tmp_path, monkeypatch):
    (tmp_path / "disk" / "inner").mkdir(parents=True)
    (tmp_path / "disk" / "inner" / "file").touch()
    make_link(tmp_path / "state", tmp_path / "disk")
    make_link(tmp_path / "disk" / "link", tmp_path)
    monkeypatch.setattr(install_system, "_entry", lambda _: SimpleNamespace(pw_uid=12345, pw_gid=12345))
    install_system.LocalMachine().own(tmp_path / "state", "cis490-worker")
    disk = tmp_path / "disk"
    given = {path.lstat().st_uid for path in (disk, *disk.rglob("*"))}
    assert (given, tmp_path.stat().st_uid) == ({12345}, 0)
