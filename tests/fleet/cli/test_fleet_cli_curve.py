"""``cis490-jobs curve``: pictures of plain characters, one for each series, that say what they cannot show."""

import csv
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from wire_builders import whole

from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.cli.curve import figure, spark
from training.fleet.wire.views import CurveReply


def reply(name, losses, *begun, **fields):
    """A CurveReply whose attempts begin at epoch 1 and at ``begun``."""
    attempts = [{"attempt": n, "host": "pi", "first": first} for n, first in enumerate((1, *begun), 1)]
    points = [
        {"attempt": 1 + sum(first <= epoch for first in begun), "epoch": epoch, "loss": loss, "metric": 1 - (loss or 0)}
        for epoch, loss in losses.items()
    ]
    told = {"epochs": len(points), "usage_attempt": len(attempts)} | fields
    return whole(CurveReply, job_id="ab" * 32, name=name, status="running", attempts=attempts, points=points, **told)


FALLING = {epoch: 2.0 / epoch for epoch in range(1, 61)}
USE = [
    {"seconds": 30.0 * n, "cpu": 1.0 + n % 3, "memory_bytes": 2**30, "gpu": None, "gpu_memory_bytes": None}
    for n in range(90)
]


class Answers:
    """A context whose receiver knows these curves; remembers what was asked."""

    def __init__(self, *replies, out=None):
        self.replies = {each["name"]: each for each in replies}
        self.asked = []
        self.world = CommandContext(
            connect=lambda url, token: SimpleNamespace(curve=self.curve, close=lambda: None), environ={}
        )

    def curve(self, ref, *, attempt, points):
        self.asked.append((ref, attempt, points))
        return self.replies[ref]

    def __call__(self, *argv, encoding="utf-8", code=0):
        stream, errors = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(stream, encoding=encoding)
        assert program.main(["curve", *argv], context=replace(self.world, out=out, err=errors)) == code
        out.flush()
        return stream.getvalue().decode(encoding) + errors.getvalue()


def test_one_job_is_drawn_in_dots_within_80_columns_without_a_terminal():
    shown = Answers(reply("mlp", FALLING, 31, usage=USE))("mlp").splitlines()
    assert max(map(len, shown)) <= 80
    picture = [line.partition("| ")[2] for line in shown[2:14]]
    assert "\u2800" not in "".join(shown), "no invisible sign"
    assert next(line for line in picture if line)[0] > "\u2800", "the curve begins at the top"
    bar = [at for at in range(20, 40) if sum(line[at : at + 1] > "\u2800" for line in picture) >= 10]
    assert len(bar) == 1, "where the second attempt begins"
    assert "last 0.0333 (epoch 60), lowest 0.0333 (60), highest 2 (1)" in shown
    assert any(line.startswith("metric by epoch") for line in shown)
    assert "mlp is running: attempt 1 on pi from epoch 1, attempt 2 on pi from epoch 31" in shown
    (cpu,) = (line for line in shown if line.startswith("CPU "))
    assert cpu.endswith("3.0 cores, at most 3.0 cores")
    assert "█" in cpu
    assert not any(line.startswith("GPU") for line in shown)


def test_stages_are_marked_and_named_and_so_is_the_metric():
    one = reply("mlp", FALLING)
    for point in one["points"]:
        stage, own = ("1 of 3: search", 0) if point["epoch"] <= 30 else ("2 of 3: refit", 30)
        point |= {"stage": stage, "stage_epoch": point["epoch"] - own, "metric_name": "validation AUROC"}
        point["epoch"] *= 2  # the search ended early
    shown = Answers(one)("mlp").splitlines()
    assert shown.count("stages from epoch: search 1, refit 31") == 2
    assert "validation AUROC by epoch" in shown
    assert "last 0.0333 (epoch 60), lowest 0.0333 (60), highest 2 (1)" in shown
    picture = [line.partition("| ")[2] for line in shown[2:14]]
    bars = [at for at in range(50) if sum(line[at : at + 1] > "\u2800" for line in picture) >= 10]
    assert len(bars) == 1


def test_several_jobs_share_a_picture_and_each_has_its_letter():
    steep = {epoch: 2.0 / epoch**2 for epoch in range(1, 31)}
    shown = Answers(reply("mlp", FALLING), reply("gru", steep), reply("none", {}))("mlp", "gru", "none")
    assert re.search(r"\| .*a.*b|\| .*b.*a", shown.partition("a  mlp: last")[0])
    assert "b  gru: last 0.00222 (epoch 30)" in shown
    assert "c  none is running: attempt 1" in shown
    assert "\x1b" not in shown, "no colour where there is no terminal"


def test_a_stream_without_braille_gets_letters():
    shown = Answers(reply("mlp", FALLING, 31, usage=USE))("mlp", encoding="ascii")
    assert re.search(r"\| .*a.*a", shown)
    assert "?" not in shown
    assert "CPU          3.0 cores, at most 3.0 cores" in shown


def test_a_job_without_epochs_says_so_and_hostile_words_show_as_text():
    bare = reply("mlp", {}) | {"attempts": [], "status": "pen\x1b[2Jding"}
    assert Answers(bare)("mlp") == "mlp is pen\\x1b[2Jding and has reported no epoch\n"


def test_a_curve_that_retention_took_is_not_called_one_that_never_was():
    gone = reply("mlp", {}) | {"attempts": [], "status": "completed", "removed": {"at": 86400.0, "why": "too old"}}
    assert Answers(gone)("mlp") == "mlp is completed and its curve was removed on 1970-01-02: too old\n"


def test_a_curve_whose_end_has_not_arrived_says_so():
    cut = reply("mlp", FALLING)
    cut["attempts"][0] |= {"end_reason": "completed", "complete": False}
    assert "from epoch 1 (completed), whose last lines have not arrived" in Answers(cut)("mlp").replace("\n", " ")


def test_a_thinned_curve_says_so_and_csv_asks_for_every_epoch():
    answers = Answers(reply("mlp", {1: 0.5, 2: None}, epochs=7000))
    assert "2 of 7,000 epochs are drawn" in answers("mlp", "--attempt", "3")
    rows = list(csv.DictReader(io.StringIO(answers("mlp", "mlp", "--csv"))))
    assert answers.asked == [("mlp", 3, None), ("mlp", None, 20_000), ("mlp", None, 20_000)]
    assert len(rows) == 4
    assert rows[0] == {
        "job": "mlp", "job_id": "ab" * 32, "attempt": "1", "epoch": "1", "loss": "0.5", "metric": "0.5", "seconds": "",
        "stage": "", "stage_epoch": "", "metric_name": "",
    }  # fmt: skip
    assert (rows[1]["epoch"], rows[1]["loss"]) == ("2", "")


def test_json_is_the_receivers_answer_and_not_also_csv():
    one = reply("mlp", FALLING)
    assert json.loads(Answers(one)("mlp", "--json")) == {"curves": [one]}
    assert "ask for one of them" in Answers(one)("mlp", "--json", "--csv", code=2)
    assert "this command takes at most 26 jobs" in Answers(one)(*["mlp"] * 27, code=2)


@pytest.mark.parametrize("losses", [{5: 0.0}, {1: 3.0, 2: 3.0}, {0: -1.0, 2**53: 1e299}, {1: 1.0, 2: 1.0}])
def test_every_curve_has_a_place(losses):
    shown = Answers(reply("mlp", losses))("mlp")
    assert not re.search(r" 1\.1 \|", shown), "no share is above 1"
    assert any(sign > "\u2800" for sign in shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm():
    shown = Answers(reply("mlp", {1: 0.0, 2: 100.0, 3: 10.0, 4: 1.0}))("mlp", "--log")
    assert "loss by epoch (logarithmic)" in shown
    assert re.search(r"^ +100 \|", shown, re.MULTILINE)
    assert "no value is above 0" in Answers(reply("mlp", {1: 0.0}))("mlp", "--log")


def test_figures_and_sparks_are_short():
    assert [figure(each) for each in (0.41234, 37.0, 0.000012, -3.0, 1e9)] == ["0.412", "37", "1.2e-05", "-3", "1e+09"]
    assert spark([0.0, 1.0, 2.0, 4.0, 0.0, 0.0], 3) == "▃█▁"
    assert spark([0.0, 0.0], 8) == "▁▁"
    assert spark([], 8) == ""
