"""The queue's view of a database: named statements, transactions, and one writer that groups commits.

The queue knows *transactions and named statements*, never an SQL dialect; ``database.sqlite`` is the adapter. The
writer owns the connection: calls that arrive together share a transaction, each in its own savepoint. Each call is
answered after the commit, so that "acknowledged" means "durable"; calls in one transaction share its fsync.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from training.certain import certain
from training.crashpoint import crashpoint

Row = Mapping[str, Any]
T = TypeVar("T")

# The receiver's; notifications'; retention's; doctor's and rebuild's; figures.
_STATEMENTS = ("queries.sql", "notify.sql", "incidents.sql", "retention.sql", "recovery.sql", "metrics.sql")


class DatabaseError(Exception):
    """The database could not carry out an operation."""


class OtherShape(DatabaseError):  # noqa: N818
    """The database has other tables than this program needs, or another schema version."""


class DatabaseFull(DatabaseError):  # noqa: N818
    """No space is left on the disk of the database. Nothing acknowledged was lost; free some space."""


class DatabaseLost(DatabaseError):  # noqa: N818
    """The database cannot be trusted any longer (failed sync, damaged file): stop, restart, recover."""


class WriterClosed(DatabaseError):  # noqa: N818
    """The writer accepts no more calls, because the receiver is shutting down; repeat the call in a moment."""


class _UndoneError(Exception):
    """The only call in a transaction failed, so the transaction is undone."""


class Database(Protocol):
    """The operations of a database adapter. Every method reads all rows of its statement before it returns."""

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context manager for a transaction, which is durable when the outermost one ends. An inner
        transaction can be undone alone."""
        ...

    def all(self, statement: str, **params: Any) -> list[Row]: ...

    def one(self, statement: str, **params: Any) -> Row | None: ...

    def number(self, statement: str, **params: Any) -> int:
        """Return the number in the first column of the first row that a statement finds; 0 if it finds no row."""
        ...

    def run(self, statement: str, **params: Any) -> int:
        """Execute a statement and return the number of changed rows."""
        ...

    def many(self, statement: str, params: Sequence[Mapping[str, Any]]) -> None:
        """Execute a statement once with each of these sets of parameters."""
        ...

    def add(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add rows to a table that numbers its rows. ``columns`` names the rows' values, sorted alphabetically; other
        columns get their defaults."""
        ...

    def version(self) -> int:
        """Return a number that changes when another connection commits a change."""
        ...

    def close(self) -> None: ...


def id_of(database: Database) -> str:
    """Return the id of this database; raise DatabaseError if it has none."""
    row = database.one("database_id")
    if row is None:
        raise DatabaseError(
            "the database has no id; bring it back with `cis490-jobs restore FOLDER --force` or "
            "`cis490-jobs rebuild --force`"
        )
    return str(row["database_id"])


@cache
def statements() -> Mapping[str, str]:
    """Load the named statements from the files ``_STATEMENTS`` in the folder ``sql``: the SQL text of each, by its
    name."""
    folder = Path(__file__).with_name("sql")
    texts = [(folder / name).read_text(encoding="utf-8") for name in _STATEMENTS]
    found: dict[str, str] = {}
    for name, sql in (each for text in texts for each in named(text)):
        certain(found.setdefault(name, sql) is sql, f"two statements are named {name!r}")
    return found


def named(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the SQL of each statement in the text of an SQL file."""
    for block in text.split("-- name: ")[1:]:
        heading, _, body = block.partition("\n")
        name, _, why = heading.partition(" — ")
        certain(why != "", f"statement {name!r} lacks its line of why")
        yield name.strip(), body.strip()


class Writer:
    """The thread that owns the database. :meth:`submit` takes a call and returns a future, which gets the call's result
    once the commit is durable, or the error."""

    GROUP_MAX = 64  # calls in one transaction: the first waits for the work of the others

    def __init__(self, database: Database, on_lost: Callable[[DatabaseLost], None] | None = None) -> None:
        self._database = database
        self._on_lost = on_lost
        self.timed: Callable[[], AbstractContextManager[None]] = nullcontext  # around each transaction
        self._inbox: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._closed = False
        self._door = threading.Lock()  # no call may follow the mark that ends the thread
        self._thread = threading.Thread(target=self._loop, name="database-writer", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run ``call`` on the writer's thread, in a transaction that other calls may share; return the future of its
        result. If the call fails, its own changes are undone, and the future gets the error; DatabaseFull and
        DatabaseLost undo the whole transaction. After :meth:`close` the future gets WriterClosed."""
        future: Future[T] = Future()
        with self._door:
            if not self._closed:
                self._inbox.put((call, future))
                return future
        future.set_exception(WriterClosed("the receiver is shutting down; repeat in a moment"))
        return future

    def close(self) -> None:
        """Finish the submitted calls, then end the thread; the future of a later call gets WriterClosed."""
        with self._door:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (first := self._inbox.get()) is not None:
            group = [first]
            while len(group) < self.GROUP_MAX and not self._inbox.empty():  # only this thread takes calls out
                item = self._inbox.get()
                if item is None:
                    self._inbox.put(None)  # the last: for the loop
                    break
                group.append(item)
            self._commit(group)

    def _commit(self, group: Sequence[tuple[Callable[[], Any], Future[Any]]]) -> None:
        outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            with self.timed(), self._database.transaction():
                for call, future in group:
                    if not future.set_running_or_notify_cancel():
                        continue
                    outcomes.append(self._one(call, future, alone=len(group) == 1))
                if len(group) == 1 and outcomes and outcomes[0][2] is not None:
                    raise _UndoneError
                crashpoint("writer.before_commit")
            crashpoint("writer.committed")
        except _UndoneError:
            pass  # the caller gets the error below
        except DatabaseError as lost:
            # Nothing of the group is durable, so no caller may get a success.
            for _, future in group:
                if not future.done():
                    future.set_exception(lost)
            if isinstance(lost, DatabaseLost) and self._on_lost is not None:
                self._on_lost(lost)
            return
        for future, result, error in outcomes:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _one(
        self, call: Callable[[], Any], future: Future[Any], *, alone: bool
    ) -> tuple[Future[Any], Any, BaseException | None]:
        """Run one call of a group, in a savepoint unless it is ``alone``; return its future, result and error.
        DatabaseFull and DatabaseLost are raised, because they undo the whole transaction."""
        try:
            with nullcontext() if alone else self._database.transaction():
                return future, call(), None
        except (DatabaseFull, DatabaseLost):
            raise  # the whole transaction is lost with it
        except Exception as error:  # noqa: BLE001 - the caller gets it; the others' work stands
            return future, None, error
