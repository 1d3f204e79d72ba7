"""Data that many tests of the trainers read."""

import pytest
from trainer_builders import make_data


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A small data set, to be read."""
    return make_data(tmp_path_factory.mktemp("data"))
