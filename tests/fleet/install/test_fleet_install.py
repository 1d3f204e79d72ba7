"""Installing: what is judged, what is done, that it is done once, and that nothing is left.

The whole of it runs in a machine of its own (own_root.sh) where this one allows that; the rest everywhere.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
import tree_sitter
from places import CHILDREN, ROOT
from receiver_running import running
from systems import open_to_others

from training.clock import SystemClock
from training.fleet.capability import probe
from training.fleet.install import __main__ as install
from training.fleet.install import linux as install_linux
from training.fleet.install import system as install_system
from training.fleet.install import windows as install_windows
from training.fleet.install import windows_task
from training.fleet.install.checks import judge, refused
from training.fleet.install.steps import InstallError, Ran, Site, perform
from training.fleet.install.types import CheckLevel, InstallRequest, MachineFacts, MachineRole, ReceiverSeen, System
from training.fleet.install.worker import capability_words, undelivered
from training.fleet.worker import options as worker_options

SHELL, POWERSHELL = (ROOT / "scripts" / f"install-training-worker{end}" for end in (".sh", "-windows.ps1"))
GIB = 1024**3
URL = "http://127.0.0.1:8445"
FINE = MachineFacts(
    python=(3, 12),
    interpreter=PurePosixPath("/usr/bin/python3.12"),
    free_bytes=50 * GIB,
    receiver=ReceiverSeen(now=1000.0, here=1001.0),
    administrator=True,
    service_manager=True,
)
WISH = InstallRequest(
    role=MachineRole.WORKER,
    system=System.LINUX,
    checkout=PurePosixPath("/opt/cis490"),
    python=PurePosixPath("/opt/cis490/.venv/bin/python"),
    receiver_url="https://pi.lan:8445",
    host_id="desk",
    commit="c0ffee",
)
ON_WINDOWS = replace(
    WISH,
    system=System.WINDOWS,
    checkout=PureWindowsPath("C:/cis490"),
    python=PureWindowsPath("C:/cis490/.venv/Scripts/python.exe"),
)
FINE_ON_WINDOWS = replace(FINE, interpreter=PureWindowsPath("C:/Program Files/Python312/python.exe"))
JOINING = {"code": "kT3v-9aQx", "fingerprint": "sha256:" + "5f" * 32}


class Recorder:
    """A machine on paper: remembers what it was told to run, and keeps the users and services that follow from it."""

    def __init__(self):
        self.ran = []
        self.as_user = []
        self.owned = []
        self.users = set()
        self.services = set()
        self.fails = {}

    def run(self, argv, *, cwd=None, user=None):
        line = " ".join(argv)
        for part, ran in self.fails.items():
            if part in line:
                return ran
        match argv:
            case ["getent", "passwd", name]:
                return Ran(0 if name in self.users else 2)
            case ["getent", "group", name]:
                return Ran(0 if name == "video" else 2)
            case ["systemctl", "is-enabled" | "is-active", "--quiet", name]:
                return Ran(0 if name in self.services else 3)
            case ["schtasks", "/Query", *_]:
                return Ran(0 if "task" in self.services else 1)
            case ["cmd", "/c", *_]:
                return Ran(1 if "task" in self.services else 0)
        self.ran.append(list(argv))
        self.as_user.append(user)
        match argv:
            case ["useradd", *_, name]:
                self.users.add(name)
            case ["userdel", name]:
                self.users.discard(name)
            case ["systemctl", "start" | "restart" | "enable", name]:
                self.services.add(name)
            case ["systemctl", "disable", "--now", name]:
                self.services.discard(name)
            case ["schtasks", "/Create", *_]:
                self.services.add("task")
            case ["schtasks", "/Delete", *_]:
                self.services.discard("task")
        return Ran(0, '{"cpu_cores": 4, "ram_total_gib": 7.6, "cuda_available": false, "torch_version": null}')

    def own(self, path, user):
        self.owned.append(f"{path.name} {user}")

    def owns(self, path, user):
        return f"{path.name} {user}" in self.owned

    def pause(self, seconds):
        pass


def words(wanted=WISH, facts=FINE, level=CheckLevel.REFUSED):
    return [finding.words for finding in judge(wanted, facts) if finding.level is level]


# -- looking and judging ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "facts"), [(WISH, FINE), (ON_WINDOWS, FINE_ON_WINDOWS), (replace(WISH, **JOINING), FINE)]
)
def test_a_good_machine_is_not_refused(wanted, facts):
    assert words(wanted, facts) == words(wanted, facts, CheckLevel.WARNING) == []


@pytest.mark.parametrize("url", ["https://[::1", "https://[pi.lan:8445]:1", "https://pi.lan:84450"])
def test_an_address_that_is_none_is_one_sentence(url, capsys):
    assert install.main(["worker", "--dry-run", "--receiver-url", url, "--host-id", "pc"]) == 1
    told = capsys.readouterr()
    assert "is not a receiver's address" in told.err
    assert told.out == ""


REFUSALS = [
    ({}, {"python": (3, 10)}, "Python 3.10 is too old"),
    ({}, {"missing": ("msgspec",)}, "msgspec is missing in the virtual environment; install with"),
    ({}, {"free_bytes": GIB // 2}, "only 0.5 GiB of disk are free"),
    ({}, {"administrator": False}, "repeat the same line with sudo"),
    ({}, {"service_manager": False}, "systemd does not run here"),
    ({"flags": "--slots 2"}, {"service_manager": False}, "--host-id desk --slots 2"),
    ({}, {"service_manager": False}, "python -m training.fleet.worker --receiver-url"),
    (JOINING, {"service_manager": False}, "python -m training.fleet.join --receiver-url"),
    ({}, {"checkout_complete": False}, "is not the whole checkout"),
    ({}, {"interpreter": PurePosixPath("/root/.pyenv/bin/python")}, "the Python behind the virtual"),
    ({}, {"receiver": ReceiverSeen(trouble="nobody is there")}, "nobody is there"),
    ({}, {"receiver": ReceiverSeen(now=1000.0, here=1100.0)}, "clock is 100 s ahead of the receiver's; set it"),
    ({}, {"receiver": ReceiverSeen(now=1000.0, here=0.0)}, "clock is 1000 s behind the receiver's; set it"),
    ({"checkout": PurePosixPath("/home/me/cis490")}, {}, "cannot see /home/me/cis490; clone into /opt"),
    ({"checkout": PurePosixPath("/opt/my checkout")}, {}, "characters that a service file cannot name"),
    ({"receiver_url": ""}, {}, "no address was given as the receiver's"),
    ({"receiver_url": "http://x\nExecStart=/bin/sh"}, {}, "was given as the receiver's"),
    ({"host_id": "localhost"}, {}, "cannot be this host's name"),
    ({"host_id": "a b"}, {}, "cannot be this host's name"),
    ({"code": "x"}, {}, "--code and --fingerprint belong together"),
    (JOINING | {"receiver_url": "http://pi.lan:8445"}, {}, "the address begins with https://"),
    (JOINING | {"image": True}, {}, "not from an image"),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "facts", "said"), REFUSALS)
def test_what_will_not_do_is_refused_in_one_sentence(wanted, facts, said):
    found = words(replace(WISH, **wanted), replace(FINE, **facts))
    assert [each for each in found if said in each] == found, "nothing else is complained of"
    assert len(found) == 1
    assert "\n" not in found[0]


@pytest.mark.parametrize(
    ("wanted", "facts", "said"),
    [
        ({}, {"interpreter": PureWindowsPath("C:/Users/me/Python/python.exe")}, "one person's Python"),
        ({"checkout": PureWindowsPath("C:/Users/me/cis490")}, {}, "clone into C:\\cis490"),
        ({"checkout": PureWindowsPath("C:/")}, {}, "is a whole disk"),
        ({}, {"administrator": False}, "PowerShell as administrator"),
        ({}, {"service_manager": False}, "schtasks.exe"),
    ],
)
def test_what_will_not_do_on_windows(wanted, facts, said):
    (found,) = words(replace(ON_WINDOWS, **wanted), replace(FINE_ON_WINDOWS, **facts))
    assert said in found


def test_what_is_only_worth_a_note():
    facts = replace(
        FINE,
        missing_for_training=("torch", "xgboost"),
        free_bytes=2 * GIB,
        nvidia_device=True,
        receiver=ReceiverSeen(now=1000.0, here=1010.0),
    )
    notes = " / ".join(words(facts=facts, level=CheckLevel.WARNING))
    assert words(facts=facts) == []
    for said in ("torch, xgboost are missing", "2.0 GiB", "its driver does not answer", "10 s ahead"):
        assert said in notes
    facts = replace(FINE_ON_WINDOWS, long_paths=False, interpreter=PureWindowsPath("C:/Python312/python.exe"))
    notes = " / ".join(words(ON_WINDOWS, facts, CheckLevel.WARNING))
    for said in ("Windows cuts paths", "may be able to change C:\\Python312\\python.exe"):
        assert said in notes
    assert not refused(judge(replace(WISH, dry_run=True), replace(FINE, administrator=False)))

    assert len(words(replace(WISH, host_id="?"), replace(FINE, python=(3, 9), free_bytes=0))) == 3, "all at once"


class NoReceiver(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_):
        pass


@pytest.fixture
def stranger():
    with http.server.HTTPServer(("127.0.0.1", 0), NoReceiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_receiver_is_asked_for_its_clock(tmp_path):
    with running(tmp_path) as receiver:
        seen = install_system.ask(receiver.url, SystemClock())
    assert seen.trouble is None
    assert seen.now is not None
    assert abs(seen.now - seen.here) < 60


def test_somebody_else_at_the_address_is_no_receiver(stranger):
    said = str(install_system.ask(stranger, SystemClock()).trouble)
    assert said.startswith(f"not the receiver answered at {stranger} but 200 from BaseHTTP")
    assert "another service on that port" in said


def test_nobody_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said = install_system.ask(f"http://127.0.0.1:{port}", SystemClock()).trouble
    assert said is not None
    assert f"nothing listens at http://127.0.0.1:{port}" in said
    assert "fix the DNS" in str(install_system.ask("http://no-such-host.invalid", SystemClock()).trouble)


# -- the plan on Linux, carried out below a folder ---------------------------------------------------------------------


def unit(role=MachineRole.WORKER):
    return (ROOT / "etc" / install_linux.service(role)).read_text("utf-8")


def do(wanted, machine, folder, dry_run=False):
    """Prepare and start, as install does; whether anything changed, and what was told."""
    told = []
    site = Site(machine, folder)
    tell = lambda kind, said: told.append((kind, said))  # noqa: E731
    if wanted.system is System.LINUX:
        steps = install_linux.prepare(wanted, unit(wanted.role), example="plan", token="t" * 64)
    else:
        steps = install_windows.prepare(wanted)
    changed = perform(steps, site, tell, dry_run=dry_run)
    on_linux = wanted.system is System.LINUX
    last = install_linux.start(wanted, changed=changed) if on_linux else install_windows.start(changed=changed)
    perform(last, site, tell, dry_run=dry_run)
    return changed, told


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def machine():
    return Recorder()


def test_a_worker_is_installed_once_and_removed_whole(machine, tmp_path):
    changed, _ = do(replace(WISH, **JOINING), machine, tmp_path)
    assert changed
    assert machine.users == {"cis490-worker"}
    assert ["systemctl", "restart", "cis490-trainer-worker.service"] in machine.ran
    useradd = machine.ran[0]
    assert useradd[useradd.index("--groups") + 1] == "video", "of the groups, those that exist"
    settings = (tmp_path / "etc/cis490/worker.env").read_text()
    assert "CIS490_RECEIVER_URL=https://pi.lan:8445\nFLEET_HOST_ID=desk\n" in settings
    joins = [argv for argv in machine.ran if "training.fleet.join" in argv]
    assert joins[0][-1] == "/var/lib/cis490-worker/state/tls"
    tries = [user for argv, user in zip(machine.ran, machine.as_user, strict=True) if "-m" in argv]
    assert tries == ["cis490-worker"] * 2, "key and probe belong to the service"
    mark = (tmp_path / "etc/cis490/joined").read_text().strip()
    assert mark == hashlib.sha256(JOINING["code"].encode()).hexdigest()
    assert JOINING["code"].encode() not in b"".join(files(tmp_path).values())

    before, machine.ran = files(tmp_path), []
    changed, told = do(replace(WISH, **JOINING), machine, tmp_path)
    assert not changed
    assert files(tmp_path) == before
    assert [argv for argv in machine.ran if "capability" not in " ".join(argv)] == []
    assert ("found", "4 cores, 7.6 GiB RAM, no torch") in told

    perform(install_linux.uninstall(MachineRole.WORKER), Site(machine, tmp_path), lambda *_: None)
    assert [name for name, text in files(tmp_path).items() if text] == []
    assert machine.users == machine.services == set()
    perform(install_linux.uninstall(MachineRole.WORKER), Site(machine, tmp_path), lambda *_: None)


def test_a_new_line_of_enroll_joins_again_and_another_commit_restarts_the_service(machine, tmp_path):
    do(replace(WISH, **JOINING), machine, tmp_path)
    machine.ran = []
    do(replace(WISH, **JOINING | {"code": "another"}, commit="beef"), machine, tmp_path)
    assert sum("training.fleet.join" in argv for argv in machine.ran) == 1
    assert ["systemctl", "restart", "cis490-trainer-worker.service"] in machine.ran


def test_dry_run_changes_nothing_and_shows_every_command(machine, tmp_path):
    changed, told = do(replace(WISH, **JOINING), machine, tmp_path, dry_run=True)
    assert changed
    assert files(tmp_path) == {}
    assert machine.ran == []
    assert {kind for kind, _ in told} == {"would"}
    assert any("systemctl restart cis490-trainer-worker.service" in said for _, said in told)
    assert not any(JOINING["code"] in said for _, said in told), "a code is a secret while it lasts"


def test_a_step_that_fails_ends_it_with_its_reason(machine, tmp_path):
    machine.fails["training.fleet.join"] = Ran(1, "join: the code is not known\n\n")
    with pytest.raises(InstallError, match="could not join the fleet: join: the code is not known"):
        do(replace(WISH, **JOINING), machine, tmp_path)
    # Of its own words the last; what systemd says about it comes after them, and says less.
    journal = "journalctl --quiet _SYSTEMD_UNIT=cis490-trainer-worker.service"
    machine.fails = {"is-active": Ran(3), journal: Ran(0, "x\nthe state directory is full\n")}
    with pytest.raises(InstallError, match="does not stay up: the state directory is full; it is tried again"):
        do(WISH, machine, tmp_path)
    machine.fails = {"capability": Ran(126, "python: permission denied")}
    with pytest.raises(InstallError, match="chmod -R"):
        do(WISH, machine, tmp_path)


def test_a_receiver_keeps_what_is_the_operators(tmp_path):
    machine, wanted = Recorder(), replace(WISH, role=MachineRole.RECEIVER)
    do(wanted, machine, tmp_path)
    settings, plan = (tmp_path / "etc/cis490" / name for name in ("receiver.env", "training_manifest.toml"))
    assert not open_to_others(settings)
    assert f"CIS490_OPERATOR_TOKEN={'t' * 64}\n" in settings.read_text()
    plan.write_text("mine")
    settings.write_text("CIS490_OPERATOR_TOKEN=mine\nCIS490_RECEIVER_FLAGS=--tls\n")
    assert not do(wanted, machine, tmp_path)[0]
    assert plan.read_text() == "mine"
    said = install_linux.earlier(MachineRole.RECEIVER, settings.read_text())
    assert said == {"flags": "--tls", "token": "mine"}
    perform(install_linux.uninstall(MachineRole.RECEIVER), Site(machine, tmp_path), lambda *_: None)
    assert plan.read_text() == "mine"
    assert not settings.exists()
    assert machine.users == {"cis490-receiver"}, "its models are still owned by it"


def test_words_about_a_machine_and_about_finished_work():
    device = probe.CudaDevice("RTX 4070", 8.0, 7.5)
    found = probe.Capability("desk", cpu_cores=8, ram_total_gib=31.25, cuda_available=True, cuda_devices=(device,))
    assert capability_words(json.dumps(found.to_dict())) == "8 cores, 31.2 GiB RAM, RTX 4070 with 8.0 GiB"
    assert capability_words("Segmentation fault") == "it could not be determined"
    assert undelivered('{"delivery": {"assignment": {"job_id": "abc"}}}') == "abc"
    assert undelivered('{"delivery": null}') is undelivered("[[") is None


# -- the plan on Windows ----------------------------------------------------------------------------------------------


def test_on_windows_it_is_a_task_that_comes_back(machine, tmp_path):
    do(replace(ON_WINDOWS, **JOINING, flags="--poll-s 5"), machine, tmp_path)
    base = tmp_path / "ProgramData" / "cis490"
    task = ET.fromstring((base / "task.xml").read_text("utf-16"))
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    text = {
        name: task.findtext(f".//t:{name}", namespaces=space)
        for name in "UserId Command WorkingDirectory ExecutionTimeLimit MultipleInstancesPolicy Interval".split()  # noqa: SIM905
    }
    assert text == {
        "UserId": "S-1-5-19",
        "Command": r"C:\cis490\.venv\Scripts\python.exe",
        "WorkingDirectory": r"C:\cis490",
        "ExecutionTimeLimit": "PT0S",
        "MultipleInstancesPolicy": "IgnoreNew",
        "Interval": "PT5M",
    }
    assert task.find(".//t:BootTrigger", space) is not None
    assert task.find(".//t:RestartOnFailure", space) is not None
    for setting in ("DisallowStartIfOnBatteries", "StopIfGoingOnBatteries"):
        assert task.findtext(f".//t:{setting}", namespaces=space) == "false"
    assert [argv[:2] for argv in machine.ran if argv[0] == "schtasks"] == [
        ["schtasks", "/Create"],
        ["schtasks", "/Run"],
    ]
    machine.ran = []
    assert not do(replace(ON_WINDOWS, **JOINING, flags="--poll-s 5"), machine, tmp_path)[0]
    assert "/Create" not in [argv[1] for argv in machine.ran]
    perform(install_windows.uninstall(), Site(machine, tmp_path), lambda *_: None)
    assert not base.exists()
    assert machine.services == set()


def test_what_the_task_starts_understands_its_settings(tmp_path):
    do(replace(ON_WINDOWS, flags='--on-silence pause --tensors "C:\\my data\\t"'), Recorder(), tmp_path)
    text = (tmp_path / "ProgramData" / "cis490" / "worker.json").read_text()
    args = worker_options.parser().parse_args(windows_task.worker_arguments(json.loads(text)))
    assert (args.receiver_url, args.host_id) == ("https://pi.lan:8445", "desk")
    assert str(args.on_silence) == "pause"
    assert str(args.tensors) == r"C:\my data\t"
    assert install_windows.earlier(text)["flags"].startswith("--on-silence pause")
    assert install_windows.earlier("[") == {}
    default = PureWindowsPath(args.state_dir) / "tls"
    assert default == install_windows.TLS, "where the worker looks for its certificate"


@pytest.fixture
def quiet_logging():
    root = logging.getLogger()
    kept, level, streams = root.handlers[:], root.level, (sys.stdout, sys.stderr)
    yield
    for handler in root.handlers:
        if handler not in kept:
            handler.close()
    root.handlers[:], sys.stdout, sys.stderr = kept, *streams
    root.setLevel(level)


@pytest.mark.usefixtures("quiet_logging")
def test_the_task_keeps_a_log_that_cannot_grow_for_ever(tmp_path, monkeypatch):
    from training.fleet.worker import daemon

    settings = {
        "receiver_url": URL, "host_id": "pc", "flags": "",
        "base": str(tmp_path), "log": str(tmp_path / "logs/worker.log"),
    }  # fmt: skip
    file = tmp_path / "worker.json"
    file.write_text(json.dumps(settings))
    given = []

    def work(argv):
        given.append(argv)
        print("half a ", end="")
        print("line", file=sys.stdout)
        print("cis490-trainer-worker: the clock stands still", file=sys.stderr)
        for _ in range(3):
            logging.getLogger("training").info("x" * (windows_task.LOG_BYTES // 2))
        raise RuntimeError("a mistake")

    monkeypatch.setattr(daemon, "main", work)
    assert windows_task.main(["--settings", str(file)]) == 1
    assert given[0][:2] == ["--receiver-url", URL]
    kept = sorted((tmp_path / "logs").iterdir())
    assert len(kept) > 1
    assert all(each.stat().st_size <= windows_task.LOG_BYTES + 200 for each in kept)
    text = "".join(each.read_text() for each in kept)
    for said in ("INFO half a line", "ERROR cis490-trainer-worker: the clock", "RuntimeError: a mistake"):
        assert said in text


def test_a_task_without_settings_says_so(tmp_path, capsys):
    assert windows_task.main(["--settings", str(tmp_path / "none.json")]) == 2
    assert "install again" in capsys.readouterr().err


# -- the scripts ------------------------------------------------------------------------------------------------


def run_script(*arguments, venv=None, path=None):
    environment = {name: value for name, value in os.environ.items() if name != "FLEET_HOST_ID"}
    environment["CIS490_VENV"] = str(venv or Path(sys.prefix))
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    argv = [str(SHELL), *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, env=environment)


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a script for Linux")


@on_linux
def test_shell_script_refuses_early(tmp_path):
    done = run_script("--receiver-url", URL, venv=tmp_path)
    assert done.returncode == 1
    assert "there is no virtual environment yet; make it with: python3 -m venv" in done.stderr
    old = tmp_path / "bin" / "python"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    assert "older than Python 3.11" in run_script("--receiver-url", URL, venv=tmp_path).stderr


@on_linux
def test_shell_script_fills_an_image_twice_and_empties_it(tmp_path):
    """As whoever runs the tests, root or not."""
    stubs, image = tmp_path / "stubs", tmp_path / "image"
    stubs.mkdir()
    image.mkdir()
    stub = stubs / "systemctl"
    stub.write_text(
        '#!/bin/sh\nset -eu\necho "$*" >> "$(dirname "$0")/calls"\nroot=${1#--root=}\n'
        "wants=$root/etc/systemd/system/multi-user.target.wants\n"
        'case $2 in\nenable) mkdir -p "$wants"; ln -s "../$3" "$wants/$3" ;;\n'
        'disable) rm "$wants/$3"; rmdir "$wants" ;;\nesac\n'
    )
    stub.chmod(0o755)
    line = ("--receiver-url", "https://pi.lan:8445", "--host-id", "desk", "--image", image)
    dry = run_script(*line, "--dry-run", path=stubs)
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert list(image.iterdir()) == []
    first = run_script(*line, path=stubs)
    assert first.returncode == 0, first.stdout + first.stderr
    installed = files(image)
    assert b"FLEET_HOST_ID=desk" in installed["etc/cis490/worker.env"]
    assert b"u cis490-worker" in installed["etc/sysusers.d/cis490-worker.conf"]
    again = run_script("--image", image, path=stubs)
    assert again.returncode == 0, again.stdout + again.stderr
    assert files(image) == installed
    assert (stubs / "calls").read_text() == f"--root={image} enable cis490-trainer-worker.service\n"
    assert run_script("uninstall", "--image", image, path=stubs).returncode == 0
    assert [path for path in image.rglob("*") if not path.is_dir() or path.is_symlink()] == []


@on_linux
def test_uninstalling_does_not_throw_finished_work_away(tmp_path):
    saved = tmp_path / "var/lib/cis490-worker/state/saved.json"
    saved.parent.mkdir(parents=True)
    saved.write_text('{"delivery": {"assignment": {"job_id": "0123456789abcdef"}}}')
    done = run_script("uninstall", "--image", tmp_path)
    assert done.returncode == 1
    assert "a finished training (job 0123456789ab) has not reached the receiver yet" in done.stderr
    assert saved.exists()
    assert run_script("uninstall", "--image", tmp_path, "--force").returncode == 0
    assert not saved.exists()


def test_a_dry_run_of_uninstalling_says_what_is_gone_already(tmp_path, capsys):
    told = ["worker", "--uninstall", "--dry-run", "--image", str(tmp_path)]
    assert install.main([*told, "--system", "linux"], machine=Recorder()) == 0
    out = capsys.readouterr().out
    assert "gone    remove " in out
    assert "done    remove" not in out


def test_a_receiver_is_not_installed_on_windows(capsys):
    assert install.main(["receiver", "--system", "windows"], machine=Recorder()) == 1
    assert "installed on Linux" in capsys.readouterr().err


@cache
def on_a_machine_of_its_own():
    """newcomer.py, run once; or why it cannot be."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a machine of its own needs root and unshare"
    own = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    with tempfile.TemporaryDirectory(prefix="own-root-") as folder:
        mounting = f"""set -e; mount -t tmpfs tmpfs {folder}; cd {folder}; mkdir u w m
            mount -t overlay overlay -o lowerdir=/,upperdir=u,workdir=w m; ip link set lo up"""
        if subprocess.run([*own, "sh", "-c", mounting], capture_output=True).returncode != 0:
            return "no file systems or networks can be made here"
        setup = [CHILDREN / "own_root.sh", folder, ROOT, sys.base_prefix, sys.prefix]
        program = ["/opt/cis490/.venv/bin/python", "/opt/newcomer.py"]
        return subprocess.run([*own, *map(str, setup), *program], capture_output=True, text=True, timeout=250)


def newcomer():
    """Run newcomer.py and return its report; skips where there can be no machine of its own."""
    done = on_a_machine_of_its_own()
    if isinstance(done, str):
        pytest.skip(done)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_newcomer_is_refused_while_there_is_no_receiver():
    told = newcomer()["no_receiver"]
    assert told["code"] == 1
    assert f"REFUSED nothing listens at {URL}" in told["out"]
    assert told["out"].endswith("Nothing was changed.\n")


@pytest.fixture
def told():
    return newcomer()


@pytest.mark.thorough
def test_newcomer_installs_a_receiver_and_a_worker_that_asks_it_for_work(told):
    assert told["receiver"]["code"] == told["first"]["code"] == 0, told["first"]
    assert told["worker"]["hostname"] == "newcomer"
    assert told["worker"]["alive"]
    assert "clock within 5 s of the receiver's" in told["first"]["out"]
    assert re.search(r"→ +\d+ cores, [\d.]+ GiB RAM", told["first"]["out"])
    assert told["modes"] == {
        "/etc/cis490/receiver.env": ["0o600", "root"],
        "/var/lib/cis490-worker": ["0o750", "cis490-worker"],
        "/var/lib/cis490": ["0o750", "cis490-receiver"],
    }


@pytest.mark.thorough
def test_newcomer_may_look_first_and_do_it_twice(told):
    assert told["dry"]["code"] == 0
    assert told["after_dry"] == []
    assert told["again"]["code"] == 0
    assert told["after_again"] == []
    assert not any("restart" in call for call in told["calls_again"]), "a running job is left alone"


@pytest.mark.thorough
def test_newcomer_without_root_may_look_and_not_touch(told):
    assert told["nobody_dry"]["code"] == 0, told["nobody_dry"]
    assert told["nobody"]["code"] == 1
    assert "repeat the same line with sudo" in told["nobody"]["out"]
    assert told["nobody_uninstall"]["code"] == 1
    assert "with sudo" in told["nobody_uninstall"]["err"]


@pytest.mark.thorough
def test_newcomer_pastes_the_line_that_enroll_printed(told):
    assert told["receiver_tls"]["code"] == 0, told["receiver_tls"]
    assert told["settings"] == ["CIS490_RECEIVER_FLAGS=", "CIS490_RECEIVER_FLAGS=--tls --public-name localhost"], (
        "the token stays"
    )
    assert told["enroll"]["out"].startswith("sudo scripts/install-training-worker.sh ")
    assert told["joined"]["code"] == 0, told["joined"]
    assert "clock within 5 s of the receiver's" in told["joined"]["out"]
    assert "…       join the fleet" in told["joined"]["out"]
    assert told["joined_again"]["code"] == 0, told["joined_again"]
    assert "done    join the fleet" in told["joined_again"]["out"], "the code is used once"
    hosts = {host["hostname"]: host for host in json.loads(told["workers_tls"]["out"])["workers"]}
    assert hosts["joined"]["alive"]
    assert hosts["joined"]["conflict"] is None
    assert told["key"] == ["0o600", "cis490-worker"]
    assert told["leaves"]["code"] == 0


@pytest.mark.thorough
def test_newcomer_leaves_and_nothing_is_left(told):
    assert told["uninstall"]["code"] == told["uninstall_again"]["code"] == 0
    assert told["left_of_worker"] == []
    assert told["uninstall_receiver"]["code"] == 0
    assert told["left"] == ["/etc/cis490/", "/etc/cis490/training_manifest.toml"]


# -- the PowerShell script, as far as it can be judged without Windows -------------------------------------------------


def parsed(text):
    grammar = pytest.importorskip("tree_sitter_powershell", reason="the grammar is not installed")
    return tree_sitter.Parser(tree_sitter.Language(grammar.language())).parse(text).root_node


@pytest.fixture(scope="module")
def powershell():
    return parsed(POWERSHELL.read_bytes())


def within(node, kind):
    if node.type == kind and node.text is not None:
        yield node.text.decode()
    for child in node.children:
        yield from within(child, kind)


def test_powershell_parses(powershell):
    assert not powershell.has_error
    assert parsed(b"if ($x { exit 1 }").has_error, "the parser can tell"


def test_powershell_keeps_the_rules(powershell):
    text = POWERSHELL.read_text("utf-8")
    statements = [line.strip() for line in text.splitlines()]
    assert "Set-StrictMode -Version Latest" in statements
    assert "$ErrorActionPreference = 'Stop'" in statements
    commands = {name.lower() for name in within(powershell, "command_name")}
    assert commands <= {
        "set-strictmode", "split-path", "test-path", "join-path", "stop-withreason", "push-location", "pop-location",
        "$python",
    }, "no alias, nothing that evaluates text, nothing that fetches; what is done is decided in Python"  # fmt: skip
    assert text.isascii(), "PowerShell 5.1 reads a file without a mark as ANSI"
    assert not re.search(r"[ \t]$", text, re.MULTILINE)


def test_every_parameter_is_documented_and_reaches_a_flag(powershell):
    text = POWERSHELL.read_text("utf-8")
    parameters = re.findall(r"\[(?:string|switch)\]\$(\w+)", next(within(powershell, "param_block")))
    assert parameters == re.findall(r"^\.PARAMETER (\w+)$", text, re.MULTILINE)
    assert len(parameters) == len(set(parameters)) == 10
    flags = {flag for flag in re.findall(r"'(--[a-z-]+)'|\"(--[a-z-]+)=", text) for flag in flag if flag}
    assert flags <= {option for action in install._parser()._actions for option in action.option_strings}
    assert {f"--{re.sub('(?<!^)(?=[A-Z])', '-', name).lower()}" for name in parameters} - flags == {
        "--virtual-environment"
    }


@pytest.mark.parametrize("script", [SHELL, POWERSHELL])
def test_both_scripts_call_the_same_program(script):
    assert "training.fleet.install" in script.read_text("utf-8")


@pytest.mark.skipif(os.name != "posix", reason="a home folder of POSIX")
def test_without_root_the_users_own_systemd_runs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    machine, facts = Recorder(), replace(FINE, administrator=False)

    def run(*argv):
        return install.main(["--user", *argv], machine=machine, look_around=lambda *_: facts)

    assert run("--receiver-url", "https://pi.lan:8445", "--host-id", "desk", "--flags=--on-silence pause") == 0
    unit = tmp_path / ".config/systemd/user/cis490-trainer-worker.service"
    assert f'ExecStart="{tmp_path}/.local/share/cis490/worker.sh"' in unit.read_text()
    ran = [" ".join(argv[2:]) for argv in machine.ran if argv[:2] == ["systemctl", "--user"]]
    name = "cis490-trainer-worker.service"
    assert ran[:3] == ["daemon-reload", f"enable {name}", f"restart {name}"]
    assert "loginctl enable-linger" in capsys.readouterr().out
    assert run() == 0
    script = unit.parents[3] / ".local/share/cis490/worker.sh"
    assert "CIS490_WORKER_FLAGS='--on-silence pause'\n" in script.read_text()
    assert run("--uninstall") == 0
    assert [*tmp_path.iterdir()] == []
    assert run("receiver") == 1
    assert "--user installs a worker for this user" in capsys.readouterr().err
