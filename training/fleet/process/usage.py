"""Measure what a trainer uses of its host: CPU time, memory and GPU of its processes, or of their control group.

A figure that the system does not report is None, but 0 for CPU time and for the memory of a GPU that the trainer uses.
:func:`used_by` does not raise.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from training.fleet.process.cgroup import group_memory
from training.fleet.process.driver_calls import DriverCalls
from training.frozen import frozen

_T = TypeVar("_T")
_NVIDIA = DriverCalls("NVIDIA's driver")


@frozen
class Used:
    """A trainer's use of its host: ``cpu_s`` is the CPU time so far, in seconds; the other values are present ones.
    ``gpu`` (0 to 1) is how busy the GPUs on which the trainer runs are, on average, with all programs."""

    cpu_s: float = 0.0
    memory_bytes: int | None = None
    gpu: float | None = None
    gpu_memory_bytes: int | None = None


def used_by(pid: int, group: Path | None = None) -> Used:
    """Return what the process ``pid`` and its descendants use; ``group`` is the folder of their control group, whose
    count of memory is preferred."""
    import psutil

    cpu_s, memory, pids = 0.0, 0, set[int]()
    for process in tree_of(pid):
        with contextlib.suppress(psutil.Error):
            cpu_s += sum(process.cpu_times()[:4])  # own and reaped children's, in user and in system
            memory += process.memory_info().rss
            pids.add(process.pid)
    found = Used(cpu_s, memory or None)
    if group is not None:
        found = replace(found, memory_bytes=group_memory(group) or found.memory_bytes)
    gpu = ask_nvml(lambda nvml: _on_gpus(nvml, pids)) if pids else None
    return found if gpu is None else replace(found, gpu=gpu[0], gpu_memory_bytes=gpu[1])


def tree_of(pid: int | None = None) -> list[Any]:
    """Return a process, by default this one, and its descendants; an empty list when the process has ended."""
    import psutil

    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _on_gpus(nvml: Any, pids: Collection[int]) -> tuple[float, int] | None:
    """Return how busy the GPUs are on which these processes run, on average, and the processes' memory there; None if
    they run on none."""
    busy: list[float] = []
    memory = 0
    for device in devices(nvml):
        ours = [each for each in nvml.nvmlDeviceGetComputeRunningProcesses(device) if each.pid in pids]
        if ours:
            busy.append(nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
            memory += sum(each.usedGpuMemory or 0 for each in ours)  # Windows does not tell
    return (min(1.0, sum(busy) / len(busy)), memory) if busy else None


def devices(nvml: Any) -> Iterator[Any]:
    """Iterate over NVIDIA's handles of all GPUs."""
    return map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))


def ask_nvml(question: Callable[[Any], _T]) -> _T | None:
    """Return the answer of the function ``question``, called between init and shutdown of NVIDIA's library. ``None``
    without library, driver or an answer in time, and after an error of the library."""
    return _NVIDIA.ask(lambda: _answered(question)) if sys.platform != "linux" or _has_nvml() else None


def driver_complaint() -> str | None:
    """Return a sentence if NVIDIA's driver does not answer; None otherwise, and for a worker to which all GPUs are
    hidden."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    ask_nvml(lambda _: None)
    return _NVIDIA.silent


def _answered(question: Callable[[Any], _T]) -> _T | None:
    try:
        import pynvml
    except ImportError:
        return None
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return question(pynvml)
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
    return None


def _has_nvml() -> bool:
    """Return True if the driver's library exists. Importing pynvml to find that out would take 2 MiB of memory."""
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True
