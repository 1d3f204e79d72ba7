"""Acting on jobs from pages: the question with its number, then the act on as many jobs."""

import html
import re
from contextlib import closing
from urllib.parse import urlencode

import pytest
from builders import a_capability, a_job
from fakes import FakeClock
from receiver_running import TOKEN, Receiver, job_id
from shown_fleet import HOSTILE
from test_fleet_login import logged_in, look, send
from test_fleet_manifest import TableDescriber

from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.job import JobStatus
from training.fleet.scheduling.quarantine import Cause
from training.fleet.service import acts
from training.fleet.service.acts import Target, applies, for_good, forecast_of
from training.fleet.service.acts import in_words as what
from training.fleet.service.audit import AuditLog
from training.fleet.service.job_views import JobFilter
from training.fleet.service.plan import Reloader
from training.fleet.service.preview import Previews
from training.fleet.service.service import Service
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.wire.constants import JobAct


@pytest.fixture
def receiver(tmp_path):
    clock = FakeClock()
    plan = [a_job(f"mlp-{n}", model="mlp") for n in range(4)] + [a_job(HOSTILE, model="gru", priority=-1)]
    with Receiver(tmp_path, plan, fleet_clock=clock) as found:
        granted = found.client().claim(a_capability())
        found.client().heartbeat(granted.job_id)
        clock.advance(7800)
        yield found


def words_of(page):
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)))


def fields_of(page):
    """The hidden fields of the question's form, as a browser sends them."""
    form = page[page.index('<form action="/act"') :]
    return urlencode([(n, html.unescape(v)) for n, v in re.findall(r'name="(\w+)" value="([^"]*)"', form)])


# -- rules ------------------------------------------------------------------------------------------------------


def test_no_more_jobs_than_the_limit_are_moved_at_once():
    found = [Target(str(n), "x", JobStatus.PENDING, None, None, True) for n in range(acts.JOBS_MAX + 1)]
    forecast = forecast_of(JobAct.CANCEL, found, 0.0)
    assert (len(forecast.targets), forecast.whole, forecast.left_alone) == (acts.JOBS_MAX, False, 0)
    held = [each._replace(held_at=1.0) for each in found]
    assert what(forecast_of(JobAct.HOLD, [*held, *found[:2]], 0.0)) == "hold 2 pending jobs"


def test_what_is_lost_is_said_and_what_is_not_is_not():
    def job(status, since=None):
        return Target(f"{status}{since}", "x", status, since, None, True)

    found = [job(JobStatus.RUNNING, 0.0), job(JobStatus.CLAIMED, 3000.0), job(JobStatus.PENDING)]
    assert what(forecast_of(JobAct.CANCEL, found[:1], 5400.0)) == "cancel 1 running job; 1 h 30 min of work is lost"
    assert what(forecast_of(JobAct.CANCEL, found, 5400.0)) == (
        "cancel 3 jobs (2 running, 1 pending); 2 h 10 min of work is lost"
    )
    assert what(forecast_of(JobAct.HOLD, found, 5400.0)) == "hold 3 jobs (2 running, 1 pending)"
    assert what(forecast_of(JobAct.UNHOLD, found, 5400.0)) == "unhold no jobs"
    failed = [job(JobStatus.FAILED)._replace(in_manifest=False)]
    over = [job(status) for status in (JobStatus.COMPLETED, JobStatus.CANCELLED)]
    for doing, targets, said in (
        (JobAct.CANCEL, found, "the work under way is lost."),
        (JobAct.CANCEL, found[2:], ""),
        (JobAct.REQUEUE, over, "completed jobs must be trained again."),
        (JobAct.REQUEUE, over[1:], ""),
        (JobAct.CANCEL, failed, "failed jobs do not become failed again, only pending or cancelled."),
        (JobAct.REQUEUE, failed, "failed jobs do not become failed again, only pending or cancelled."),
        (JobAct.HOLD, found, ""),
    ):
        assert for_good(forecast_of(doing, targets, 5400.0)).removeprefix("This cannot be taken back: ") == said
    assert not applies(JobAct.CANCEL, job(JobStatus.FAILED)), "a failed job of the plan is to be seen"
    assert all(applies(JobAct.HOLD, each) for each in over), "what is held is not deleted"


def test_a_failed_job_of_the_plan_is_found_and_cannot_be_cancelled(receiver):
    queue, (job,) = receiver.queue, receiver.queue.db.all("live_jobs_by_host")
    assert queue.fail(job_id({"name": job["name"]}), job["host"], exit_code=2)
    (found,) = acts.chosen(queue.db, acts.Selection(JobFilter(status="failed")))
    assert (applies(JobAct.CANCEL, found), applies(JobAct.REQUEUE, found)) == (False, True)


# -- by a browser without script --------------------------------------------------------------------------------


@pytest.fixture
def session(receiver):
    return logged_in(receiver, TOKEN)


def test_a_question_says_the_number_and_the_act_is_that_one(receiver, session):
    status, page = look(receiver, "/act?what=cancel&all=1&model=mlp", Cookie=session)
    assert status == 200
    assert "Cancel 4 jobs (1 running, 3 pending); 2 h 10 min of work is lost." in words_of(page)
    assert "This cannot be taken back: the work under way is lost." in words_of(page)
    assert receiver.queue.counts()["cancelled"] == 0, "a question changes nothing"
    status, _, page = send(receiver, "/act", body=fields_of(page), Cookie=session)
    assert (status, "4 jobs were cancelled." in page) == (200, True)
    assert receiver.queue.counts()["cancelled"] == 4
    audited = receiver.client().call("audit")["entries"]
    assert [(each["who"], each["act"]) for each in audited] == [("operator operator", "cancel")] * 4

    page = look(receiver, "/act?what=requeue&all=1&status=cancelled", Cookie=session)[1]
    assert "Requeue 4 cancelled jobs." in page
    assert "4 jobs were requeued." in send(receiver, "/act", body=fields_of(page), Cookie=session)[2]
    assert receiver.queue.counts()["pending"] == 5


def test_an_act_is_asked_again_when_the_jobs_have_changed(receiver, session):
    page = look(receiver, "/act?what=hold&all=1&status=pending", Cookie=session)[1]
    assert "Hold 4 pending jobs." in page
    receiver.client("desk").claim(a_capability())
    status, _, page = send(receiver, "/act", body=fields_of(page), Cookie=session)
    assert status == 409
    assert "has changed meanwhile, and nothing was done" in page
    assert "Hold 3 pending jobs." in page
    assert "3 jobs were held." in send(receiver, "/act", body=fields_of(page), Cookie=session)[2]

    front = words_of(look(receiver, "/")[1])
    assert "3 held" in front, "in the strip of states"
    assert "now 3. 3 jobs wait to be unheld" in front, "beside what waited"
    for filters, number in (
        ("", 3),
        ("mode=oracle", 0),
        ("model=mlp", 2),
        ("q=SCRIPT", 1),
        ("host=desk", 0),
        ("status=held&model=gru", 1),
    ):
        page = words_of(look(receiver, f"/jobs?{filters}", Cookie=session)[1])
        assert {*re.findall(r"‖ (\d) held", page)} == ({str(number)} if number else set()), filters
    assert "All 1 job found:" in page
    hostile = look(receiver, f"/jobs/{job_id({'name': HOSTILE, 'model': 'gru'})}")[1]
    assert "it fits, and waits only because the job is held" in hostile


def test_nobody_acts_without_an_operators_proof(receiver):
    question = "/act?what=cancel&all=1"
    for status, page in (look(receiver, question), look(receiver, question, Cookie="cis490=1.2.3")):
        assert status == 403
        assert 'href="/login?to=%2Fact%3Fwhat%3Dcancel%26all%3D1"' in page
    assert "Cancel…" not in look(receiver, "/jobs")[1]
    session = logged_in(receiver, TOKEN)
    assert "All 5 jobs found:" in words_of(look(receiver, "/jobs", Cookie=session)[1])
    right = fields_of(look(receiver, question, Cookie=session)[1])
    for headers in (
        {"Cookie": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Origin": None},  # no browser sends a form without
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ):
        status, _, _ = send(receiver, "/act", body=right, **{"Cookie": session, **headers})
        assert status in (403, 421), headers
    assert receiver.queue.counts()["cancelled"] == 0
    reader = receiver.client().call("add_token", name="wall", role="reader")["token"]
    assert send(receiver, "/act", body=right, Cookie=logged_in(receiver, reader))[0] == 403


ALARMS = {
    "id": "ab" * 8, "event": "over", "began_at": 1.0, "raised_at": 2.0, "last_alarm_at": 3.0, "alarms": 2,
    "peak": 0.1, "threshold": 0.5, "why": [{"channel": HOSTILE, "share": 1.0}],
}  # fmt: skip
CHANGE = {
    "id": "ab" * 8, "event": "changed", "began_at": 1.0, "raised_at": 2.0,
    "channels": [{"channel": HOSTILE, "measure": "level", "before": 0.2, "after": 3.4}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("told", "button", "verdict", "words"),
    [
        (ALARMS, "Confirm", "false", "a false alarm operator operator"),
        (CHANGE, "Close", "closed", "closed by operator operator"),
    ],
)
def test_an_operator_judges_an_incident_on_its_page_and_takes_that_back(receiver, told, button, verdict, words):
    receiver.client().watch({"host_id": "pi", "model": HOSTILE, "incident": told})
    session = logged_in(receiver, TOKEN)
    page = look(receiver, "/incidents", Cookie=session)[1]
    assert (f"{button}</button>" in page, "<script>alert" in page) == (True, False)
    assert f"{button}</button>" not in look(receiver, "/incidents")[1]
    form = urlencode({"number": 1, "verdict": verdict, "host": "pi"})
    reader = receiver.client().call("add_token", name="wall", role="reader")["token"]
    for cookie in ("", logged_in(receiver, reader)):
        assert send(receiver, "/incidents", body=form, Cookie=cookie)[0] == 403
    status, headers, _ = send(receiver, "/incidents", body=form, Cookie=session)
    assert (status, headers["location"]) == (303, "/incidents?host=pi#incident-1")
    assert words in words_of(look(receiver, "/incidents", Cookie=session)[1])
    assert receiver.client().incidents()["changed"] == 0
    again = urlencode({"number": 1, "verdict": "open", "host": "//evil.example"})
    assert send(receiver, "/incidents", body=again, Cookie=session)[1]["location"] == "/incidents#incident-1"
    assert receiver.client().incidents()["incidents"][0]["verdict"] is None
    other = "closed" if told is ALARMS else "false"
    for bad in ("number=1&verdict=maybe", "number=x&verdict=false", "number=7&verdict=false", ""):
        assert send(receiver, "/incidents", body=bad, Cookie=session)[0] in (400, 404), bad
    assert send(receiver, "/incidents", body=f"number=1&verdict={other}", Cookie=session)[0] == 409


def test_hostile_words_show_as_text_in_questions_and_mistakes(receiver, session):
    bad = urlencode({"x": HOSTILE})[2:]
    pages = [
        look(receiver, "/act?what=cancel&all=1&model=gru", Cookie=session)[1],
        look(receiver, f"/act?what=cancel&all=1&status={bad}", Cookie=session)[1],
        look(receiver, f"/act?what={bad}&all=1", Cookie=session)[1],
        look(receiver, f"/act?what=release&host={bad}", Cookie=session)[1],
        look(receiver, f"/login?to=/{bad}")[1],
        send(receiver, "/login", body=urlencode({"token": HOSTILE, "to": HOSTILE}))[2],
    ]
    for page in pages:
        assert page.startswith("<!doctype html>")
        assert "<script>alert" not in page
        assert not re.search("[\u202e\x1b]", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in pages[0]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/act?what=cancel", "No job is chosen"),
        ("/act?what=cancel&jobs=", "No job is chosen"),
        ("/act?what=explode&all=1", "What: expected one of cancel, requeue"),
        ("/act?what=release&host=nobody", "No host is called"),
        ("/act?what=pause&host=nobody", "No host is called"),
        ("/act?what=reload", "started without a manifest"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_sentence(receiver, address, said):
    status, page = look(receiver, address, Cookie=logged_in(receiver, TOKEN))
    assert status in (400, 404, 422)
    assert said in words_of(page)


def test_a_host_is_released_from_its_notice(receiver):
    queue = receiver.queue
    receiver.writer.submit(lambda: queue.quarantines.put("pi", Cause.DEATHS, "3 jobs died on it at once")).result()
    session = logged_in(receiver, TOKEN)
    address = html.unescape(re.findall(r'href="(/act\?what=release[^"]*)"', look(receiver, "/", Cookie=session)[1])[0])
    page = look(receiver, address, Cookie=session)[1]
    assert "Release pi." in words_of(page)
    assert "3 jobs died on it at once" in page
    right = fields_of(page)
    assert "pi was released." in send(receiver, "/act", body=right, Cookie=session)[2]
    assert "is not quarantined" in send(receiver, "/act", body=right, Cookie=session)[2]


@pytest.mark.parametrize(("what", "does"), [("pause", "stop where they are"), ("drain", "runs to its end")])
def test_a_host_is_paused_or_drained_from_its_row_and_resumed_from_its_notice(receiver, session, what, does):
    fleet = html.unescape(look(receiver, "/", Cookie=session)[1])
    (address,) = {each for each in re.findall(r'href="(/act\?what=\w+&host=[^"]*)"', fleet) if f"what={what}" in each}
    page = look(receiver, address, Cookie=session)[1]
    assert does in words_of(page)
    assert "It gets no jobs until it is resumed." in words_of(page)
    done = send(receiver, "/act", body=fields_of(page), Cookie=session)[2]
    assert re.search(rf"is {what}e?d\.", words_of(done))
    fleet = look(receiver, "/", Cookie=session)[1]
    assert "at rest" in words_of(fleet)
    assert "cis490-jobs resume" in words_of(fleet)
    back = html.unescape(re.findall(r'href="(/act\?what=resume[^"]*)"', done)[0])
    asked = look(receiver, back, Cookie=session)[1]
    assert "was resumed." in words_of(send(receiver, "/act", body=fields_of(asked), Cookie=session)[2])
    status, page = look(receiver, back, Cookie=session)
    assert (status, "is neither paused nor drained" in page) == (409, True)


def test_a_reload_says_before_what_it_changes(receiver):
    file = receiver.folder / "manifest.toml"
    file.write_text('jobs = [{ name = "new one", model = "gbt", mode = "oracle" }]')
    reloader = Reloader(file, receiver.service, receiver.writer, TableDescriber(), receiver.hub.audit)
    receiver.hub.previews, receiver.hub.read_manifest = Previews(reloader, receiver.reader), reloader
    session = logged_in(receiver, TOKEN)
    page = look(receiver, "/act?what=reload", Cookie=session)[1]
    assert "Jobs: 1 new, 5 no longer named." in words_of(page)
    file.write_text(file.read_text().replace("new one", "newer one"))
    status, _, page = send(receiver, "/act", body=fields_of(page), Cookie=session)
    assert (status, "has changed meanwhile, and nothing was done" in page) == (409, True)
    assert receiver.queue.counts()["pending"] == 4
    assert "The plan was reloaded." in send(receiver, "/act", body=fields_of(page), Cookie=session)[2]
    assert receiver.queue.counts()["pending"] == 5
    file.write_text('retention = { keep = "best 1 per model and mode" }\n' + file.read_text())
    words = words_of(look(receiver, "/act?what=reload", Cookie=session)[1])
    assert "1 edited in [retention]" in words
    assert "cis490-jobs gc --dry-run" in words, "what goes is not brought back by another edit"


def test_many_jobs_are_moved_in_portions_and_a_job_that_moved_meanwhile_is_not(tmp_path):
    clock = FakeClock()
    with closing(JobQueue(tmp_path / "jobs.db", clock=clock)) as queue:
        named = [a_job(f"job {n}") for n in range(2 * acts.PORTION + 1)]
        queue.sync_from_manifest([each | {"job_id": job_id(each)} for each in named])
        service, audit = Service(queue, ArtifactStore(tmp_path / "models")), AuditLog(queue.db, clock)
        forecast = forecast_of(JobAct.CANCEL, acts.chosen(queue.db, acts.Selection()), clock.now())
        queue.cancel(forecast.targets[-1].job_id)
        assert queue.claim_next(worker_hostname="pi", capability=a_capability()) is not None, "a job that runs now"
        moved = skipped = 0
        for portion in acts.portions(forecast):
            with queue.db.transaction():
                done = acts.carry_out(service, audit, JobAct.CANCEL, portion, "operator ada")
            moved, skipped = moved + done.moved, skipped + done.skipped
        assert (moved, skipped) == (2 * acts.PORTION - 1, 2)
