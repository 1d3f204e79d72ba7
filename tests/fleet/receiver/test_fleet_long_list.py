"""A list of tens of thousands of jobs: one line each, whole, safe to look at, and cheap."""

import io

from rich.cells import cell_len
from rich.console import Console

from training.fleet.cli.render import render_list


def printed(jobs, width=200):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False).print(render_list(jobs), crop=False)
    return out.getvalue().splitlines()


def job(name, **more):
    job = {"name": name, "status": "pending", "priority": 5, "model": "gbt", "job_id": "a" * 64, "in_manifest": True}
    return dict.fromkeys(("mode", "host", "held_by")) | job | more


def test_columns_stand_in_line_whatever_is_in_them():
    lines = printed([job("short"), job("a much longer name", priority=-100), job("漢字", host="pi")])
    ends = {cell_len(line[: line.rindex("aaaaaaaaaaaa")]) for line in lines[2:]}
    assert len(ends) == 1, lines  # one column; wide characters take two cells each
    assert [line.split()[0] for line in lines[2:]] == ["short", "a", "漢字"]


def test_a_line_is_never_cut_and_hostile_text_is_written_out():
    whole = " ".join(printed([job("x\x1b[2J\nnew", in_manifest=False)], width=40))
    assert "\\x1b[2J" in whole
    assert "(not in the plan)" in whole
    assert "a" * 12 in whole


def test_twenty_thousand_rows_cost_a_bounded_number_of_steps_each():
    """Rich measures every cell of its tables again and again; ours is a handful of segments a row."""
    rows = render_list([job(f"job-{n}") for n in range(20_000)])
    console = Console(file=io.StringIO(), width=200)
    assert len(list(rows.__rich_console__(console, console.options))) <= 20_002 * 10
