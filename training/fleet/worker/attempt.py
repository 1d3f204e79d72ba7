"""One attempt at one job on this machine: its folders, its trainer, its output, its bundle.

The attempt runs on threads of its own and posts events. Starting the trainer and packing its output each end in an
event, also after an error.
"""

import itertools
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from training.certain import certain
from training.contract import CHECKPOINT_ENDING, THEN, TIMING_ENDING, Exit, file_name, outputs, reads
from training.crashpoint import crashpoint
from training.families import family_of, preloads
from training.files import free_bytes, plain_bytes, remove_tree, scarce, to_free
from training.fleet.process.environment import planned, trainer_environment
from training.fleet.process.launcher import in_words
from training.fleet.process.parents import Preload
from training.fleet.process.supervise import (
    STATE_VARIABLE,
    CommandSpec,
    LocalProcess,
    LocalRunner,
    SpawnFailedError,
    end_on_record,
)
from training.fleet.process.usage import Used
from training.fleet.scheduling.job import EndReason
from training.fleet.worker import reports, saved_states
from training.fleet.worker.datasets import NotGiven, Order
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.scratch import ScratchSpace, shared_memory_of
from training.fleet.worker.start_check import NoRoomError
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import LAST_WORDS, TIMING_BYTES_MAX, Failure, parse_timing
from training.fleet.worker.state.trainer import MEASURE_S
from training.fleet.worker.state_folder import AttemptFolders, folders_of, make_folders, prune
from training.fleet.worker.state_transfer import StateTransfer, note_end, stretches_noted
from training.fleet.worker.tail import POLLS_A_LOOK, OutputTail
from training.fleet.worker.trained_on import at_start, by_checkpoint, note, noted
from training.fleet.worker.trainer_command import BadSpecError, TrainerInputs, names, trainer_command

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks for new output
MIB = 1024**2
DISK_WANTED_BYTES = 256 * MIB  # with less free, the worker asks for no work and keeps no ended attempt
DISK_FLOOR_BYTES = 64 * MIB  # with less free, a running trainer is stopped before it harms the host

Post = Callable[[t.Event], None]
Fetch = Callable[[str, Order], Path]  # a data set's id → the folder that holds it


class BadDataError(Exception):
    """The job's data set lacks a file that its training needs, so that no host can train the job."""


_REASONS = {
    BadSpecError: (EndReason.TRAINER_FAILED, Exit.BAD_ARGUMENTS),
    BadDataError: (EndReason.TRAINER_FAILED, Exit.BAD_DATA),
    NoRoomError: (EndReason.INTERRUPTED, None),  # nobody's fault
    NotGiven: (EndReason.UPLOAD_FAILED, None),  # the receiver's copy is at fault, not this host
}


class WorkerFolders(NamedTuple):
    """The absolute paths that a worker gives its trainers: checkout, inputs (interpreter and data), artifacts and
    reports."""

    repo_root: Path
    inputs: TrainerInputs
    artifacts: Path
    reports: Path


def found(outbox: Outbox, assignment: t.Assignment, log: Path, end: Path, resume: Path) -> t.Remains:
    """Return what an earlier session's trainer left: how it ended, if that was recorded, its last lines, and the number
    of all its lines. Also add the epochs that the trainer printed to its note beside ``resume``, the folder of its
    saved state."""
    note_end(resume, assignment, log)
    printed = outbox.adopt(assignment, log).total
    words = outbox.last(assignment.claim_id, LAST_WORDS)
    return t.Remains(ended=end_on_record(end), printed=printed, last_words=words)


def measured_at(look: int, every: int) -> bool:
    """Return True if the trainer's use of the host is measured at check number ``look``. Measured are the multiples of
    ``every``, from 0 on, and below ``every`` the numbers 4, 8, 16, …

    The early measurements show how much of a GPU's memory even a short trainer takes.
    """
    return look % every == 0 or (4 <= look < every and look.bit_count() == 1)


@dataclass
class TrainerAttempt:
    """Runs the trainer of one assignment as the state machine orders.

    ``transfer`` uploads the trainer's saved state, the folder ``saved``, to the receiver, and fetches it from there.
    ``fetch`` fetches a data set, ``doubt`` marks one to be checked again. ``measure_s`` is the number of seconds
    between two measurements of the trainer's use of the host, after a few early ones.

    ``variables`` returns the environment variables that limit the trainer to its booking, or raises NoRoomError;
    variables of the plan override them. ``scratch`` gives the trainer a folder for temporary files.
    """

    assignment: t.Assignment
    places: WorkerFolders
    saved: Path
    outbox: Outbox
    runner: LocalRunner
    post: Post
    _: KW_ONLY
    transfer: StateTransfer
    fetch: Fetch | None = None
    doubt: Callable[[str], object] = lambda _dataset_id: None
    measure_s: float = MEASURE_S
    variables: Callable[[], Mapping[str, str]] = dict
    scratch: ScratchSpace = field(default_factory=lambda: ScratchSpace("cis-"))
    _fetched_parts: int = -1
    _process: LocalProcess | None = None
    _measuring: threading.Thread | None = None
    _used: Used = field(default_factory=Used)
    _shared_memory: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._order = Order(self._fetching, wanted=partial(reads, self.assignment.spec))

    # ── orders; none blocks ─────────────────────────────────────────────────────────────────

    def spawn(self) -> None:
        self._on_thread(self._run, self._spawn_failed)

    def pack(self) -> None:
        self._on_thread(self._pack, self._pack_failed)

    def stop(self) -> None:
        self._order.stopped.set()
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        self._order.stopped.set()
        if self._process is not None:
            process = self._process
            # Rather than kill(): stop() also outwits a launcher that hangs.
            self._on_thread(lambda: process.stop(0.0), lambda _: process.kill())

    def pause(self) -> None:
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        if self._process is not None:
            self._process.resume()

    def discard(
        self, *, job_over: bool, delivered: bool = False, in_use: Collection[t.Assignment] = (), tidy: bool = True
    ) -> None:
        """Delete an ended attempt's bundle, and its output folder if ``delivered`` or if the disk is nearly full.

        On a nearly full disk the attempt's reports are deleted, too, because these files would keep the host from
        further work. With ``job_over``, the job's saved state is deleted, too. With ``tidy`` or on a nearly full disk,
        old attempts' files and old saved states are deleted, too, except those ``in_use``.
        """
        crashpoint("worker.discard")
        tight = False
        with suppress(OSError, BadSpecError):
            folders = self._folders
            folders.end.unlink(missing_ok=True)
            folders.bundle.unlink(missing_ok=True)
            reports.beside(folders.bundle).unlink(missing_ok=True)
            tight = free_bytes(self.places.artifacts) < DISK_WANTED_BYTES
            if delivered or tight:
                remove_tree(folders.out)
            if tight:
                remove_tree(folders.reports)
        if job_over:
            saved_states.forget(self.saved)
        if not (tidy or tight):
            return
        root = self.saved.parent
        saved_states.prune(root, in_use={saved_states.folder_of(root, each.job_id) for each in in_use})
        with suppress(OSError):  # another program tidies up, too; next time, then
            prune(self.places.artifacts, self.places.reports, in_use=in_use)

    @property
    def _folders(self) -> AttemptFolders:
        names(self.assignment.spec)
        return folders_of(self.places.artifacts, self.places.reports, self.assignment)

    def found(self) -> t.Remains:
        """Return what an earlier session's trainer left: how it ended, if that was recorded, its last lines, and the
        number of all its lines. For an assignment with unsafe names, return empty Remains."""
        try:
            folders = self._folders
        except BadSpecError:
            return t.Remains()
        return found(self.outbox, self.assignment, folders.log, folders.end, self.saved)

    # ── the trainer ─────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        spec = self.assignment.spec
        folders = self._folders  # before anything else: it refuses unsafe names
        inputs = self._inputs()
        make_folders(folders)
        saved_states.begin(self.saved, self.assignment.database_id)
        self.transfer.fetch(self._order)
        self.transfer.note(folders.stretches)
        booked = self.assignment.booked
        threads = None if booked is None else booked.cores
        command = trainer_command(spec, inputs, out_dir=folders.out, reports_dir=folders.reports, threads=threads)
        note(folders.trained, at_start(spec, inputs, self.places.repo_root))
        with self.scratch.lent(self._shared_memory) as temporary:
            environment = {
                **trainer_environment(os.environ),
                **temporary,
                **self.variables(),
                **planned(spec, self.assignment.env or {}),
                STATE_VARIABLE: str(self.saved),
            }
            self._order.check()
            self._supervise(
                CommandSpec(
                    command, self.places.repo_root, environment, folders.log, folders.end, preload=self._preload()
                ),
                folders,
            )

    def _supervise(self, command: CommandSpec, folders: AttemptFolders) -> None:
        """Start the trainer, watch it, and post its end."""
        self._process = process = self.runner.start(command)
        crashpoint("worker.spawned")
        self.post(t.Spawned(claim_id=self.assignment.claim_id))
        try:
            self._watch(process, OutputTail(folders.log))
        finally:  # also after an error of watching, report the trainer's end
            ended = process.wait() or process.stop(0.0)
            try:
                self.transfer.note(folders.stretches)
                if ended.code != Exit.DONE:
                    self.transfer.bring_last()
                self.transfer.close()
            finally:
                crashpoint("worker.trainer_ended")
                self.post(t.TrainerEnded(claim_id=self.assignment.claim_id, ended=ended))
            if ended.code == Exit.BAD_DATA and self.assignment.dataset is not None:
                self.doubt(self.assignment.dataset)  # perhaps this disk has damaged it

    def _preload(self) -> Preload | None:
        """Return the modules that a built-in trainer may find imported already; None for a custom trainer, which is
        started normally."""
        return None if self.assignment.spec.get("trainer") else Preload(preloads(self.assignment.model), THEN)

    def _inputs(self) -> TrainerInputs:
        """Return the paths of the job's data set after fetching it, or of this host's own data if the job names none.
        Raises BadDataError or SpawnFailedError if a file that a built-in trainer needs is missing."""
        dataset, inputs = self.assignment.dataset, self.places.inputs
        if dataset is not None:
            inputs = inputs.within(certain(self.fetch, "a worker fetches data sets")(dataset, self._order))
        if self.assignment.spec.get("trainer"):
            return inputs
        needed = [inputs.validation, inputs.tensors]
        if family_of(self.assignment.model).supervised:
            needed += [inputs.summary, inputs.schema]
        lacking = next((path for path in needed if not path.exists()), None)
        if lacking is not None and dataset is not None:
            raise BadDataError(
                f"data set {dataset[:12]} has no {lacking.name}; push the folder that training.data.build makes"
            )
        if lacking is not None:  # the host is at fault, not the job
            raise SpawnFailedError(
                f"this host has no data set: {lacking} is missing; bring it here, or say where it is "
                "with --validation, --summary and --tensors, or name one in the plan"
            )
        return inputs

    def _fetching(self, done: int, size: int) -> None:
        """Post the fetch's progress whenever another fiftieth of the bytes of the files that are being fetched is
        here."""
        parts = 50 * done // max(size, 1)
        if parts != self._fetched_parts:
            self._fetched_parts = parts
            self.post(t.Fetching(claim_id=self.assignment.claim_id, done=done, size=size))

    def _watch(self, process: LocalProcess, tail: OutputTail) -> None:
        """Pass on the trainer's output until the trainer has ended; watch the disk, and measure what the trainer
        uses."""
        stopped = False
        measure_every = max(1, int(self.measure_s / LOOK_S))
        every_s = self.transfer.every_s
        for look in itertools.count():
            if process.wait(LOOK_S) is not None:
                break
            self._print(tail)
            if measured_at(look, measure_every):
                self._measure(process)
            if every_s and (look + 1) % max(1, int(every_s / LOOK_S)) == 0:
                self.transfer.begin_bringing()
            harm = None if stopped else self._harm(tail)
            if harm is not None:
                stopped = True
                self.post(t.Unbearable(claim_id=self.assignment.claim_id, failure=harm))
        self._print(tail)
        self._pass_on(tail, tail.poll(final=True))

    def _measure(self, process: LocalProcess) -> None:
        """Measure what the trainer uses on a new thread, because a driver may not answer. While an earlier measurement
        still runs, post the last values instead, for the limits of time."""

        def measure() -> None:
            self._used = process.used()
            self._post_used()
            if process.poll() is None:
                self._shared_memory.update(shared_memory_of(process.pid))

        if self._measuring is not None and self._measuring.is_alive():
            self._post_used()
            return
        self._measuring = threading.Thread(target=measure, name="measurement", daemon=True)
        self._measuring.start()

    def _post_used(self) -> None:
        resumable = self.transfer.holds_a_state
        self.post(t.Measured(claim_id=self.assignment.claim_id, used=self._used, resumable=resumable))

    def _print(self, tail: OutputTail) -> None:
        """Pass on the waiting output in blocks, a limited number of them because the trainer may print endlessly."""
        for _ in range(POLLS_A_LOOK):
            if not (lines := tail.poll()):
                break
            self._pass_on(tail, lines)

    def _pass_on(self, tail: OutputTail, lines: list[str]) -> None:
        if lines:
            self.outbox.append(self.assignment, tail.path, lines, tail.position)
            self.transfer.heed(lines)
            crashpoint("worker.printed")
            self.post(t.Printed(claim_id=self.assignment.claim_id, lines=tuple(lines)))

    def _harm(self, tail: OutputTail) -> Failure | None:
        if tail.overflowing:
            return Failure(EndReason.TRAINER_FAILED, "the trainer printed more than a log file may hold")
        free = free_bytes(self.places.artifacts)
        if free >= DISK_FLOOR_BYTES:
            return None
        words = f"the disk of this host is full: {scarce(self.places.artifacts, free)} at {self.places.artifacts}"
        return Failure(EndReason.UPLOAD_FAILED, f"{words}; {to_free(self.places.artifacts)}")

    def _spawn_failed(self, error: Exception) -> None:
        reason, code = _REASONS.get(type(error), (EndReason.SPAWN_FAILED, None))
        failure = Failure(reason, in_words(error), code)
        self.post(t.SpawnFailed(claim_id=self.assignment.claim_id, failure=failure))

    # ── the bundle ──────────────────────────────────────────────────────────────────────────

    def _pack(self) -> None:
        from training.fleet.worker.bundle import pack, report_paths  # not needed by a worker at rest

        folders, assignment = self._folders, self.assignment
        crashpoint("worker.pack.begin")
        packed = pack(
            folders.out,
            folders.reports,
            folders.bundle,
            model=assignment.model,
            mode=assignment.mode,
            outputs=outputs(assignment.spec),
        )
        kind = (assignment.model, assignment.mode)
        left = [*report_paths(folders.reports, *kind), *report_paths(folders.out, *kind)]
        why_not = reports.keep(left, folders.bundle)
        if why_not is not None:
            log.info("the report of %s is not sent: %s", assignment.name, why_not)
        crashpoint("worker.pack.end")
        self.post(
            t.Packed(
                claim_id=assignment.claim_id,
                path=str(packed.path),
                sha256=packed.sha256,
                size=packed.size,
                record={
                    "bundle_bytes": packed.size,
                    "trained": self._trained(folders),
                    **stretches_noted(folders.stretches, folders.log),
                    **({} if why_not is None else {"no_report": why_not}),
                    **self._timing(folders.reports),
                },
            )
        )

    def _trained(self, folders: AttemptFolders) -> dict[str, str]:
        """Return the digests of data and code, and the commit, of this training; those in a built-in trainer's
        checkpoint override the worker's."""
        found = noted(folders.trained)
        if not self.assignment.spec.get("trainer"):
            name = file_name(self.assignment.model, self.assignment.mode, CHECKPOINT_ENDING)
            found |= by_checkpoint(folders.out / name)
        return found

    def _timing(self, reports: Path) -> dict[str, Any]:
        """Return the trainer's timing file as a part of the record; empty if the file is missing, invalid or too long.
        The file is not packed, so that equal models give equal bundles."""
        path = reports / file_name(self.assignment.model, self.assignment.mode, TIMING_ENDING)
        with suppress(OSError):
            return parse_timing(plain_bytes(path, TIMING_BYTES_MAX))
        return {}

    def _pack_failed(self, error: Exception) -> None:
        from training.fleet.worker.bundle import BundleError

        broken = isinstance(error, BundleError)
        reason = EndReason.TRAINER_FAILED if broken else EndReason.UPLOAD_FAILED
        words = in_words(error) if broken else f"the bundle could not be packed: {in_words(error)}"
        failure = Failure(reason, words, exit_code=0)
        self.post(t.PackFailed(claim_id=self.assignment.claim_id, failure=failure))

    def _on_thread(self, work: Callable[[], object], failed: Callable[[Exception], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # every error becomes an event
                log.debug("attempt %s", self.assignment.name, exc_info=True)
                failed(error)

        try:
            threading.Thread(target=run, name=f"job {self.assignment.name}", daemon=True).start()
        except RuntimeError as error:  # trainers have started as many processes as this account may have
            failed(error)
