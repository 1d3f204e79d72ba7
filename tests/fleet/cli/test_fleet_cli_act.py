"""``cis490-jobs act``: first the number of jobs, then the act on as many."""

import json

import pytest
from builders import a_capability, a_job
from fakes import FakeClock
from receiver_running import TOKEN, Receiver
from test_fleet_cli import Terminal

from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.client.client import Refused

JOBS = [*(a_job(f"gbt-{n}", priority=9 - n) for n in range(3)), a_job("mlp-0", model="mlp", priority=1)]


def running(folder):
    return Receiver(folder, JOBS, fleet_clock=FakeClock())


def at(receiver, *, token=TOKEN):
    def jobs(*words, typed=None):
        out, err, into = Terminal(), Terminal(), Terminal(typed or "")
        world = CommandContext(
            connect=lambda _url, _token: receiver.client(token=token), out=out, err=err, into=into, environ={}
        )
        code = program.main(["act", *words], context=world)
        return code, " ".join(out.getvalue().split()), " ".join(err.getvalue().split())

    return jobs


def test_the_number_is_said_before_it_is_done(tmp_path):
    with running(tmp_path) as receiver:
        jobs = at(receiver)
        code, out, _ = jobs("cancel", "--model", "gbt", "--dry-run")
        assert (code, out) == (0, "Cancel 3 pending jobs: gbt-0 gbt-1 gbt-2")
        code, _, err = jobs("cancel", "--model", "gbt", typed="n\n")
        assert (code, "Cancel 3 pending jobs:" in err, "nothing was done" in err) == (1, True, True)
        assert receiver.queue.counts()["cancelled"] == 0
        assert jobs("cancel", "--model", "gbt", typed="y\n")[:2] == (0, "3 jobs were cancelled")
        assert [receiver.status(name) for name in ("gbt-0", "gbt-2", "mlp-0")] == ["cancelled", "cancelled", "pending"]
        assert jobs("cancel", "--model", "gbt")[1].startswith(
            "nothing to do: no job that matches these filters can be cancelled"
        )
        code, out, _ = jobs("hold", "--name", "lp-", "--status", "pending", "--yes", "--json")
        told = json.loads(out)
        assert (code, told["moved"], told["says"]) == (0, 1, "hold 1 pending job")
        code, out, _ = jobs("requeue", "--status", "cancelled", "--mode", "realistic", "--yes")
        assert (code, out) == (0, "3 jobs were requeued")
        audit = receiver.client().call("audit", limit=9)["entries"]
        assert [each["act"] for each in audit].count("cancel") == 3, "each has its row"


def test_what_changed_meanwhile_is_not_done(tmp_path):
    """The operator agrees to a number: with another one, nothing is done."""
    with running(tmp_path) as receiver:
        client, wanted = receiver.client(), {"model": "gbt"}
        would = client.act("cancel", wanted)
        assert receiver.client("pi").claim(a_capability()) is not None
        receiver.client().cancel("gbt-2")
        with pytest.raises(Refused, match=r"nothing was done.*cancel 2 jobs \(1 running, 1 pending\)"):
            client.act("cancel", wanted, would["jobs"])
        assert receiver.queue.counts()["cancelled"] == 1
        _, said, _ = at(receiver)("cancel", "--model", "gbt", "--dry-run")
        assert "This cannot be taken back: the work under way is lost." in said
        assert client.act("cancel", {})["jobs"] == 0, "who names no filter means none"
        assert client.act("cancel", {}, 0)["moved"] is None
        with pytest.raises(Refused, match="status"):
            client.act("cancel", {"status": "tired"})


def test_who_is_no_operator_is_told_nothing(tmp_path):
    with running(tmp_path) as receiver:
        code, out, err = at(receiver, token=None)("cancel", "--model", "gbt", "--yes")
        assert (code, out) == (1, "")
        assert "operator" in err
        assert receiver.queue.counts()["cancelled"] == 0
        code, _, err = at(receiver)("cancel")
        assert (code, "name at least one of --status" in err) == (2, True)
        code, _, err = at(receiver)("cancel", "--status", "tired")
        assert (code, "'tired' is not one of 'pending'" in err) == (2, True), "the error names the statuses"
