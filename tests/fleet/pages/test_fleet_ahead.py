"""The fleet's page into the future: each host's jobs to come, what it lets go to others, and when all is done."""

import re

import pytest
from receiver_running import Wire
from shown_fleet import shown

from training.fleet.pages import fleet
from training.fleet.pages.timeline import ahead
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.forecasts import DeclineView, ForecastReply, ForetoldHost, ForetoldJob

NOW = 1_782_993_600.0
COUNTS = {"pending": 2, "claimed": 0, "running": 1, "completed": 1, "failed": 0, "cancelled": 0}


def told(**fields):
    times = {"low_at": NOW + 3000, "high_at": NOW + 9000}
    live = ForetoldJob(
        job_id="a", name="gbt", host="desk", slot=0, begins_at=NOW - 60, ends_at=NOW + 1800, live=True, **times
    )
    later = ForetoldJob(job_id="b", name="mlp", host="desk", slot=0, begins_at=NOW + 1800, ends_at=NOW + 3600, **times)
    declined = DeclineView(name="mlp", at=NOW, by="desk", ends_at=NOW + 3600, here_until=NOW + 36000)
    shape = {
        "now": NOW, "done_at": NOW + 3600, "done_low_at": NOW + 3000, "done_high_at": NOW + 9000, "jobs": [live, later],
        "count": 2, "hosts": [ForetoldHost(host="desk", jobs=2), ForetoldHost(host="pi", declined=declined)],
        "learned_from": 3,
    }  # fmt: skip
    return ForecastReply(**(shape | fields))


def test_each_host_has_its_jobs_to_come_without_those_under_way():
    found = ahead(told())
    assert [job.name for job in found.hosts["desk"]] == ["mlp"]
    assert list(found.declined) == ["pi"]


@pytest.mark.parametrize("fields", [{"jobs": []}, {"done_at": None}, {"learned_from": 0}])
def test_nothing_is_foretold_where_nothing_is_to_come_or_nothing_is_known(fields):
    assert ahead(told(**fields)) is None
    assert ahead(None) is None


def test_the_sentence_says_when_all_is_done_and_how_sure_that_is():
    said = fleet.sentence(COUNTS, [], [], 0, ahead(told()))
    assert re.search(r"; 1 is training, 2 wait\. Done about \S+ \(80 %: \S+ to \S+\)\.$", said)
    for partly in ({"nowhere": {"big": "no"}}, {"held": 1}, {"left_out": 5}):
        assert "All that can be is done about" in fleet.sentence(COUNTS, [], [], 0, ahead(told(**partly)))


def test_the_page_shows_what_is_to_come_and_goes_without_where_that_is_not_to_be_had(tmp_path, monkeypatch):
    with shown(tmp_path) as receiver:

        def page():
            with Wire(receiver) as wire:
                status, _, body = wire.request("GET", "/").answer()
            assert status == 200
            return body.decode()

        (said,) = re.findall(r">next (.*?)</small>", page())
        when = r"at about (\w+ \d+ \w+ )?\d\d:\d\d"
        assert re.fullmatch(rf"\S+ {when}, \S+ {when} and 5 more; done about .*", said), said

        def busy(*_):
            raise Refusal(ProblemType.SLOW_DOWN, "other forecasts are being made")

        monkeypatch.setattr("training.fleet.service.forecasts.Forecasts.now", busy)
        assert "Done about" not in page()
        assert ">next " not in page()
        monkeypatch.setattr(
            "training.fleet.service.forecasts.Forecasts.now",
            lambda _: told(hosts=[ForetoldHost(host="laptop", declined=told().hosts[1].declined)]),
        )
        assert "waits: desk will have mlp done at" in page()
