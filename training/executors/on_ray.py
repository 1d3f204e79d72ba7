"""A Ray cluster that somebody started. Ray itself does the tasks of a lost worker again."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

from training.executors import sent
from training.executors.engine import EngineError, WorkerLost

AGAIN = 3  # times that Ray sends a task after its worker was lost


class Ray:
    """The cluster at an address, ``auto`` for the one of this machine."""

    lost_often = (
        "workers of the Ray cluster were lost one after the other with the same tasks, perhaps as memory ran out: "
        "run it again with fewer --jobs, and it goes on where it was"
    )

    def __init__(self, address: str, jobs: int | None) -> None:
        """Connect. Raises EngineError where no cluster is there."""
        import ray

        self._ray, self._address = ray, address
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise EngineError(
                f"no Ray cluster can be used at {address} ({_line(error)}): start one here (ray start --head) or join "
                "one (ray start --address HOST:PORT), with the same Ray and Python"
            ) from None
        cores = int(ray.cluster_resources().get("CPU", 0))
        self.width = min(cores, jobs or cores)
        if not self.width:
            self.close()
            raise EngineError(f"the Ray cluster at {address} has no CPU to give: join a machine (ray start --address)")
        self.executor: Executor = _Tasks(ray)

    def chunk(self, tasks: int) -> int:  # noqa: ARG002 - a way to a worker costs a millisecond
        return 1

    def verdict(self, error: BaseException) -> Exception | None:
        errors = self._ray.exceptions
        if isinstance(error, errors.WorkerCrashedError | errors.NodeDiedError | errors.OutOfMemoryError):
            return WorkerLost(self.lost_often)
        if isinstance(error, CancelledError | errors.RaySystemError):
            return EngineError(self._gone())
        cause = getattr(error, "cause", None) or error  # of what a task raised
        return sent.absent(cause) or EngineError(f"Ray could not do a task ({type(cause).__name__}: {_line(cause)})")

    def renew(self) -> None:
        """Do nothing: no lost worker reaches this."""

    def trouble(self) -> str | None:
        try:
            nodes = self._ray.nodes()
        except Exception:  # noqa: BLE001 - a cluster that is gone shows in many ways
            return self._gone()
        return None if any(node["Alive"] for node in nodes) else self._gone()

    def close(self) -> None:
        self._ray.shutdown()

    def _gone(self) -> str:
        return (
            f"the Ray cluster at {self._address} went away: start it again, run the same command, and it goes on where "
            "it was"
        )


class _Tasks(Executor):
    """Ray's tasks as an executor, for calls with one argument."""

    def __init__(self, ray: Any) -> None:
        self._remote = ray.remote(max_retries=AGAIN, num_cpus=1)(lambda packed: pickle.loads(packed))  # noqa: S301

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert fn is pickle.loads, "which a worker has, whatever else it lacks"
        (packed,) = args
        assert not kwargs
        future: Future[Any] = self._remote.remote(packed).future()
        return future


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
