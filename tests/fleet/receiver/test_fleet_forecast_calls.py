"""The forecast over the wire."""

import pytest
from builders import a_capability
from receiver_running import TOKEN, running

from training.fleet.client.client import Refused


def test_a_forecast_is_asked_for_and_varied(tmp_path):
    with running(tmp_path, "one", "two") as receiver:
        assert receiver.client("pi").claim(a_capability()) is not None
        operator = receiver.client(token=TOKEN)
        assert [job["live"] for job in operator.forecast()["jobs"]] == [True, False]
        assert len(operator.forecast({"imagined": {"new": {"cores": 8}}})["hosts"]) == 2
        with pytest.raises(Refused, match="no host is called nobody"):
            operator.forecast({"without": ["nobody"]})
        with pytest.raises(Refused):
            operator.forecast({"imagined": {"new": {"tpu": 8}}})
