"""The words for a live job: what its trainer says of its progress, unless that makes no sense."""

import pytest

from training.fleet.wire import words


@pytest.mark.parametrize(
    ("said", "progress", "share", "eta"),
    [
        ({"epoch": 1, "epochs": 4, "eta_s": 90}, "1/4 (25%)", 0.25, "1 min 30 s"),
        ({"epoch": 0, "epochs": 4, "eta_s": 86_400 * 60}, "0/4 (0%)", 0.0, "60 d 0 h"),
        ({"epoch": 9, "epochs": 3, "eta_s": -500, "event": "epoch"}, "epoch", None, ""),
        ({"epoch": -2, "epochs": -3, "eta_s": 3e9}, "", None, ""),
        ({"epoch": 1, "epochs": 0, "eta_s": "soon"}, "", None, ""),
    ],
)
def test_progress_that_makes_no_sense_is_not_shown(said, progress, share, eta):
    job = {"status": "running", "progress": said}
    assert (words.progress(job), words.share_done(job), words.eta(job, None)) == (progress, share, eta)
