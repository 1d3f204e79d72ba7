"""A sound state of a receiver, made once, and a copy of it for each test that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest
from recovery_builders import a_state, copied

from training.fleet.service.state import Deployment


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return a_state(tmp_path_factory.mktemp("sound") / "state")


@pytest.fixture
def state(sound: Deployment, tmp_path: Path) -> Deployment:
    return copied(sound, tmp_path / "state")
