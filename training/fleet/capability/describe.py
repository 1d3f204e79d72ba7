"""Ask a trainer through ``--describe`` which hyperparameters it takes.

The fleet does not import a trainer to read its flags. The fleet starts the trainer with ``--describe`` and reads the
JSON that the trainer prints (the format is in ``docs/trainer-contract.md``). A manifest's hyper keys are checked
against the flags that really exist, on a machine that may have neither torch nor NumPy.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from training import strict_json
from training.checkout import HOME, stamps
from training.contract import ARGUMENTS
from training.families import PROGRAM, SELF_SUPERVISED_PROGRAM
from training.flag import DESCRIBE_VERSION, Flag, FlagType
from training.frozen import frozen, frozen_kw
from training.locking import LockedError, exclusive
from training.printable import printable

if TYPE_CHECKING:
    from training.fleet.process.supervise import CommandSpec, LocalProcess

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_S = 60.0
DESCRIPTION_BYTES_MAX = 1024 * 1024
COMPLAINTS_BYTES_MAX = 64 * 1024  # of standard error, whose last line is quoted
# A flood is stopped at the next look; until then no file that the command writes grows beyond this (POSIX).
FLOOD_BYTES_MAX = 16 * DESCRIPTION_BYTES_MAX
LOOK_S = 0.05
TEXT_CHARS_MAX = 256
FOLDER, LOCK = "cis490-describe-", "owner.lock"
PROGRAMS = (PROGRAM, SELF_SUPERVISED_PROGRAM)

HyperValue = bool | int | float | str


class DescribeError(Exception):
    """A trainer failed to describe its flags. The text is one sentence."""


@frozen_kw
class HyperFlag(Flag):
    """A trainer's flag as a hyperparameter, which checks the value that a manifest sets."""

    def coerce(self, value: object) -> HyperValue:
        """Return ``value`` converted to the flag's type, so that 1 and 1.0 are one value. Raises ValueError, whose text
        is a sentence, if ``value`` is not permitted."""
        match self.type, value:
            case (FlagType.BOOL, bool()):
                return value
            case (FlagType.STR, str()) if self._permits_text(value):
                return value
            case (FlagType.INT | FlagType.FLOAT, int() | float()) if not isinstance(value, bool):
                number = self._number(value)
                if number is not None and self.permits_number(number):
                    return number
        raise ValueError(f"`{self.key}` must be {self.allowed}, not {shown(value)}")

    @property
    def allowed(self) -> str:
        """Describe the permitted values in words."""
        if self.type is FlagType.BOOL:
            return "true or false"
        if self.choices is not None:
            return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        if self.type is FlagType.STR:
            return f"a text of 1 to {TEXT_CHARS_MAX} printable characters that does not begin with -"
        noun = "a whole number" if self.type is FlagType.INT else "a number"
        bounds = []
        if self.min is not None:
            bounds.append(f"{'above' if self.min_open else 'of at least'} {self.min:.12g}")
        if self.max is not None:
            bounds.append(f"{'below' if self.max_open else 'at most'} {self.max:.12g}")
        return f"{noun} {' and '.join(bounds)}".rstrip()

    def _number(self, value: int | float) -> int | float | None:
        if self.type is FlagType.INT:
            return whole_number(value)
        try:
            return float(value) + 0.0  # -0.0 becomes 0.0: equal values, equal text
        except OverflowError:
            return None

    def _permits_text(self, text: str) -> bool:
        if self.choices is not None:
            return text in self.choices
        return 0 < len(text) <= TEXT_CHARS_MAX and text.isprintable() and not text.startswith("-")


@frozen
class Description:
    """A program's answer to ``--describe``: its models' hyperparameters, each model with a digest that shows whether
    two checkouts agree."""

    program: str
    digests: Mapping[str, str]
    models: Mapping[str, Mapping[str, HyperFlag]]
    bound_by: Mapping[str, str] = field(default_factory=dict)  # model → sort of work, for its first guess of durations


Describer = Callable[[Sequence[str]], Description]  # asks a command for its description, or raises DescribeError


def describe_command(program: str) -> tuple[str, ...]:
    """Return the command that asks a built-in trainer's program for its description."""
    return (sys.executable, "-m", program, "--describe")


class ProcessDescriber:
    """A describer that runs the command; built-in trainers' answers are cached until a Python file below
    training/trainer changes."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], tuple[list[str] | None, Description]] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the running command and start no further one. Any thread or signal handler may call ``stop``."""
        self._stopped.set()

    def __call__(self, command: Sequence[str]) -> Description:
        ours = tuple(command) in map(describe_command, PROGRAMS)
        stamp = stamps("trainer") if ours else None
        kept = self._kept.get(tuple(command))
        if ours and kept is not None and kept[0] == stamp:
            return kept[1]
        description = parse_description(_run(command, self._stopped))
        self._kept[tuple(command)] = (stamp, description)
        return description


def _run(command: Sequence[str], stopped: threading.Event) -> bytes:
    """Return the command's standard output when the command, and all that it started, have ended. Raises
    DescribeError."""
    # Loaded with the first question: a receiver that kept its plan asks none.
    from training.fleet.process.environment import trainer_environment
    from training.fleet.process.supervise import STATE_VARIABLE, CommandSpec, LocalRunner, SpawnFailedError

    name = " ".join(command)
    argv = list(command)
    if argv[0] in ("python", "python3"):  # as in a trainer's command: this environment's
        argv[0] = sys.executable
    if stopped.is_set():
        raise DescribeError(f"`{name}` was not asked: the program that asks is ending")
    environment = trainer_environment(os.environ)
    with ExitStack() as stack:
        folder = _own_folder(stack)
        output, errors = folder / "output", folder / "errors"
        environment[STATE_VARIABLE] = str(folder)  # by which a process without its launcher is found
        spec = CommandSpec(argv, HOME.absolute(), environment, output, errors=errors, file_bytes=FLOOD_BYTES_MAX)
        runner = LocalRunner(folder)
        try:
            code = _code(runner.start(spec), spec, name, stopped)
        except (SpawnFailedError, ValueError) as error:
            reason = str(error).rpartition("could not be started: ")[2]
            raise DescribeError(f"`{printable(name)}` cannot be started: {reason}") from None
        finally:
            runner.close()
        complaints = _last_bytes(errors).decode(errors="replace")
        answer = output.read_bytes() if code == 0 else b""
    if code != 0:
        last = (complaints.strip().splitlines() or ["no output"])[-1]
        raise DescribeError(f"`{name}` ended with exit code {code}: {printable(last)}")
    return answer


def _own_folder(stack: ExitStack) -> Path:
    """Return a new folder for one call, locked while it is used; remove folders that killed programs left."""
    for lock in Path(tempfile.gettempdir()).glob(f"{FOLDER}*/{LOCK}"):
        with suppress(LockedError, OSError):  # in use, or another user's
            with exclusive(lock):
                pass
            shutil.rmtree(lock.parent, ignore_errors=True)
    while True:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True)))
        with suppress(LockedError, FileNotFoundError):  # taken for an abandoned one before it was locked
            stack.enter_context(exclusive(folder / LOCK))
            return folder


def _code(process: LocalProcess, spec: CommandSpec, name: str, stopped: threading.Event) -> int:
    """Wait for the program's end; return its exit code, or minus the signal's number. Raises DescribeError if the
    program prints too much, runs too long, is lost, or is stopped through ``stopped``."""
    for _ in range(int(DESCRIBE_TIMEOUT_S / LOOK_S) + 1):
        ended = process.wait(LOOK_S)
        for file, where in ((spec.output, ""), (spec.errors, " on standard error")):
            if file is not None and _size(file) > DESCRIPTION_BYTES_MAX:
                raise DescribeError(f"`{name}` printed more than 1 MiB{where}; a description is one JSON object")
        if ended is not None:
            if ended.lost:
                raise DescribeError(f"`{name}` was lost: its launcher was ended")
            if ended.left:
                logger.warning("%d processes that `%s` started cannot be ended", ended.left, printable(name))
            return ended.code if ended.code is not None else -(ended.signal or 0)
        if stopped.is_set():
            raise DescribeError(f"`{name}` was stopped with the program that asked it")
    raise DescribeError(f"`{name}` did not answer within {DESCRIBE_TIMEOUT_S:.0f} s")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _last_bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, _size(file) - COMPLAINTS_BYTES_MAX))
            return stream.read()
    except OSError:
        return b""


def parse_description(text: str | bytes) -> Description:
    """Return a trainer's description after checking it; raises :class:`DescribeError`, which names the mistake."""
    if len(text) > DESCRIPTION_BYTES_MAX:
        raise DescribeError(f"the description is longer than {DESCRIPTION_BYTES_MAX} bytes")
    try:
        answer = json.loads(text)
        if answer["describe_version"] != DESCRIBE_VERSION:
            version = shown(answer["describe_version"])
            raise DescribeError(f"the description has version {version}, not {DESCRIBE_VERSION}")
        models = {
            str(model): {str(key): _flag(str(key), flag) for key, flag in entry["hyper"].items()}
            for model, entry in answer["models"].items()
        }
        bound_by = {str(model): str(one["bound_by"]) for model, one in answer["models"].items() if "bound_by" in one}
        flags = {str(model): strict_json.canonical(one["hyper"]).encode() for model, one in answer["models"].items()}
        digests = {model: hashlib.sha256(text).hexdigest() for model, text in flags.items()}
        return Description(str(answer["program"]), digests, models, bound_by)
    except KeyError as error:
        raise DescribeError(f"the description lacks the key {error}") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DescribeError("the description is not JSON of the form that --describe prints") from None


def _flag(key: str, entry: Mapping[str, Any]) -> HyperFlag:
    if key in ARGUMENTS:
        raise DescribeError(f"`{key}` belongs to the contract and cannot be a hyperparameter")
    if not key.isidentifier() or entry["flag"] != "--" + key.replace("_", "-"):
        raise DescribeError(f"{shown(key)} does not match its flag {shown(entry['flag'])}")
    choices = entry.get("choices")
    named = {"key": key, "choices": None if choices is None else [str(choice) for choice in choices]}
    return msgspec.convert({**entry, **named}, HyperFlag)


def whole_number(value: int | float) -> int | None:
    """Return ``value`` as an integer if it is whole, as 3 or 3.0, and within 63 bits; ``None`` otherwise."""
    if isinstance(value, float) and not value.is_integer():  # false for NaN and infinities as well
        return None
    return int(value) if abs(value) < 2**63 else None


def shown(value: object) -> str:
    """Return words for ``value`` in an error's sentence, short and without control characters: ``true``, ``2.5``,
    ``the text "x"``, ``a list``."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            text = printable(value)
            return f'the text "{text[:57] + "…" if len(text) > 60 else text}"'
        case int():
            return str(value) if value.bit_length() < 128 else "an enormous number"
        case float():
            return f"{value!r}"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
        case None:
            return "nothing"
        case _:
            return "a date or time"
