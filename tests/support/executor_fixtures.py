"""A small trained model, windows that it scores, and its scores from one process; a module takes it by its name."""

from __future__ import annotations

from pathlib import Path

import executor_tasks as tasks
import pytest
import trainer_builders as trainers


@pytest.fixture(scope="session")
def scored_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, bytes]:
    folder = tmp_path_factory.mktemp("scored")
    data = trainers.make_data(folder / "data", reference=True)
    ended = trainers.run(trainers.arguments("gbt", data, folder / "out", "--n-estimators", "5", "--n-resamples", "20"))
    assert ended.code == 0, ended
    checkpoint = folder / "out" / "artifacts" / "gbt_oracle.ckpt.json"
    assert tasks.score(checkpoint, data, "--out", folder / "scores.csv") == (0, "")
    return checkpoint, data, (folder / "scores.csv").read_bytes()
