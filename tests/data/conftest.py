"""The start of several tests of data sets."""

import pytest
from ingest_builders import Ingested
from telemetry_builders import Built


@pytest.fixture
def ingested(tmp_path, capsys):
    return Ingested(tmp_path, capsys)


@pytest.fixture
def built(tmp_path, capsys):
    return Built(tmp_path, capsys)
