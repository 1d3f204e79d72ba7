"""The audit: every act of an operator leaves a row in the act's own transaction, and a touched record shows."""

from __future__ import annotations

import io
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from receiver_running import running

from training.fleet.cli.context import CommandContext
from training.fleet.cli.program import main
from training.fleet.client.client import Refused
from training.fleet.database import sqlite
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.service.audit import PAGE_MAX, Act, AuditLog, page
from training.fleet.wire.audit_chain import NOBODY, first_broken


def entries(receiver):
    return page(receiver.reader, 0, PAGE_MAX)


def test_acts_of_the_operator_are_written_with_before_and_after(tmp_path):
    with running(tmp_path) as receiver:
        client = receiver.client()
        client.cancel("gbt-realistic")
        client.requeue("gbt-realistic")
        client.call("add_token", name="anna", days=1)
        client.call("revoke_token", name="anna")
        rows = entries(receiver)
    assert [(row.act, row.who) for row in rows] == [
        (act, "operator operator") for act in ("cancel", "requeue", "token_add", "token_revoke")
    ]
    assert json.loads(rows[0].before or "") == {"status": "pending"}
    assert json.loads(rows[0].after or "") == {"status": "cancelled"}
    assert first_broken(rows) is None


def test_a_named_token_is_named(tmp_path):
    with running(tmp_path) as receiver:
        secret = receiver.client().call("add_token", name="anna")["token"]
        receiver.client(token=secret).cancel("gbt-realistic")
        rows = entries(receiver)
    assert rows[-1].who == "operator anna"
    assert secret not in msgspec.json.encode(rows).decode()


def test_a_refused_act_leaves_no_row(tmp_path):
    with running(tmp_path) as receiver:
        with pytest.raises(Refused):
            receiver.client().call("revoke_token", name="nobody")
        with pytest.raises(Refused):
            receiver.client(token="wrong").cancel("gbt-realistic")
        assert entries(receiver) == []


def test_no_statement_of_ours_changes_or_removes_a_row():
    """Another program that opens the file can; the chain shows it then."""
    folder = Path(sqlite.__file__).parent / "sql"
    sql = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.sql"))
    verbs = re.findall(r"(INSERT INTO|UPDATE|DELETE FROM|REPLACE INTO|DROP TABLE) audit\b", sql)
    assert verbs == ["INSERT INTO"]


def test_only_operators_read_it(tmp_path):
    with running(tmp_path) as receiver, pytest.raises(Refused) as refused:
        receiver.client(token=None).call("audit")
    assert refused.value.problem_type == "operator_token"


def chain(tmp_path, count):
    path = tmp_path / "audit.db"
    path.unlink(missing_ok=True)
    database, clock = SqliteDatabase(path), FakeClock()
    log = AuditLog(database, clock)
    with database.transaction():
        for number in range(count):
            log.write("operator anna", Act.CANCEL, f"job {number}", after={"n": number, "ö": "é"})
    rows = page(database, 0, count)
    database.close()
    return rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return chain(tmp_path_factory.mktemp("audit"), 6)


@given(row=st.integers(0, 5), field=st.sampled_from(("at", "who", "act", "subject", "before", "after", "digest")))
def test_a_changed_row_shows(whole, row, field):
    changed = 1.0 if field == "at" else "x"
    touched = [*whole]
    touched[row] = msgspec.structs.replace(whole[row], **{field: changed})
    assert first_broken(touched) == row + 1


@given(out=st.integers(0, 4))
def test_a_row_taken_out_or_put_elsewhere_shows(whole, out):
    assert first_broken(whole[:out] + whole[out + 1 :]) == out + 2
    assert first_broken([*whole[:out], whole[out + 1], whole[out], *whole[out + 2 :]]) is not None


def test_a_part_of_the_chain_can_be_checked_from_a_noted_digest(whole):
    assert first_broken(whole[3:], whole[2].digest) is None
    assert first_broken(whole[3:], NOBODY) == 4


def said(receiver, *words):
    out, err = io.StringIO(), io.StringIO()

    def connect(url, token):
        assert token == "open sesame"
        return receiver.client()

    environ = {"CIS490_OPERATOR_TOKEN": "open sesame"}
    world = CommandContext(connect=connect, out=out, err=err, environ=environ)
    return main([*words], context=world), out.getvalue(), err.getvalue()


def test_the_command_shows_the_rows_and_says_that_they_are_whole(tmp_path):
    with running(tmp_path) as receiver:
        receiver.client().cancel("gbt-realistic")
        code, out, err = said(receiver, "audit")
        assert code == 0
        assert "operator operator" in out
        assert "cancel" in out
        assert entries(receiver)[-1].digest in err
        answer = json.loads(said(receiver, "audit", "--json")[1])
        assert answer["first_broken"] is None
        assert len(answer["entries"]) == 1


def test_the_command_says_where_the_record_was_touched(tmp_path):
    with running(tmp_path) as receiver:
        receiver.judged = False
        for _ in range(2):
            receiver.client().cancel("gbt-realistic")
            receiver.client().requeue("gbt-realistic")
        receiver.writer.submit(lambda: receiver.queue.db.connection.execute("DELETE FROM audit WHERE seq = 2")).result()
        code, _, err = said(receiver, "audit")
    assert code == 1
    assert "row 3 of 4 is missing or does not follow" in err


@pytest.mark.parametrize("left", [0, 2])
def test_rows_cut_off_the_end_are_missed(tmp_path, left):
    with running(tmp_path) as receiver:
        receiver.judged = False
        for _ in range(2):
            receiver.client().cancel("gbt-realistic")
            receiver.client().requeue("gbt-realistic")
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as another, another:
            another.execute("DELETE FROM audit WHERE seq > ?", (left,))
        code, _, err = said(receiver, "audit")
        assert code == 1
        assert f"row {left + 1} of 4 is missing" in err
        receiver.client().cancel("gbt-realistic")
        assert f"row {left + 2} of 5 is missing" in said(receiver, "audit")[2], "whatever follows"


def test_a_page_has_no_more_rows_than_were_asked_for(tmp_path, monkeypatch):
    assert [row.seq for row in chain(tmp_path, 5)] == [1, 2, 3, 4, 5]
    with closing(SqliteDatabase(tmp_path / "audit.db")) as database:
        assert [row.seq for row in page(database, 1, 2)] == [2, 3]
        monkeypatch.setattr("training.fleet.service.audit.PAGE_MAX", 3)
        assert [row.seq for row in page(database, 1, 1000)] == [2, 3, 4]
