"""Errors of the store, each with the problem type of the refusal that it becomes."""

# ruff: noqa: N818 - named like the refusals that they become

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from training.files import to_free
from training.fleet.wire.constants import ProblemType

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StoreError(Exception):
    """The store could not do something; the message is one sentence for people."""

    problem_type = ProblemType.UNAVAILABLE  # of the refusal that it becomes


class BadName(StoreError):
    """A name or id is not allowed here, or a listing is invalid; the message says which."""

    problem_type = ProblemType.BAD_REQUEST


class OnlyName(BadName):
    """A data set's last name cannot be removed; remove the data set instead."""

    problem_type = ProblemType.WRONG_STATE


class BadMark(StoreError):
    """The file ``database.json``, which names the store's database, is invalid."""


class StoreFull(StoreError):
    """The disk is full except for the reserve, or a data set is larger than allowed. Bytes stored before stay; an
    upload can resume once there is room."""

    problem_type = ProblemType.DISK_FULL


class ShareFull(StoreFull):
    """A host's unfinished uploads, or its saved states, would exceed the host's share of the free space."""


class StoreUnavailable(StoreError):
    """The system failed or refused a file operation. Nothing was acknowledged; trying again is safe."""


class NotStored(StoreError):
    """There is no such artifact, report or file of output in the store, or it cannot be read."""

    problem_type = ProblemType.NO_ARTIFACT


class DamagedArtifact(StoreError):
    """The bytes of an artifact, a report or a file of output do not match their SHA-256."""

    problem_type = ProblemType.NO_ARTIFACT


class NoDataset(StoreError):
    """There is no such data set or saved state, or it lacks this chunk or name."""

    problem_type = ProblemType.UNKNOWN_DATASET


class NoState(StoreError):
    """There is no such saved state of this job, or a newer one has replaced it."""

    problem_type = ProblemType.UNKNOWN_STATE


class ChunksMissing(StoreError):
    """A data set is incomplete: chunks have not arrived yet, or chunks or the listing are damaged on the disk."""

    problem_type = ProblemType.INCOMPLETE_DATASET


class UploadError(StoreError):
    """An upload cannot continue as requested."""


class TooManyParts(UploadError):
    """A claim already has the largest allowed number of uploads under way."""

    problem_type = ProblemType.SLOW_DOWN


class Fenced(UploadError):
    """Another connection has taken this upload over."""

    problem_type = ProblemType.OFFSET_MISMATCH


class OffsetMismatch(UploadError):
    """The store does not have the bytes before the requested offset."""

    problem_type = ProblemType.OFFSET_MISMATCH

    def __init__(self, asked: int, stored: int) -> None:
        super().__init__(f"cannot resume at byte {asked}: {stored} bytes are stored")
        self.stored = stored


class Incomplete(UploadError):
    """The body ended before its announced length. The received bytes are kept."""

    problem_type = ProblemType.BAD_REQUEST

    def __init__(self, stored: int, expected: int) -> None:
        super().__init__(f"the body ended after {stored} of {expected} bytes; resume there")
        self.stored = stored


class WrongDigest(UploadError):
    """The received bytes do not have the announced SHA-256, or are more than announced."""

    problem_type = ProblemType.WRONG_DIGEST


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an OSError raised in this context into StoreFull or StoreUnavailable, whose text names the work in
    progress."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            remedy = to_free(Path(error.filename or "/"))
            raise StoreFull(f"the disk is full ({doing}); {remedy} and try again") from error
        raise StoreUnavailable(f"the disk failed ({doing}): {error.strerror or error}") from error
