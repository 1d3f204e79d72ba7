"""What many tests of the trainers read."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_builders import make_data


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set, to be read."""
    return make_data(tmp_path_factory.mktemp("data"))
