"""A Dask cluster that somebody started. Its scheduler itself gives the tasks of a lost worker to others."""

from __future__ import annotations

import logging
import socket
import warnings
from concurrent.futures import CancelledError, Executor
from urllib.parse import urlsplit

from training.executors.engine import EngineError, WorkerLost

CONNECT_S = 10.0
ALONE = 12  # asks without a worker, a minute in all, before it is hopeless


class Dask:
    """A client of a scheduler, and the executor that it gives."""

    lost_often = (
        "workers of the Dask cluster were lost one after the other with the same tasks, perhaps as memory ran out: "
        "give them more (dask worker --memory-limit), run it again, and it goes on where it was"
    )

    def __init__(self, address: str, jobs: int | None) -> None:
        """Connect. Raises EngineError where nothing answers, or there are no workers."""
        from distributed import Client
        from distributed.versions import VersionMismatchWarning

        # What it tells its log of lost connections is told in a sentence here.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        self._address = address
        try:
            where = urlsplit(address)
            # A client that never got through is noisy to let go of.
            socket.create_connection((where.hostname or "", where.port or 0), timeout=CONNECT_S).close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VersionMismatchWarning)  # what matters is compared at each worker
                self._client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineError(
                f"no Dask scheduler answers at {address} ({_line(error)}): start one (dask scheduler), or name its "
                "address"
            ) from None
        try:
            self._client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError:
            self._client.close()
            raise EngineError(self._no_workers()) from None
        threads = sum(self._client.nthreads().values())
        self.width = min(threads, jobs or threads)
        self.executor: Executor = self._client.get_executor(pure=False)
        self._asked_alone = 0

    def chunk(self, tasks: int) -> int:  # noqa: ARG002 - a way to a worker costs a millisecond
        return 1

    def verdict(self, error: BaseException) -> Exception | None:
        from distributed.scheduler import KilledWorker

        if isinstance(error, KilledWorker):
            return WorkerLost(self.lost_often)
        if isinstance(error, CancelledError | OSError):
            return EngineError(self._gone())
        return EngineError(f"Dask could not do a task ({type(error).__name__}: {_line(error)})")

    def renew(self) -> None:
        """Do nothing: no lost worker reaches this."""

    def trouble(self) -> str | None:
        try:
            alone = not self._client.nthreads()
        except (OSError, TimeoutError):
            return self._gone()
        self._asked_alone = self._asked_alone + 1 if alone else 0
        return self._no_workers() if self._asked_alone >= ALONE else None

    def close(self) -> None:
        self._client.close()

    def _gone(self) -> str:
        return (
            f"the Dask scheduler at {self._address} went away: start it again, run the same command, and it goes on "
            "where it was"
        )

    def _no_workers(self) -> str:
        return (
            f"the Dask scheduler at {self._address} has no workers: start some (dask worker {self._address} "
            "--nthreads 1)"
        )


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
