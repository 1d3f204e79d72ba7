"""The start of several tests of data sets."""

from __future__ import annotations

import pytest
from ingest_builders import Ingested


@pytest.fixture
def ingested(tmp_path, capsys):
    return Ingested(tmp_path, capsys)
