"""A small trained model, windows that it scores, and its scores from one process; a module takes it by its name."""

from __future__ import annotations

import contextlib
import io

import pytest
import trainer_builders as trainers

from training.trainer import score as score_cli


@pytest.fixture(scope="session")
def scored_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    data = trainers.make_data(folder / "data", reference=True)
    with pytest.MonkeyPatch.context() as patch:  # rivals have no part here, and cost more than the model
        patch.setattr("training.trainer.session.run_baselines", lambda *_, **__: {})
        ended = trainers.run(
            trainers.arguments("gbt", data, folder / "out", "--n-estimators", "5", "--n-resamples", "20")
        )
    assert ended.code == 0, ended
    checkpoint = folder / "out" / "artifacts" / "gbt_oracle.ckpt.json"
    assert score(checkpoint, data, "--out", folder / "scores.csv") == (0, "")
    return checkpoint, data, (folder / "scores.csv").read_bytes()


def score(*arguments):
    """Score in this process: the exit code, and what was said but notes and summary."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = score_cli.main([str(one) for one in arguments])
    return code, said.getvalue() if code else ""
