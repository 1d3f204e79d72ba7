"""The service units as systemd reads them: what they start, how they stop, and how little they may do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from children.systemctl import command
from places import ROOT
from programs import installed

from training.fleet.install import linux as install_linux
from training.fleet.install.types import InstallRequest, MachineRole, System
from training.fleet.receiver import program
from training.fleet.worker import options as worker_options

ROLES = list(MachineRole)
HIGHEST_EXPOSURE = {MachineRole.RECEIVER: 20, MachineRole.WORKER: 40}  # in tenths


def text_of(role):
    return (ROOT / "etc" / install_linux.service(role)).read_text("utf-8")


def said(text):
    """Setting to values, in order; continued lines joined."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def wanted(role, **more):
    here = {"checkout": ROOT, "python": Path(sys.executable)}
    return InstallRequest(**{"role": role, "system": System.LINUX, **here, **more})


@pytest.mark.parametrize("role", ROLES)
def test_exposure_is_low(role):
    threshold = f"--threshold={HIGHEST_EXPOSURE[role]}"
    unit = str(ROOT / "etc" / install_linux.service(role))
    analyze = installed("systemd-analyze", "systemd")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", threshold, unit],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.parametrize("role", ROLES)
def test_systemd_has_nothing_to_say_against_it(role, tmp_path):
    unit = tmp_path / install_linux.service(role)
    unit.write_text(install_linux.rendered(text_of(role), wanted(role)))
    argv = [installed("systemd-analyze", "systemd"), "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("role", ROLES)
def test_what_it_starts_understands_every_flag(role):
    settings = {
        "CIS490_RECEIVER_URL": "https://pi.lan:8445",
        "CIS490_WORKER_FLAGS": "--on-silence pause --poll-s 1",
        "CIS490_RECEIVER_FLAGS": "--log-level DEBUG --port 8446",
    }
    argv = started(role, settings)
    assert argv[:3] == ["/opt/cis490/.venv/bin/python", "-m", f"training.fleet.{role}"]
    parser = program._parser() if role is MachineRole.RECEIVER else worker_options.parser()
    args = parser.parse_args(argv[3:])
    state = PurePosixPath("/var/lib", said(text_of(role))["StateDirectory"][0])
    if role is MachineRole.WORKER:
        assert args.receiver_url == "https://pi.lan:8445"
        assert str(args.on_silence) == "pause"
        written = [args.artifacts_dir, args.reports_dir, args.state_dir]
    else:
        assert (args.port, args.log_level) == (8446, "DEBUG")
        assert args.manifest == Path("/etc/cis490/training_manifest.toml")
        written = [args.db, args.models_dir]
    assert all(PurePosixPath(path).is_relative_to(state) for path in written)
    assert parser.parse_args(started(role, {"CIS490_RECEIVER_URL": "x"})[3:])


def started(role, settings):
    """Return the command that the unit starts, without the shell that ignores a hangup until its first line."""
    argv = command(said(text_of(role))["ExecStart"][0], settings)
    return argv[argv.index("/opt/cis490/.venv/bin/python") :]


def test_a_hangup_before_the_receivers_first_line_is_ignored():
    shell = command(said(text_of(MachineRole.RECEIVER))["ExecStart"][0], {})[:4]
    ask = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    assert subprocess.run([*shell, sys.executable, "-c", ask], capture_output=True).stdout == b"True\n"


def test_reload_is_a_hangup_and_stopping_leaves_time_to_hand_back():
    of_receiver, of_worker = said(text_of(MachineRole.RECEIVER)), said(text_of(MachineRole.WORKER))
    assert of_receiver["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert int(of_worker["TimeoutStopSec"][0]) >= 35, "the worker needs up to 30 s"
    assert of_worker["OOMPolicy"] == ["continue"], "a trainer out of memory would take the worker along"
    assert of_worker["KillMode"] == ["mixed"], "the worker stops its trainer, the rest of the group dies after it"
    for each in (of_receiver, of_worker):
        assert each["Restart"] == ["always"]
        assert each["StartLimitIntervalSec"] == ["0"]


def test_the_proxys_socket_has_a_folder_that_its_group_may_enter():
    unit = said(text_of(MachineRole.RECEIVER))
    assert unit["RuntimeDirectory"] == ["cis490"]
    assert unit["RuntimeDirectoryMode"] == ["0750"]
    assert ":/run/cis490/receiver.sock}" in (ROOT / "etc" / "Caddyfile").read_text("utf-8")


@pytest.mark.parametrize("role", ROLES)
def test_no_secret_is_an_argument(role):
    unit = said(text_of(role))
    assert not re.search(r"token|secret|password|code", unit["ExecStart"][0], re.IGNORECASE)
    assert unit["EnvironmentFile"][0].lstrip("-") == str(install_linux.settings_file(role))
    assert not any("TOKEN" in value for value in unit["Environment"])


def test_services_do_not_share_a_user_or_a_folder():
    users = [said(text_of(role))["User"] for role in ROLES]
    folders = [said(text_of(role))["StateDirectory"] for role in ROLES]
    assert users == [[install_linux.user(role)] for role in ROLES]
    assert users[0] != users[1]
    assert folders[0] != folders[1]


def test_a_unit_is_written_for_the_checkout_and_the_interpreter_in_use():
    other = wanted(
        MachineRole.WORKER,
        checkout=PurePosixPath("/opt/cis490-next"),
        python=PurePosixPath("/srv/venv/bin/python"),
        commit="c0ffee",
    )
    text = install_linux.rendered(text_of(MachineRole.WORKER), other)
    unit = said(text)
    assert unit["ExecStart"][0].startswith("/srv/venv/bin/python -m training.fleet.worker")
    assert unit["WorkingDirectory"] == ["/opt/cis490-next"]
    assert not re.search(r"/opt/cis490(?!-next)", text)
    assert "c0ffee" in text, "an upgrade is another text, so the service is restarted"


def test_documented_template_gives_each_worker_settings_and_state_of_its_own():
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    line = next(line for line in page.splitlines() if "cis490-trainer-worker@.service" in line)
    template = text_of(MachineRole.WORKER)
    edits = re.findall(r"s\|([^|]+)\|([^|]+)\|", line)
    assert len(edits) == 2
    for old, new in edits:
        assert len(re.findall(old, template)) == 1
        template = re.sub(old, new, template)
    one = said(template.replace("%i", "gpu1"))
    assert one["EnvironmentFile"] == ["/etc/cis490/worker-gpu1.env"]
    settings = {"CIS490_RECEIVER_URL": "http://pi", "CIS490_WORKER_FLAGS": "--cuda-devices 1"}
    args = worker_options.parser().parse_args(command(one["ExecStart"][0], settings)[3:])
    assert args.cuda_devices == "1"
    assert args.state_dir == Path("/var/lib/cis490-worker/state-gpu1")
    assert f"--tls-dir {args.state_dir}/tls" in page
