"""The forecast over the wire, and what a receiver keeps of it for the review."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from builders import a_capability, a_job
from receiver_running import TOKEN, Receiver, running

from training.fleet.client.client import Refused
from training.fleet.receiver.http.keeping import ForecastKeeper


def test_a_forecast_is_asked_for_varied_and_kept(tmp_path: Path) -> None:
    with running(tmp_path, "one", "two") as receiver:
        asyncio.run(ForecastKeeper(receiver.hub).look())
        assert "forecasts" not in vars(receiver.hub), "without a host there is no forecast to load"
        assert receiver.client("pi").claim(a_capability()) is not None
        operator = receiver.client(token=TOKEN)
        told = operator.forecast()
        assert [job["live"] for job in told["jobs"]] == [True, False]
        assert len(operator.forecast({"imagined": {"new": {"cores": 8}}})["hosts"]) == 2
        with pytest.raises(Refused, match="no host is called nobody"):
            operator.forecast({"without": ["nobody"]})
        with pytest.raises(Refused):
            operator.forecast({"imagined": {"new": {"tpu": 8}}})
        asyncio.run(ForecastKeeper(receiver.hub).look())
        kept = receiver.queue.db
        assert len(receiver.writer.submit(lambda: kept.all("untold_waiting", most=9)).result()) == 0
        assert len(receiver.writer.submit(lambda: kept.all("untold_live", most=9)).result()) == 0
        assert [each["jobs"] for each in operator.forecast_review()["told"]] == [0, 0]


def test_jobs_that_no_forecast_names_are_not_asked_about_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    with Receiver(tmp_path, [a_job("fits"), a_job("fits nowhere", min_ram_gib=4000.0)]) as receiver:
        keeper, foretell = ForecastKeeper(receiver.hub), receiver.hub.foretell
        monkeypatch.setattr(receiver.hub, "foretell", lambda look: made.append(look) or foretell(look))
        look = lambda: asyncio.run(keeper.look())  # noqa: E731
        look()
        assert made == [], "without a host"
        pi = receiver.client("pi")
        grant = pi.claim(a_capability())
        assert grant is not None
        for _ in range(3):
            look()
        assert len(made) == 1
        pi.fail(grant.job_id, error="e", reason="worker_shutdown")
        pi.claim(a_capability())
        look()
        assert len(made) == 2, "another attempt"
        for ram in (5.0, 6.0):
            receiver.client("pi").claim(a_capability() | {"ram_available_gib": ram})
            look()
        assert len(made) == 2, "less memory is free, on the same host"
        receiver.client("desk").claim(a_capability(ram=8000.0))
        for _ in range(3):
            look()
        assert len(made) == 3, "another host"
        assert receiver.writer.submit(lambda: receiver.queue.db.all("untold_waiting", most=9)).result() == []
