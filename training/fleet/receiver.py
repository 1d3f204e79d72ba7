"""The coordinator: a Starlette application over one writer, and the program that serves it.

Light enough for a small board: imports no torch, xgboost, NumPy or command-line library. While there is no
authentication it listens on this machine's loopback only.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from training.clock import Clock, SystemClock
from training.fleet.catalogue import index_rows
from training.fleet.database import Database, DatabaseError, DatabaseLost, Writer
from training.fleet.database_sqlite import SqliteDatabase
from training.fleet.endpoints import routes
from training.fleet.hub import Hub, Settings
from training.fleet.locking import LockedError, exclusive
from training.fleet.manifest import default_describer
from training.fleet.plan import Reloader
from training.fleet.problems import on_http_error
from training.fleet.protocol import Refusal, ReloadReply
from training.fleet.queue import JobQueue
from training.fleet.service import Service
from training.fleet.serving import CONNECTIONS_MAX, Server, configuration
from training.fleet.store import ArtifactStore
from training.fleet.store_errors import StoreError

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "CIS490_OPERATOR_TOKEN"  # noqa: S105 - the variable's name


class StartError(Exception):
    """The receiver cannot start. The text is one sentence; ``code`` is the program's exit code."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        super().__init__(sentence)
        self.code = code


def create_app(
    service: Service,
    writer: Writer,
    store: ArtifactStore,
    settings: Settings | None = None,
    *,
    reader: Database,
    clock: Clock | None = None,
    reload: Callable[[], ReloadReply] | None = None,
) -> Starlette:
    """The application over ready objects; starts no timer and no thread of its own but those for file work.

    ``reader`` is a second connection to the database. ``reload`` checks the manifest (off the event loop) and
    applies it through ``writer``. The application's ``state.hub`` is what its server looks after.
    """
    app = Starlette(
        routes=routes(),
        exception_handlers={HTTPException: on_http_error},
    )
    app.router.redirect_slashes = False
    hub = Hub(
        service, writer, store, reader, clock or SystemClock(), settings or Settings(), reload
    )
    app.state.hub = hub
    return app


# -- the program ------------------------------------------------------------------------------------------------


def serve(args: argparse.Namespace) -> int:
    """Open everything, serve until told to stop, close everything; returns the exit code or raises StartError."""
    _check_loopback(args.host)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(args.host, args.port))
        queue, reader = _open_database(args.db, stack)
        store = _open_store(args.models_dir)
        lost: list[DatabaseLost] = []
        servers: list[Server] = []

        def on_lost(error: DatabaseLost) -> None:
            logger.critical("%s", error)
            lost.append(error)
            for each in servers:
                each.stop()

        service = Service(queue, store)
        writer = Writer(queue.db, on_lost)
        stack.callback(writer.close)
        reloader = Reloader(args.manifest, service, writer, default_describer())
        _load(reloader)
        settings = Settings(
            operator_token=os.environ.get(TOKEN_VARIABLE) or None,
            host=args.host,
            version=version("cis490-training-fleet"),
        )
        app = create_app(service, writer, store, settings, reader=reader, reload=reloader)
        stack.callback(app.state.hub.close)
        _repair_index(store, reader)
        servers.append(Server(configuration(app), app.state.hub))
        host, port = listener.getsockname()[:2]
        logger.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        servers[0].run([listener])
    return 1 if lost else 0


def _check_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise StartError(f"{host!r} is not an address; try --host 127.0.0.1", 2) from None
    if not loopback:
        raise StartError(
            f"refusing to listen on {host}: there is no authentication yet, so anybody who reaches that address "
            "could take jobs and bring models; use --host 127.0.0.1 and reach it through an SSH tunnel",
            2,
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host} port {port}: {error.strerror}; "
            "is a receiver running already? choose another one with --port"
        ) from error


def _open_database(path: Path, stack: contextlib.ExitStack) -> tuple[JobQueue, Database]:
    """The writer's queue and the reader's own connection. One process owns the file at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(exclusive(path.with_name(f"{path.name}.lock")))
        queue = JobQueue(path)
        stack.callback(queue.close)
        reader = SqliteDatabase(path)
        stack.callback(reader.close)
    except LockedError:
        raise StartError(
            f"another receiver uses the database {path}; stop that one first"
        ) from None
    except OSError as error:
        raise StartError(
            f"cannot use the database {path}: {error.strerror}; choose another place with --db"
        ) from error
    except DatabaseError as error:
        raise StartError(str(error)) from error
    return queue, reader


def _open_store(root: Path) -> ArtifactStore:
    try:
        return ArtifactStore(root)
    except StoreError as error:
        raise StartError(f"{error}; choose another place with --models-dir") from error


def _load(reloader: Reloader) -> None:
    try:
        reloader()
    except Refusal as refusal:
        raise StartError(refusal.detail, 2) from refusal
    except DatabaseError as error:
        raise StartError(str(error)) from error


def _repair_index(store: ArtifactStore, reader: Database) -> None:
    try:
        repair = store.index.repair(index_rows(reader))
    except StoreError as error:
        logger.warning("the index stays as it is for now: %s", error)
    else:
        if repair.rebuilt or repair.cut_bytes:
            logger.warning("the index was mended: %d rows", repair.rows)


def _raise_file_limit() -> None:
    """Each connection is an open file, and the usual soft limit of 1,024 is few."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cis490-trainer-receiver",
        description="Hand the manifest's jobs to workers that ask, and keep the models they bring.",
        epilog=f"Operators' calls need the token in ${TOKEN_VARIABLE}. SIGHUP reads the manifest again.",
        allow_abbrev=False,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=_port, default=8445, help="port; 0 takes a free one (%(default)s)"
    )
    for flag, default, words in (
        ("--manifest", "/etc/cis490/training_manifest.toml", "the operator's plan"),
        ("--db", "/var/lib/cis490/training_jobs.db", "the job queue"),
        ("--models-dir", "/var/lib/cis490/models", "the artifact store"),
    ):
        parser.add_argument(flag, type=Path, default=Path(default), help=f"{words} (%(default)s)")
    levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
    parser.add_argument("--log-level", choices=levels, default="INFO", help="(%(default)s)")
    return parser


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 stopped as asked, 1 cannot run, 2 told something wrong."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=args.log_level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _raise_file_limit()
    try:
        return serve(args)
    except StartError as error:
        print(f"cis490-trainer-receiver: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
