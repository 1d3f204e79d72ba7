"""PURE: judge a trainer's end by its exit status and last output.

The trainer contract (docs/trainer-contract.md) defines the exit codes: 0 done, 2 bad arguments, 65 bad data, 70 bug, 75
interrupted and resumable. SIGKILL, or exit status 137, often means that memory ran out.
"""

import re
import signal
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from training import strict_json
from training.contract import Exit
from training.fleet.process.ended import SIGKILL, Ended
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.constants import ERROR_CHARS_MAX
from training.fleet.wire.progress import parse_progress
from training.frozen import frozen

ASKED_TO_STOP = frozenset({1, 2, 15})  # SIGHUP, SIGINT, SIGTERM: a session or a service that ends
LAST_WORDS = 40  # lines of output in an error text
ALSO = "it also printed: "
LAST_LINES = 5  # the last lines, which show an end for want of memory; earlier ones it may have survived
TIMING_BYTES_MAX = 16 * 1024  # as it is sent


class MemoryKind(StrEnum):
    """The kind of memory that a trainer lacked."""

    RAM = "ram"
    VRAM = "vram"


@frozen
class Failure:
    """The end of an attempt without an artifact, as the worker reports it: reason, error text and exit code."""

    reason: EndReason
    error: str
    exit_code: int | None = None
    out_of_memory: MemoryKind | None = None
    goes_on: bool = False  # it lacked only time: a later attempt goes on from its saved state


def judge(ended: Ended, lines: Sequence[str], complaint: str | None = None) -> Failure | None:
    """Return the failure that a trainer's end shows, assuming that the worker did not request the end; None for exit
    status 0.

    ``lines`` are the last ones printed, ``complaint`` is the error that the trainer reported in a progress line.
    """
    if ended.lost:  # the infrastructure's fault, not the trainer's
        return Failure(EndReason.SPAWN_FAILED, f"the trainer was {ended.describe()}")
    if ended.code == 0:
        return None
    if ended.code == Exit.INTERRUPTED or ended.signal in ASKED_TO_STOP:
        words = f"the trainer was interrupted, not by its worker ({ended.describe()})"
        return Failure(EndReason.INTERRUPTED, words, ended.code)
    words = _essence(lines, complaint)
    lacking = _lacking(ended, [words, *lines[-LAST_LINES:]])
    memory = _memory_words(ended, lacking)
    how = f"{ended.describe()}{memory}{_SIGNAL_WORDS.get(ended.signal, '')}"
    text = f"{how}: {words}" if words else f"{how}, and it printed nothing"
    code = ended.code if ended.signal is None else 128 + ended.signal
    more = [line for line in lines if _adds_to(text, words, line)]
    return Failure(EndReason.TRAINER_FAILED, error_text(text, more), code, lacking)


def crowded_out(failure: Failure) -> Failure:
    """Return the failure of a trainer that ran out of memory beside others: it counts against neither host nor job, and
    says nothing about the job's need of memory."""
    text = f"it ran out of memory beside other trainers of its host, where its job trains alone next: {failure.error}"
    return Failure(EndReason.INTERRUPTED, text[:ERROR_CHARS_MAX], failure.exit_code)


def _adds_to(text: str, words: str, line: str) -> bool:
    """Return True if a line of output is no progress line, is not contained in ``text``, and does not repeat
    ``words``."""
    repeats = line.strip() in text or (words and words in line)
    return not repeats and parse_progress(line) is None


def error_text(first: str, lines: Sequence[str]) -> str:
    """Return ``first``, and below it as also printed those of the last ``LAST_WORDS`` lines that are not blank: the
    newest that fit in ``ERROR_CHARS_MAX`` characters."""
    first = first[: ERROR_CHARS_MAX - 1]
    quoted: list[str] = []
    room = ERROR_CHARS_MAX - len(first) - len(ALSO)
    for line in reversed([line for line in lines[-LAST_WORDS:] if line.strip()]):
        room -= len(line) + 1
        if room < 0:
            break
        quoted.append(line)
    return "\n".join([first, *([ALSO + "\n".join(reversed(quoted))] if quoted else [])])


_ERROR_LINE = re.compile(
    r"\s*(what\(\):|[\w.]*(Error|Exception|Interrupt|Exit)\b|(fatal |runtime )?error\b|panic\b)", re.IGNORECASE
)
# Causes told by a signal alone, as a trainer that is ended by it tells nothing: no page of a mapped file comes, as its
# disk is full or fails, or the file became shorter.
_NO_PAGE = " (a file that it had mapped could not be read or had no room)"
_SIGNAL_WORDS: dict[int | None, str] = {signal.SIGBUS: _NO_PAGE} if hasattr(signal, "SIGBUS") else {}
_ADVICE = re.compile(r"^\s|^Traceback |^During handling|^The above exception|warnings?\.warn|Warning:")


def _essence(lines: Sequence[str], complaint: str | None) -> str:
    """Return the line that names the cause: the trainer's own error, the last error line, or the last line; empty if
    there is none."""
    if complaint:
        return complaint
    meaningful = [line.strip() for line in lines if line.strip() and parse_progress(line) is None]
    for line in reversed(meaningful[-LAST_WORDS:]):
        if _ERROR_LINE.match(line):
            return line
    for line in reversed(meaningful):
        if not _ADVICE.search(line):
            return line
    return meaningful[-1] if meaningful else ""


_OUT_OF_MEMORY = re.compile(
    r"cuda(?: error:)? out of memory|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError|DefaultCPUAllocator.*can't allocate"
    r"|std::bad_alloc|MemoryError\b|Cannot allocate memory|\bout of memory\b|\bCU\w+_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)


_OF_THE_GPU = re.compile(r"cuda|\bGPUs?\b|\bcu(blas|dnn|fft|solver|sparse)|torch\.OutOfMemoryError", re.IGNORECASE)


def _lacking(ended: Ended, lines: Sequence[str]) -> MemoryKind | None:
    """Return which kind of memory ran out, if the kernel's count or an error line shows it; else None."""
    if ended.killed_for_memory:
        return MemoryKind.RAM
    for line in lines:
        if _OUT_OF_MEMORY.search(line):
            return MemoryKind.VRAM if _OF_THE_GPU.search(line) else MemoryKind.RAM
    return None


def _memory_words(ended: Ended, lacking: MemoryKind | None) -> str:
    if lacking is MemoryKind.VRAM:
        return " (out of GPU memory)"
    if lacking is MemoryKind.RAM:
        held = f", at {ended.max_rss_kib / 1024**2:.1f} GiB" if ended.killed_for_memory else ""
        return f" (out of memory{held})"
    if ended.signal == SIGKILL or ended.code == Exit.OUT_OF_MEMORY:
        return " (possibly out of memory)"
    return ""


def parse_timing(content: bytes) -> dict[str, Any]:
    """Return the content of a trainer's timing file as the record's member ``timing``; empty if it is invalid or too
    long."""
    try:
        timing = strict_json.loads(content)
    except ValueError:
        return {}
    return {"timing": timing} if len(strict_json.dumps(timing)) <= TIMING_BYTES_MAX else {}
