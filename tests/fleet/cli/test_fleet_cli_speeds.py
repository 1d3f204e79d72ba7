"""``cis490-jobs speeds``: a table that says what each time rests on."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace

from wire_builders import whole

from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.wire.messages import SpeedsReply


def on(host, seconds, basis="same", seen=2):
    return {"host": host, "seconds": seconds, "low": seconds / 2, "high": seconds * 2, "seen": seen, "basis": basis}


TREES = {
    "model": "gbt", "mode": "oracle", "dataset": None, "hyper": {"max_depth": 4}, "jobs": 2, "ram_gib": 0.41,
    "hosts": [on("desk", 100.0), on("pi\x1b[31m", 4000.0, "here", 0), on("laptop", 300.0, "elsewhere", 0)],
}  # fmt: skip
NET = {**TREES, "model": "mlp", "hyper": {}, "ram_gib": None, "hosts": [on("desk", 10.0, "guess", 0)]}


def run(*argv, kinds=None):
    answer = whole(SpeedsReply, kinds=[TREES, NET] if kinds is None else kinds, attempts=3)
    known = {"workers": [{"hostname": "desk"}, {"hostname": "idle"}]}
    client = SimpleNamespace(speeds=lambda: answer, workers=lambda: known, close=lambda: None)
    out, err = io.StringIO(), io.StringIO()
    world = CommandContext(connect=lambda url, token: client, environ={})
    code = program.main(["speeds", *argv], context=replace(world, out=out, err=err))
    return code, out.getvalue(), err.getvalue()


def shown(*argv, kinds=None):
    code, out, err = run(*argv, kinds=kinds)
    assert code == 0, err
    return out


def test_each_time_says_what_it_rests_on():
    lines = shown().splitlines()
    assert [" ".join(line.split()) for line in lines[2:6]] == [
        "gbt oracle · max_depth 4 · up to 419.8 MiB desk 1 min 40 s 50 s to 3 min 2 such jobs here",
        "pi\\x1b[31m 1 h 07 min 33 min to 2 h 13 min other gbt jobs here",
        "laptop 5 min 3 min to 10 min gbt on other hosts",
        "mlp oracle desk 10 s 5 s to 20 s a guess",
    ]
    assert lines[-1] == "from 3 completed jobs"


def test_model_and_host_narrow_it():
    assert "mlp" not in shown("--model", "gbt")
    assert "laptop" not in shown("--host", "DESK")
    assert json.loads(shown("--json", "--model", "mlp"))["kinds"] == [NET]


def test_nothing_known_says_what_will_be():
    assert "completed job is of this model or host" in shown("--model", "cnn")
    assert "nothing is known yet" in shown(kinds=[]).replace("no completed", "nothing is known yet: no completed")


def test_an_unknown_host_is_refused_and_one_without_jobs_is_not():
    code, out, err = run("--host", "nobody")
    assert (code, out) == (1, "")
    assert "no host is called nobody; `cis490-jobs workers` lists them" in err
    assert "completed job is of this model or host" in shown("--host", "Idle")
