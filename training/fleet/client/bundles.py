"""Uploads and downloads of bundles: an upload resumes where it stopped, a download is verified."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from training.crashpoint import crashpoint
from training.files import settle
from training.fleet.client.answers import Damaged, Fetched, Refused, Unreachable, decoded
from training.fleet.client.retry import SLOW_S, Caller, address
from training.fleet.wire.attempts import CompleteReply, DeliverRequest, UploadReply
from training.fleet.wire.constants import (
    HEADER_BY_HAND,
    HEADER_CLAIM_ID,
    HEADER_HOST_ID,
    HEADER_OFFSET,
    HEADER_SHA256,
    ProblemType,
)

_BLOCK_BYTES = 1024 * 1024
_UPLOADS_FROM_NOTHING = 3  # restarts of an upload whose bytes arrived damaged
Progress = Callable[[int, int], object]  # bytes done, bytes in all


def upload(
    caller: Caller, job_id: str, headers: Mapping[str, str], file: Path, progress: Progress | None, tries: int | None
) -> str:
    """Upload a bundle, from the receiver's offset on, and return its artifact id. After the receiver refused an offset
    or a digest as wrong, the upload is tried again, twice at most."""
    one = _Upload(caller, address("upload", job_id), headers, file, progress)
    while True:
        try:
            return caller.again(one.once, tries, one.advanced)
        except Refused as refusal:
            if not one.may_begin_anew(refusal):
                raise


def deliver(caller: Caller, job_id: str, message: DeliverRequest, file: Path) -> CompleteReply:
    """Complete a waiting job with a bundle that was kept on this host's disk; the bytes are uploaded only if the
    receiver lacks them."""
    try:
        return caller.call("deliver", job_id, body=message)  # type: ignore[no-any-return]
    except Refused as refusal:
        if refusal.problem_type != ProblemType.NO_ARTIFACT:
            raise
    headers = {
        HEADER_CLAIM_ID: message.claim_id,
        HEADER_HOST_ID: message.host_id,
        HEADER_SHA256: message.artifact_id,
        HEADER_BY_HAND: "1",
    }
    one = _Upload(caller, address("upload", job_id), headers, file)
    caller.again(one.once, None, one.advanced)
    return caller.call("deliver", job_id, body=message)  # type: ignore[no-any-return]


@dataclass
class _Upload:
    """The upload of a bundle: each try asks the receiver for the offset, sends the rest of the file, and reports
    progress."""

    caller: Caller
    path: str
    headers: Mapping[str, str]
    file: Path
    progress: Progress | None = None
    begun_anew = 0
    offset = furthest = -1

    def once(self) -> str:
        send = self.caller.send
        answer = send("HEAD", self.path, headers=self.headers)
        try:
            self.offset = int(answer.headers[HEADER_OFFSET.lower()])
        except (KeyError, ValueError):
            raise Unreachable("the receiver's answer does not say where to resume") from None
        with self.file.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if self.offset > size:
                self.offset = 0  # the receiver's bytes are of another file
            file.seek(self.offset)
            headers = {
                **self.headers,
                HEADER_OFFSET: str(self.offset),
                "Content-Length": str(size - self.offset),
                "Content-Type": "application/zstd",
            }
            body = _Tail(file, self.offset, size, self.progress)
            answer = send("PUT", self.path, body=body, headers=headers, timeout_s=SLOW_S)
        return decoded(answer, UploadReply).artifact_id

    def advanced(self) -> bool:
        """Return True if the last try began further into the file than every try before."""
        further = self.offset > self.furthest
        self.furthest = max(self.furthest, self.offset)
        return further

    def may_begin_anew(self, refusal: Refused) -> bool:
        """Return True if the upload may be tried again after this refusal: the offset or the digest was wrong, for the
        first or second time."""
        self.begun_anew += 1
        moved = refusal.problem_type in (ProblemType.OFFSET_MISMATCH, ProblemType.WRONG_DIGEST)
        return moved and self.begun_anew < _UPLOADS_FROM_NOTHING


@dataclass
class _Tail:
    """The rest of a file as a request's body; after each block ``progress`` is called with the position reached in the
    file and the file's size."""

    file: BinaryIO
    done: int
    size: int
    progress: Progress | None

    def read(self, size: int = -1, /) -> bytes:
        crashpoint("client.body")
        block = self.file.read(_BLOCK_BYTES if size < 0 else size)
        self.done += len(block)
        if self.progress is not None:
            self.progress(self.done, self.size)
        return block


def fetch(caller: Caller, path: str, target: Path, progress: Progress | None) -> Fetched:
    """Download a bundle to ``target``; the file appears only when its SHA-256 is verified."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        return caller.again(lambda: _fetch_once(caller, path, target, unfinished, progress), None)
    finally:
        unfinished.unlink(missing_ok=True)


def bundle_size(caller: Caller, path: str) -> int:
    """Ask the receiver for the size of a bundle in bytes; return 0 if the answer does not say it."""
    return int(caller.send("HEAD", path).headers.get("content-length", 0))


def _fetch_once(caller: Caller, path: str, target: Path, unfinished: Path, progress: Progress | None) -> Fetched:
    expected, digest, done = 0, hashlib.sha256(), 0
    with contextlib.suppress(Refused):  # without a body HEAD cannot say why; GET does
        expected = bundle_size(caller, path)
    with unfinished.open("wb") as file:

        def sink(block: bytes) -> None:
            nonlocal done
            file.write(block)
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(done, expected)

        answer = caller.send("GET", path, timeout_s=SLOW_S, sink=sink)
    if digest.hexdigest() != answer.headers.get(HEADER_SHA256.lower()):
        raise Damaged(
            f"the bundle arrived damaged ({done} bytes); if it recurs, the receiver's copy is damaged: requeue the job"
        )
    settle(unfinished, target)
    return Fetched(digest.hexdigest(), str(target), done)
