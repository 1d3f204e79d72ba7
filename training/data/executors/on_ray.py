"""Run tasks on a Ray cluster that is running already; Ray itself repeats the tasks of a lost worker."""

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import Any

from training.data.executors.engine import Engine, EngineError, WorkerLost
from training.printable import first_line

AGAIN = 3  # times that Ray sends a task after its worker was lost
LOST_OFTEN = (
    "workers of the Ray cluster were lost one after the other with the same tasks, perhaps as memory ran out: "
    "run it again with fewer --jobs, and it resumes where it was"
)


class RayTasks(Executor):
    """An executor that runs each function as a Ray task."""

    def __init__(self, ray: Any) -> None:
        self._call = ray.remote(max_retries=AGAIN, num_cpus=1)(lambda fn, *args, **kwargs: fn(*args, **kwargs))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._call.remote(fn, *args, **kwargs).future()
        return future


def open_engine(address: str, jobs: int | None, _folder: Path) -> Engine:
    """Connect to the Ray cluster at ``address`` (``auto``: the cluster of this machine), and return the engine.

    Raises EngineError if there is no cluster, or it has no CPU.
    """
    import ray

    errors = ray.exceptions

    gone = f"the Ray cluster at {address} is gone: start it again and run the same command, which resumes"
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise EngineError(
            f"no Ray cluster can be used at {address} ({first_line(error)}): start one here (ray start --head) or join "
            "one (ray start --address HOST:PORT), with the same Ray and Python"
        ) from None

    def trouble() -> str | None:
        try:
            return None if any(node["Alive"] for node in ray.nodes()) else gone
        except Exception:  # noqa: BLE001 - a cluster that is gone shows in many ways
            return gone

    def verdict(error: BaseException) -> Exception:
        if isinstance(error, errors.WorkerCrashedError | errors.NodeDiedError | errors.OutOfMemoryError):
            return WorkerLost(LOST_OFTEN)
        if isinstance(error, CancelledError | errors.RaySystemError):
            return EngineError(gone)
        cause = getattr(error, "cause", None) or error  # of what a task raised
        return EngineError(f"Ray could not do a task ({type(cause).__name__}: {first_line(cause)})")

    cores = int(ray.cluster_resources().get("CPU", 0))
    if not cores:
        ray.shutdown()
        raise EngineError(f"the Ray cluster at {address} has no CPU to give: join a machine (ray start --address)")
    return Engine(RayTasks(ray), min(cores, jobs or cores), verdict, LOST_OFTEN, ray.shutdown, trouble)
