"""The words for a live job: what its trainer says of its progress, unless that makes no sense."""

import pytest

from training.fleet.wire import words


@pytest.mark.parametrize(
    ("said", "progress", "share", "eta"),
    [
        ({"epoch": 1, "epochs": 4, "eta_s": 90}, "1 of 4 (25 %)", 0.25, "1 min 30 s"),
        ({"epoch": 0, "epochs": 4, "eta_s": 86_400 * 60}, "0 of 4 (0 %)", 0.0, "60 d 0 h"),
        ({"epoch": 31, "epochs": 60, "stage": "2 of 3: refit, more"}, "2 of 3: refit (52 %)", 31 / 60, ""),
        ({"epoch": 9, "epochs": 3, "eta_s": -500, "event": "epoch"}, "epoch", None, ""),
        ({"epoch": -2, "epochs": -3, "eta_s": 3e9}, "", None, ""),
        ({"epoch": 1, "epochs": 0, "eta_s": "soon"}, "", None, ""),
    ],
)
def test_progress_that_makes_no_sense_is_not_shown(said, progress, share, eta):
    job = {"status": "running", "progress": said}
    assert (words.progress(job), words.share_done(job), words.eta(job, None)) == (progress, share, eta)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain words", "plain words"),
        ('{"no": "event"}', '{"no": "event"}'),
        (
            '{"event": "epoch", "epoch": 43, "epochs": 60, "loss": 0.41912, "seconds": 9.1, "eta_s": 14.0}',
            "epoch 43 of 60, loss 0.419, 14 s left",
        ),
        (
            (
                '{"event": "epoch", "stage": "2 of 3: refit", "epoch": 103, "stage_epoch": 43, "stage_epochs": 60, '
                '"loss": 1234.5, "metric": 0.98765, "metric_name": "validation AUROC"}'
            ),
            "2 of 3: refit, epoch 43 of 60, loss 1234.5, validation AUROC 0.988",
        ),
        ('{"event": "evaluate", "stage": "3 of 3: evaluation", "epoch": 120, "epochs": 133}', "3 of 3: evaluation"),
        ('{"event": "val", "epoch": 3, "metric": 1}', "val: epoch 3, metric 1"),
        ('{"event": "epoch", "epoch": 3, "loss": null}', "epoch 3"),
        ('{"event": "interrupted"}', "interrupted"),
    ],
)
def test_a_progress_line_is_shown_in_words_and_another_as_it_is(line, shown):
    assert words.readable(line) == shown


def test_jobs_with_the_same_reason_are_one_sentence():
    told = [("a", "needs a GPU"), ("b", "its data set"), ("c", "needs a GPU"), ("d", "one"), ("e", "one")]
    assert [*words.folded(told)] == [
        ("2 jobs need a GPU", ["a", "c"]),
        ("b: its data set", ["b"]),
        ("2 jobs: one", ["d", "e"]),
    ]
    assert [*words.folded(told[:1])] == [("a needs a GPU", ["a"])]
