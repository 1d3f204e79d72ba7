"""``cis490-jobs report``: the pages as files that need no receiver, and ``models``."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import closing, nullcontext
from html import unescape
from pathlib import Path

import pytest
from receiver_running import Receiver
from shown_fleet import HOSTILE, shown

from training.fleet.cli.context import CommandContext
from training.fleet.cli.program import main
from training.fleet.cli.report import MARK, _models, gathered
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.pages.rendering import Frame, job_path
from training.fleet.service.views import JobFilter, Place, Views


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with shown(tmp_path_factory.mktemp("shown"), {**_a_hostile_job()}) as found:
        yield found


def _a_hostile_job() -> dict[str, object]:
    from builders import a_job

    return a_job(HOSTILE, priority=-5, allowed_hosts=["nobody"])


def run(receiver: Receiver, *argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    context = CommandContext(connect=lambda _url, _token: receiver.client(), out=out, err=err, environ={})
    code = main([*argv], context=context)
    return code, out.getvalue(), err.getvalue()


def test_a_site_holds_the_pages_whole_without_receiver_and_script(receiver: Receiver, tmp_path: Path) -> None:
    site = tmp_path / "site"
    code, said, _ = run(receiver, "report", "--out", str(site), "--json")
    shape = json.loads(said)
    assert (code, shape["jobs"], shape["index"]) == (0, 15, (site / "index.html").as_uri())
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    assert {"index.html", "jobs.html", "models.html", "events.html"} <= pages.keys()
    assert sum(name.startswith("jobs/") for name in pages) == 15
    for name, page in pages.items():
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


def test_the_copy_filters_as_the_receiver_does(receiver: Receiver) -> None:
    """A site asks the copy for what its pages would ask the receiver for, by each filter and by any two."""
    copied = gathered(receiver.client(), lambda _: nullcontext(lambda _done, _whole: None))
    wanted = {"status": "completed", "model": "gbt", "mode": "oracle", "host": "office-print", "text": "gru"}
    asked = [{}, {"status": "held"}, *({name: value} for name, value in wanted.items())]
    asked += [dict(pair) for pair in itertools.combinations(wanted.items(), 2)]
    with closing(SqliteDatabase(receiver.folder / "jobs.db", read_only=True)) as reader:
        views, chosen = Views(reader, receiver.service), []
        for each in asked:
            sides = [source.found(JobFilter(**each), "newest", Place(), 50)[0] for source in (copied, views)]
            names = [sorted(job.name for job in side) for side in sides]
            assert names[0] == names[1], each
            chosen.append(len(names[0]))
            assert copied.held(JobFilter(**each)) == views.held(JobFilter(**each)), each
    assert all(0 < n < 15 for n in chosen[2 : 2 + len(wanted)]), "each filter chooses"


def test_a_second_one_replaces_its_own_files_and_no_others(receiver: Receiver, tmp_path: Path) -> None:
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


def test_a_site_has_the_models_of_every_page_of_every_test() -> None:
    lists = {"a": ["1", "2", "3"], "b": ["4"]}
    tests = [{"test": test, "models": len(names)} for test, names in lists.items()]

    class Client:
        def models(self, *, test: str | None = None, after: str = "", limit: int = 0) -> dict[str, object]:
            names = lists[test or "a"]
            at = names.index(after) + 1 if after else 0
            models = [{**_A_MODEL, "job_id": name, "name": name} for name in names[at : at + 1]]
            more = names[at] if at + 1 < len(names) else None
            return {
                "test": test or "a",
                "tests": tests,
                "models": models,
                "without": 0,
                "without_jobs": [],
                "now": 0.0,
                "next_after": more,
            }

    found = _models(Client())  # type: ignore[arg-type]
    assert {test: [each.name for each in reply.models] for test, reply in found.items()} == lists


_A_MODEL = {
    "model": "gbt",
    "mode": "oracle",
    "host": None,
    "finished_at": None,
    "artifact_id": None,
    "in_manifest": True,
    "standing": "first",
    "result": {},
}


def test_a_folder_of_something_else_is_refused(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, _, said = run(receiver, "report", "--out", str(tmp_path))
    assert (code, "holds other files; name a new or empty folder with --out" in said) == (1, True)
    code, _, said = run(receiver, "report", "--out", str(tmp_path / "mine.txt"))
    assert (code, "is a file" in said) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_models_are_told_in_the_terminal_as_on_the_page(receiver: Receiver) -> None:
    code, said, _ = run(receiver, "models")
    assert code == 0
    assert said.startswith("Of 3 models judged on the same test, no model is surely ahead: gbt-oracle")
    assert re.search(r"gbt-realistic +0\.937 \(0\.897 to 0\.977\) +=", said)
    assert "Never tested on: further recordings" in said
    assert "1 trained job came without a report: cnn-realistic" in said
    shape = json.loads(run(receiver, "models", "--json")[1])
    assert [each["standing"] for each in shape["models"]] == ["first", "tied", "behind"]
    code, _, said = run(receiver, "models", "--test", "9")
    assert (code, "there is no test 9" in said) == (2, True)


def test_a_frame_is_of_a_receiver_unless_told() -> None:
    assert not Frame(0.0).static
    assert job_path({"name": "x"}) == "/jobs/x"
