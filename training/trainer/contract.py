"""A trainer's interface to the fleet: exit codes, progress lines, and the request to stop.

Importing the module loads no ML library, so that a signal is handled even while the ML libraries are being imported. A
custom trainer in any language may follow the same contract (docs/trainer-contract.md).
"""

import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TextIO

from training.certain import certain
from training.checkout import to_install
from training.clock import Clock, SystemClock
from training.contract import THREAD_VARIABLES, Exit
from training.data.errors import DataError
from training.printable import first_line
from training.streams import complain

BadData = DataError


class TrainerError(Exception):
    """A training, or another program of the trainers, cannot continue; the text says why, in one sentence.

    ├─ BadArguments        an argument or a file that it names is wrong, or leads to no result
    └─ EngineUnreachable   an engine or its workers are not there, or were lost: the same command may work later

    Data that are missing, damaged, of another schema or too small raise `BadData`, which is no TrainerError.
    """

    code = Exit.BUG


class BadArguments(TrainerError):  # noqa: N818 - the names say what is bad
    code = Exit.BAD_ARGUMENTS


class EngineUnreachable(TrainerError):  # noqa: N818
    code = Exit.INTERRUPTED


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """The worker or a person asked the trainer to stop; a training that has begun saves its state first."""


class Stop:
    """Holds a request to stop. Outside :meth:`at_once`, the trainer obeys the request at its next safe point: a step, a
    tree, or a phase of the run."""

    def __init__(self) -> None:
        self.requested = False
        self._at_once = False

    def listen(self) -> None:
        """Treat this platform's stop signals (SIGTERM, Ctrl-C, Ctrl-Break) as requests to stop."""
        for number in _polite():
            signal.signal(number, self._request)

    def end(self) -> None:
        """Ignore further stop signals, because the run's result is decided.

        Before its process ends, Python replaces its signal handlers by the default ones, by which a signal would kill a
        finished run.
        """
        for number in _polite():
            signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise ``Interrupted`` as soon as a stop is requested, anywhere in the code of the ``with`` block.

        Importing a library and reading data take seconds, and have neither safe points nor state to save.
        """
        self.check()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False
        self.check()

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if self._at_once:
            self._at_once = False  # once: what is raised may pass handlers of its own
            raise Interrupted

    def check(self) -> None:
        """Raise ``Interrupted`` when a stop was requested."""
        if self.requested:
            raise Interrupted


def _polite() -> list[int]:
    names = ("SIGTERM", "SIGINT", "SIGBREAK")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


class Keeper(Protocol):
    """Saves the state of a run, from which the run resumes if it is interrupted (see state_file.StateFile)."""

    def load(self) -> bytes | None: ...

    def watch(self, snapshot: Callable[[], bytes]) -> None:
        """Call ``snapshot`` from now on to get the state to save."""

    def tick(self) -> None:
        """Mark a safe point: save the state if it is due."""


class Progress:
    """Writes one JSON object a line to ``out``, which a worker reads.

    The run is divided into stages, and a stage perhaps into smaller ones. How far the run is follows from the weights
    of its stages: its total never changes, and a stage that ends early jumps to its end.
    """

    MIN_GAP_S = 0.2

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._began = clock.monotonic()
        self._last_epoch_line = -math.inf
        self._since: float | None = None
        self._worked = 0.0  # the share of the whole that this process has trained since then
        self._span = (0.0, 1.0)  # of the whole run: where the present stage begins and ends
        self._names: tuple[str, ...] = ()
        self._curve = True
        self._epochs = self._stages = self._number = self._further = 0
        self.shown = 0.0  # how far the run was at its last line, as a share of the whole
        self.metric_name: str | None = None

    def event(self, name: str, **fields: Any) -> None:
        clean = {key: _finite(value) for key, value in fields.items()}
        self._out.write(json.dumps({"event": name, **clean}, allow_nan=False) + "\n")
        self._out.flush()

    @contextmanager
    def stage(self, name: str, place: int, weights: Sequence[float], *, curve: bool = True) -> Iterator[None]:
        """Report the ``with`` block as stage number ``place``, from 0, of the present stage or, outside of one, of the
        run; ``weights`` has each stage's part of the whole.

        The stage without a name is the run's own training, whose stages count as the run's. Losses and metrics are
        reported only in stages with ``curve``: the others do not make the model that the run keeps.
        """
        outer = self._span, self._names, self._curve
        unit = (self._span[1] - self._span[0]) / sum(weights)
        begin = self._span[0] + unit * sum(weights[:place])
        if not name:
            self._number, self._stages, self._further = 0, 0, len(weights) - 1
        elif not self._names:
            self._number += 1
            self._stages = self._stages or len(weights) + self._further
        if begin == 0:  # the innermost stage that begins the run has epochs as weights
            self._epochs = math.ceil(1 / unit)
        self._span, self._last_epoch_line = (begin, begin + unit * weights[place]), -math.inf
        self._names, self._curve = self._names + (name,) * bool(name), self._curve and curve
        try:
            yield
        finally:
            self._span, self._names, self._curve = outer

    def place(self, share: float = 0.0) -> dict[str, Any]:
        """Return the fields that say where the run is when this share of the present stage is done."""
        low, high = self._span
        epoch = round(self._epochs * max(low + (high - low) * share, self.shown))
        return {
            "stage": f"{self._number} of {self._stages}: {', '.join(self._names)}",
            "epoch": epoch,
            "epochs": self._epochs,
        }

    def epoch(self, epoch: int, epochs: int, *, loss: float, metric: float | None) -> None:
        """Report an epoch, or a tree, of the present stage. A line less than ``MIN_GAP_S`` seconds after the previous
        one is left out, except those of a stage's first and last planned epoch; so is a line that the run wrote before
        it was interrupted.

        ``eta_s`` assumes that the rest of the run goes at the pace of what this process has trained.
        """
        now, (low, high) = self._clock.monotonic(), self._span
        share, self._worked = low + (high - low) * epoch / epochs, self._worked + (high - low) / epochs
        rare = epoch not in (1, epochs) and now - self._last_epoch_line < self.MIN_GAP_S
        if rare or share <= self.shown:
            return
        self._last_epoch_line, self.shown = now, share
        eta_s = (now - certain(self._since, "epochs begin")) / self._worked * (1 - share)
        fields = {**self.place(epoch / epochs), "stage_epoch": epoch, "stage_epochs": epochs}
        if self._curve:
            named = {} if metric is None else {"metric_name": self.metric_name}
            fields |= {"loss": loss, "metric": metric, **named}
        self.event("epoch", **fields, seconds=round(now - self._began, 3), eta_s=round(eta_s, 1))

    def begin_epochs(self) -> None:
        """Start to measure how long epochs take, unless a training has started it before."""
        self._since = self._clock.monotonic() if self._since is None else self._since

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic() - self._began


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def perform(
    work: Callable[[Progress, Stop], None],
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    clock: Clock | None = None,
    stop: Stop | None = None,
) -> int:
    """Call ``work``, and return the exit code for its outcome; if ``work`` fails or is interrupted, also write one
    sentence to ``err``.

    A bug's traceback is written before its sentence.
    """
    out, err = out or sys.stdout, err or sys.stderr
    progress = Progress(out, clock or SystemClock())
    if stop is not None:
        return _perform(work, progress, err, stop)
    stop = Stop()
    stop.listen()
    try:
        return _perform(work, progress, err, stop)
    finally:
        stop.end()


def _perform(work: Callable[[Progress, Stop], None], progress: Progress, err: TextIO, stop: Stop) -> int:
    try:
        work(progress, stop)
    except Interrupted:
        progress.event("interrupted")
        err.write("interrupted: the same command resumes from the state that was saved, if any\n")
        return Exit.INTERRUPTED
    except (TrainerError, BadData) as error:
        return _fail(progress, err, error.code, str(error))
    except Exception as error:  # noqa: BLE001 - the last line of defence, so that every end has a sentence
        if is_out_of_memory(error):
            sentence = "out of memory: choose a smaller batch_size, or a host with more memory"
            return _fail(progress, err, Exit.OUT_OF_MEMORY, f"{sentence} ({first_line(error)})")
        if isinstance(error, OSError) and error.strerror:
            return _fail(progress, err, Exit.NO_ACCESS, _disk_words(error))
        if isinstance(error, ModuleNotFoundError) and (error.name or "training").partition(".")[0] != "training":
            sentence = f"the package {error.name} is not installed here: run {to_install('trainer')}"
            return _fail(progress, err, Exit.BUG, sentence)
        traceback.print_exc(file=err)
        sentence = f"a bug in the trainer: {type(error).__name__}: {first_line(error)}"
        return _fail(progress, err, Exit.BUG, sentence)
    return Exit.DONE


def _fail(progress: Progress, err: TextIO, code: Exit, sentence: str) -> int:
    progress.event("error", code=int(code), message=sentence)
    complain(f"error: {sentence}", err)
    return code


def _disk_words(error: OSError) -> str:
    place = "" if error.filename is None else f"{error.filename}: "
    remedy = "see that the folder can be written and that there is room"
    return f"cannot use the disk: {place}{error.strerror}; {remedy}"


def is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    allocator = any(words in text for words in ("defaultcpuallocator", "bad_alloc", "out of memory", "_alloc_failed"))
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and allocator)


def limit_threads(threads: int) -> None:
    """Limit numerical libraries to ``threads``: environment variables limit those imported later; threadpoolctl limits
    the BLAS and OpenMP libraries that are loaded already."""
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if "numpy" in sys.modules:  # forked from a process that has imported some, with one thread each
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        threadpool_limits(threads)
    # cuBLAS is reproducible only with a fixed workspace, chosen before CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
