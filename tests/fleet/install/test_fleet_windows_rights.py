"""Rights on Windows while the worker is installed: a disk with owners and rights, and icacls on paper.

Whoever is not an administrator must not be able to change what runs as one, even if he made the folders beforehand.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PureWindowsPath

import pytest

from training.fleet.install import windows, windows_task
from training.fleet.install.steps import InstallError, NoLink, Ran, Site, perform
from training.fleet.install.types import InstallRequest, MachineRole, System
from training.fleet.install.windows import ADMINISTRATORS, BASE, LOCAL_SERVICE, SERVICES_OWN, SYSTEM, TLS, USERS

EVERY_USER, EVIL, ADMIN = "S-1-5-11", "S-1-5-21-666", "S-1-5-21-1000"
TRUSTED = {SYSTEM, ADMINISTRATORS, ADMIN}
CHECKOUT = PureWindowsPath("C:/cis490")
PYTHON = CHECKOUT / ".venv" / "Scripts" / "python.exe"
WISH = InstallRequest(
    role=MachineRole.WORKER,
    system=System.WINDOWS,
    checkout=CHECKOUT,
    python=PYTHON,
    receiver_url="https://pi.lan:8445",
    host_id="desk",
    code="c0de",
    fingerprint="sha256:" + "5f" * 32,
    dataset="four-hosts",
)
ABBREVIATED = {SYSTEM: "SY", ADMINISTRATORS: "BA", USERS: "BU", LOCAL_SERVICE: "LS"}
MASKS = {"F": "FA", "M": "0x1301bf", "RX": "0x1200a9"}


@dataclass
class Entry:
    """A file or folder's own entry; the rest is inherited unless it is protected."""

    owner: str
    given: dict[str, str] = field(default_factory=dict)
    protected: bool = False


class Disk:
    """A machine whose icacls does what Microsoft's documentation says, and whose PowerShell answers one question."""

    def __init__(self, powershell="works"):
        self.powershell = powershell
        self.ran = []
        self.fails = ""
        self.entries = {
            PureWindowsPath("C:/"): Entry(
                SYSTEM, {ADMINISTRATORS: "F", SYSTEM: "F", EVERY_USER: "M", USERS: "RX"}, True
            ),
            PureWindowsPath("C:/ProgramData"): Entry(SYSTEM, {ADMINISTRATORS: "F", SYSTEM: "F", USERS: "M"}, True),
            CHECKOUT: Entry(ADMIN),
            PYTHON: Entry(ADMIN),
        }

    def rights(self, path):
        entry = self.entries.get(PureWindowsPath(path))
        if entry is None:
            return self.rights(path.parent)
        above = {} if entry.protected else self.rights(path.parent)
        return {**above, **entry.given}

    def changers(self, path):
        entry = self.entries.get(PureWindowsPath(path))
        owner = {ADMINISTRATORS if entry is None else entry.owner}
        return owner | {sid for sid, right in self.rights(path).items() if right in ("F", "M")}

    def below(self, folder):
        return (path for path in self.entries if path.is_relative_to(folder))

    def run(self, argv, *, cwd=None, user=None):
        if argv[0] == "powershell":
            return self._asked(argv[-1])
        if argv[0] == "cmd":
            return Ran(0)
        self.ran.append(list(argv))
        if self.fails and self.fails in argv:
            return Ran(5, "Access is denied.")
        if argv[0] == "icacls":
            self._icacls(PureWindowsPath(argv[1]), list(argv[2:]))
        return Ran(0, "{}")

    def pause(self, seconds): ...

    def own(self, path, user): ...

    def owns(self, path, user):
        return True

    def _icacls(self, folder, arguments):
        assert "/L" in arguments, "what a link leads to is not ours"
        self.entries.setdefault(folder, Entry(ADMINISTRATORS))
        for path in list(self.below(folder)) if "/T" in arguments else [folder]:
            entry = self.entries[path]
            if "/setowner" in arguments:
                entry.owner = arguments[arguments.index("/setowner") + 1].removeprefix("*")
            if "/reset" in arguments:
                entry.given, entry.protected = {}, False
            entry.protected = entry.protected or "/inheritance:r" in arguments
            for flag, value in itertools.pairwise(arguments):
                if flag == "/grant:r":
                    sid, right = value.removeprefix("*").split(":(OI)(CI)")
                    entry.given[sid] = right

    def _asked(self, script):
        if self.powershell != "works":
            return Ran(0 if self.powershell == "stub" else 127)
        found = re.fullmatch(r".*GetAccessControl\('(.*)'\)\..* -cmatch '(.*)'\) .*", script)
        entry = self.entries.get(PureWindowsPath(found[1]), Entry(ADMIN))
        told = "".join(f"(A;OICI;{MASKS[right]};;;{ABBREVIATED.get(sid, sid)})" for sid, right in entry.given.items())
        sddl = f"O:{ABBREVIATED.get(entry.owner, entry.owner)}D:{'PAI' * entry.protected}{told}"
        return Ran(0, "closed\r\n" if re.search(found[2], sddl) else "")


def install(disk, folder, *, dry_run=False):
    """Install; before anything secret is made or anything is run, see who might have a hand in it."""
    told = []

    def tell(kind, said):
        told.append((kind, said))
        if kind == "now" and re.match(r"write|join|see what|fetch|register|start", said):
            for path in (*disk.below(CHECKOUT), PYTHON, BASE, windows.SETTINGS, windows.TASK_FILE):
                assert disk.changers(path) <= TRUSTED, f"{said}: {path}"
            for path in (*disk.below(BASE), TLS):
                assert disk.changers(path) <= TRUSTED | {LOCAL_SERVICE}, f"{said}: {path}"
                assert set(disk.rights(path)) <= TRUSTED | {LOCAL_SERVICE}, f"{said}: {path}"

    site = Site(disk, folder)
    changed = perform(windows.prepare(WISH), site, tell, dry_run=dry_run)
    perform(windows.start(changed=changed), site, tell, dry_run=dry_run)
    return told


def somebody_was_here_before(disk):
    for path in (BASE, TLS.parent, TLS, windows.SETTINGS, CHECKOUT, CHECKOUT / "re.py", PYTHON):
        disk.entries[path] = Entry(EVIL, {EVIL: "F", EVERY_USER: "M"}, protected=True)


def someone_made_it_look_closed(disk):
    somebody_was_here_before(disk)
    disk.entries[CHECKOUT] = Entry(EVIL, dict(windows.READABLE), protected=True)
    disk.entries[BASE] = Entry(EVIL, dict(windows.CLOSED), protected=True)


def an_earlier_version_was_here(disk):
    rights = {SYSTEM: "F", ADMINISTRATORS: "F", LOCAL_SERVICE: "M"}
    disk.entries[BASE] = Entry(ADMINISTRATORS, rights, protected=True)


@pytest.mark.parametrize("powershell", ["works", "stub", "missing"])
@pytest.mark.parametrize(
    "before",
    [lambda _: None, somebody_was_here_before, someone_made_it_look_closed, an_earlier_version_was_here],
    ids=["nothing", "somebody", "looks closed", "earlier version"],
)
def test_nobody_else_has_a_hand_in_what_the_administrator_runs(before, powershell, tmp_path):
    disk = Disk(powershell)
    before(disk)
    install(disk, tmp_path)
    assert any("training.fleet.join" in argv for argv in disk.ran)
    for path in SERVICES_OWN:
        assert LOCAL_SERVICE in disk.changers(path), "a worker writes there"
    assert disk.rights(BASE)[LOCAL_SERVICE] == disk.rights(PYTHON)[LOCAL_SERVICE] == "RX"
    assert disk.rights(PYTHON)[USERS] == "RX"
    assert USERS not in disk.rights(TLS)


def test_what_is_closed_is_not_opened_again(tmp_path):
    """Between /reset and /inheritance:r those may enter whom C:\\ProgramData lets in, and a key lies there."""
    disk = Disk()
    install(disk, tmp_path)
    disk.ran = []
    told = install(disk, tmp_path)
    assert [argv for argv in disk.ran if "/reset" in argv or "/setowner" in argv] == []
    assert ("there", f"write {windows.TASK_FILE}") in told
    assert not any("/Create" in argv or "/End" in argv for argv in disk.ran), "it runs on"


def test_the_worker_writes_in_no_other_folder(tmp_path):
    install(Disk(), tmp_path)
    settings = json.loads((tmp_path / "ProgramData" / "cis490" / "worker.json").read_text())
    arguments = windows_task.worker_arguments(settings)
    folders = [PureWindowsPath(value) for flag, value in itertools.pairwise(arguments) if flag.endswith("-dir")]
    assert {*folders, PureWindowsPath(settings["log"]).parent} == set(SERVICES_OWN)
    for folder in (*SERVICES_OWN, TLS):
        assert (tmp_path / folder.relative_to("C:/")).is_dir(), "made here: it may make none there"


@pytest.mark.parametrize("place", [CHECKOUT, BASE, SERVICES_OWN[0], TLS, windows.DATASETS])
def test_a_link_is_not_followed(place, tmp_path):
    """The service, or anybody before the first installation, can lay a junction there."""
    elsewhere, link = tmp_path / "System32", tmp_path / place.relative_to("C:/")
    elsewhere.mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        link.symlink_to(elsewhere, target_is_directory=True)
    except OSError:
        pytest.skip("links are an administrator's here")
    if not link.is_symlink():
        pytest.skip("Wine says that it made one, and made none")
    disk = Disk()
    with pytest.raises(InstallError, match="is a link to another place; remove it"):
        install(disk, tmp_path)
    assert not any(argv[1] == str(place) for argv in disk.ran)
    assert not any("training.fleet.join" in argv for argv in disk.ran)
    assert list(elsewhere.iterdir()) == []


def test_a_junction_is_a_link_too(tmp_path, monkeypatch):
    class Status:
        st_reparse_tag = 0xA0000003

    step, site = NoLink(PurePath("/x")), Site(Disk(), tmp_path)
    assert step.is_done(site)
    (tmp_path / "x").mkdir()
    assert step.is_done(site)
    monkeypatch.setattr(Path, "is_symlink", lambda _: False)
    monkeypatch.setattr(Path, "lstat", lambda _: Status)
    assert not step.is_done(site)


@pytest.mark.parametrize("fails", ["/setowner", "/reset", "/inheritance:r"])
def test_what_cannot_be_closed_gets_no_key(fails, tmp_path):
    disk = Disk()
    disk.fails = fails
    with pytest.raises(InstallError, match=r"Access is denied.; if another user made .* remove it"):
        install(disk, tmp_path)
    assert [argv for argv in disk.ran if argv[0] != "icacls"] == []


def test_looking_first_shows_the_rights_and_changes_none(tmp_path):
    disk = Disk()
    would = " / ".join(said for kind, said in install(disk, tmp_path, dry_run=True) if kind == "would")
    for said in (
        r"give C:\cis490 and all in it to the administrators; everybody else may only read: icacls",
        r"give C:\ProgramData\cis490 and all in it to the administrators; the service may only read",
        r"let the service write in C:\ProgramData\cis490\logs",
        "/reset /T /L /Q",
    ):
        assert said in would
    assert disk.ran == []
    assert list(tmp_path.iterdir()) == []


def test_a_folders_name_ends_no_text_of_powershell():
    asked = windows.is_closed(PureWindowsPath("C:/it\u2019s'; calc; '"), windows.CLOSED)[-1]
    assert "('C:\\it\u2019\u2019s''; calc; ''')" in asked
