"""``cis490-jobs forecast``: the question that is sent, and an answer of any width that no host's name can break."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from wire_builders import whole

from training.command import demo
from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.cli.forecast import clock, rendered, sentence
from training.fleet.wire.forecasts import ForecastReply
from training.fleet.wire.views import Figure, HealthReply, JobsReply, JobView, ModelView, ResultView

NOW = 1_700_000_000.0


def job(name, host, begin, end, live=False, slot=0):
    times = {"begins_at": NOW + begin, "ends_at": NOW + end, "low_at": NOW + end * 0.9, "high_at": NOW + end * 1.5}
    return {"job_id": name, "name": name, "host": host, "slot": slot, "live": live, **times}


JOBS = [job("old", "desk", -60, 1000, live=True), job("net", "desk", 1000, 3000), job("cnn", "desk", 3000, 4000)]
DECLINED = {"name": "cnn", "by": "desk", "at": NOW + 900, "ends_at": NOW + 4000, "here_until": NOW + 80_000}
HOSTS = [{"host": "desk"}, {"host": "laptop", "note": "not seen for 3 h"}, {"host": "pi\x1b", "declined": DECLINED}]
TIMES = {"now": NOW, "done_at": NOW + 4000, "done_low_at": NOW + 3900, "done_high_at": NOW + 5000}
ANSWER = whole(
    ForecastReply,
    jobs=[*JOBS, job("gbt\x1b[2J", "pi\x1b[31m", 0, 900)],
    hosts=HOSTS,
    nowhere={"big": "desk: vram_free 8.0 < 24.0 GiB (min_vram_gib)"},
    count=4,
    held=1,
    learned_from=12,
    **TIMES,
)


def asked(*argv, answer=ANSWER, code=0):
    questions = []

    def forecast(question=None):
        questions.append(question)
        return answer

    out, err = io.StringIO(), io.StringIO()
    client = SimpleNamespace(forecast=forecast, close=lambda: None)
    world = CommandContext(connect=lambda url, token: client, environ={})
    assert program.main(["forecast", *argv], context=replace(world, out=out, err=err)) == code, err.getvalue()
    return out.getvalue() + err.getvalue(), questions


def test_who_trains_what_when_and_when_all_is_done():
    said, questions = asked()
    assert questions == [None]
    flat = " ".join(said.split())
    assert said.startswith("4 jobs are done in about 1 h 07 min, at ")
    assert f"computed at {clock(NOW, NOW)}" in flat
    assert "laptop takes no part: not seen for 3 h" in flat
    assert "waits: desk will have cnn done at" in flat
    assert "Trained nowhere big: desk: vram_free 8.0 < 24.0 GiB" in flat
    assert "1 job held, and left out" in flat
    assert "\x1b" not in said


def test_for_machines_it_is_the_answer():
    assert json.loads(asked("--json")[0]) == ANSWER


def test_other_hosts_are_part_of_the_question():
    _, questions = asked("--without", "laptop", "--with", "desk2=like:desk,gpu:24,cores:16", "--with", "pi5=ram:8")
    imagined = {"desk2": {"like": "desk", "vram_gib": 24.0, "cores": 16}, "pi5": {"ram_gib": 8.0}}
    assert questions == [{"without": ["laptop"], "imagined": imagined}]


@pytest.mark.parametrize(
    "spec", ["desk2", "=gpu:24", "d=gpu", "d=gpu:x", "d=gpu:-1", "d=gpu:nan", "d=tpu:8", "d=", "d=like:a,like:b",
             "d=cores:0", "d=cores:2.5", "a b=gpu:24", "d=like:a b"]
)  # fmt: skip
def test_a_spec_that_is_none_says_what_is_expected(spec):
    said, questions = asked("--with", spec, code=2)
    assert f"--with {spec}: " in " ".join(said.split())
    assert not questions


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--without", ""], "--without : nothing is no host's name"),
        (["--without", "a b"], "--without a b: a b is no host's name"),
        (["--with", "d=ram:8", "--with", "D=gpu:8"], "--with D=gpu:8: D is given twice"),
    ],
)
def test_a_host_that_cannot_be_meant_is_refused_where_the_command_runs(argv, says):
    said, questions = asked(*argv, code=2)
    assert says in " ".join(said.split())
    assert not questions


def test_a_plan_is_read_here_and_only_its_jobs_travel(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text('[[jobs]]\nname = "a"\nmodel = "gbt"\nmode = "oracle"\n')
    _, ((question),) = asked("--plan", str(file))
    assert [each["name"] for each in question["plan"]["jobs"]] == ["a"]
    file.write_text("[[jobs]]\n")
    said, questions = asked("--plan", str(file), code=2)
    assert "name" in said
    assert not questions


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_the_picture_has_the_width_of_the_terminal(width, encoding):
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n") as out:
        Console(file=out, width=width).print(rendered({**ANSWER, "hosts": [], "nowhere": {}}))
        out.flush()
        lines = raw.getvalue().decode(encoding).splitlines()
    assert all(len(line.rstrip()) <= width for line in lines)
    desk = next(line for line in lines if line.startswith("desk "))
    live, odd, even, idle = "█▓▒·" if encoding == "utf-8" else "#=-."
    assert desk.split()[-1].replace(live, "").replace(odd, "").replace(even, "").replace(idle, "") == ""
    assert desk.count(live) == pytest.approx(len(desk.split()[-1]) / 4, abs=1)
    assert even in desk


def test_nothing_to_do_and_nothing_known_are_said():
    nothing = {**ANSWER, "done_at": None, "jobs": [], "count": 0, "hosts": [], "nowhere": {}, "held": 0}
    assert asked(answer=nothing)[0] == f"No job waits for training.\n\ncomputed at {clock(NOW, NOW)}\n"
    assert asked(answer={**nothing, "nowhere": {"a": "no host"}})[0].startswith("No job that waits can be trained now.")
    assert sentence({**ANSWER, "learned_from": 0}).endswith("so this is a guess.")
    assert sentence({**ANSWER, "left_out": 7}).startswith("The first 4 jobs are done")


def test_the_demos_last_screen_shows_its_forecasts_whole_in_80_columns():
    told = {"now": 1.0, "done_at": 3000.0, "done_low_at": 119.0, "done_high_at": 21_270.0}
    out = io.StringIO()
    Console(file=out, width=80).print(demo.forecasts({demo.BEGUN: told, demo.HALF: told}, [{"finished_at": 371.0}]))
    shown = " ".join(out.getvalue().split())
    for figure in ("all done in", "50 min", "1 min 58 s to 5 h 54 min", "6 min"):
        assert figure in shown


def test_the_demo_shows_the_jobs_on_a_terminal(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "WORK", tmp_path)
    out = io.StringIO()
    shown = demo.Demo(Console(file=out, force_terminal=True, width=80), with_failure=False)
    jobs = [whole(JobView, name="gbt-oracle", status="failed")]
    replies = {"jobs": lambda: {**whole(JobsReply), "jobs": jobs}, "health": lambda: whole(HealthReply)}
    monkeypatch.setattr(shown, "client", SimpleNamespace(**replies))
    assert shown._watch([]) == jobs
    assert "gbt-oracle" in out.getvalue()


def test_the_demos_table_fits_a_terminal_while_jobs_run(monkeypatch):
    told = {"stage": "3 of 3: evaluation", "epoch": 9, "epochs": 10, "eta_s": 70.0}
    about = {"host": "spectral-desktop", "progress": told, "auroc": Figure(value=0.9, low=0.8, high=1.0).to_dict()}
    names = {f"transformer_{n:02}-realistic": "running" if n < 2 else "completed" for n in range(14)}
    jobs = [
        whole(JobView, name=name, status=state, in_manifest=True, claimed_at=NOW - 70, **about)
        for name, state in names.items()
    ]
    page, health = whole(JobsReply, now=NOW), whole(HealthReply)
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    screen = Console(file=out, width=80, height=24)
    lines = screen.render_lines(demo.render_status(demo.status_data(jobs, page, health, whole=True), health))
    assert len(lines) < 24
    assert "90 %, 1 min 10 s left" in "".join(each.text for line in lines for each in line)


@pytest.mark.parametrize(("level", "says"), [("caution", "Use transformer_00-realistic, with"), ("poor", "Use none")])
def test_the_demo_ends_with_one_screen(level, says):
    known = {"auroc": Figure(value=0.93, low=0.885, high=0.978), "caught": Figure(value=1.0)}
    known |= {"calls_a_day": Figure(value=1108.0), "because": "it may miss most incidents", "test": "t"}
    judged = {"mode": "realistic", "standing": "tied", "result": ResultView(**known, level=level).to_dict()}
    names = [f"transformer_{n:02}-realistic" for n in range(14)]
    site = "demo/run-abcdefgh/site/models.html"
    host = f"14 models trained and verified, 6 min in all. {demo.NOT_CALLED}"
    models = [whole(ModelView, name=name, **judged) for name in names]
    shown = Console(file=io.StringIO(), width=80)
    shown.print(demo.ending(models, host, site, "/home/somebody/fleet/.venv/bin/cis490"))
    lines = shown.file.getvalue().splitlines()
    assert len(lines) <= 23, "the prompt takes another"
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.startswith("transformer")]
    figures = ["0.930", "=", "[0.885,", "0.978]", "100.0", "%", "1,100", "a", "day", level]
    assert rows == [[name, *figures] for name in names]
    assert any(line.startswith(says) for line in lines)
    assert [line.split()[-1] for line in lines[-3:]] == ["init", "--help", site]
