"""A sound state of a receiver, made once, and a copy of it for each test that breaks it."""

from __future__ import annotations

import pytest
from recovery_builders import a_state, copied


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    return a_state(tmp_path_factory.mktemp("sound") / "state")


@pytest.fixture
def state(sound, tmp_path):
    return copied(sound, tmp_path / "state")
