"""The checks for every database adapter under the queue. A test module yields each check against each adapter.

A check gets a database and ``connect``: each call opens it once more, as another program would.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from training.fleet.database.writer import Database, DatabaseError, Writer

Connect = Callable[[], Database]


class BoomError(Exception):
    """The error raised on purpose in these checks."""


def note(db: Database, host: str, seen: float = 0.0) -> None:
    who = {"instance_id": None, "session_id": None, "trainer_digests": None}
    db.run("note_host", host=host, capability="{}", now=seen, set_aside=None, **who)


@contextlib.contextmanager
def undone(db: Database) -> Iterator[None]:
    """A transaction in which something goes wrong at the end."""
    with contextlib.suppress(BoomError), db.transaction():
        yield
        raise BoomError


def hosts(db: Database) -> list[str]:
    return [row["host"] for row in db.all("hosts", counted=0)]


# ── transactions ────────────────────────────────────────────────────────────────────────────


def check_what_was_committed_is_there_after_reopening(db: Database, connect: Connect) -> None:
    with db.transaction():
        note(db, "pi")
    db.close()
    assert hosts(connect()) == ["pi"]


def check_a_single_statement_commits_by_itself(db: Database, connect: Connect) -> None:
    other = connect()
    note(db, "pi")
    assert hosts(other) == ["pi"]


def check_an_exception_undoes_the_transaction(db: Database, _: Connect) -> None:
    note(db, "pi")
    with undone(db):
        note(db, "desktop")
    assert hosts(db) == ["pi"]


def check_an_inner_transaction_can_be_undone_on_its_own(db: Database, _: Connect) -> None:
    with db.transaction():
        note(db, "a")
        with undone(db):
            note(db, "b")
            with db.transaction():
                note(db, "c")
        with db.transaction():
            note(db, "d")
    assert hosts(db) == ["a", "d"]


def check_the_outer_transaction_undoes_the_inner_ones(db: Database, _: Connect) -> None:
    with undone(db), db.transaction():
        note(db, "a")
    assert hosts(db) == []


def check_others_see_nothing_before_the_commit(db: Database, connect: Connect) -> None:
    other = connect()
    with db.transaction():
        note(db, "pi")
        assert hosts(other) == []
    assert hosts(other) == ["pi"]


def check_a_refused_statement_leaves_the_transaction_usable(db: Database, _: Connect) -> None:
    with db.transaction():
        note(db, "a")
        with pytest.raises(DatabaseError), db.transaction():
            db.run("add_attempt", **_attempt_of_no_job())
        note(db, "b")
    assert hosts(db) == ["a", "b"]


def _attempt_of_no_job() -> dict[str, object]:
    """Breaks the reference to jobs."""
    who = {"instance_id": None, "session_id": None, "slot": None, "request_id": None}
    given = {"job_id": "none", "attempt": 1, "claim_id": "c", "generation": 1, "host": "pi"}
    return {**who, **given, "now": 0.0, "granted": None}


def check_transactions_of_several_connections_wait_for_each_other(db: Database, connect: Connect) -> None:
    def work(number: int) -> None:
        db = connect()
        for count in range(5):
            with db.transaction():
                note(db, f"{number}-{count}", seen=float(len(hosts(db))))
        db.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each counted the others before it wrote: serialised transactions never count the same twice.
    assert sorted(row["last_seen"] for row in db.all("hosts", counted=0)) == list(range(20))


def check_rows_are_read_by_name_and_changes_are_counted(db: Database, _: Connect) -> None:
    note(db, "pi", 5.0)
    row = db.one("hosts", counted=0)
    assert (row["host"], row["last_seen"]) == ("pi", 5.0)
    assert db.one("job", job_id="none") is None
    assert db.run("shift_hosts", step=1.0, since=0.0, now=100.0) == 1
    assert db.run("cancel_job", ended_by="operator: cancelled", job_id="none", now=0.0) == 0


# ── the writer ──────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def held(writer: Writer) -> Iterator[None]:
    """While this is open the writer is busy, so that what is submitted meanwhile becomes one group."""
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go.wait(30)

    first = writer.submit(wait)
    assert begun.wait(30)
    yield
    go.set()
    first.result(30)


def check_one_failing_call_does_not_harm_the_others_of_its_group(db: Database, _: Connect) -> None:
    writer = Writer(db)

    def boom() -> None:
        note(db, "half done")
        raise BoomError

    with held(writer):
        calls = [lambda: note(db, "a"), boom, lambda: note(db, "b")]
        futures = [writer.submit(call) for call in calls]
    outcomes = [future.exception(30) for future in futures]
    assert [type(each) for each in outcomes] == [type(None), BoomError, type(None)]
    assert hosts(db) == ["a", "b"]
    writer.close()


def check_what_is_acknowledged_is_committed(db: Database, connect: Connect) -> None:
    other = connect()
    writer = Writer(db)
    seen: list[list[str]] = []
    with held(writer):
        for future in [writer.submit(lambda n=n: note(db, f"{n}")) for n in range(3)]:
            future.add_done_callback(lambda _: seen.append(hosts(other)))
    writer.close()
    assert seen == [["0", "1", "2"]] * 3, "each answer came after the commit of all"


def check_calls_that_arrive_together_share_a_commit(db: Database, _: Connect) -> None:
    writer = Writer(db)
    commits = []
    transaction = db.transaction

    def counted() -> AbstractContextManager[None]:
        commits.append(None)
        return transaction()

    with held(writer):
        futures = [writer.submit(hosts_of(db)) for _ in range(Writer.GROUP_MAX + 10)]
        db.transaction = counted  # type: ignore[method-assign]
    for future in futures:
        future.result(30)
    outer = len(commits) - len(futures)  # each call has an inner one of its own
    assert outer == 2, "64 in the first, 10 in the second"
    writer.close()


def hosts_of(db: Database) -> Callable[[], list[str]]:
    return lambda: hosts(db)


def check_a_cancelled_call_is_not_made(db: Database, _: Connect) -> None:
    writer = Writer(db)
    with held(writer):
        assert writer.submit(lambda: note(db, "pi")).cancel()
        other = writer.submit(lambda: note(db, "desktop"))
    other.result(30)
    assert hosts(db) == ["desktop"]
    writer.close()


def check_closing_finishes_what_was_submitted_and_refuses_the_rest(db: Database, _: Connect) -> None:
    writer = Writer(db)
    futures = [writer.submit(lambda n=n: note(db, f"{n}")) for n in range(5)]
    writer.close()
    writer.close()
    assert all(future.done() for future in futures)
    assert len(hosts(db)) == 5
    with pytest.raises(DatabaseError, match="shutting down"):
        writer.submit(lambda: None).result(30)


def check_every_call_that_races_with_closing_is_answered(db: Database, _: Connect) -> None:
    for _ in range(20):
        writer = Writer(db)
        futures = []
        thread = threading.Thread(
            target=lambda: futures.extend(writer.submit(lambda: None) for _ in range(20))  # noqa: B023
        )
        thread.start()
        writer.close()
        thread.join()
        for future in futures:
            error = future.exception(30)
            assert error is None or "shutting down" in str(error)


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]
