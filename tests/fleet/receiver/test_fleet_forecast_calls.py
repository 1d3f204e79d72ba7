"""The forecast over the wire, and what a receiver keeps of it for the review."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from builders import a_capability
from receiver_running import TOKEN, running

from training.fleet.client.client import Refused
from training.fleet.receiver.http.keeping import keep_forecasts


def test_a_forecast_is_asked_for_varied_and_kept(tmp_path: Path) -> None:
    with running(tmp_path, "one", "two") as receiver:
        asyncio.run(keep_forecasts(receiver.hub))
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
        asyncio.run(keep_forecasts(receiver.hub))
        kept = receiver.queue.db
        assert len(receiver.writer.submit(lambda: kept.all("untold_waiting", most=9)).result()) == 0
        assert len(receiver.writer.submit(lambda: kept.all("untold_live", most=9)).result()) == 0
        assert [each["jobs"] for each in operator.forecast_review()["told"]] == [0, 0]
