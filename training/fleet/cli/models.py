"""Fetch a model's bundle and unpack it: only regular files with known names and limited sizes are accepted.

This module reads the archive header by header instead of asking ``tarfile`` to extract: links, devices, folders, sparse
files and extended headers are refused, so that none of them can be handled wrongly.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, NamedTuple

from training.contract import CHECKPOINT_ENDING, bundled, outputs
from training.files import LocalFs, file_sha256, free_bytes, named
from training.fleet.client.bundles import Progress
from training.fleet.client.client import FleetClient
from training.fleet.wire import bundles, words
from training.strict_json import Json

ROOM_BYTES = 256 * 1024**2  # that must stay free on this machine's disk
_WINDOW_MAX = 2**27
_BLOCK_BYTES = 1024 * 1024


class BundleRefused(Exception):  # noqa: N818 - a refusal
    """A model was not unpacked, for example because there is none, its bundle breaks a rule, or other files are there.
    The text is one sentence."""


class Unpacked(NamedTuple):
    """A file that was unpacked from a bundle to this machine's disk."""

    name: str
    size: int
    sha256: str


def allowed_names(spec: Json) -> frozenset[str]:
    """Return the names of the files that a bundle of this job may hold."""
    promised = outputs(spec)
    if promised:
        return frozenset(name for name in promised if bundles.NAME.fullmatch(name))
    model, mode = str(spec.get("model")), str(spec.get("mode"))
    return frozenset(name for name in bundled(model, mode) if bundles.NAME.fullmatch(name))


def delivered(detail: Json) -> dict[int, str]:
    """Map the number of each attempt that delivered a model, including those before requeues, to the model's artifact
    id."""
    return {each["attempt"]: each["artifact_id"] for each in detail["attempts"] if each["artifact_id"]}


def granted(detail: Json, artifact_id: str) -> Json:
    """Return the job dict as granted to the last attempt that completed with this artifact; the present job dict if no
    such attempt is listed."""
    kept = [
        each["granted"]
        for each in detail["attempts"]
        if each["end_reason"] == "completed" and each["artifact_id"] == artifact_id
    ]
    spec: Json = [detail["spec"], *kept][-1]
    return spec


def fetch_model(
    client: FleetClient,
    detail: Json,
    folder: Path,
    progress: Progress | None,
    *,
    attempt: int | None = None,
    force: bool = False,
) -> tuple[str, list[Unpacked]]:
    """Fetch the model of the job ``detail`` into ``folder``; return its artifact id and its files, all verified. Raises
    BundleRefused, ClientError or OSError.

    ``attempt``: fetch the model of that attempt. Another model in the folder is replaced only with ``force``.
    """
    view, left = detail["job"], delivered(detail)
    wanted = view["artifact_id"] if attempt is None else left.get(attempt)
    if not wanted:
        said = f"job {view['name']} is {view['status']} and has no model yet"
        if attempt is not None:
            said = f"attempt {attempt} of job {view['name']} left no model"
        if left:
            said += f"; --attempt fetches that of {' or '.join(map(str, left))}"
        raise BundleRefused(said)
    allowed = allowed_names(granted(detail, wanted))
    if not allowed:
        raise BundleRefused(f"the files of job {view['name']} have names that are not safe to use")
    folder.mkdir(parents=True, exist_ok=True)
    bundle = folder / ".bundle.tar.zst"
    try:
        fetched = client.get_model(str(view["job_id"]), bundle, attempt=attempt, progress=progress)
        if fetched.artifact_id != wanted:
            raise BundleRefused(f"job {view['name']} got another model meanwhile; try again")
        stem = f"{detail['spec'].get('model')}_{detail['spec'].get('mode')}"
        shared = all(name.startswith(stem) for name in allowed)
        files = unpack(bundle, folder, allowed, force=force, shared=shared)
        return fetched.artifact_id, files
    except OSError as error:
        raise named(error, folder) from error
    finally:
        bundle.unlink(missing_ok=True)


def unpack(
    bundle: Path, target: Path, allowed: Collection[str], *, force: bool = False, shared: bool = True
) -> list[Unpacked]:
    """Unpack ``bundle`` into the folder ``target`` and return its files; none of them appears there before all are
    checked.

    ``shared``: the files' names show their model, so that other models may be in the folder.

    Raises BundleRefused if the bundle breaks a rule. Without ``force``, raises BundleRefused also if the folder has
    other files of these names or would mix two models. Raises OSError when the disk fails.
    """
    import zstandard

    target.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target))
    try:
        with bundle.open("rb") as file:
            decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MAX)
            with decompressor.stream_reader(file) as stream:
                try:
                    found = _members(stream, staging, allowed)
                except zstandard.ZstdError:
                    raise BundleRefused("the bundle is not a zstd stream") from None
        _check_sidecars(staging, found)
        if force:
            _take_away(target, allowed, found)
        else:
            _refuse_to_mix(target, allowed, found, shared=shared)
        for member in found:
            LocalFs().replace(staging / member.name, target / member.name)
        return found
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _refuse_to_mix(target: Path, allowed: Collection[str], found: list[Unpacked], *, shared: bool) -> None:
    """Raise BundleRefused if a file in the folder would be replaced by a different one, or could be mistaken for a part
    of this model. Unless ``shared``, also raise BundleRefused for any other file in the folder whose name begins with
    no dot."""
    remedy = "name another folder with --out, or replace it with --force"
    mine = {member.name: member for member in found}
    for name in sorted(allowed):
        if name in mine and not _is_the_same(target / name, mine[name]):
            raise BundleRefused(f"{target / name} is there already, and is another file; {remedy}")
        if name not in mine and os.path.lexists(target / name):
            raise BundleRefused(f"{target / name} belongs to another model of this kind; {remedy}")
    names = (path.name for path in target.iterdir())
    strangers = sorted(name for name in names if name not in mine and not name.startswith("."))
    if strangers and not shared:
        raise BundleRefused(
            f"{target} holds other files ({strangers[0]}), and those of this model do not say by their names whose "
            "they are; name a folder of its own with --out, or put them beside with --force"
        )


def _is_the_same(path: Path, member: Unpacked) -> bool:
    """Tell whether the path does not exist, or holds exactly this file."""
    if not os.path.lexists(path):
        return True
    if path.is_symlink() or not path.is_file() or path.stat().st_size != member.size:
        return False
    return file_sha256(path) == member.sha256


def _take_away(target: Path, allowed: Collection[str], found: list[Unpacked]) -> None:
    """Remove from the folder the files with names in ``allowed`` that this bundle does not bring: they belong to
    another model of this kind, and parts of two models would look like one."""
    for name in sorted(set(allowed) - {member.name for member in found}):
        (target / name).unlink(missing_ok=True)


def _members(stream: IO[bytes], staging: Path, allowed: Collection[str]) -> list[Unpacked]:
    found: list[Unpacked] = []
    while (header := _header(stream)) is not None:
        name = header.name
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or header.linkname:
            raise BundleRefused(f"the bundle holds something that is not a regular file: {name!a}")
        if name not in allowed:
            raise BundleRefused(f"the bundle holds a file that does not belong to it: {name!a}")
        sizes = {member.name: member.size for member in found}
        if name in sizes or header.size < 0:
            raise BundleRefused(f"the bundle holds {name!a} twice, or with a negative size")
        if complaint := bundles.complaint(sizes | {name: header.size}):
            raise BundleRefused(f"the bundle is not one that a worker packs: {complaint}")
        if header.size + ROOM_BYTES > free_bytes(staging):
            raise BundleRefused(
                f"{name} has {words.size(header.size)}, and the disk of {staging.parent} has no room for it; "
                "free some, or name another folder with --out"
            )
        found.append(_copy(stream, staging / name, header.size))
    if not found:
        raise BundleRefused("the bundle is empty")
    return found


def _header(stream: IO[bytes]) -> tarfile.TarInfo | None:
    """Return the header of the archive's next member; None at the end. Raises BundleRefused if the archive is
    damaged."""
    block = _exactly(stream, tarfile.BLOCKSIZE)
    if not any(block):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError):
        raise BundleRefused("the bundle's archive is damaged") from None


def _copy(stream: IO[bytes], path: Path, size: int) -> Unpacked:
    digest, left = hashlib.sha256(), size
    with path.open("xb") as file:
        while left:
            part = _exactly(stream, min(left, _BLOCK_BYTES))
            digest.update(part)
            file.write(part)
            left -= len(part)
    _exactly(stream, -size % tarfile.BLOCKSIZE)
    return Unpacked(path.name, size, digest.hexdigest())


def _exactly(stream: IO[bytes], count: int) -> bytes:
    read = bytearray()
    while len(read) < count:
        part = stream.read(count - len(read))
        if not part:
            raise BundleRefused("the bundle ends early")
        read += part
    return bytes(read)


def _check_sidecars(staging: Path, found: list[Unpacked]) -> None:
    """Check the sidecar of each unpacked checkpoint against the size and SHA-256 that the checkpoint states. Raises
    BundleRefused if one differs, the sidecar is missing, or a checkpoint is no JSON object."""
    files = {member.name: (member.size, member.sha256) for member in found}
    for name in files:
        if name.endswith(CHECKPOINT_ENDING):
            content = (staging / name).read_bytes()
            if complaint := bundles.sidecar_complaint(name, content, files):
                raise BundleRefused(complaint)
