"""The use of a trainer: its processes' CPU time and memory, its control group's memory, and its GPUs."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from fakes import FakePynvml
from processes import until

from training.fleet.process import driver_calls, usage
from training.fleet.process.driver_calls import DriverCalls
from training.fleet.process.usage import Used, driver_complaint, used_by

ME = os.getpid()
NOBODY = 2**22 + 1  # above the highest process id of Linux


def test_a_process_tree_is_summed_and_one_that_is_gone_uses_nothing():
    used = used_by(ME)
    assert used.cpu_s > 0
    assert used.memory_bytes is not None
    assert used.memory_bytes > 2**20
    assert used_by(NOBODY) == Used()


def test_a_control_group_tells_memory_without_what_the_kernel_can_drop(tmp_path):
    assert used_by(ME, tmp_path).memory_bytes is not None, "a group that counts no memory"
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 1500\n")
    assert used_by(ME, tmp_path).memory_bytes == 3500
    (tmp_path / "memory.stat").write_text("torn")
    assert used_by(ME, tmp_path).memory_bytes not in (None, 3500)


def two_gpus(monkeypatch, ours):
    """A machine with two GPUs, on the second of which these processes run, beside another."""

    def running(device):
        pids = [NOBODY, *ours] if device == 1 else [NOBODY]
        return [SimpleNamespace(pid=pid, usedGpuMemory=10**9) for pid in pids]

    return FakePynvml(
        monkeypatch,
        DeviceGetCount=lambda: 2,
        DeviceGetHandleByIndex=int,
        DeviceGetComputeRunningProcesses=running,
        DeviceGetUtilizationRates={1: SimpleNamespace(gpu=85)}.__getitem__,  # the other one is not asked
    )


def test_gpus_are_those_on_which_the_trainer_runs(monkeypatch):
    ours = [ME]
    two_gpus(monkeypatch, ours)
    used = used_by(ME)
    assert (used.gpu, used.gpu_memory_bytes) == (0.85, 10**9)
    ours.clear()
    used = used_by(ME)
    assert (used.gpu, used.gpu_memory_bytes) == (None, None), "another's use is not the trainer's"


def test_a_driver_that_does_not_answer_costs_its_limit_once_and_is_asked_again_when_it_has(monkeypatch, caplog):
    answers = threading.Event()
    monkeypatch.setattr(two_gpus(monkeypatch, [ME]), "nvmlInit", answers.wait)
    monkeypatch.setattr(usage, "_NVIDIA", DriverCalls("the driver", 0.01))
    for _ in range(3):
        used = used_by(ME)
        assert used.cpu_s > 0
        assert used.gpu is None
    assert driver_complaint() == "the driver has not answered within 0 s"
    assert caplog.text.count("the driver has not answered within 0 s; it is asked again when it has") == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert driver_complaint() is None, "this worker uses no GPU"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    answers.set()
    until(lambda: driver_complaint() is None)
    assert used_by(ME).gpu == 0.85


def test_a_call_that_is_late_while_another_thread_looks_counts_as_overdue(monkeypatch):
    calls, answers, never = DriverCalls("the driver", 0.0), threading.Event(), threading.Event()

    class Meddling(Future):
        def done(self):
            found = super().done()
            if found and not never.is_set():
                never.set()
                calls.ask(threading.Event().wait)
            return found

    monkeypatch.setattr(driver_calls, "Future", Meddling)
    calls.ask(answers.wait)
    answers.set()
    until(lambda: calls.silent is None or never.is_set())
    if not never.is_set():
        calls.ask(threading.Event().wait)
    assert calls.silent


def test_an_error_of_a_driver_is_raised_where_it_is_asked():
    calls = DriverCalls("the driver", 60.0)
    with pytest.raises(TimeoutError, match="its own"):
        calls.ask(lambda: (_ for _ in ()).throw(TimeoutError("its own")))
    assert calls.silent is None
