"""A partition of a Slurm cluster: each chunk of tasks is a job, whose files lie in a folder that all machines share.

submitit writes and submits the jobs. Their states are asked of ``squeue``, which every cluster answers: accounting, of
which submitit would ask, is absent on small ones. Options of ``sbatch`` that a cluster demands are given by its own
variables: SBATCH_ACCOUNT, SBATCH_QOS, SBATCH_TIMELIMIT and others.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.executors.engine import EngineError

RESULT_S, QUEUE_S = 0.5, 5.0  # between looks for results, and questions to the controller
LIMIT_MIN = 60  # of a job, unless SBATCH_TIMELIMIT says otherwise
CHUNK_LEAST, CHUNK_MOST, CHUNKS_A_JOB = 8, 64, 4  # a job's start takes seconds: tasks come many at a time
DEAF = 12  # unanswered questions, a minute in all, before the controller counts as gone
UNDER_WAY = frozenset(
    ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED",
     "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "PREEMPTED")
)  # fmt: skip
HOPELESS = {  # reasons for which a job waits for ever, with what to do
    "PartitionTimeLimit": f"the partition allows less than {LIMIT_MIN} minutes: set SBATCH_TIMELIMIT",
    "PartitionDown": "the partition is down: choose another, or ask who runs it",
    "PartitionInactive": "the partition is inactive: choose another, or ask who runs it",
    "PartitionNodeLimit": "the partition's machines are too few: choose another",
    "BadConstraints": "no machine of the partition is such: choose another",
    "AccountNotAllowed": "the account may not use the partition: set SBATCH_ACCOUNT",
    "InvalidAccount": "the account is unknown: set SBATCH_ACCOUNT",
    "InvalidQOS": "the quality of service is unknown: set SBATCH_QOS",
    "QOSNotAllowed": "the quality of service is not allowed: set SBATCH_QOS",
}


class JobLost(Exception):  # noqa: N818 - reads as what it is
    """A job ended without a result; the text is its state, and the last line of its log."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as the controller sees it."""

    state: str
    reason: str

    @property
    def under_way(self) -> bool:
        return self.state in UNDER_WAY


def jobs_of(lines: Iterable[str]) -> dict[str, Seen]:
    """Jobs by id, as ``squeue --format=%i|%T|%r`` prints them."""
    parts = [line.strip().split("|", 2) for line in lines]
    return {part[0]: Seen(part[1], part[2]) for part in parts if len(part) == 3}


@dataclass(slots=True)
class _Job:
    slurm: Any  # submitit's
    future: Future[bytes] = field(default_factory=Future)
    ended: bool = False  # at the question before


class Slurm:
    """Jobs of one partition, ``jobs`` of them at once; their files lie below ``folder``."""

    def __init__(self, partition: str, jobs: int, folder: Path) -> None:
        """Look for the partition. Raises EngineError."""
        import submitit

        _require(partition)
        self.width = jobs
        self._partition, self._last_words = partition, ""
        slurm = submitit.SlurmExecutor(folder=folder / "slurm", max_num_timeout=0)
        slurm.update_parameters(
            partition=partition, job_name="cis490", time=LIMIT_MIN, nodes=1, ntasks_per_node=1, cpus_per_task=1
        )
        self.executor: Executor = _Jobs(slurm)

    @property
    def lost_often(self) -> str:
        return (
            f"Slurm ended jobs one after the other with the same tasks ({self._last_words}): mend that, run it again, "
            "and it goes on where it was"
        )

    def chunk(self, tasks: int) -> int:
        return max(CHUNK_LEAST, min(CHUNK_MOST, -(-tasks // (self.width * CHUNKS_A_JOB))))

    def verdict(self, error: BaseException) -> Exception | None:
        if isinstance(error, JobLost):
            self._last_words = str(error)
            return None
        return EngineError(f"Slurm took no job for the partition {self._partition} ({_last_line(str(error))})")

    def renew(self) -> None:
        """Do nothing: other jobs go on."""

    def trouble(self) -> str | None:
        assert isinstance(self.executor, _Jobs)
        return self.executor.trouble

    def close(self) -> None:
        self.executor.shutdown()


class _Jobs(Executor):
    """submitit's jobs as an executor, with a thread that looks for their results."""

    def __init__(self, slurm: Any) -> None:
        self._slurm = slurm
        self._jobs: list[_Job] = []
        self._lock, self._closed = threading.Lock(), threading.Event()
        self.trouble: str | None = None
        self._unanswered = 0
        self._watch = threading.Thread(target=self._follow, name="slurm", daemon=True)
        self._watch.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        job = _Job(self._slurm.submit(fn, *args, **kwargs))
        job.future.set_running_or_notify_cancel()
        with self._lock:
            self._jobs.append(job)
        return job.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - all are ended
        """End the watch, and all jobs that are left."""
        self._closed.set()
        self._watch.join()
        left = [job.slurm.job_id for job in self._jobs]
        if left:
            _asked("scancel", *left)

    def _follow(self) -> None:
        looks = 0
        while not self._closed.wait(RESULT_S):
            with self._lock:
                jobs = list(self._jobs)
            self._take([job for job in jobs if job.slurm.paths.result_pickle.exists()])
            looks += 1
            if looks * RESULT_S >= QUEUE_S:
                looks = 0
                self._ask([job for job in jobs if not job.future.done()])

    def _take(self, jobs: list[_Job]) -> None:
        for job in jobs:
            outcome, found = self._result(job)
            if outcome == "success":
                job.future.set_result(found)
            else:
                job.future.set_exception(_of_trace(str(found)))
            self._forget(job)

    @staticmethod
    def _result(job: _Job) -> tuple[str, Any]:
        from submitit.core.utils import pickle_load

        outcome, found = pickle_load(job.slurm.paths.result_pickle)
        return str(outcome), found

    def _ask(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        ids = ",".join(job.slurm.job_id for job in jobs)
        done = _asked("squeue", "--noheader", "--states=all", f"--jobs={ids}", "--format=%i|%T|%r")
        if done.returncode and "Invalid job id" not in done.stderr:  # a single job that was forgotten
            self._unanswered += 1
            if self._unanswered >= DEAF:
                self.trouble = f"Slurm's controller does not answer ({_last_line(done.stderr)}): run it again later"
            return
        self._unanswered = 0
        seen = jobs_of(done.stdout.splitlines())
        for job in jobs:
            now = seen.get(job.slurm.job_id, Seen("forgotten", ""))
            if now.under_way:
                job.ended = False
                if now.state == "PENDING" and now.reason in HOPELESS:
                    self.trouble = f"job {job.slurm.job_id} waits for ever in Slurm: {HOPELESS[now.reason]}"
            elif not job.ended:
                job.ended = True  # its result may come with a delay: files travel
            elif not job.slurm.paths.result_pickle.exists():
                job.future.set_exception(JobLost(_words(job, now.state)))
                self._forget(job)

    def _forget(self, job: _Job) -> None:
        with self._lock:
            self._jobs.remove(job)


def _words(job: _Job, state: str) -> str:
    try:
        log = _last_line(job.slurm.paths.stderr.read_text(errors="replace"))
    except OSError:
        log = ""
    return f"state {state}, log: {log}" if log else f"state {state}, no log"


def _of_trace(trace: str) -> Exception:
    """The error of a job by the text of its traceback, which is all that came back."""
    last = _last_line(trace)
    if "No module named 'training" in last:
        return ModuleNotFoundError(last, name="training")
    return EngineError(last)


def _require(partition: str) -> None:
    try:
        done = _asked("sinfo", "--noheader", f"--partition={partition}", "--format=%R")
    except OSError:
        raise EngineError(
            "Slurm's commands (sinfo, sbatch, squeue) are not here: run this on a machine from which jobs are submitted"
        ) from None
    if done.returncode:
        raise EngineError(f"Slurm's controller does not answer ({_last_line(done.stderr)}): run it again later")
    if partition not in done.stdout.split():
        known = _asked("sinfo", "--noheader", "--format=%R")
        there = ", ".join(dict.fromkeys(known.stdout.split())) or "none"
        raise EngineError(f"Slurm has no partition {partition}: there are {there}")


def _asked(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word")
