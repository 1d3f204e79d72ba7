"""``cis490-jobs gc`` against a receiver: shown first, asked for, done, audited; and what `get` and `show` say then."""

import json
from dataclasses import replace

from builders import a_capability, a_job
from receiver_running import TOKEN, Receiver
from recovery_builders import claim
from test_fleet_cli import Terminal

from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.scheduling.retention import Rules

JOBS = [a_job("better", priority=20), a_job("worse", priority=10)]


def test_gc_shows_asks_removes_and_is_audited(tmp_path):
    with Receiver(tmp_path, JOBS) as receiver:
        client = receiver.client("pi")
        for metric in (0.75, 0.5):
            grant = claim(client)
            epoch = {"event": "epoch", "epoch": 1, "loss": 0.5, "metric": metric}
            client.heartbeat(grant.job_id, lines=[json.dumps(epoch)])
            bundle = tmp_path / "bundle"
            bundle.write_bytes(grant.name.encode() * 5000)
            client.complete(grant.job_id, artifact_id=client.upload_artifact(grant.job_id, bundle))
        receiver.service.host_registry.plan = replace(
            receiver.service.plan, retention=Rules(best=1, keep_models_days=0)
        )

        def jobs(*words, token=TOKEN, typed=None):
            out, err, into = Terminal(), Terminal(), Terminal(typed or "")
            world = CommandContext(
                connect=lambda _url, _token: receiver.client(token=token), out=out, err=err, into=into, environ={}
            )
            code = program.main(words, context=world)
            return code, " ".join(out.getvalue().split()), " ".join(err.getvalue().split())

        why = "it is not among the best of gbt realistic: its validation figure is 0.5, the last kept one's 0.75"
        code, out, _ = jobs("gc", "--dry-run", token=None)
        assert code == 0
        assert "1 model (24.4 KiB)" in out
        code, _, _ = jobs("gc", "--yes", token=None)
        assert code == 1, "no operator"
        code, _, err = jobs("gc", typed="n\n")
        assert (code, "nothing was removed" in err) == (1, True)
        code, out, _ = jobs("gc", "--dry-run", "--json")
        assert [each["why"] for each in json.loads(out)["items"]] == [why]
        code, out, err = jobs("gc", typed="y\n")
        assert code == 0, err
        assert "removed: 1 model" in out
        assert "nothing is deleted now" in jobs("gc", "--dry-run")[1]
        code, _, err = jobs("get", "worse", "--out", str(tmp_path / "got"))
        assert code == 1
        assert "the model of job worse was removed on 20" in err
        assert why in err
        assert "`cis490-jobs requeue worse` trains it again" in err
        assert why[:40] in jobs("show", "worse")[1]
        assert [row["act"] for row in json.loads(jobs("audit", "--json")[1])["entries"]] == ["gc"]
        assert [line.get("removed_why") for line in receiver.index()] == [None, why]
        assert client.claim(a_capability()) is None


def test_a_receiver_without_retention_says_so(tmp_path):
    with Receiver(tmp_path, JOBS) as receiver:
        out = Terminal()
        world = CommandContext(connect=lambda _u, _t: receiver.client(), out=out, err=Terminal(), environ={})
        assert program.main(["gc", "--dry-run"], context=world) == 0
        assert "the plan has no [retention]: everything is kept" in " ".join(out.getvalue().split())
