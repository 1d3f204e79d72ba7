"""Record what a model is trained with: digests of its data and its code, and the checkout's commit.

Built-in trainers record the digests in their checkpoint. For a custom trainer the worker digests the files that its
command names before the trainer starts. If the data of a custom trainer have no digest, the data set's id is recorded.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from training import strict_json
from training.checkout import checkout_commit
from training.files import plain_bytes
from training.fleet.worker.trainer_command import TrainerInputs
from training.strict_json import Json, JsonObject

_READ_MAX = 64 * 1024**2  # of a note, of a checkpoint


def at_start(spec: Json, inputs: TrainerInputs, repo_root: Path) -> dict[str, str]:
    """Return the digests of data and of a custom trainer's code, and the checkout's commit, before the trainer runs;
    unknown ones are left out."""
    about = (inputs.tensors / "manifest.json").resolve()  # it may be a link, and is no trainer's
    found = {"data": _texts(_document(about), "data_digest").get("data_digest", "")}
    with suppress(OSError, ValueError):
        found["commit"] = checkout_commit(repo_root) or ""
    own = spec.get("trainer")
    if own:
        found["code"] = code_digest([str(part) for part in own.get("command") or ()], repo_root)
        found["data"] = found["data"] or str(spec.get("dataset") or "")
    return {name: value for name, value in found.items() if value}


def by_checkpoint(checkpoint: Path) -> dict[str, str]:
    """Return the digests of data and code that a built-in trainer wrote into its checkpoint; empty if it has none."""
    return _texts(_document(checkpoint).get("run_key"), "data", "code")


def code_digest(command: Sequence[str], repo_root: Path) -> str:
    """Return the SHA-256 over names and contents of the checkout's files that the command names; an empty text if it
    names none.

    ``-m package.module`` names the module's file in the checkout, or all Python files of a package. What these files
    import is not digested.
    """
    digest, any_file = hashlib.sha256(), False
    for number, part in enumerate(command):
        module = number > 0 and command[number - 1] == "-m"
        for path in _files(repo_root, part, module=module):
            with suppress(OSError):
                content = path.read_bytes().replace(b"\r\n", b"\n")
                digest.update(f"{path.name} {len(content)}\n".encode())
                digest.update(content)
                any_file = True
    return digest.hexdigest() if any_file else ""


def note(path: Path, found: Mapping[str, str]) -> None:
    """Save the digests to ``path`` until the bundle is packed, perhaps by another session of the worker. Errors of the
    disk are ignored."""
    with suppress(OSError):
        path.write_text(json.dumps(dict(found)), encoding="utf-8")


def noted(path: Path) -> dict[str, str]:
    """Return the digests that :func:`note` saved; empty if the file cannot be read."""
    return _texts(_document(path), "data", "code", "commit")


def _files(repo_root: Path, part: str, *, module: bool) -> list[Path]:
    if not module:
        path = repo_root / part
        return [path] if not Path(part).is_absolute() and path.is_file() else []
    place = repo_root.joinpath(*part.split("."))
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def _document(path: Path) -> JsonObject:
    with suppress(OSError, ValueError):
        found = strict_json.loads(plain_bytes(path, _READ_MAX))
        return found if isinstance(found, dict) else {}
    return {}


def _texts(document: object, *names: str) -> dict[str, str]:
    found = document if isinstance(document, dict) else {}
    return {name: text for name in names if isinstance(text := found.get(name), str) and text}
