"""Build a trainer's command line from the spec of a granted job and the paths on this host."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER, VALIDATION_FILE
from training.families import program
from training.frozen import frozen
from training.strict_json import Json

_FOLDERS = ("--out-dir", "--reports-dir")  # nor what argparse would take for their abbreviations
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")  # parts of file names


class BadSpecError(Exception):
    """The spec of a granted job cannot be turned into a trainer's command line."""


@frozen
class TrainerInputs:
    """The absolute paths of the interpreter that starts trainers and of the data set's files on this host."""

    python: Path
    validation: Path
    summary: Path
    tensors: Path

    def within(self, folder: Path) -> TrainerInputs:
        """Return a copy whose data paths lie in ``folder``, to which a data set was fetched; the interpreter stays."""
        return replace(
            self, validation=folder / VALIDATION_FILE, summary=folder / FEATURES_FILE, tensors=folder / TENSORS_FOLDER
        )

    @property
    def schema(self) -> Path:
        return self.summary.parent / SCHEMA_FILE


def trainer_command(
    spec: Json, inputs: TrainerInputs, *, out_dir: Path, reports_dir: Path, threads: int | None = None
) -> list[str]:
    """Return the trainer's command line as a list of arguments, which no shell parses. Raises BadSpecError, whose text
    is one sentence.

    ``threads`` becomes ``--threads`` for built-in trainers only; a custom trainer may lack that flag.
    """
    model, mode = names(spec)
    own = spec.get("trainer")
    if own:
        command = [str(part) for part in own.get("command") or ()]
        if not command:
            raise BadSpecError(f"the trainer of model {model} has no command in the manifest")
        if command[0] in ("python", "python3"):
            command[0] = str(inputs.python)
        command += ["--model", model]
    else:
        command = [str(inputs.python), *program(model)]
    command += [
        *("--mode", mode),
        *("--validation", str(inputs.validation)),
        *("--summary", str(inputs.summary)),
        *("--schema", str(inputs.schema)),
        *("--tensors", str(inputs.tensors)),
        *("--out-dir", str(out_dir)),
        *("--reports-dir", str(reports_dir)),
    ]
    if threads is not None and not own:
        command += ["--threads", str(threads)]
    for key in ("split_recipe", "n_resamples", "seed", "split_seed"):
        if spec.get(key) is not None:
            command += [_flag(key), _text(spec[key])]
    for key in ("train_hosts", "test_hosts"):
        for host in spec.get(key) or ():
            command += [_flag(key), _text(host)]
    taken = {part for part in command if part.startswith("--")}
    for key, value in sorted((spec.get("hyper") or {}).items()):
        flag = _flag(key)
        if flag in taken or any(each.startswith(flag) for each in _FOLDERS):
            raise BadSpecError(f"{key!r} is set by the worker or the trainer's command, and cannot be a hyperparameter")
        command += [flag, _text(value)]
    return command


def names(spec: Json) -> tuple[str, str]:
    """Return the spec's model and mode. Raises BadSpecError unless both can safely be parts of a path."""
    return _name(spec, "model"), _name(spec, "mode")


def _name(spec: Json, key: str) -> str:
    value = spec.get(key)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise BadSpecError(
            f"the job's {key} is {value!r}: only a-z, 0-9, dot, dash and underscore, at most 64, a-z or 0-9 first"
        )
    return value


def _flag(key: str) -> str:
    # The manifest refuses such a key; a false receiver must not reach a trainer with it.
    if not key.isidentifier():
        raise BadSpecError(f"{key!r} cannot be a trainer's flag: use letters, digits and underscores, no digit first")
    return "--" + key.replace("_", "-")


def _text(value: Any) -> str:
    """Return a value as the text of one argument. Raises BadSpecError for a text that looks like a flag."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if text.startswith("-") and not isinstance(value, int | float):
        raise BadSpecError(f"{text[:40]!r} looks like a flag and cannot be a value")
    return text
