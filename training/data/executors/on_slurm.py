"""Run tasks on a Slurm partition: each chunk of tasks is a Slurm job, with files in a folder that all machines share.

submitit writes and submits the jobs. The jobs' states come from ``squeue``, which works on every cluster; submitit
would use accounting, which small clusters lack. The user gives options that a cluster demands by the environment
variables of ``sbatch``: SBATCH_ACCOUNT, SBATCH_QOS, SBATCH_TIMELIMIT and others.
"""

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from training.data.executors.engine import Engine, EngineError, TaskLost

LOOK_S, QUEUE_LOOKS = 0.5, 10  # between looks for a result; looks between questions to the controller
JOBS = 4  # at once, unless --jobs says another number
LIMIT_MIN = 60  # of a job, unless SBATCH_TIMELIMIT says otherwise
CHUNK_LEAST, CHUNK_MOST = 8, 64  # a job's start takes seconds: tasks come many at a time
DEAF = 12  # unanswered questions, a minute in all, before the controller counts as gone
GONE = 2  # questions after which a job that has ended without a result is lost: files travel
UNDER_WAY = frozenset(
    ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED",
     "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "PREEMPTED")
)  # fmt: skip
# Reasons for which a job waits for ever, with what to do.
_HOPELESS = f"""
    PartitionTimeLimit: the partition allows less than {LIMIT_MIN} minutes: set SBATCH_TIMELIMIT
    PartitionDown: the partition is down: choose another, or ask who runs it
    PartitionInactive: the partition is inactive: choose another, or ask who runs it
    PartitionNodeLimit: the partition's machines are too few: choose another
    BadConstraints: no machine of the partition fits: choose another
    AccountNotAllowed: the account may not use the partition: set SBATCH_ACCOUNT
    InvalidAccount: the account is unknown: set SBATCH_ACCOUNT
    InvalidQOS: the quality of service is unknown: set SBATCH_QOS
    QOSNotAllowed: the quality of service is not allowed: set SBATCH_QOS
"""
HOPELESS = dict(line.strip().split(": ", 1) for line in _HOPELESS.strip().splitlines())
LOST_OFTEN = "Slurm ended several jobs with the same tasks ({}): fix the cause and run it again to resume"


class SlurmJobs(Executor):
    """An executor that runs each function as a Slurm job; a thread submits the job and waits for its result, for
    ``jobs`` jobs at once."""

    def __init__(self, slurm: Any, jobs: int) -> None:
        self._slurm, self._threads, self._closed = slurm, ThreadPoolExecutor(jobs), threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._run, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Cancel all jobs that have not ended."""
        self._closed.set()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def _run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        job, result = self._slurm.submit(fn, *args, **kwargs), None
        looks = unanswered = ended = 0
        try:
            while not job.paths.result_pickle.exists():
                if self._closed.wait(LOOK_S):
                    raise EngineError("the Slurm job was cancelled: run it again, and it resumes where it was")
                looks += 1
                if looks % QUEUE_LOOKS:
                    continue
                state, reason = state_of(job.job_id)
                unanswered = 0 if state else unanswered + 1
                if unanswered >= DEAF:
                    raise EngineError(f"Slurm's controller does not answer ({reason}): run it again later")
                if reason in HOPELESS:
                    raise EngineError(f"job {job.job_id} waits without end in Slurm: {HOPELESS[reason]}")
                ended = 0 if not state or state in UNDER_WAY else ended + 1
                if ended >= GONE:
                    log = job.paths.stderr
                    last = _last_line(log.read_text(errors="replace")) if log.exists() else None
                    raise TaskLost(f"state {state}, {'no log' if last is None else f'log: {last}'}")
            result = job.result()
            return result
        finally:
            if result is None:
                _asked("scancel", str(job.job_id))


def open_engine(partition: str, jobs: int | None, folder: Path) -> Engine:
    """Return an engine that submits to a Slurm partition, with ``jobs`` jobs at once (None: ``JOBS``) and their files
    below ``folder``.

    Raises EngineError if Slurm or the partition does not exist, or Slurm's controller does not answer.
    """
    import submitit

    _require(partition)
    executor = submitit.SlurmExecutor(folder=folder / "slurm", max_num_timeout=0)
    executor.update_parameters(
        partition=partition, job_name="cis490", time=LIMIT_MIN, nodes=1, ntasks_per_node=1, cpus_per_task=1
    )

    def verdict(error: BaseException) -> Exception:
        if isinstance(error, TaskLost | EngineError):
            return error
        if isinstance(error, submitit.core.utils.FailedJobError):  # all that came back is the text of a traceback
            return EngineError(_last_line(str(error)))
        return EngineError(f"Slurm took no job for the partition {partition} ({_last_line(str(error))})")

    tasks = SlurmJobs(executor, jobs or JOBS)
    close, least, most = tasks.shutdown, CHUNK_LEAST, CHUNK_MOST
    return Engine(tasks, jobs or JOBS, verdict, LOST_OFTEN, close, chunk_least=least, chunk_most=most)


def state_of(job_id: str) -> tuple[str, str]:
    """Return a job's state and the reason why it waits, as Slurm's controller answers.

    The state is "forgotten" if the controller does not know the job, and "" (with the error) if it does not answer.
    """
    done = _asked("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%r")
    if "Invalid job id" in done.stderr:
        return "forgotten", ""
    if done.returncode:
        return "", _last_line(done.stderr)
    state, _, reason = done.stdout.strip().partition("|")
    return state or "forgotten", reason


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
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
