"""The receiver: a Starlette application whose writes to the database all run on one thread, and the program that serves
it.

To run on a small board, it imports no torch, xgboost or NumPy. Without TLS, its own or a proxy's, it listens on this
machine's loopback only.
"""

import argparse
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from training import logs
from training.clock import SystemClock
from training.command_line import parser_of
from training.files import check_plain, keep_others_out
from training.fleet.capability.describe import ProcessDescriber
from training.fleet.database.sqlite import SqliteDatabase, named_in
from training.fleet.database.writer import Database, DatabaseError, DatabaseLost, Writer
from training.fleet.queue.jobs import JobQueue
from training.fleet.receiver.http.context import ReceiverContext, ReceiverSettings
from training.fleet.receiver.http.endpoints import routes
from training.fleet.receiver.http.html import on_http_error
from training.fleet.receiver.http.listening import StartError, address, listener, public_url, secure
from training.fleet.receiver.http.server import CONNECTIONS_MAX, Server, configuration
from training.fleet.scheduling.policy import Policy
from training.fleet.scheduling.policy_options import page, policy_of, setting
from training.fleet.service.audit import AuditLog
from training.fleet.service.catalogue import index_rows
from training.fleet.service.plan import Reloader, kept_beside
from training.fleet.service.preview import Previews
from training.fleet.service.service import Service
from training.fleet.service.state import DEFAULT, Deployment
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.errors import StoreError
from training.fleet.store.locking import lock_of, store_lock
from training.fleet.store.states import StateStore
from training.fleet.store.store_id import MARK, another_database
from training.fleet.wire.constants import TOKEN_VARIABLE, Refusal
from training.installed import own_version
from training.locking import LockedError, exclusive
from training.printable import counted
from training.streams import complain, replace_unprintable

logger = logging.getLogger(__name__)


def create_app(context: ReceiverContext) -> Starlette:
    """Make the Starlette application that answers requests. The application starts no timers: :class:`Server` runs the
    periodic work. The caller closes the context."""
    app = Starlette(routes=routes(), exception_handlers={HTTPException: on_http_error})
    app.router.redirect_slashes = False
    app.state.context = context
    return app


# -- the program ------------------------------------------------------------------------------------------------


def serve(args: argparse.Namespace) -> int:
    """Open socket, store and database, serve until stopped, and close them; return 0, or 1 if the database was lost.
    Raises StartError, DatabaseError and StoreError."""
    clock = SystemClock()
    security = secure(args, clock)
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(listener(args))
        store = _open_store(args.models_dir, stack)
        _check_mark(args.db, store)  # a refused start leaves no database behind, and migrates none
        queue, reader = _open_database(args.db, policy_of(args.policy), stack)
        _own(store, queue, args.db, new_store=args.new_store)
        lost: list[DatabaseLost] = []
        servers: list[Server] = []

        def on_lost(error: DatabaseLost) -> None:
            if not lost:
                logger.critical("%s", _state(args).typed(str(error)))
            lost.append(error)
            for each in servers:
                each.stop()

        service = Service(queue, store)
        writer = Writer(queue.db, on_lost)
        stack.callback(writer.close)
        audit = AuditLog(queue.db, clock)
        dataset_store = DatasetStore(args.datasets_dir or args.models_dir.with_name("datasets"))
        describer = ProcessDescriber()
        kept = kept_beside(args.db)
        reloader = Reloader(args.manifest, service, writer, describer, audit, dataset_store, kept, reader)
        _load(reloader)
        settings = ReceiverSettings(
            operator_token=os.environ.get(TOKEN_VARIABLE) or None,
            host=args.host,
            version=own_version(),
            secure=security is not None,
            proxied=args.proxy_socket is not None,
            names=security.names if security else tuple(args.public_name),
            public_url=public_url(args, listening, security),
        )
        states = StateStore(args.models_dir.with_name("states"))
        authority, previews = security.authority if security else None, Previews(reloader, reader)
        context = ReceiverContext(
            service, writer, store, dataset_store, states, reader, clock, settings, authority, reloader, previews
        )
        stack.callback(context.close)
        _repair_index(store, reader)
        servers.append(Server(configuration(create_app(context)), context, security, describer.stop))
        gc.collect()
        gc.freeze()  # what is here now stays: no later collection need look at it
        logger.info("listening on %s", address(listening, security))
        servers[0].run([listening])
    return 1 if lost else 0


@contextlib.contextmanager
def _explained(what: str, option: str) -> Iterator[None]:
    """Turn a LockedError, OSError or StoreError of the body into StartError, which says that ``what`` cannot be used.
    Unless another process uses it, the text also names the command-line option for another place."""
    try:
        yield
    except LockedError as error:
        raise StartError(
            f"{what} is in use ({error.holder}): stop that receiver, or wait until that restore or rebuild has ended"
        ) from None
    except OSError as error:
        raise StartError(f"cannot use {what}: {error.strerror}; choose another place with {option}") from error
    except StoreError as error:
        raise StartError(f"{error}; choose another place with {option}") from error


def _open_database(path: Path, policy: Policy, stack: contextlib.ExitStack) -> tuple[JobQueue, SqliteDatabase]:
    """Open the database: return the writer's queue and the reader's own connection. A lock keeps other receivers,
    restores and rebuilds from the database; read-only programs may open the file."""
    with _explained(f"the database {path}", "--db"):
        path.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(exclusive(lock_of(path)))
        queue = JobQueue(path, policy=policy)
        stack.callback(queue.close)
        reader = SqliteDatabase(path, read_only=True)
        stack.callback(reader.close)
    return queue, reader


def _open_store(root: Path, stack: contextlib.ExitStack) -> ArtifactStore:
    with _explained(f"the store {root}", "--models-dir"):
        store = ArtifactStore(root)
        stack.enter_context(exclusive(store_lock(root)))
    return store


def _is_new(db: Path) -> bool:
    """Return True if the database file does not exist yet, or is empty."""
    with contextlib.suppress(OSError):
        return not db.stat().st_size
    return True


def _check_mark(db: Path, store: ArtifactStore) -> None:
    """Raise StartError for a database and a store that do not belong together, or a copy of a database that was
    replaced under a receiver, before the database is opened and the store marked."""
    with _explained(f"the database {db}", "--db"):
        check_plain(db)
    if not _is_new(Path(f"{db}.kept")):  # the file there now may be older
        raise StartError(
            f"{db}.kept has all work until {db} was removed or replaced: put it in its place, or move it away"
        )
    new = _is_new(db)
    if new and next(store.artifacts(), None) is not None:  # it would train everything again and empty the index
        raise StartError(
            f"there is no database at {db}, but models in {store.root}: `cis490-jobs restore FOLDER` brings a backup "
            "back, `cis490-jobs rebuild` makes a new one from them; to begin with none, move that folder away"
        )
    own, marked = None if new else named_in(db), store.marked()
    if marked is None or (own is None and not new) or marked == own:
        return
    raise _anothers(store, marked, own, db)


def _anothers(store: ArtifactStore, marked: str, own: str | None, db: Path) -> StartError:
    words = f"the store {store.root} belongs to the database {marked[:12]}…, and there is none at {db} yet"
    if own is not None:
        words = f"{another_database(store.root, marked, own)} ({db})"
    return StartError(
        f"{words}: name the one's --db or the other's --models-dir; `cis490-jobs rebuild --force` makes a database "
        f"from the store, and if the two do belong together, remove {store.root / MARK}"
    )


def _own(store: ArtifactStore, queue: JobQueue, db: Path, *, new_store: bool = False) -> None:
    """Mark the store as this database's. Raises StartError for another database's store, whose index and finished work
    would be lost.

    Raises StartError, unless ``new_store``, if the store is empty but the database lists models: the store's disk may
    not be mounted.
    """
    own, marked = queue.database_id, store.marked()
    if marked is None:
        elsewhere = sum(1 for row in index_rows(queue.db) if row.removed_at is None)
        if elsewhere and not new_store and next(store.artifacts(), None) is None:
            raise StartError(
                f"the database {db} knows {counted(elsewhere, 'models')}, and {store.root} holds none: mount that "
                "disk, or name the place with --models-dir; `cis490-jobs restore FOLDER --force` brings them back "
                "from a backup, and if they are lost, --new-store begins with an empty store"
            )
        store.mark(own)
    elif marked != own:  # the file could not be read before it was opened
        raise _anothers(store, marked, own, db)


def _load(reloader: Reloader) -> None:
    try:
        reloader("the receiver at its start", starting=True)
    except Refusal as refusal:
        raise StartError(refusal.detail, 2) from refusal


def _repair_index(store: ArtifactStore, reader: Database) -> None:
    try:
        repair = store.index.repair(index_rows(reader))
    except StoreError as error:
        logger.warning("the index stays as it is for now: %s", error)
    else:
        if repair.rebuilt or repair.cut_bytes:
            logger.warning("the index was repaired: %d rows", repair.rows)


def _raise_file_limit() -> None:
    """Raise the limit of open files: each connection is one, and the usual soft limit of 1,024 is too low."""
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


def _state(args: argparse.Namespace) -> Deployment:
    """Return the deployment that the options name; its :meth:`typed` adds these options to the commands that messages
    recommend."""
    return Deployment.of(DEFAULT, args.db, args.models_dir, args.manifest)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "cis490-trainer-receiver",
        description="Hand out the manifest's jobs to workers, and store their models.",
        epilog=f"{page()}\n\nOperators need a certificate or the token in ${TOKEN_VARIABLE}.\n"
        "SIGHUP reads the manifest again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=_port, default=8445, help="port; 0 takes a free one (%(default)s)")
    for flag, default, words in (
        ("--manifest", "/etc/cis490/training_manifest.toml", "the operator's plan"),
        ("--db", "/var/lib/cis490/training_jobs.db", "the job queue"),
        ("--models-dir", "/var/lib/cis490/models", "the artifact store"),
    ):
        parser.add_argument(flag, type=Path, default=Path(default), help=f"{words} (%(default)s)")
    parser.add_argument(
        "--datasets-dir", type=Path, metavar="DIR", help="pushed data sets (datasets next to the artifact store)"
    )
    parser.add_argument(
        "--new-store",
        action="store_true",
        help="once, when the models are lost: start with an empty store although the database lists models",
    )
    parser.add_argument(
        "--tls", action="store_true", help="encrypt, and serve only clients with a certificate or a token"
    )
    parser.add_argument(
        "--tls-dir",
        type=Path,
        help="folder of the certificates, made by the first --tls and used from then on (tls next to the database)",
    )
    parser.add_argument(
        "--public-name",
        action="append",
        default=[],
        metavar="NAME",
        help="name or address by which workers reach this receiver; may be repeated, new hosts get the first",
    )
    parser.add_argument(
        "--proxy-socket",
        type=Path,
        metavar="FILE",
        help="listen on this Unix socket only, for a proxy that ends TLS (see etc/Caddyfile)",
    )
    parser.add_argument(
        "--policy",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a scheduling setting, with a key of those below; may be repeated",
    )
    levels = ["DEBUG", "INFO", "WARNING", "ERROR"]
    parser.add_argument("--log-level", choices=levels, default="INFO", help="(%(default)s)")
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; choose one from 0 to 65535")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the receiver. Exit codes: 0 stopped on request, 1 cannot run or the database was lost, 2 wrong options, plan
    or certificates."""
    replace_unprintable()
    args = _parser().parse_args(argv)
    logs.configure(args.log_level)
    keep_others_out()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _raise_file_limit()
    try:
        return serve(args)
    except (StartError, DatabaseError, StoreError) as error:
        complain(f"cis490-trainer-receiver: {_state(args).typed(str(error))}")
        return error.code if isinstance(error, StartError) else 1


if __name__ == "__main__":
    sys.exit(main())
