"""The steps of an installation on Linux with systemd: make a user, folders, settings and a unit. Pure: this module only
lists the steps."""

import re
from pathlib import PurePath, PurePosixPath

from training.fleet.install.steps import (
    Command,
    InstallStep,
    MakeFolder,
    MakeUser,
    Remove,
    RemoveEmpty,
    RemoveUser,
    StaysUp,
    WriteFile,
)
from training.fleet.install.types import InstallRequest, MachineRole
from training.fleet.install.worker import first_steps

ETC = PurePosixPath("/etc/cis490")
UNITS = PurePosixPath("/etc/systemd/system")
SYSUSERS = PurePosixPath("/etc/sysusers.d")
MANIFEST = ETC / "training_manifest.toml"
JOINED = ETC / "joined"
STATE = {
    MachineRole.WORKER: PurePosixPath("/var/lib/cis490-worker"),
    MachineRole.RECEIVER: PurePosixPath("/var/lib/cis490"),
}
SAVED = STATE[MachineRole.WORKER] / "state" / "saved.json"
WRITTEN_FOR = re.compile(r"/opt/cis490(/\.venv/bin/python)?")  # the paths in etc/'s unit files


def user(role: MachineRole) -> str:
    return f"cis490-{role}"


def service(role: MachineRole) -> str:
    return f"cis490-trainer-{role}.service"


def settings_file(role: MachineRole) -> PurePosixPath:
    return ETC / f"{role}.env"


def prepare(
    request: InstallRequest, unit: str, *, example: str = "", token: str = "", image: PurePath | None = None
) -> list[InstallStep]:
    """Return the steps before the service starts. ``unit`` and ``example`` are the texts of the unit file and the
    example manifest in ``etc/``."""
    state = STATE[request.role]
    steps: list[InstallStep] = []
    if image is None:
        groups = ("video", "render") if request.role is MachineRole.WORKER else ()  # groups of the users of GPUs
        steps.append(MakeUser(user(request.role), state, groups))
        steps.append(MakeFolder(ETC))
        steps.append(MakeFolder(state, 0o750, user(request.role)))
    else:  # systemd makes user and folder when the image starts for the first time
        line = f'u {user(request.role)} - "CIS490 training {request.role}" {state}\n'
        steps.append(WriteFile(SYSUSERS / f"{user(request.role)}.conf", line))
    steps += _of_worker(request) if request.role is MachineRole.WORKER else _of_receiver(request, example, token)
    steps.append(WriteFile(UNITS / service(request.role), rendered(unit, request)))
    if image is not None:
        link = UNITS / "multi-user.target.wants" / service(request.role)
        argv = ["systemctl", f"--root={image}", "enable", service(request.role)]
        steps.append(Command("have it started at boot", argv, unless=["test", "-L", f"{image}{link}"]))
    return steps


def start(request: InstallRequest, *, changed: bool) -> list[InstallStep]:
    """Return the steps that enable the service and start it; with ``changed``, restart a running one."""
    name = service(request.role)
    reread = [Command("have systemd read its units", ["systemctl", "daemon-reload"])] if changed else []
    enabled = ["systemctl", "is-enabled", "--quiet", name]
    enable = Command("have it started at boot", ["systemctl", "enable", name], unless=enabled)
    active = None if changed else ["systemctl", "is-active", "--quiet", name]
    run = Command(f"start {name}", ["systemctl", "restart" if changed else "start", name], unless=active)
    return [*reread, enable, run, StaysUp(name)]


def uninstall(role: MachineRole, *, image: PurePath | None = None) -> list[InstallStep]:
    """Return the steps that uninstall. All of a worker's files but the checkout are removed; a receiver's jobs, models
    and plan are kept, because they have no other copy."""
    name = service(role)
    unit = UNITS / name
    reach = [] if image is None else [f"--root={image}"]
    now = ["--now"] if image is None else []
    steps: list[InstallStep] = [
        Command("stop it", ["systemctl", *reach, "disable", *now, name], needs=unit),
        Remove(unit),
    ]
    if image is None:
        steps.append(Command("have systemd read its units", ["systemctl", "daemon-reload"], changes=False))
    steps.append(Remove(SYSUSERS / f"{user(role)}.conf"))
    steps.append(Remove(settings_file(role)))
    if role is MachineRole.WORKER:
        steps += [Remove(JOINED), Remove(STATE[role])]
        if image is None:
            steps.append(RemoveUser(user(role)))
    return [*steps, RemoveEmpty(ETC)]


def rendered(unit: str, request: InstallRequest) -> str:
    """Return the text of the unit file for this checkout and interpreter. Another commit changes the text, so that the
    service restarts."""
    text = WRITTEN_FOR.sub(lambda at: str(request.python if at[1] else request.checkout), unit)
    return f"{text}\n# installed from commit {request.commit or 'unknown'}\n"


def earlier(role: MachineRole, text: str) -> dict[str, str]:
    """Return receiver_url, host_id, flags and token from the text of our settings file, as far as it has them."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    said = {name.strip(): value.strip() for name, equals, value in pairs if equals}
    names = {
        "receiver_url": "CIS490_RECEIVER_URL",
        "host_id": "FLEET_HOST_ID",
        "flags": f"CIS490_{role.upper()}_FLAGS",
        "token": "CIS490_OPERATOR_TOKEN",
    }
    return {ours: said[theirs] for ours, theirs in names.items() if theirs in said}


def _of_worker(request: InstallRequest) -> list[InstallStep]:
    role, tls = MachineRole.WORKER, STATE[MachineRole.WORKER] / "state" / "tls"  # where the worker looks for it
    steps = [] if request.image else first_steps(request, tls, JOINED, user(role))
    text = (
        "# Settings of the training worker. After an edit: systemctl restart cis490-trainer-worker\n"
        "# An upgrade keeps these three; lines of your own (Environment=…): systemctl edit cis490-trainer-worker\n"
        f"CIS490_RECEIVER_URL={request.receiver_url}\n"
        f"FLEET_HOST_ID={request.host_id}\n"
        f"CIS490_WORKER_FLAGS={request.flags}\n"
    )
    return [*steps, WriteFile(settings_file(role), text)]


def _of_receiver(request: InstallRequest, example: str, token: str) -> list[InstallStep]:
    text = (
        "# Settings of the training receiver. After an edit: systemctl restart cis490-trainer-receiver\n"
        "# With the token cis490-jobs may change something; only root can read it here.\n"
        f"CIS490_OPERATOR_TOKEN={token}\n"
        f"CIS490_RECEIVER_FLAGS={request.flags}\n"
    )
    run, cwd = [str(request.python), "-m"], request.checkout
    steps: list[InstallStep] = [
        WriteFile(MANIFEST, example, keep=True),
        WriteFile(settings_file(MachineRole.RECEIVER), text, mode=0o600, keep=not request.flags_are_new),
    ]
    if not request.image:
        # The service itself may not write there.
        compiling = [*run, "compileall", "-q", "training"]
        steps.append(Command("compile programs, so that they start with less", compiling, cwd=cwd, changes=False))
        check, remedy = [*run, "training.fleet.manifest", str(MANIFEST)], f"fix {MANIFEST} and repeat"
        who = user(MachineRole.RECEIVER)
        steps.append(Command(f"check the plan in {MANIFEST}", check, cwd=cwd, user=who, remedy=remedy, changes=False))
    return steps
