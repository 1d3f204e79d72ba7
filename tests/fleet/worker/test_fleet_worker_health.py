"""A host's test of itself: what it complains of, and how seldom it starts a trainer for it."""

from __future__ import annotations

import errno

from fakes import FakeClock
from places import ROOT

from training.fleet.capability.describe import DescribeError, Description
from training.fleet.worker import self_test as worker_health
from training.fleet.worker.attempt import WorkerFolders
from training.fleet.worker.self_test import AGAIN_S, SelfTest
from training.fleet.worker.trainer_command import TrainerInputs


class FakeDescriber:
    def __init__(self):
        self.asked = 0
        self.broken = False

    def __call__(self, command):
        self.asked += 1
        if self.broken:
            raise DescribeError("`python -m training.trainer.run` ended with exit code 1: no torch")
        return Description(command[2], {}, {})


def a_self_test(folder, *, root=ROOT):
    python = folder / "python"
    python.write_text("an interpreter")
    inputs = TrainerInputs(python, folder / "v", folder / "s", folder / "t")
    places = WorkerFolders(root, inputs, folder / "artifacts", folder / "reports")
    describer, clock = FakeDescriber(), FakeClock()
    return SelfTest(places, folder / "state", clock, describer), describer, clock


def test_a_sound_host_complains_of_nothing_and_starts_a_trainer_once(tmp_path):
    test, describer, clock = a_self_test(tmp_path)
    for _ in range(5):
        assert test() is None
        clock.advance(3600)
    assert describer.asked == 1


def test_trainers_that_do_not_start_are_tried_again_after_a_minute(tmp_path):
    test, describer, clock = a_self_test(tmp_path)
    describer.broken = True
    assert "no torch" in (test() or "")
    clock.advance(AGAIN_S - 1)
    assert "no torch" in (test() or "")
    assert describer.asked == 1
    describer.broken = False
    clock.advance(1)
    assert test() is None


def test_another_interpreter_is_another_question(tmp_path):
    test, describer, _ = a_self_test(tmp_path)
    assert test() is None
    (tmp_path / "python").write_text("another one")
    assert test() is None
    assert describer.asked == 2


def test_a_checkout_of_others_is_not_asked(tmp_path):
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    test, describer, _ = a_self_test(tmp_path, root=tmp_path)
    describer.broken = True
    assert test() is None
    assert describer.asked == 0


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    test, _, _ = a_self_test(tmp_path)
    (tmp_path / "state").write_text("a file where the folder should be")
    said = test() or ""
    assert f"{tmp_path / 'state'} cannot be written" in said


def test_a_driver_that_does_not_answer_is_a_complaint(tmp_path):
    test, describer, _ = a_self_test(tmp_path)
    test.driver = lambda: "NVIDIA's driver has not answered within 10 s"
    assert (test() or "").startswith("NVIDIA's driver has not answered within 10 s; restart this machine")
    assert describer.asked == 0, "a trainer would wait for it, too"


def test_a_full_disk_is_a_complaint(tmp_path, monkeypatch):
    test, _, _ = a_self_test(tmp_path)
    monkeypatch.setattr(worker_health, "free_bytes", lambda _: 12 * 1024**2)
    assert test() == f"only 12 MiB are free at {tmp_path / 'artifacts'}; free some space"
    monkeypatch.setattr("training.files.lacks_inodes", lambda _: True)
    said = "remove files, because its inodes are used up"
    assert test() == f"too few inodes are free at {tmp_path / 'artifacts'}; {said}"

    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(worker_health.tempfile, "TemporaryFile", full)
    assert test() == f"its folder {tmp_path / 'state'} cannot be written (too few inodes are free)"
