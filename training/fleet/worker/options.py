"""The worker's command-line options, and the detection of this host's capability."""

import argparse
import logging
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

from training.checkout import HOME
from training.command_line import parser_of
from training.contract import FEATURES_FILE, TENSORS_FOLDER, VALIDATION_FILE
from training.fleet.wire.constants import DATABASE_ID_PATTERN, HEARTBEAT_S, HOST_ID_PATTERN, VERSION
from training.fleet.worker.attempt import WorkerFolders
from training.fleet.worker.datasets import GIB
from training.fleet.worker.state.events import OnSilence, WorkerSettings
from training.fleet.worker.trainer_command import TrainerInputs
from training.frozen import frozen_kw

log = logging.getLogger(__name__)

PROGRAM = "cis490-trainer-worker"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@frozen_kw
class Options:
    """The worker's options, with absolute paths, made from its command line."""

    receiver_url: str
    host_id: str
    places: WorkerFolders
    state_dir: Path
    settings: WorkerSettings
    cache_dir: Path
    cache_bytes: int = 20 * GIB
    tls_dir: Path | None = None  # key and certificate, when the receiver is reached over TLS
    warm_start: bool = True  # trainers of ours are forked from a process that has imported their libraries

    @property
    def aside(self) -> Path:
        """Return the folder for finished work that the receiver refused permanently, or whose claim ended."""
        return self.state_dir / "set-aside"

    def typed(self, *words: str) -> str:
        """Return a command line of this program as a person would type it: the flags that name its receiver, host,
        state folder and TLS folder, then ``words``."""
        flags = ["--receiver-url", self.receiver_url, "--host-id", self.host_id]
        flags += ["--state-dir", str(self.state_dir)]
        if self.tls_dir is not None:
            flags += ["--tls-dir", str(self.tls_dir)]
        return shlex.join([PROGRAM, *flags, *words])

    @property
    def outbox(self) -> Path:
        """Return the folder of undelivered output."""
        return self.state_dir / "outbox"

    @property
    def resume(self) -> Path:
        """Return the folder of trainers' saved states, for later attempts at the same job here."""
        return self.state_dir / "resume"

    @property
    def own_folders(self) -> Mapping[str, Path]:
        """Return the folders that no other worker may use at the same time, by their flags."""
        return {"--artifacts-dir": self.places.artifacts, "--reports-dir": self.places.reports}


def detect(options: Options) -> Mapping[str, Any]:
    """Return this host's capability as a dict, with the version of the protocol; log a warning if the measurement of
    its speed failed."""
    from training.fleet.capability import probe

    places = options.places
    found = probe.detect(
        hostname_override=options.host_id, repo_root=places.repo_root, venv_python=places.inputs.python
    ).to_dict()
    if failed := (found["calibration"] or {}).get("failed"):
        _warn_once(f"{failed}; until it has trained it is taken for one of middle speed")
    return found | {"protocol": VERSION}


@cache
def _warn_once(sentence: str) -> None:
    log.warning("%s", sentence)


@cache
def installed_digests() -> Mapping[str, str]:
    """Return a digest of each model's flags, as this checkout's trainers report them; trainers that do not answer are
    left out."""
    from training.fleet.capability.describe import PROGRAMS, DescribeError, ProcessDescriber, describe_command

    describe, found = ProcessDescriber(), dict[str, str]()
    for program in PROGRAMS:
        try:
            found |= describe(describe_command(program)).digests
        except DescribeError as error:
            log.warning("%s", error)
    return found


def number(least: float, most: float, what: str) -> Callable[[str], float]:
    """Return a function that parses a number from ``least`` to ``most``; ``what`` is the unit that its error names."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {what} from {least:g} to {most:.0f}")
        return value

    return parse


gib, seconds = number(0.001, 1e6, "GiB"), number(0.01, 86_400, "seconds")


def seconds_or_none(text: str) -> float:
    """Return the text as seconds. The text 0 gives 0.0, which means no limit."""
    return 0.0 if text.strip() == "0" else seconds(text)


def matching(pattern: str, complaint: str) -> Callable[[str], str]:
    """Return a function that returns a text that matches ``pattern``, and refuses any other with ``complaint``."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} {complaint}")
        return text

    return parse


devices = matching(  # a value for CUDA_VISIBLE_DEVICES
    r"(\d{1,3}|(GPU|MIG)-[0-9A-Za-z-]+)(,(\d{1,3}|(GPU|MIG)-[0-9A-Za-z-]+))*",
    "names no GPUs: numbers of nvidia-smi with commas between, such as 1 or 0,1",
)
database_id = matching(
    DATABASE_ID_PATTERN,
    "is no database's id, which has 32 hexadecimal digits; the worker's log names those that answered",
)


def show_devices(chosen: str | None, environment: MutableMapping[str, str]) -> None:
    """Set ``CUDA_VISIBLE_DEVICES`` to ``chosen``, if given: this process, its CUDA probe and its trainers then see only
    these GPUs."""
    if chosen is not None:
        environment["CUDA_VISIBLE_DEVICES"] = chosen
        environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as nvidia-smi counts them


# fmt: off
_TABLE = (
    # flag, type, metavar, default, help
    ("--receiver-url", str, "URL", "http://10.100.0.1:8445", "the receiver"),
    ("--host-id", str, "NAME", None, "name of this host; without it, $FLEET_HOST_ID or the node name"),
    ("--repo-root", Path, "DIR", HOME, "where relative paths of the other options begin, and trainers start"),
    ("--venv-python", Path, "FILE", Path(sys.executable), "the interpreter that starts trainers"),
    ("--artifacts-dir", Path, "DIR", Path("artifacts"), "trainers' models, in a folder for each host id"),
    ("--reports-dir", Path, "DIR", Path("reports/eval"), "trainers' reports, in a folder for each host id"),
    ("--validation", Path, "FILE", Path("data/processed", VALIDATION_FILE), "the data set's episodes"),
    ("--summary", Path, "FILE", Path("data/processed", FEATURES_FILE), "the data set's features"),
    ("--tensors", Path, "DIR", Path("data/processed", TENSORS_FOLDER), "the data set's windows"),
    ("--state-dir", Path, "DIR", None, "the worker's state; without it, .worker/NAME in --artifacts-dir"),
    ("--tls-dir", Path, "DIR", None, "key and certificate of this host, made by join; without it, tls in --state-dir"),
    ("--cache-dir", Path, "DIR", None, "fetched data sets; without it, datasets in --state-dir"),
    ("--cache-gib", gib, "GIB", 20.0, "size limit of fetched data sets; the least recently used are deleted first"),
    ("--cuda-devices", devices, "LIST", None, "this worker's GPUs, as nvidia-smi numbers them: 1, or 0,1"),
    ("--deliver", str, "JOB", None, "deliver finished work that was kept here, and end"),
    ("--accept-database", database_id, "ID", None, "once: deliver undelivered work to this database"),
    ("--poll-s", seconds, "S", 15.0, "pause after an empty or failed claim when the receiver cannot wait"),
    ("--heartbeat-s", seconds, "S", HEARTBEAT_S, "seconds between two heartbeats of a running job"),
    ("--silence-limit", seconds_or_none, "S", 1800.0, "stop a trainer without output and CPU use for S s; 0: never"),
)
# fmt: on


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; the service files rely on its defaults."""
    new = parser_of(PROGRAM, description="Train the receiver's jobs on this host.")
    for flag, kind, metavar, default, words in _TABLE:
        shown = words if default is None else f"{words} (default {default})"
        new.add_argument(flag, type=kind, metavar=metavar, default=default, help=shown)
    new.add_argument(
        "--on-silence",
        choices=[str(choice) for choice in OnSilence],
        default=OnSilence.CONTINUE,
        help="let the trainer continue or pause while the receiver is silent and the lease runs out (default continue)",
    )
    new.add_argument(
        "--warm-start",
        choices=["auto", "off"],
        default="auto",
        help="fork trainers from a process that has imported their modules, where memory allows (Linux); off: start "
        "each trainer normally (default auto)",
    )
    new.add_argument(
        "--doctor",
        action="store_true",
        help="show the disk space of this worker and its limits, check that trainers can start, and end",
    )
    new.add_argument(
        "--new-identity",
        action="store_true",
        help="on a copy of another machine's disk: become a new installation, and end",
    )
    new.add_argument(
        "--debuggable",
        action="store_true",
        help="for development: let other programs of this user, trainers too, read this process's memory (Linux)",
    )
    new.add_argument("--log-level", choices=LEVELS, default="INFO", help="least level that is logged (default INFO)")
    return new


def options_of(args: argparse.Namespace) -> Options:
    """Return the options with absolute paths. Raises ValueError, whose text is one sentence, if one is unusable."""
    root = args.repo_root.absolute()
    python = args.venv_python if args.venv_python.is_absolute() else root / args.venv_python
    try:
        if not root.is_dir():
            raise ValueError(f"--repo-root {root} is not a folder; name the checkout")
        if not python.exists():
            raise ValueError(f"--venv-python {python} does not exist; make the virtual environment first")
    except OSError as error:
        raise ValueError(
            f"{error.filename} cannot be used ({error.strerror}); let this worker's user enter its folders, or name "
            "another --repo-root or --venv-python"
        ) from None
    inputs = TrainerInputs(python, root / args.validation, root / args.summary, root / args.tensors)
    artifacts = root / args.artifacts_dir
    if not _is_text(artifacts):
        raise ValueError(f"{str(artifacts)!r} is no text in UTF-8, so that no note could name it; use another folder")
    host_id = args.host_id or os.environ.get("FLEET_HOST_ID") or platform.node()
    if not re.fullmatch(HOST_ID_PATTERN, host_id):
        raise ValueError(
            f"{host_id!r} cannot be a host id: 1 to 64 letters, digits, dots, dashes and underscores, a letter or "
            "digit first; choose one with --host-id"
        )
    state_dir = root / (args.state_dir or artifacts / ".worker" / host_id)
    return Options(
        receiver_url=args.receiver_url,
        host_id=host_id,
        # by host id: several workers of one machine may share the parents
        places=WorkerFolders(root, inputs, artifacts / host_id, root / args.reports_dir / host_id),
        state_dir=state_dir,
        cache_dir=root / (args.cache_dir or state_dir / "datasets"),
        cache_bytes=int(args.cache_gib * GIB),
        warm_start=args.warm_start == "auto",
        tls_dir=_tls_dir(args.receiver_url, root / (args.tls_dir or state_dir / "tls"), host_id),
        settings=WorkerSettings(
            heartbeat_s=args.heartbeat_s,
            poll_s=args.poll_s,
            on_silence=OnSilence(args.on_silence),
            max_silence_s=args.silence_limit,
            accept_database=args.accept_database,
        ),
    )


def _is_text(path: Path) -> bool:
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def _tls_dir(receiver_url: str, folder: Path, host_id: str) -> Path | None:
    """Return None unless the receiver's address is https, else the TLS folder. For https, raises ValueError unless the
    folder holds this host's certificate."""
    if not receiver_url.startswith("https:"):
        return None
    from training.fleet.client.credentials import Credentials, CredentialsError

    try:
        known = Credentials(folder).identity()
    except CredentialsError as error:
        raise ValueError(str(error)) from None
    if known is None:
        raise ValueError(
            f"{folder} holds no certificate for {receiver_url}; `cis490-jobs enroll {host_id}` on the receiver "
            "prints the line that gets one"
        )
    if known.name != host_id:
        raise ValueError(
            f"the certificate in {folder} is {known.name}'s; start with --host-id {known.name}, or enroll {host_id}"
        )
    return folder
