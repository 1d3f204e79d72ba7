"""Run tasks on a Dask cluster that is running already; Dask's scheduler gives the tasks of a lost worker to others."""

import logging
import socket
import warnings
from concurrent.futures import CancelledError
from pathlib import Path
from urllib.parse import urlsplit

from training.data.executors.engine import Engine, EngineError, TaskLost, WorkerLost
from training.printable import first_line

CONNECT_S = 10.0
LOST_OFTEN = (
    "workers of the Dask cluster were lost one after the other with the same tasks, perhaps as memory ran out: "
    "give them more (dask worker --memory-limit), run it again, and it resumes where it was"
)


def open_engine(address: str, jobs: int | None, _folder: Path) -> Engine:
    """Connect to the scheduler at ``address`` and return the engine. Raises EngineError if no scheduler answers, or it
    has no workers."""
    from distributed import Client
    from distributed.scheduler import KilledWorker
    from distributed.versions import VersionMismatchWarning

    gone = f"the Dask scheduler at {address} is gone: start it again and run the same command, which resumes"
    no_workers = (
        f"the Dask scheduler at {address} has no workers: start one (dask worker {address} --nthreads 1), and run again"
    )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # lost connections are a sentence of ours
    try:
        where = urlsplit(address)
        # A client that never got through is noisy to close.
        socket.create_connection((where.hostname or "", where.port or 0), timeout=CONNECT_S).close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VersionMismatchWarning)  # what matters is compared at each worker
            client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise EngineError(
            f"no Dask scheduler answers at {address} ({first_line(error)}): start one, or fix the address"
        ) from None

    def workers(timeout_s: float) -> bool:
        try:
            client.wait_for_workers(1, timeout=timeout_s)
        except TimeoutError:
            return False
        return True

    def trouble() -> str | None:
        try:
            return None if client.nthreads() or workers(60.0) else no_workers
        except (OSError, TimeoutError):
            return gone

    def verdict(error: BaseException) -> Exception:
        if isinstance(error, KilledWorker):
            return WorkerLost(LOST_OFTEN)
        if isinstance(error, CancelledError | OSError):
            return EngineError(gone)
        if isinstance(error, ValueError):  # a worker was lost as its result arrived: Dask reads the result as an error
            return TaskLost(first_line(error))
        return EngineError(f"Dask could not do a task ({type(error).__name__}: {first_line(error)})")

    if not workers(CONNECT_S):
        client.close()
        raise EngineError(no_workers)
    threads = sum(client.nthreads().values())
    width = min(threads, jobs or threads)
    return Engine(client.get_executor(pure=False), width, verdict, LOST_OFTEN, client.close, trouble)
