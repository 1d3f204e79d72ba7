"""``cis490-jobs report``: the pages as files that need no receiver, and ``models``."""

import io
import json
import os
import re
from html import unescape
from unittest.mock import Mock

import pytest
from shown_fleet import HOSTILE, shown

from training.fleet.cli.context import CommandContext
from training.fleet.cli.program import main
from training.fleet.cli.report import MARK
from training.fleet.pages.site import place, site
from training.fleet.wire.routes import PAGES


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    with shown(tmp_path_factory.mktemp("shown"), {**_a_hostile_job()}) as found:
        yield found


def _a_hostile_job():
    from builders import a_job

    return a_job(HOSTILE, priority=-5, allowed_hosts=["nobody"])


def run(receiver, *argv):
    out, err = io.StringIO(), io.StringIO()
    context = CommandContext(connect=lambda _url, _token: receiver.client(), out=out, err=err, environ={})
    return main([*argv], context=context), out.getvalue(), err.getvalue()


def test_a_site_holds_the_pages_whole_without_receiver_and_script(receiver, tmp_path):
    site, before = tmp_path / "site", os.umask(0)
    try:
        code, said, _ = run(receiver, "report", "--out", str(site), "--json")
    finally:
        os.umask(before)
    if os.name == "posix":
        assert not [path for path in (site, *site.rglob("*")) if path.stat().st_mode & 0o022], "others may write"
    shape = json.loads(said)
    assert (code, shape["jobs"], shape["index"]) == (0, 15, (site / "index.html").as_uri())
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    assert {"index.html", "jobs.html", "models.html", "events.html"} <= pages.keys()
    assert sum(name.startswith("jobs/") for name in pages) == 15
    policy = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'self' file:; """
    for name, page in pages.items():
        assert page.index(policy) < page.index("<link"), "before anything is loaded"
        assert "<script" not in page, name
        assert "<form" not in page, name
        assert not re.search("[\u202e\x1b]", page), name
        for link in re.findall(r' (?:href|src)="([^"#]*)"', page):
            assert ((site / name).parent / unescape(link)).is_file(), (name, link)
        assert "http:" not in page.replace(receiver.url, ""), name
    trained = next(page for name, page in pages.items() if name.startswith("jobs/gbt-oracle"))
    assert "0.951" in trained
    assert "ROC curve" in trained
    assert "Loss by epoch" in trained
    assert "no model is surely ahead" in pages["models.html"]
    assert any("differ in 1 of" in page for name, page in pages.items() if name.startswith("compare-"))


def test_a_second_one_replaces_its_own_files_and_no_others(receiver, tmp_path):
    site = tmp_path / "site"
    assert run(receiver, "report", "--out", str(site))[0] == 0
    (site / "mine.txt").write_text("mine")
    outside = tmp_path / "outside.html"
    outside.write_text("outside")
    mark = json.loads((site / MARK).read_text())
    (site / "jobs" / "gone.html").write_text("of a job that left")
    (site / MARK).write_text(json.dumps({"files": [*mark["files"], "jobs/gone.html", "../outside.html"]}))
    assert run(receiver, "report", "--out", str(site))[0] == 0
    assert (site / "mine.txt").read_text() == "mine"
    assert outside.exists()
    assert not (site / "jobs" / "gone.html").exists()
    assert json.loads((site / MARK).read_text()) == mark


def test_a_folder_of_something_else_is_refused(receiver, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    code, _, said = run(receiver, "report", "--out", str(tmp_path))
    assert (code, "holds other files; name a new or empty folder with --out" in said) == (1, True)
    code, _, said = run(receiver, "report", "--out", str(tmp_path / "mine.txt"))
    assert (code, "is a file" in said) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_models_are_told_in_the_terminal_as_on_the_page(receiver):
    code, said, _ = run(receiver, "models")
    assert code == 0
    assert said.startswith("Of 3 models judged on the same test, no model is surely ahead: gbt-oracle")
    assert re.search(r"gbt-realistic +0\.937 = +\[0\.897, 0\.977\] +83\.7 % +40 a day  caution", said)
    assert "  mlp-realistic: it may catch little.\n" in said
    assert "Use gbt-realistic, with caution: it may catch little. Of 2 realistic models (no lab needed) it has" in said
    assert said.count("gbt-realistic") == 2, "the sentence above says why"
    whole = run(receiver, "models", "--why")[1]
    for words in (
        ": never tested on further recordings",
        "Calls falsely about 40 times a day.",
        "It keeps its promise",
    ):
        assert words not in said
        assert words in whole
    assert "1 trained job came without a report: cnn-realistic" in said
    shape = json.loads(run(receiver, "models", "--json")[1])
    assert [each["standing"] for each in shape["models"]] == ["first", "tied", "behind"]
    code, _, said = run(receiver, "models", "--test", "9")
    assert (code, "0 tests match 9" in said) == (2, True)


def test_further_models_are_those_of_the_same_test(receiver):
    reply, asked = receiver.client().models(), []

    def page(**of):
        asked.append(of)
        return {**reply, "test": "9a", "models": [reply["models"][len(asked) - 1]], "next_after": 3 - len(asked)}

    context = CommandContext(connect=lambda *_: Mock(models=page), out=io.StringIO(), err=io.StringIO(), environ={})
    assert main(["models", "--json"], context=context) == 0
    assert [each["name"] for each in json.loads(context.out.getvalue())["models"]] == [
        each["name"] for each in reply["models"]
    ]
    assert asked == [{}, {"test": "9a", "after": 2}, {"test": "9a", "after": 1}]


def test_a_site_goes_on_to_every_page_of_a_list_and_leaves_out_what_is_gone(monkeypatch):
    pages = {
        "/": '<a href="/jobs/one">one</a><a href="/jobs/gone">gone</a><a href="/act?what=hold">hold</a>',
        "/jobs": '<a href="/jobs?after=2">more</a>',
        "/jobs?after=2": '<a href="/jobs/two">two</a><a href="/jobs/three#end">three</a>',
        **{f"/jobs/{name}": '<a href="/">all</a>' for name in ("one", "two", "three")},
    }
    monkeypatch.setattr("training.fleet.pages.site.JOBS_MAX", 2)

    def ask(address):
        found = pages.get(address.replace("?static=1", "").replace("&static=1", ""))
        return None if found is None else found.encode()

    made = site(ask, lambda _done, _whole: None)
    assert (made.jobs, made.left_out, len(made.files)) == (2, 1, 5)
    assert made.files["index.html"].count(b"href") == 1
    (more,) = (body for path, body in made.files.items() if path.startswith("jobs-"))
    assert more.count(b"href") == 1, "one job too many stays a word"


@pytest.mark.parametrize("address", ["/static/../../x", "/static/a/b", "/jobs/../../x", "/jobs/%2e%2e%2fx", "//e/x"])
def test_no_link_leads_out_of_the_sites_folder(address):
    found = place(address)
    assert found is None or re.fullmatch(r"(jobs/)?[\w-][\w.-]*\.html", found)


@pytest.mark.parametrize("name", PAGES)
def test_a_site_holds_every_page_of_the_menu(receiver, name):
    shown_as = PAGES[name].shown
    assert bool(place(PAGES[name].path)) == bool(shown_as.menu or "{" in PAGES[name].path)
    if shown_as.menu:
        page = receiver.client().get_page(f"{PAGES[name].path}?static=1").decode()
        assert ("<form" in page, "<script" in page, 'href="/incidents"' in page) == (False, False, True)
