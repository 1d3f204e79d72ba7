"""Read and write an episode, one recording on disk: a folder, or the same folder packed as ``<episode_id>.tar.zst``.

    meta.json          who, where, when, which channels; msgspec checks every field
    telemetry.parquet  t (seconds since the start, float64) and one float column a channel, as recorded
    labels.parquet     t, phase: a phase holds until the next row
    programs.parquet   may be missing: what each program used, see training.data.programs

Packed and unpacked forms have the same digest, which covers the files' bytes.
"""

import hashlib
import io
import random
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl
import zstandard

from training.clock import Clock
from training.data.errors import DataError
from training.data.programs import read_table, write_table
from training.data.values import JsonDict
from training.files import write_whole
from training.printable import first_line

META, TELEMETRY, LABELS = NEEDED = ("meta.json", "telemetry.parquet", "labels.parquet")
PROGRAMS = "programs.parquet"
MEMBERS = (*NEEDED, PROGRAMS)
PACKED_SUFFIX = ".tar.zst"
SCHEMA_VERSION = 1
MEMBER_BYTES_MAX = 512 << 20  # a member larger than this is a mistake or an attack, not an episode
_ULID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class EpisodeError(DataError):
    """The files are not a readable episode, or a folder contains no episode; the text says what is wrong."""


class CodeVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The commit and branch of the git checkout from which the recorder ran (``unknown`` without one); ``dirty`` is
    true if tracked files of the recorder's package differed from the commit."""

    commit: str
    branch: str
    dirty: bool


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A channel as the recording's ``meta.json`` declares it; the fields mean the same as in training.data.channels."""

    name: str
    unit: str
    kind: str
    modes: list[str]


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``meta.json``. ``started_at`` is in epoch seconds (UTC); ``phases`` gives each phase its class,
    ``benign`` or ``malicious``."""

    schema_version: int
    episode_id: str
    host: str
    started_at: float
    sample_hz: float
    duration_s: float
    scenario: str
    baseline: bool
    code_version: CodeVersion
    view: str = "machine"
    channels: list[ChannelInfo] = msgspec.field(default_factory=list)
    phases: dict[str, str] = msgspec.field(default_factory=dict)
    notes: JsonDict = msgspec.field(default_factory=dict)


class Episode(NamedTuple):
    """An episode in memory: sample times ``t`` (S,) in seconds, ``values`` (S, C), and the start and name of each
    phase; ``programs`` has the columns of ``training.data.programs.SCHEMA``, or is None; ``digest`` is that of its
    files."""

    meta: Meta
    t: np.ndarray
    values: np.ndarray
    label_t: np.ndarray
    label_phase: tuple[str, ...]
    digest: str
    programs: pl.DataFrame | None = None
    undeclared: tuple[str, ...] = ()  # columns of the telemetry that the meta data do not name


def new_ulid(clock: Clock, rng: random.Random) -> str:
    """Return a new id of 26 characters: 48 bits of time in milliseconds, then 80 random bits; sorted ids are in the
    order of these milliseconds."""
    number = (int(clock.now() * 1000) << 80) | rng.getrandbits(80)
    return "".join(_ULID_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def find_episodes(root: Path) -> list[Path]:
    """Return the paths of the episode folders and packed episodes directly below ``root``, in the order of their ids.

    Raises EpisodeError if there is none, DataError for a folder that this user may not read.
    """
    if not root.is_dir():
        raise EpisodeError(f"There is no folder {root}: give the folder that holds the episodes.")
    try:
        there = sorted(root.iterdir())
        found = {path.name: path for path in there if path.is_dir() and _holds_meta(path)}
    except OSError as error:
        raise no_access(error, root) from None
    for path in there:
        if path.name.endswith(PACKED_SUFFIX):
            found.setdefault(path.name.removesuffix(PACKED_SUFFIX), path)
    if not found:
        raise EpisodeError(f"{root} holds no episode: expected folders with a {META}, or *{PACKED_SUFFIX} files.")
    return [found[name] for name in sorted(found)]


def no_access(error: OSError, path: Path) -> DataError:
    """Return the error for a folder or file that cannot be read; it stops the build, because the recording itself may
    be good."""
    return DataError(
        f"{error.filename or path} cannot be read ({error.strerror or error}): make it readable for this user, or move "
        "the episode elsewhere; one that is left out unseen would change what is learnt."
    )


def deeper(root: Path) -> str | None:
    """Return a note if folders of ``root`` that are no episodes contain episodes, which :func:`find_episodes` does not
    find; else None."""
    found = {}
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and not _holds_meta(folder):
            inside = list(folder.iterdir())
            found[folder.name] = sum(p.name.endswith(PACKED_SUFFIX) or (p.is_dir() and _holds_meta(p)) for p in inside)
    left = [f"{number} in {name}" for name, number in found.items() if number]
    if not left:
        return None
    return f"note: episodes in folders below {root} were not read ({', '.join(left)}): move them up to use them"


def _holds_meta(folder: Path) -> bool:
    """Return True if the folder is an episode's. Raises OSError for a folder that this user may not read."""
    try:
        (folder / META).stat()
    except FileNotFoundError:
        return False
    return True


def write_folder(
    folder: Path,
    meta: Meta,
    t: np.ndarray,
    values: np.ndarray,
    labels: list[tuple[float, str]],
    programs: pl.DataFrame | None = None,
) -> None:
    """Write the files of an episode into ``folder``; ``values`` is (S, C), in the order of ``meta.channels``."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = {c.name: values[:, i].astype(float) for i, c in enumerate(meta.channels)}
    frame = pl.DataFrame({"t": t.astype(float), **columns})
    frame.write_parquet(folder / TELEMETRY, compression="zstd", compression_level=15, statistics=False)
    rows = pl.DataFrame(
        {"t": [float(at) for at, _ in labels], "phase": [phase for _, phase in labels]},
        schema={"t": pl.Float64, "phase": pl.String},
    )
    rows.write_parquet(folder / LABELS, compression="zstd", statistics=False)
    if programs is not None:
        (folder / PROGRAMS).write_bytes(write_table(programs))
    (folder / META).write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")


def pack(folder: Path, target: Path) -> None:
    """Pack the files of an episode folder into the file ``target``; equal files give equal bytes, with the same version
    of zstandard."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(_read_folder(folder).items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    compressor = zstandard.ZstdCompressor(level=19, write_checksum=True)
    write_whole(target, compressor.compress(buffer.getvalue()))


def _read_folder(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in MEMBERS if name in NEEDED or (folder / name).exists()}


def read_members(path: Path) -> dict[str, bytes]:
    """Return the bytes of the files of an episode, by file name; ``path`` is a folder or a packed episode.

    Raises EpisodeError for damaged or missing content, DataError if the system does not let ``path`` be read.
    """
    try:
        if path.is_dir():
            return _read_folder(path)
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            found = _untar(stream)
            while stream.read(1 << 20):  # to the end of the frame, where the checksum is
                pass
            file.seek(0)
            if not zstandard.get_frame_parameters(file.read(18)).has_checksum:
                raise EpisodeError("it carries no checksum: pack it again with one, as zstd does")
            return found
    except OSError as error:
        if isinstance(error, FileNotFoundError) and path.is_dir():
            raise EpisodeError(f"{Path(str(error.filename)).name} is missing") from None
        raise no_access(error, path) from None
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise EpisodeError(f"it cannot be unpacked ({error})") from None


def _untar(stream: Any) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            # Names are looked up in a closed list and nothing is written to disk, so no path can escape.
            if member.name not in MEMBERS or not member.isreg():
                continue
            if member.size > MEMBER_BYTES_MAX:
                raise EpisodeError(f"{member.name} is larger than {MEMBER_BYTES_MAX >> 20} MiB")
            file = tar.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise EpisodeError(f"{missing[0]} is missing")
    return found


def digest_of(members: dict[str, bytes]) -> str:
    """Return the SHA-256 over the names, lengths and bytes of an episode's files."""
    total = hashlib.sha256()
    for name in filter(members.__contains__, MEMBERS):
        total.update(f"{name} {len(members[name])}\n".encode())
        total.update(members[name])
    return total.hexdigest()


def read(path: Path) -> Episode:
    """Read an episode from its folder or packed file. Raises EpisodeError, whose text continues "It cannot be read: …",
    for bad content; DataError if the system does not let ``path`` be read."""
    return parse(read_members(path))


def parse(members: dict[str, bytes]) -> Episode:
    """Return an episode, given the bytes of its files. Raises EpisodeError if a file is not as it must be."""
    try:
        meta = msgspec.json.decode(members[META], type=Meta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EpisodeError(f"{META} does not hold what it should ({error})") from None
    try:
        frame = pl.read_parquet(io.BytesIO(members[TELEMETRY]))
        labels = pl.read_parquet(io.BytesIO(members[LABELS]))
        programs = read_table(members[PROGRAMS]) if PROGRAMS in members else None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise EpisodeError(f"a Parquet file cannot be read ({first_line(error)})") from None
    declared = [c.name for c in meta.channels]
    _require_columns(frame, ["t", *declared], TELEMETRY)
    _require_columns(labels, ["t", "phase"], LABELS)
    try:
        t = frame["t"].cast(pl.Float64).to_numpy()
        values = frame.select(pl.col(declared).cast(pl.Float64)).to_numpy()
        label_t = labels["t"].cast(pl.Float64).to_numpy()
    except pl.exceptions.PolarsError as error:
        raise EpisodeError(f"a column is not numeric ({first_line(error)})") from None
    return Episode(
        meta=meta,
        t=t,
        values=values.reshape(len(t), len(declared)),
        label_t=label_t,
        label_phase=tuple(str(p) for p in labels["phase"].to_list()),
        digest=digest_of(members),
        programs=programs,
        undeclared=tuple(name for name in frame.columns if name not in ("t", *declared)),
    )


def _require_columns(frame: pl.DataFrame, wanted: list[str], file: str) -> None:
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise EpisodeError(f"{file} has no column {missing[0]!r}")
