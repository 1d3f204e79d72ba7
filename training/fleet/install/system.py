"""Act on this machine for an installation: run commands as the right user, and collect facts."""

import contextlib
import ctypes
import importlib
import importlib.util
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from training import strict_json
from training.checkout import INSTALLED
from training.clock import Clock
from training.files import free_bytes, plain_bytes
from training.fleet.client.address import Address
from training.fleet.client.proxy import proxy_for
from training.fleet.client.strangers import stranger
from training.fleet.client.transport import HttpTransport, TransportError
from training.fleet.install.steps import Ran
from training.fleet.install.types import InstallRequest, MachineFacts, MachineRole, ReceiverSeen, System

COMMAND_TIMEOUT_S = 600.0  # torch on a slow disk takes its time
ASK_TIMEOUT_S = 10.0
NOTES_MAX = 1024**2  # bytes
NEEDED = {
    MachineRole.WORKER: ("msgspec", "psutil", "zstandard"),
    MachineRole.RECEIVER: ("msgspec", "starlette", "uvicorn", "tree_sitter", "tree_sitter_toml"),
}
NEEDED_FOR_TLS = ("cryptography",)
NEEDED_FOR_TRAINING = ("numpy", "polars", "sklearn", "xgboost", "torch")
NVIDIA = "0x10de"


class LocalMachine:
    """Runs commands and changes owners of files on the machine on which the installer runs."""

    def run(self, argv: Sequence[str], *, cwd: PurePath | None = None, user: str | None = None) -> Ran:
        """Run a command and return how it ended. If we are root, ``user`` makes it run as that user, with that user's
        groups and home and without our environment."""
        options: dict[str, Any] = {"env": {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}}
        if user is not None and is_administrator() and sys.platform != "win32":
            options = _as_user(user)
        try:
            done = subprocess.run(
                list(argv),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_TIMEOUT_S,
                **options,
            )
        except FileNotFoundError:
            return Ran(127, f"{argv[0]} is not to be found")
        except PermissionError as error:
            return Ran(126, f"{error.filename or argv[0]}: permission denied")
        except subprocess.TimeoutExpired:
            return Ran(124, f"no end after {COMMAND_TIMEOUT_S:.0f} s")
        return Ran(done.returncode, done.stdout.decode("utf-8", "replace"))

    def own(self, path: Path, user: str) -> None:
        entry = _entry(user)
        # By handles, not paths: below the folder itself, which is root's to place, its user may swap links meanwhile.
        for _, folders, files, place in os.fwalk(path.resolve(), follow_symlinks=False):
            os.fchown(place, entry.pw_uid, entry.pw_gid)
            for name in (*folders, *files):
                os.chown(name, entry.pw_uid, entry.pw_gid, dir_fd=place, follow_symlinks=False)

    def owns(self, path: Path, user: str) -> bool:
        try:
            return bool(path.stat().st_uid == _entry(user).pw_uid)
        except KeyError:
            return False

    def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)


def _entry(name: str) -> Any:
    """Return the password database's entry of a user. Raises KeyError if there is no such user."""
    import pwd

    return pwd.getpwnam(name)


def _as_user(name: str) -> dict[str, Any]:
    entry = _entry(name)
    environment = {"HOME": entry.pw_dir, "PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {name: value for name, value in os.environ.items() if name.lower() in ("https_proxy", "no_proxy")}
    groups = os.getgrouplist(name, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups, "env": environment, "umask": 0o077}


def notes(path: Path) -> str:
    """Return the content of a small text file, which root reads and whose owner may have replaced it by anything.

    Raises OSError or UnicodeDecodeError for anything else: a link, a pipe, a large file.
    """
    return plain_bytes(path, NOTES_MAX).decode("utf-8")


def is_administrator() -> bool:
    if sys.platform == "win32":
        return bool(ctypes.windll.shell32.IsUserAnAdmin())
    return os.geteuid() == 0


def look(wanted: InstallRequest, state: Path, clock: Clock) -> MachineFacts:
    """Collect the facts about this machine that the checks need. ``state`` is the folder that will hold the service's
    data."""
    encrypted = wanted.joins or "--tls" in wanted.flags or "--proxy-socket" in wanted.flags
    needed = (*NEEDED[wanted.role], *(NEEDED_FOR_TLS if encrypted else ()))
    asks = wanted.role is MachineRole.WORKER and not wanted.image and urlsplit(wanted.receiver_url).hostname
    training = NEEDED_FOR_TRAINING if wanted.role is MachineRole.WORKER else ()
    return MachineFacts(
        python=sys.version_info[:2],
        interpreter=_behind(Path(wanted.python)),
        missing=_missing(needed),
        missing_for_training=_missing(training),
        free_bytes=free_bytes(state),
        receiver=ask(wanted.receiver_url, clock) if asks else None,
        nvidia_device=_has_nvidia_device(),
        nvidia_driver=_nvidia_driver(),
        administrator=is_administrator(),
        service_manager=has_user_systemd() if wanted.user else _has_service_manager(wanted.system),
        checkout_complete=all(
            Path(wanted.checkout, *part.split("/")).exists()
            for part in ("training/fleet/worker/daemon.py", *(() if INSTALLED else ("etc", "pyproject.toml")))
        ),
        long_paths=_has_long_paths(),
    )


def ask(receiver_url: str, clock: Clock) -> ReceiverSeen:
    """Ask a receiver for a public page; return what prevents an answer, if anything, and the receiver's clock if the
    answer shows it.

    The answer is not trusted, because an encrypted receiver cannot be verified before this host has joined.
    """
    url = urlsplit(receiver_url)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
        if proxy_for(Address.of(receiver_url)) is None:
            socket.create_connection((url.hostname or "", port), ASK_TIMEOUT_S).close()
        unverified = ssl.create_default_context() if url.scheme == "https" else None
        if unverified is not None:
            unverified.check_hostname = False
            unverified.verify_mode = ssl.CERT_NONE
        transport = HttpTransport(receiver_url, tls=unverified)
    except (OSError, ValueError) as error:
        return ReceiverSeen(trouble=_trouble(receiver_url, error))
    path = "/v1/authority" if url.scheme == "https" else "/v1/jobs?limit=1"  # the part that is public
    here = clock.now()
    try:
        answer = transport.request("GET", path, {}, None, ASK_TIMEOUT_S)
        who = stranger(answer, None)
        now = strict_json.loads(answer.body).get("now") if who is None and answer.status == 200 else None
    except TransportError as error:
        return ReceiverSeen(trouble=f"{receiver_url} does not answer as a receiver does: {error}")
    except (ValueError, AttributeError):
        return ReceiverSeen(trouble=f"{receiver_url} answers, but is no receiver; check the address")
    finally:
        transport.close()
    if who is not None:
        return ReceiverSeen(trouble=f"not the receiver answered at {receiver_url} but {who}")
    theirs = float(now) if isinstance(now, int | float) else None
    return ReceiverSeen(now=theirs, here=(here + clock.now()) / 2)


def _trouble(receiver_url: str, error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name in {receiver_url} is not known here; write the receiver's address, or fix the DNS"
    if isinstance(error, ConnectionRefusedError):
        return (
            f"nothing listens at {receiver_url}; is the receiver running there, and if it is reached through an SSH "
            "tunnel, is that open?"
        )
    if isinstance(error, TimeoutError):
        return f"no answer from {receiver_url} within {ASK_TIMEOUT_S:.0f} s; does a firewall stand between?"
    why = getattr(error, "strerror", None) or error
    return f"{receiver_url} cannot be reached from here: {why}"


def _missing(packages: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in packages if importlib.util.find_spec(name) is None)


def _has_nvidia_device() -> bool:
    """Tell whether Linux lists an NVIDIA display device on the PCI bus; False on other systems."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with contextlib.suppress(OSError):
            kind = vendor.with_name("class").read_text("ascii")
            if vendor.read_text("ascii").strip() == NVIDIA and kind.startswith("0x03"):
                return True
    return False


def _nvidia_driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    ran = LocalMachine().run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return ran.output.split()[0] if ran.code == 0 and ran.output.split() else None


def _has_service_manager(system: System) -> bool:
    if system is System.WINDOWS:
        return shutil.which("schtasks") is not None
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None


def has_user_systemd() -> bool:
    return LocalMachine().run(["systemctl", "--user", "show-environment"]).code == 0


def _has_long_paths() -> bool:
    if os.name != "nt":
        return True
    winreg: Any = importlib.import_module("winreg")
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem") as key:
            return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
    except OSError:
        return False


def _behind(python: Path) -> Path:
    """Return the real interpreter behind a virtual environment's: on Windows its python.exe is not a link but starts
    another program."""
    base = getattr(sys, "_base_executable", None)
    if sys.platform == "win32" and base and python == Path(sys.executable):
        return Path(os.path.realpath(base))
    return Path(os.path.realpath(python))
