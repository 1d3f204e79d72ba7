"""Pages as text: what they say, that nothing remote becomes markup, and the headers they come with."""

import gzip
import html
import json
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import a_capability, a_job
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from receiver_running import TOKEN, Receiver, Wire, job_id
from shown_fleet import HOSTILE, NOON, a_report, shown
from test_fleet_login import logged_in
from tls_world import secure

from training.fleet.client.client import Refused
from training.fleet.pages import fleet, host, incidents, jobs, rendering, static, timeline
from training.fleet.pages.curves import POINTS_DRAWN, usage_of_host
from training.fleet.pages.rendering import job_path, time_element
from training.fleet.pages.timeline import DAY_S, day
from training.fleet.receiver.http import pages
from training.fleet.receiver.http.html import POLICY
from training.fleet.service.hosts import Plan
from training.fleet.service.job_views import Event, ListPlace, Waiting
from training.fleet.wire import words
from training.fleet.wire.routes import HTML, PAGES, ROUTES
from training.fleet.wire.views import UsageSample

HOSTILE_ID = job_id({"name": HOSTILE})
EMPTY = {"pending": 0, "claimed": 0, "running": 0, "completed": 0, "failed": 0, "cancelled": 0}


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    with shown(tmp_path_factory.mktemp("shown")) as found:
        yield found


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A plan that takes three pages."""
    named = [a_job(f"job {n}, with a comma", priority=n % 3, hyper={"n": n, "m": 1}) for n in range(120)]
    with Receiver(tmp_path_factory.mktemp("long"), [*named, a_job("other", model="mlp")]) as found:
        yield found


def get(receiver, path, **headers):
    with Wire(receiver) as wire:
        status, found, body = wire.request("GET", path, **headers).answer()
    return status, found, (gzip.decompress(body) if "content-encoding" in found else body).decode()


def words_of(page):
    """The page as read aloud: without tags, each blank once."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


# -- how they come ----------------------------------------------------------------------------------------------


def test_a_page_comes_with_a_strict_policy_and_is_kept_nowhere(receiver):
    status, headers, page = get(receiver, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert "*" not in POLICY
    assert POLICY.startswith("default-src 'none';")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert page.startswith("<!doctype html>")
    assert get(receiver, "/", Accept_Encoding="gzip")[1]["content-encoding"] == "gzip"


def test_what_pages_load_is_ours_and_kept_by_its_digest(receiver):
    loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', get(receiver, "/")[2])
    assert len(loaded) >= 3
    for address in loaded:
        status, headers, body = get(receiver, address)
        assert (status, headers["x-content-type-options"]) == (200, "nosniff")
        assert "immutable" in headers["cache-control"]
        zipped = get(receiver, address, Accept_Encoding="gzip, br")
        assert (zipped[1]["content-encoding"], zipped[2]) == ("gzip", body)
        assert get(receiver, address, If_None_Match=headers["etag"])[0] == 304
    assert get(receiver, "/static/pages.0123456789ab.css")[0] == 404
    assert get(receiver, "/static/..%2Fstatic.py")[0] == 404


def test_every_static_file_is_of_a_known_kind():
    assert {path.suffix for path in static.FOLDER.iterdir()} <= {*static.MEDIA, ".txt"}


def test_a_receiver_that_nobody_looks_at_loads_no_templates(tmp_path):
    """At rest each megabyte counts."""
    import subprocess
    import sys

    code = "import sys, training.fleet.receiver.program; print(sorted({'jinja2', 'markupsafe'} & sys.modules.keys()))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert said.stdout.strip() == "[]", said.stderr


# -- hostile text -----------------------------------------------------------------------------------------------


def test_hostile_text_shows_as_text_on_every_page(tmp_path):
    """A job's name and error, a host's device: none becomes markup, none steers what is around it."""
    hostile = a_job(HOSTILE, allowed_hosts=[HOSTILE])
    can = a_capability(cuda=True)
    can["cuda_devices"][0]["name"] = HOSTILE
    with Receiver(tmp_path, [hostile, a_job("plain", priority=99)]) as receiver:
        client = receiver.client("attic")
        granted = client.claim(can)
        client.fail(granted["job_id"], error=HOSTILE, claim_id=granted["claim_id"])
        for route in ROUTES:
            if route.media == HTML and route.method == "GET":
                page = get(receiver, address(route.path))[2]
                assert "<script>alert" not in page, route.path
                assert not re.search("[\u202e\x1b]", page), route.path
        assert "\\u202e\\x1b[2J" in get(receiver, "/")[2]


def test_no_template_can_forget_to_make_a_value_harmless():
    shown = rendering._environment().from_string('<b title="{{ x }}">{{ x }}</b>').render(x=HOSTILE)
    assert shown.count("\\u202e\\x1b[2J&amp;&#34;&#39;") == 2
    assert "<script" not in shown
    assert not re.search("[\u202e\x1b]", shown)


def address(path):
    named = path.replace("{job_id}", "plain").replace("{host_id}", "attic")
    return named.replace("/compare", f"/compare?jobs={HOSTILE_ID},plain")


# -- the fleet --------------------------------------------------------------------------------------------------


def test_the_first_line_says_how_far_the_plan_is(receiver):
    page = words_of(get(receiver, "/")[2])
    assert "4 of 14 jobs are trained; 2 are training, 7 wait, 1 failed." in page
    assert "mlp-oracle failed: ValueError: features_window_v1.parquet holds no rows cis490-jobs requeue" in page
    assert "workshop : named in [hosts], but never asked for work; start its worker" in page
    assert "1 of 3: search (52 %) · 8 min left" in page
    names = "gru-oracle , lstm-realistic , lstm-oracle , transformer-realistic and 3 more"
    assert f"7 jobs wait for their turn ( {names})" in page


def test_an_empty_fleet_says_the_next_command(tmp_path):
    with Receiver(tmp_path, []) as receiver:
        page = words_of(get(receiver, "/")[2])
    assert "There are no jobs yet." in page
    assert "cis490-jobs reload" in page
    assert "cis490-trainer-worker" in page


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, "There are no jobs yet."),
        ({"completed": 1}, "The one job is trained."),
        ({"completed": 14, "cancelled": 2}, "All 14 jobs are trained."),
        ({"pending": 3}, "0 of 3 jobs are trained; 3 wait (2 of them for what no host offers now)."),
        ({"running": 1, "completed": 1}, "1 of 2 jobs is trained; 1 is training (done in about 2 min)."),
        ({"running": 1, "failed": 1}, "0 of 2 jobs are trained; 1 is training (done in about 2 min), 1 failed."),
    ],
)
def test_one_sentence_for_every_state_of_a_plan(counts, said):
    live = [{"progress": {"eta_s": 120}}]
    waiting = [Waiting(None, 1, ()), Waiting("no GPU", 2, ())]
    assert fleet.sentence({**EMPTY, **counts}, live, waiting) == said


@pytest.mark.parametrize(
    ("stuck", "held", "said"),
    [(0, 3, "3 wait to be unheld."), (1, 1, "3 wait (1 of them for what no host offers now, 1 of them to be unheld).")],
)
def test_the_first_line_counts_held_jobs_as_such(stuck, held, said):
    waiting = [Waiting("no GPU", stuck, ())] if stuck else []
    assert fleet.sentence({**EMPTY, "pending": 3}, [], waiting, held).endswith(said)


def failed_jobs(*errors):
    return [{"name": f"j{n}", "job_id": f"{n}", "in_manifest": True, "error": error} for n, error in enumerate(errors)]


@pytest.mark.parametrize(
    ("errors", "number", "said"),
    [
        ([], 0, []),
        (["bad"], 1, ["j0 failed: bad"]),
        (["bad", "worse"], 2, ["2 jobs failed", "j0 failed: bad", "j1 failed: worse"]),
        (["odd", "bad", "bad"], 3, ["3 jobs failed (2 of the same cause)", "j1, j2 failed: bad", "j0 failed: odd"]),
        (["bad", "bad"], 2, ["2 jobs failed (all of the same cause)", "j0, j1 failed: bad"]),
    ],
)
def test_failed_jobs_are_folded_by_cause(errors, number, said):
    found = [part for one in fleet.failures(failed_jobs(*errors), number) for part in (one, *one.parts)]
    assert [f"{', '.join(name for name, _ in each.about)} {each.text}".strip() for each in found] == said


@given(st.lists(st.tuples(st.sampled_from([*fleet.GLYPHS]), st.sampled_from("ab"), st.integers(0, 9))))
def test_folded_notices_stand_by_severity_and_lose_none(given):
    found = fleet.folded(fleet.Attention(severity, text, ((f"h{n}", "/"),)) for severity, text, n in given)
    assert [each.severity for each in found] == sorted((e.severity for e in found), key=[*fleet.GLYPHS].index)
    assert len({(each.severity, each.text) for each in found}) == len(found)
    kept = [(each.severity, each.text, int(name[1:])) for each in found for name, _ in each.about]
    assert sorted(kept) == sorted(given)


def test_the_first_page_is_ordered_by_severity_and_equal_causes_are_one(tmp_path):
    """A failure is red and first, a remark is grey and last; commands are set as code."""
    with Receiver(tmp_path, [a_job("one"), a_job("two", allowed_hosts=["pi"])]) as receiver:
        for others in (False, True):
            receiver.queue.others = lambda *_, others=others: others
            granted = receiver.client("pi").claim(a_capability())
            receiver.client().fail(granted.job_id, error="see `the log`", exit_code=65, claim_id=granted.claim_id)
        for host in ("desk", "attic"):
            receiver.client(host).claim(a_capability() | {"cpu_cores": 0, "torch_version": None})
        page = get(receiver, "/")[2]
    found = re.findall(r'<li class="(\w+)"><span aria-hidden="true">.</span> (.*?)</li>', page, re.DOTALL)
    assert [severity for severity, _ in found] == ["failed", "look", "remark"]
    assert words_of(found[1][1]).startswith(" two : refused by pi with exit 65; another host is awaited until ")
    assert '<a href="/jobs/one">one</a> failed: see <code>the log</code>' in found[0][1]
    assert words_of(found[2][1]).startswith(" attic , desk : torch is not installed there")
    assert 'href="/hosts/attic"' in found[2][1]


# -- a host -----------------------------------------------------------------------------------------------------


def test_a_host_says_what_it_does_and_what_it_may(receiver):
    page = get(receiver, "/hosts/office-print")[2]
    said = words_of(page)
    asleep = r"office-print is asleep or away since \d\d:\d\d; it may train gbt, mlp, with 4 cores, 4 GiB\."
    assert re.search(asleep, said)
    assert "gbt-oracle ● completed AUROC 0.951 0.921 to 0.981" in said
    assert "⚠ open change 5 , 8 h" in said
    assert "Processor, cores: CPU: " in page
    at_work = words_of(get(receiver, "/hosts/laptop")[2])
    assert "laptop trains cnn-oracle; it may train every model, with 4 cores, 4 GiB." in at_work
    assert "gbt, realistic max_depth = 6" in at_work
    assert "attic-pi is watched; its worker has never asked for work." in words_of(get(receiver, "/hosts/attic-pi")[2])
    assert get(receiver, "/hosts/nobody", Accept="text/html")[0] == 404


@pytest.mark.parametrize(("names", "said"), [("a", "a"), ("ab", "a and b"), ("abc", "a, b and c")])
def test_what_a_host_trains_is_one_list(names, said):
    one = dict.fromkeys(("quarantine", "resting", "can", "declared")) | {"now": [{"name": name} for name in names]}
    assert host.sentence("pi", one, NOON) == f"pi trains {said}; it may train every model."


def test_a_training_host_sees_its_own_page_alone(tmp_path):
    with secure(tmp_path, a_job("one")) as receiver:
        pi, desk = (receiver.showing(receiver.admitted(name)[0], name=name) for name in ("pi", "desk"))
        pi.claim(a_capability())
        desk.claim(a_capability())
        assert b"pi trains one" in pi.get_page("/hosts/pi")
        with pytest.raises(Refused, match="not at host desk"):
            pi.get_page("/hosts/desk")


USED = UsageSample(seconds=600.0, cpu=2.0, memory_bytes=2**30, gpu=0.5, gpu_memory_bytes=None)


@given(st.lists(st.tuples(st.floats(-2000, 4000), st.floats(0, 3000)), max_size=4))
def test_what_trainers_use_together_adds_up_and_begins_at_zero(spans):
    """At any moment: the cores of all that run, but the busiest one's share of the GPU; nothing where none runs."""
    uses = [(since, since + length, [USED]) for since, length in spans]
    told = {each.title: json.loads(each.data) for each in usage_of_host(uses, 0.0, 3600.0)}
    drawn = {title: dict(each["lines"][0][1]) for title, each in told.items()}
    for along, cores in drawn.get("Processor", {}).items():
        at = 3600 + (60 if told["Processor"]["x"].startswith("minutes") else 1) * along
        surely = sum(since + 1 < at < finish - 1 for since, finish, _ in uses)
        perhaps = sum(since - 1 < at < finish + 1 for since, finish, _ in uses)
        assert 2 * surely <= cores <= 2 * perhaps
        assert at > min(since for since, *_ in uses) - 3600 / POINTS_DRAWN - 1
        assert drawn["GPU at work"][along] == (50 if cores else 0)


# -- jobs -------------------------------------------------------------------------------------------------------


def names_on(page):
    return re.findall(r'scope="row"><a href="/jobs/[^"]*">([^<]*)</a>', page.replace("<wbr>", ""))


def test_jobs_are_filtered_by_the_address_and_counted_alike(receiver):
    page = get(receiver, "/jobs")[2]
    assert "14 jobs." in page
    assert names_on(page)[:3] == ["cnn-oracle", "gru-realistic", "cnn-realistic"], "what changed last comes first"
    page = get(receiver, "/jobs?status=pending&model=gru")[2]
    assert "1 pending gru job." in page
    assert names_on(page) == ["gru-oracle"]
    for link, number in re.findall(r'href="(/jobs\?[^"]*)"[^>]*><span aria-hidden="true">.</span> <b>(\d+)</b>', page):
        assert len(names_on(get(receiver, link.replace("&amp;", "&"))[2])) == int(number), link
    page = get(receiver, "/jobs?q=SSL&sort=name")[2]
    assert names_on(page) == ["transformer_ssl-oracle", "transformer_ssl-realistic"]
    assert names_on(get(receiver, "/jobs?host=laptop")[2]) == ["cnn-oracle", "mlp-oracle"]
    assert names_on(get(receiver, "/jobs?sort=priority")[2])[0] == "gbt-realistic"
    page = get(receiver, "/jobs?model=gbt&mode=dream")[2]
    assert "No dream gbt jobs." in page
    assert get(receiver, "/jobs?status=asleep")[0] == 400
    assert receiver.client().jobs(limit=9)["jobs"][0]["name"] == "gbt-realistic"


@pytest.mark.parametrize("sort", [*jobs.ORDERS, "-name", "auroc", "set.n"])
def test_pages_of_jobs_lead_to_each_job_once(sort, long):
    seen, path = [], f"/jobs?sort={sort}&model=gbt"
    while path:
        page = get(long, path)[2]
        assert len(gzip.compress(page.encode())) <= 50_000
        seen += names_on(page)
        following = re.search(r'href="([^"]+)" rel="next"', page)
        path = html.unescape(following[1]) if following else ""
    assert sorted(seen) == sorted(f"job {n}, with a comma" for n in range(120)), "each once"
    if sort.endswith("name"):
        assert seen == sorted(seen, reverse=sort == "-name")
    if sort == "set.n":
        assert seen == [f"job {n}, with a comma" for n in range(120)]
        assert "aria-sort" in page
    if sort == "newest":
        assert seen == [f"job {n}, with a comma" for n in range(120)], "what came at once stands in the plan's order"


def test_settings_that_differ_and_figures_are_columns_that_sort(receiver):
    page = get(receiver, "/jobs?sort=auroc")[2]
    heads = re.findall(r'<th role="columnheader"[^>]*>(?:<a href="([^"]*)">)?(?:<span[^>]*>)?([^<]*)', page)
    assert [title.strip() for _, title in heads[1:]] == [
        "State", "Name", "Model", "Host", "AUROC", "Since"
    ], "what all have alike, or one alone has, is no column"  # fmt: skip
    assert names_on(page)[:4] == ["gbt-oracle", "gbt-realistic", "mlp-realistic", "cnn-oracle"]
    assert "0.937</span> <small>0.897 to 0.977" in page
    assert page.count("<small>max_depth 6</small>") == 2, "a setting that some jobs have alone"
    assert "/jobs?sort=-auroc" in dict(heads)
    assert names_on(get(receiver, "/jobs?sort=-auroc")[2])[:2] == ["mlp-realistic", "gbt-realistic"]
    assert "/jobs?sort=-newest" in get(receiver, "/jobs?sort=none")[2], "an unknown order is the newest first"


def test_more_than_can_be_sorted_is_said(long, monkeypatch):
    monkeypatch.setattr(jobs, "SORTED_MAX", 60)
    assert "In this order: the 60 of them that changed last." in get(long, "/jobs?sort=set.n")[2]
    assert "In this order" not in get(long, "/jobs?sort=set.n&q=99")[2]


@given(st.lists(st.one_of(st.none(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=2))))
def test_an_order_keeps_every_job_and_puts_those_without_a_value_last(values):
    for sort in ("set.x", "-set.x"):
        found = [
            job.settings["x"] for job in jobs.in_order([SimpleNamespace(settings={"x": each}) for each in values], sort)
        ]
        known, back = [each for each in found if each is not None], sort == "-set.x"
        assert sorted(map(repr, found)) == sorted(map(repr, values))
        assert found == known + [None] * values.count(None)
        for kind in ((int, float), str):
            of_kind = [each for each in known if isinstance(each, kind)]
            assert of_kind == sorted(of_kind, reverse=back)


def test_what_is_cancelled_or_trained_and_no_longer_planned_is_shown_where_asked_for(tmp_path):
    with Receiver(tmp_path, [a_job(name) for name in ("stays", "cancelled", "left")]) as receiver:
        receiver.client().cancel("cancelled")
        receiver.client().cancel("left")
        receiver.writer.submit(lambda: receiver.service.reload(receiver.plan[:2], Plan())).result()
        page = get(receiver, "/jobs")[2]
        assert names_on(page) == ["stays"]
        assert "1 job." in page
        assert "1 cancelled job; not in the plan: 1." in get(receiver, "/jobs?status=cancelled")[2]
        assert '2 jobs cancelled, or completed and no longer in the plan: <a href="/jobs?all=1">show them' in page
        assert sorted(names_on(get(receiver, "/jobs?all=1")[2])) == ["cancelled", "left", "stays"]
        assert len(names_on(get(receiver, "/jobs?status=cancelled")[2])) == 2


def test_a_place_that_makes_no_sense_is_the_beginning():
    assert jobs.place("7,-12.5,a,b") == ListPlace(7, -12.5, "a,b")
    for text in ("", "x", "-1,0,", "1,nan,", "1,inf,", "9" * 400, "1,", ",,"):
        assert jobs.place(text) == ListPlace(), text


# -- a job ------------------------------------------------------------------------------------------------------


def test_a_job_says_what_happens_with_it_and_why(receiver):
    trained = words_of(get(receiver, "/jobs/mlp-realistic")[2])
    assert "mlp-realistic is trained: by spectral-desktop in 1 h 30 min, 5 h 20 min ago." in trained
    failed = words_of(get(receiver, "/jobs/mlp-oracle")[2])
    assert "mlp-oracle failed 4 h 37 min ago on laptop, in attempt 1: exit code 65 (bad data)" in failed
    assert "(bad data) is never retried. ValueError: features_window_v1.parquet holds no rows Fix the cause" in failed
    assert "Lines 42 to 61" in failed
    assert "2 of 3: refit, epoch 20 of 20, loss 0.045" in failed
    assert "&#34;epoch&#34;: 10, " not in failed
    whole = re.search(r'href="(/v1/job/[^"]*/log/text[^"]*)"', get(receiver, "/jobs/mlp-oracle")[2])
    status, headers, text = get(receiver, whole[1])
    assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert '"epoch": 10, ' in text
    assert text.count('"event": "epoch"') == 60
    running = words_of(get(receiver, "/jobs/cnn-oracle")[2])
    assert "cnn-oracle has trained on laptop for 10 min: 1 of 3: search (52 %), about 8 min left." in running
    waits = words_of(get(receiver, "/jobs/gru-oracle")[2])
    assert "gru-oracle: it waits: spectral-desktop: no room now: 8.0 GiB of a GPU&#39;s memory wanted" in waits
    assert "the model is not in whitelist [gbt, mlp]" in waits


def test_a_curve_is_drawn_with_a_table_behind_it(receiver):
    page = get(receiver, "/jobs/mlp-realistic")[2]
    drawn = re.findall(r'<svg viewBox="[^"]*" role="img" aria-label="([^"]*)"', page)
    assert [each for each in drawn if "by epoch" in each] == [
        "Loss by epoch: first 0.9, lowest 0.0225, highest 0.9, last 0.045",
        "Validation AUROC by epoch: first 0.6, lowest 0.6, highest 0.99, last 0.99",
    ]
    rows = re.findall(r'scope="row" class="right">(\d+)</th><td role="cell" class="right">([\d.]+)', page)
    assert (rows[0], rows[23], len(rows)) == (("1", "0.9"), ("60", "0.045"), 48 + 8)
    assert page.count("&#34;range&#34;:[0.0,") == 2, "the script, too, begins at zero for processor and memory"
    assert page.count('rotate(-90)">refit<') == 1, "the refit has no metric"
    assert page.count('<polyline class="line') == 2 + 1 + 2 + 2, "the loss of the refit is a line of its own"
    both = get(receiver, "/compare?jobs=mlp-realistic,gbt-oracle")[2]
    assert both.count('<polyline class="line') == 8, "two jobs in three charts, with two stages in one"
    assert "<svg viewBox" not in get(receiver, "/jobs/lstm-oracle")[2], "nothing is drawn of nothing"


def test_what_cannot_be_shown_is_said_in_a_sentence(receiver):
    """To a browser on a page of its own, to a program as a problem document."""
    status, headers, page = get(receiver, "/jobs/nobody", Accept="text/html,*/*")
    assert (status, headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert headers["content-security-policy"] == POLICY
    assert "No job is called &#39;nobody&#39;" in page
    status, headers, page = get(receiver, "/jobs/nobody")
    assert (status, headers["content-type"]) == (404, "application/problem+json")
    status, headers, page = get(receiver, "/nowhere", Accept="text/html")
    assert (status, headers["x-problem"]) == (404, "not_found")
    assert "<!doctype html>" in page
    assert get(receiver, "/jobs/mlp-oracle?attempt=7", Accept="text/html")[0] == 400
    assert get(receiver, "/v1/nowhere", Accept="text/html")[1]["content-type"] == "application/problem+json"


# -- comparing --------------------------------------------------------------------------------------------------


def test_what_differs_between_jobs_comes_first(receiver):
    page = words_of(get(receiver, "/compare?jobs=gbt-realistic,mlp-oracle")[2])
    assert "gbt-realistic and mlp-oracle differ in 6 of 17 fields: " in page
    assert re.search(r"hyper.max_depth gbt-realistic 6 mlp-oracle –", page)
    assert "the last one took gbt-realistic 15 min mlp-oracle 43 min" in page
    assert "error gbt-realistic – mlp-oracle ValueError" in page
    assert "trained by code" not in page, "what none of them has is no row"
    ids = [job_id({"name": name}) for name in ("gru-oracle", "gru-realistic")]
    page = words_of(get(receiver, f"/compare?jobs={ids[0]}&jobs={ids[1]}")[2])
    assert "gru-oracle and gru-realistic differ in 1 of" in page
    assert get(receiver, "/compare?jobs=gru-oracle")[0] == 400
    assert get(receiver, "/compare?jobs=gru-oracle,nobody")[0] == 404


def test_what_is_compared_is_what_was_trained_under_whatever_names(tmp_path):
    """Names may hold commas; the plan's text may have changed since a job was granted."""
    names = "sweep[seed=0,lr=0.003]", "a, b", "c"
    with Receiver(tmp_path, [a_job(name, seed=n) for n, name in enumerate(names)]) as receiver:
        granted = receiver.client().claim(a_capability())
        plan = [job | {"n_resamples": 200} for job in receiver.plan]
        receiver.writer.submit(lambda: receiver.service.reload(plan, Plan())).result()
        page = words_of(get(receiver, "/compare?jobs=sweep[seed=0,lr=0.003],a,%20b,c")[2])
        assert f"{', '.join(names[:2])} and c differ in 2 of 15 fields: n_resamples, seed." in page
        assert "n_resamples sweep[seed=0,lr=0.003] 1000 a, b 200 c 200" in page
        assert get(receiver, "/compare?jobs=c,a")[0] == 404
        receiver.client().fail(granted.job_id, reason="worker shutdown", error="", claim_id=granted.claim_id)
        assert receiver.client().claim(a_capability()).job_id == granted.job_id
        assert f"{names[0]} and c differ in 1 of" in words_of(get(receiver, f"/compare?jobs={names[0]},c")[2])


# -- events -----------------------------------------------------------------------------------------------------


def test_models_are_ranked_with_intervals_ties_and_verdicts(receiver):
    page = words_of(get(receiver, "/models")[2])
    assert "Use gbt-realistic, with caution: it may catch little. Of 2 realistic models (no lab needed) it has" in page
    assert "Of 3 models judged on the same test, no model is surely ahead: gbt-oracle has the highest AUROC" in page
    assert "In oracle mode the same model, gbt-oracle , has AUROC 0.951 (0.921 to 0.981): compare" in page
    assert "1 to rely on, 1 with caution, 1 not to be used" in page
    assert "0.937 0.897 to 0.977 = not distinguishable from the first" in page
    assert "5.0 % → 6.0 % 2.0 to 10.0 %" in page
    assert "Never tested on: further recordings of the machine that it was trained on (laptop)" in page
    assert "1 trained job came without a report: cnn-realistic" in page
    assert f'href="/v1/model/{job_id({"name": "gbt-oracle"})}" download' in get(receiver, "/models")[2]
    assert " %" not in get(receiver, "/models")[2], "a line may end there"


def test_a_job_shows_what_its_report_says_and_one_without_says_why(receiver):
    page = words_of(get(receiver, "/jobs/gbt-oracle")[2])
    assert "rely on it Catches 85 % of malicious-like windows. Calls falsely about 40 times a day. More about" in page
    assert "5.0 % → 6.0 % 3.0 to 9.0 %" in page
    assert "ROC curve of malicious1" in page
    assert "Processor in use" in page
    bare = words_of(get(receiver, "/jobs/cnn-realistic")[2])
    assert "There is no report: the job was trained before reports were kept." in bare
    assert "AUROC 0.951 0.921 to 0.981" in words_of(get(receiver, "/jobs")[2])


def test_compared_results_stand_side_by_side_with_the_gap_and_what_it_is_worth(receiver):
    page = words_of(get(receiver, "/compare?jobs=gbt-realistic,gbt-oracle,mlp-realistic")[2])
    assert "+0.014 the intervals overlap: they do not show which is better" in page
    assert "−0.095 the intervals do not overlap" in page
    assert "ROC curve of gbt-realistic, gbt-oracle, mlp-realistic" in page
    assert "AUROC on workshop" in page
    bare = words_of(get(receiver, "/compare?jobs=cnn-oracle,gru-oracle")[2])
    assert "None of them has a report here, so there are no figures to compare." in bare


HOSTILE_REPORTS = (
    json.dumps(
        a_report(
            verdict=HOSTILE,
            notes=[HOSTILE],
            per_host={HOSTILE: {"windows": 1, "auroc": {"value": 0.5, "ci95": [0, 1]}, "one_class": HOSTILE}},
            curves={"roc": [{"label": HOSTILE, "points": [[0, 0], [1, 1]]}]},
            baselines={HOSTILE: {"auroc": {"value": None, "reason": HOSTILE}}},
        )
    ),
    json.dumps(a_report(metrics={"test": {"auroc": {"value": "high"}, "tpr": {"value": 1e9}}})),
    '{"metrics": {"test": {"auroc": {"value": NaN}}}}',
    '{"metrics": {"test": {"auroc": {"value": 1e400}}}}',
    '{"metrics": ' + "[" * 50_000,
    json.dumps({"verdict": "x", "per_host": {f"h{n}": {} for n in range(10_000)}}),
    json.dumps(a_report(curves={"roc": [{"label": "x", "points": [[5, 5], [-1, 0]]}] * 100})),
)


def test_no_report_breaks_a_page(tmp_path):
    names = [f"job-{n}" for n in range(len(HOSTILE_REPORTS))]
    with Receiver(tmp_path, [a_job(name, priority=100 - n) for n, name in enumerate(names)]) as receiver:
        client = receiver.client()
        for report in HOSTILE_REPORTS:
            granted = client.claim(a_capability())
            (tmp_path / "bundle").write_text(granted.job_id)
            artifact = client.upload_artifact(granted.job_id, tmp_path / "bundle")
            client.complete(granted.job_id, artifact_id=artifact, report=report)
        paths = ["/models", "/models?test=", "/jobs", *(f"/jobs/{name}" for name in names)]
        paths += [f"/compare?jobs={','.join(names[n : n + 4])}" for n in (0, 3)]
        for path in paths:
            status, _, page = get(receiver, path)
            assert status == 200, path
            assert "<script>alert" not in page, path
            assert not re.search("[\u202e\x1b]", page), path
            assert len(page) < 120_000, (path, len(page))
        assert "not readable: it is no report in JSON" in get(receiver, "/jobs/job-4")[2]
        assert "The first 40 of 10000 hosts" in words_of(get(receiver, "/jobs/job-5")[2])


def test_an_incident_lasts_to_its_last_alarm_and_the_first_spans_are_named():
    def at(seconds):
        return datetime(2026, 11, 23, 23, 59).astimezone().timestamp() + seconds

    one = {"began_at": at(0), "raised_at": at(8), "last_alarm_at": at(26)}
    assert incidents.lasted(one) == "Mon 23 Nov 23:59:00 to 23:59:26 (26 s)"
    assert incidents.lasted(one | {"last_alarm_at": at(90)}).startswith("Mon 23 Nov 23:59:00 to Tue 24 Nov 00:00:30 (")
    spans = [(at(2 * n), at(2 * n + 1)) for n in range(5)]
    assert incidents.spans({"seconds": spans[:1]}) == "23:59:00 to 23:59:01"
    shown = incidents.spans({"seconds": spans})
    assert shown == "23:59:00 to 23:59:01, 23:59:02 to 23:59:03, 23:59:04 to 23:59:05 and 2 more"


def test_incidents_are_shown_by_host_with_reasons_and_verdicts(receiver):
    page = words_of(get(receiver, "/incidents")[2])
    assert "1 incident is open and not judged. 1 host has changed. 1 watch fell silent." in page
    how = "UTC: forks 0.21 → 3.4; spread of load_1m 0.4 → 1.1 and 3 more"
    assert re.search(rf"⚠ changed has changed since \S+ \S+ {how} gbt realistic, reported .*; a lasting attack", page)
    assert re.search(rf"○ changed, over has changed since \S+ \S+ {how} .*; confirmed on the host as its", page)
    assert page.index("forks 38 %, cpu_user 21 %, context_switches 9 %") < page.rindex("attic-pi")
    assert "0.93 threshold 0.62" in page
    assert "confirmed operator ada" in page
    assert "(26 s) 12 alarms; 2 of 3 windows" in page
    assert "<form" not in get(receiver, "/incidents")[2].partition("<main")[2], "only an operator judges"
    one = words_of(get(receiver, "/incidents?host=attic-pi")[2])
    assert "No open incident on attic-pi waits to be judged. 1 watch fell silent." in one
    assert "office-print" not in one
    none = get(receiver, "/incidents?host=laptop")[2]
    assert "laptop is not watched yet." in none
    assert "cis490-jobs enroll --watcher laptop" in none
    front = get(receiver, "/")[2]
    assert re.search(r'href="/incidents\?host=office-print">office-print</a> has changed since', front)
    assert "office-print</a>: 1 incident is open, the first raised at" in front
    assert 'href="/incidents?host=office-print">1 open incident</a>' in front


def test_events_are_told_newest_first_by_day_and_filtered(receiver):
    page = words_of(get(receiver, "/events")[2])
    assert "gru-realistic began training on spectral-desktop." in page
    assert page.index("gru-realistic was given to spectral-desktop") < page.index("mlp-oracle failed permanently")
    assert "trainer failed" in page
    host = words_of(get(receiver, "/events?host=laptop")[2])
    assert "mlp-oracle failed permanently, on laptop" in host
    assert "gbt-realistic was trained" not in host
    kind = words_of(get(receiver, "/events?kind=complete&host=office-print")[2])
    assert kind.count("was trained by") == 3, "two rows and the sentence"
    assert "No event matches." in words_of(get(receiver, "/events?host=nobody")[2])
    one = words_of(get(receiver, f"/events?job={job_id({'name': 'gbt-oracle'})}")[2])
    assert "gbt-oracle was trained by office-print" in one
    assert "mlp-oracle" not in one


def test_events_go_on_page_by_page(long):
    seen, path = [], "/events?kind=insert"
    while path:
        page = get(long, path)[2]
        seen += re.findall(r">job (\d+), with a comma</a>", page)
        older = re.search(r'href="([^"]+)" rel="next"', page)
        path = html.unescape(older[1]) if older else ""
    assert seen == [str(n) for n in reversed(range(120))]


# -- live -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [row.path for row in PAGES.values()])
def test_a_page_that_its_browser_shows_is_made_again_when_it_would_differ(tmp_path, path):
    """At once after an event, soon after a change without one, and now and then for its times."""
    clock = FakeClock()
    with Receiver(tmp_path, [a_job(HOSTILE), a_job("plain", priority=1)], fleet_clock=clock) as receiver:

        def tag(shown=""):
            status, headers, page = get(receiver, address(path), If_None_Match=shown)
            assert (
                (status, headers["etag"], page) == (304, shown, "")
                if status == 304
                else (status, bool(page)) == (200, True)
            )
            return headers["etag"]

        receiver.client("attic").claim(a_capability() | {"cpu_cores": 0})  # so that it is known
        before = tag()
        assert tag(before) == before
        assert tag(f"W/{before}") == f"W/{before}", "as a proxy passes it on"
        receiver.client().claim(a_capability())
        after = tag(before)
        assert after != before
        clock.advance(pages.PROGRESS_S + 1)
        assert tag(after) == after, "nothing has changed"
        receiver.client("desk").claim(a_capability() | {"cpu_cores": 0})
        changed = tag(after)
        assert changed != after
        clock.advance(pages.AGE_S)
        assert tag(changed) != changed
        assert tag('"none of ours"')


def test_what_one_caller_is_shown_is_news_for_another(receiver):
    """Operators see buttons: a page is never taken for another caller's."""
    session = logged_in(receiver, TOKEN)
    status, headers, page = get(receiver, "/jobs", Cookie=session)
    assert (status, "Cancel…" in page) == (200, True)
    assert get(receiver, "/jobs", Cookie=session, If_None_Match=headers["etag"])[0] == 304
    status, _, page = get(receiver, "/jobs", If_None_Match=headers["etag"])
    assert (status, "Cancel…" in page) == (200, False)


def test_a_page_is_registered_once_and_whole():
    """A module with a page, its template and its row in the route table: none of them alone."""
    modules = {
        path.stem
        for path in Path(fleet.__file__).parent.glob("*.py")
        if "def page(asked: PageRequest, frame: Frame) -> str" in path.read_text(encoding="utf-8")
    }
    assert modules == PAGES.keys()
    templates = Path(fleet.__file__).parent / "templates"
    assert {name for name in PAGES if not (templates / f"{name}.html").is_file()} == set()
    assert all(row.name == f"{name}_page" and row.media == HTML for name, row in PAGES.items())


def test_an_unknown_page_is_an_error(receiver):
    for path in ("/fleet", "/v1/stream?of=/login", "/v1/stream"):
        status, headers, _ = get(receiver, path)
        assert (status, headers["content-type"]) == (404, "application/problem+json"), path


# -- the rest ---------------------------------------------------------------------------------------------------


def test_the_day_shows_attempts_and_how_many_waited(monkeypatch):
    now = 10 * DAY_S
    told = [
        (1, now - 2 * DAY_S, "a", None, "pending", None, None),
        (2, now - 5000, "a", "pending", "claimed", 1, "pi"),
        (3, now - 4000, "a", "running", "failed", 1, "pi"),
        (4, now - 3000, "b", None, "pending", None, None),
        (5, now - 2000, "b", "running", "completed", 1, "desktop"),
    ]
    moves = [Event(seq, at, job, job, True, "", *move, None) for seq, at, job, *move in reversed(told)]
    live = {"job_id": "c", "attempt": 1, "name": "c", "host": "pi", "claimed_at": now - 3 * DAY_S}
    found = day(moves, [live], 1, now)
    assert found.begin == now - DAY_S
    assert [(each.begin, each.finish, each.look) for each in found.hosts["pi"]] == [
        (now - 5000, now - 4000, "failed"),
        (found.begin, now, "running"),
    ]
    assert found.hosts["desktop"][0].begin == found.begin, "it began before what is known"
    assert found.waiting == [(found.begin, 1), (now - 5000, 0), (now - 3000, 1), (now, 1)]
    tried = day([moves[2]._replace(to_status="pending", transition="retry")], [], 1, now)
    assert tried.hosts["pi"][0].look == "failed", "though it is tried again"
    monkeypatch.setattr(timeline, "MOVES_MAX", 3)
    short = day(moves[:3], [], 0, now)
    assert short.begin == now - 4000, "no longer than what is known"
    assert (found.waiting_most, short.waiting_most) == (1, 0)


@pytest.mark.parametrize(("ago_s", "hours"), [(60, 1), (3600, 1), (3601, 2), (25_000, 7), (200_000, 24)])
def test_the_drawn_time_is_as_long_as_its_attempts_need(ago_s, hours):
    live = {"job_id": "c", "attempt": 1, "name": "c", "host": "pi", "claimed_at": NOON - ago_s}
    old = Event(1, NOON - 7200, "j", "j", True, "", None, "pending", None, None, None)
    found = day([old], [live], 1, NOON)
    assert found.finish - found.begin == hours * 3600
    assert found.waiting[0] == (found.begin, 0 if hours > 1 else 1), "what waited before it is counted"


def test_the_picture_of_what_waited_costs_each_step_once_and_not_once_for_each_other():
    class Steps(list[tuple[float, int]]):
        read = 0

        def __iter__(self):
            type(self).read += 1
            return super().__iter__()

    now = 10 * DAY_S
    moves = [
        Event(n, now - 1000 + n, f"j{n}", "j", True, "", "pending", "claimed", 1, "pi", None) for n in range(200, 0, -1)
    ]
    found = day(moves, [], 0, now)
    drawn = rendering._environment().get_template("parts.html").module
    assert "at most 200, now 0" in drawn.steps(found._replace(waiting=Steps(found.waiting)))
    assert Steps.read <= 2


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("gbt-oracle", "gbt-oracle"),
        ("my job", "'my job'"),
        ("a; rm -rf x", "'a; rm -rf x'"),
        ("it's", "'it'\"'\"'s'"),
        ("gbt[seed=0]", "'gbt[seed=0]'"),
        ("--help", "3f0c"),
        ("a\x1b[2J", "3f0c"),
        ("", "3f0c"),
    ],
)
def test_a_command_to_copy_names_one_job_in_every_shell(name, word):
    job = {"name": name, "job_id": "3f0c"}
    assert words.typed(job) == word
    assert f"`cis490-jobs requeue {word}` trains" in words.removed_sentence(job, NOON, "old")


def test_a_state_that_nobody_knows_shows_as_text():
    shown_as = rendering.state_element({"status": "<b>asleep</b>"})
    assert "&lt;b&gt;asleep&lt;/b&gt;" in shown_as
    assert "<b>" not in shown_as


def test_all_is_done_when_the_last_one_is():
    live = [{"progress": {"eta_s": 120}}, {"progress": {"eta_s": 7200}}]
    assert "2 are training (done in about 2 h 00 min)" in fleet.sentence({**EMPTY, "running": 2}, live, [])


def test_addresses_and_times():
    assert job_path({"name": "a/b?c", "job_id": "12", "in_manifest": True}) == "/jobs/a%2Fb%3Fc"
    assert job_path({"name": "..", "job_id": "12", "in_manifest": True}) == "/jobs/12", "it is no folder"
    assert job_path({"name": "a", "job_id": "12", "in_manifest": False}) == "/jobs/12", "another job may have the name"
    assert "3 min ago" in time_element(NOON - 180, NOON)
    assert "in 3 min" in time_element(NOON + 180, NOON)
    assert time_element(None, NOON) == ""
    assert time_element("yesterday", NOON) == ""


def test_pages_stay_small(receiver):
    """The first page loads at most 25 kB of script and style, a job's page 50 kB, compressed."""
    for path, most in (("/", 25_000), ("/jobs/gbt-oracle", 50_000), ("/compare?jobs=gbt-oracle,mlp-realistic", 50_000)):
        loaded = set(re.findall(r'(?:src|href)="(/static/[^"]+\.(?:js|css))"', get(receiver, path)[2]))
        found = [static.static_file(each.rpartition("/")[2]) for each in loaded]
        assert sum(len(each.compressed) for each in found if each is not None) <= most, path
        assert len(get(receiver, path)[2]) <= 50_000, path
