"""Check from facts alone whether a machine is ready for an installation; each result is one sentence, which for a fault
also names the remedy. The checks are pure."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from urllib.parse import urlsplit

from training.checkout import to_install
from training.fleet.install.types import CheckLevel, CheckResult, InstallRequest, MachineFacts, MachineRole, System
from training.fleet.wire.constants import HOST_ID_PATTERN, PLAIN_URL_PATTERN

PYTHON_MIN = (3, 11)
GIB = 1024**3
DISK_REFUSED_BYTES = 1 * GIB
DISK_WARNED_BYTES = 5 * GIB
SKEW_REFUSED_S = 60.0  # certificates and logs stop making sense
SKEW_WARNED_S = 5.0

PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")  # what needs no quoting in a unit file
# The services run without these folders (ProtectHome=, PrivateTmp=), so nothing they need may lie there.
HIDDEN = tuple(PurePosixPath(path) for path in ("/home", "/root", "/run/user", "/tmp", "/var/tmp"))  # noqa: S108
PRIVATE = PureWindowsPath("C:/Users")
# What lies elsewhere on a disk of Windows inherits that every user may change it.
GUARDED = tuple(PureWindowsPath(path) for path in ("C:/Program Files", "C:/Program Files (x86)", "C:/Windows"))

_ok, _warn, _refuse = (partial(CheckResult, level) for level in CheckLevel)  # with one sentence

Check = Callable[[InstallRequest, MachineFacts], Iterator[CheckResult]]


def judge(request: InstallRequest, facts: MachineFacts) -> list[CheckResult]:
    """Run every check and return the results, in the order in which a person would fix the faults."""
    return [finding for check in CHECKS for finding in check(request, facts)]


def refused(findings: Sequence[CheckResult]) -> bool:
    return any(finding.level is CheckLevel.REFUSED for finding in findings)


def words_of_request(request: InstallRequest, _facts: MachineFacts) -> Iterator[CheckResult]:
    if request.role is MachineRole.WORKER and not re.fullmatch(PLAIN_URL_PATTERN, request.receiver_url):
        shown = repr(request.receiver_url) if request.receiver_url else "no address"
        yield _refuse(f"{shown} was given as the receiver's; it looks like --receiver-url https://pi.lan:8445")
    if request.role is MachineRole.WORKER and (
        not re.fullmatch(HOST_ID_PATTERN, request.host_id) or request.host_id == "localhost"
    ):
        yield _refuse(
            f"{request.host_id!r} cannot be this host's name in the fleet: 1 to 64 letters, digits, dots, dashes and "
            "underscores, and not localhost; choose one with --host-id"
        )
    if (request.code is None) != (request.fingerprint is None):
        yield _refuse("--code and --fingerprint belong together; paste the whole line that enroll printed")
    if request.joins and request.image:
        yield _refuse("a host joins from itself, not from an image: leave --code away, and run the line there")
    if request.joins and urlsplit(request.receiver_url).scheme != "https":
        yield _refuse("joining needs an encrypted receiver: the address begins with https://")


def privileges(request: InstallRequest, facts: MachineFacts) -> Iterator[CheckResult]:
    if request.image or request.user or facts.administrator:
        return
    how = "with sudo" if request.system is System.LINUX else "in PowerShell as administrator"
    if request.dry_run:
        yield _warn(f"to install, the same line is needed {how}")
    else:
        yield _refuse(f"installing a service is the administrator's; repeat the same line {how}")


def python(request: InstallRequest, facts: MachineFacts) -> Iterator[CheckResult]:
    have = ".".join(map(str, facts.python))
    if facts.python < PYTHON_MIN:
        yield _refuse(f"Python {have} is too old, 3.11 is needed: make the virtual environment with a newer one")
    else:
        yield _ok(f"Python {have}")
    pip = to_install(request.role, request.python)
    if facts.missing:
        yield _refuse(f"{_list(facts.missing)} missing in the virtual environment; install with: {pip}")
    if request.role is MachineRole.WORKER and facts.missing_for_training:
        yield _warn(
            f"{_list(facts.missing_for_training)} missing, so jobs that need them will fail here; "
            f"install with: {to_install('worker,trainer', request.python)}"
        )


def places(request: InstallRequest, facts: MachineFacts) -> Iterator[CheckResult]:
    if not facts.checkout_complete:
        yield _refuse(f"{request.checkout} is not the whole checkout: clone it again and run the script in there")
        return
    if request.system is System.WINDOWS:
        yield from _places_on_windows(request, facts)
        return
    if request.user:
        yield _ok(f"program in {request.checkout}")
        return
    for path in (request.checkout, request.python):
        if not PLAIN_PATH.fullmatch(str(path)):
            yield _refuse(f"{path} has characters that a service file cannot name; clone into /opt/cis490")
    if request.image:
        return
    if _below(request.checkout, HIDDEN):
        yield _refuse(
            f"the service cannot see {request.checkout}; clone into /opt/cis490, make .venv there, and repeat"
        )
    elif _below(facts.interpreter, HIDDEN):
        yield _refuse(
            f"the service cannot see {facts.interpreter}, the Python behind the virtual environment; "
            "make .venv again with the system's (/usr/bin/python3 -m venv --clear .venv)"
        )
    else:
        yield _ok(f"checkout in {request.checkout}")


def _places_on_windows(request: InstallRequest, facts: MachineFacts) -> Iterator[CheckResult]:
    if request.checkout == request.checkout.parent:
        yield _refuse(
            f"{request.checkout} is a whole disk, whose rights are not ours to change; clone into C:\\cis490 and repeat"
        )
    elif _below(request.checkout, (PRIVATE,)):
        yield _refuse(
            f"the service cannot read {request.checkout}, which is one person's; clone into C:\\cis490 and repeat"
        )
    elif _below(facts.interpreter, (PRIVATE,)):
        yield _refuse(
            f"the service cannot read {facts.interpreter}, which is one person's Python; install Python for all "
            "users, make .venv again with it, and repeat"
        )
    else:
        yield _ok(f"checkout in {request.checkout}")
    for path in (request.python, facts.interpreter):
        if not _below(path, (request.checkout, *GUARDED, PRIVATE)):
            yield _warn(
                f"every user of this machine may be able to change {path}, which is run as administrator too; install "
                "Python for all users in C:\\Program Files, and make .venv with it in the checkout"
            )
    if not facts.long_paths:
        yield _warn(
            "Windows cuts paths at 260 characters here; switch long paths on (LongPathsEnabled = 1 in "
            "HKLM\\SYSTEM\\CurrentControlSet\\Control\\FileSystem)"
        )


def disk(_request: InstallRequest, facts: MachineFacts) -> Iterator[CheckResult]:
    have = f"{facts.free_bytes / GIB:.1f} GiB"
    if facts.free_bytes < DISK_REFUSED_BYTES:
        yield _refuse(f"only {have} of disk are free where models are kept; free at least 5 GiB")
    elif facts.free_bytes < DISK_WARNED_BYTES:
        yield _warn(f"{have} of disk are free, which is little; work is refused below 0.25 GiB")
    else:
        yield _ok(f"{have} of disk free")


def network(request: InstallRequest, facts: MachineFacts) -> Iterator[CheckResult]:
    if facts.receiver is None:
        return
    if facts.receiver.trouble is not None:
        yield _refuse(facts.receiver.trouble)
        return
    yield _ok(f"the receiver answers at {request.receiver_url}")
    if facts.receiver.now is None:
        return
    skew_s = facts.receiver.here - facts.receiver.now
    words = f"this machine's clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the receiver's"
    if abs(skew_s) > SKEW_REFUSED_S:
        set_it = "timedatectl set-ntp true" if request.system is System.LINUX else "w32tm /resync"
        yield _refuse(f"{words}; set it ({set_it}) and repeat")
    elif abs(skew_s) > SKEW_WARNED_S:
        yield _warn(f"{words}; let it be set by NTP")
    else:
        yield _ok("clock within 5 s of the receiver's")


def gpu(request: InstallRequest, facts: MachineFacts) -> Iterator[CheckResult]:
    if request.role is not MachineRole.WORKER:
        return
    if facts.nvidia_driver is not None:
        yield _ok(f"NVIDIA driver {facts.nvidia_driver}")
    elif facts.nvidia_device:
        yield _warn(
            "there is an NVIDIA GPU but its driver does not answer, so this host trains on its CPU; install the "
            "driver (Debian: apt install nvidia-driver) and reboot to change that"
        )
    else:
        yield _ok("no NVIDIA GPU: this host trains on its CPU")


def _as_arguments(request: InstallRequest) -> str:
    return f"--receiver-url {request.receiver_url or 'URL'} --host-id {request.host_id}"


def service_manager(request: InstallRequest, facts: MachineFacts) -> Iterator[CheckResult]:
    if request.user:
        keeper = "your systemd" if facts.service_manager else "a loop, as your systemd does not run here,"
        yield _ok(f"{keeper} will keep the worker running")
        return
    if request.image or facts.service_manager:
        return
    if request.system is System.LINUX:
        start = f"{request.python} -m training.fleet.{request.role}"
        if request.role is MachineRole.WORKER:
            start += f" {_as_arguments(request)}"
        start += f" {request.flags}" if request.flags else ""
        if request.joins:
            start = (
                f"{request.python} -m training.fleet.join {_as_arguments(request)} --code {request.code} "
                f"--fingerprint {request.fingerprint}, and then {start}"
            )
        yield _refuse(
            "systemd does not run here (a container?), so there is nothing to install into; "
            f"start it yourself with: {start}"
        )
    else:
        yield _refuse("schtasks.exe is not to be found; is this Windows 10 or newer?")


CHECKS = (
    words_of_request, privileges, service_manager, python, places, disk, gpu, network,
)  # fmt: skip


def _below(path: PurePath, folders: Sequence[PurePath]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
