"""Probe how a machine is used by its owner: hours, battery, a person's input, other programs' load, temperature.

A value that the system does not report is None; :meth:`Observer.look` does not raise. Input, loads and temperature are
read only if some condition needs them.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from training.clock import Clock
from training.fleet.process.driver_calls import DriverCalls
from training.fleet.process.environment import trainer_environment
from training.fleet.process.usage import ask_nvml, devices, tree_of
from training.frozen import frozen_kw

LOGIND_TIMEOUT_S = 3.0
# Chips that measure the processor; others are the disk's or the network card's, which may be hot at rest.
_PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
DAY = 24 * 60
_SENSORS = DriverCalls("a sensor of this machine")


@frozen_kw
class Sight:
    """One reading of the machine's values; None: the system does not report the value, no condition needs it, or it is
    the first reading of ``cpu``."""

    minute: int | None = None  # of the week, by its clock
    on_battery: bool | None = None
    idle_s: float | None = None  # for which nobody touched it
    cpu: float | None = None  # share of the cores that programs but the worker's use
    gpu: float | None = None  # share of the busiest GPU, likewise
    celsius: float | None = None  # of the hottest sensor


class Observer:
    """Reads the values of a :class:`Sight` on this machine. ``run`` starts a program and returns what it prints, or
    None."""

    def __init__(self, clock: Clock, run: Callable[[Sequence[str]], str | None] | None = None) -> None:
        self._clock = clock
        self._run = run or printed_by
        self._last: tuple[float, float, float] | None = None  # CPU time at the last look: in all, in use, ours

    def look(self, *, person: bool = False, load: bool = False, gpu: bool = False, heat: bool = False) -> Sight:
        """Return the time, whether the machine runs on battery, and the values asked for. The CPU load is the average
        since the last call with ``load``; None at the first."""
        ours = {each.pid for each in tree_of()} if gpu else set[int]()
        return Sight(
            minute=_minute(self._clock.now()),
            on_battery=on_battery(),
            idle_s=idle_s(self._run, self._clock.now()) if person else None,
            cpu=self._others_cpu() if load else None,
            gpu=ask_nvml(lambda nvml: others_gpu(nvml, ours)) if gpu else None,
            celsius=celsius() if heat else None,
        )

    def _others_cpu(self) -> float | None:
        """Return the share of all cores that programs other than ours used since the last reading; None at the first
        one."""
        import psutil

        with contextlib.suppress(psutil.Error, OSError):
            times = psutil.cpu_times()
            whole = sum(times[:8])  # user to steal: a guest's time is in the user's
            used = whole - times.idle - getattr(times, "iowait", 0.0)
            ours = sum(_cpu_s(each) for each in tree_of())
            before, self._last = self._last, (whole, used, ours)
            if before is not None and whole > before[0]:
                others = used - before[1] - max(0.0, ours - before[2])
                return float(min(1.0, max(0.0, others / (whole - before[0]))))
        return None


def on_battery() -> bool | None:
    """Return whether the machine runs on its battery; None where there is none or the system does not report it."""
    import psutil

    with contextlib.suppress(Exception):  # a sensor's file may vanish, or hold nonsense
        battery = _SENSORS.ask(psutil.sensors_battery)
        return None if battery is None or battery.power_plugged is None else not battery.power_plugged
    return None


def celsius() -> float | None:
    """Return the temperature of the hottest sensor of processor and GPU; None if the system reports none."""
    import psutil

    found: list[float] = []
    with contextlib.suppress(Exception):
        chips: Any = _SENSORS.ask(getattr(psutil, "sensors_temperatures", dict)) or {}
        found = [each.current for chip in _PROCESSORS for each in chips.get(chip, ()) if 0 < each.current < 150]
    gpu = ask_nvml(_gpu_celsius)
    return max([*found, *([] if gpu is None else [gpu])], default=None)


def idle_s(run: Callable[[Sequence[str]], str | None], now: float) -> float | None:
    """Return for how many seconds the machine has had no input, ``now`` if no person is logged in (except on Windows);
    None where the system does not report it."""
    if sys.platform == "win32":
        return _windows_idle_s()
    listed = run(["loginctl", "list-sessions", "--no-legend", "--no-pager"])
    names = [line.split()[0] for line in (listed or "").splitlines() if line.split()]
    if listed is None:
        return None
    if not names:
        return now
    shown = run(["loginctl", "show-session", *names, "-p", "Class", "-p", "IdleHint", "-p", "IdleSinceHint"])
    return None if shown is None else idle_of(shown, now)


def idle_of(shown: str, now: float) -> float:
    """Return the shortest time for which a person's session has been idle, by logind's list ``shown``; ``now`` if there
    is no such session."""
    least = now  # nobody is logged in
    for block in shown.strip().split("\n\n"):
        said = dict(line.partition("=")[::2] for line in block.splitlines())
        if not said.get("Class", "").startswith("user"):
            continue
        since = said.get("IdleSinceHint", "")
        idle = said.get("IdleHint") == "yes" and since.isdigit()
        least = min(least, max(0.0, now - int(since) / 1e6) if idle else 0.0)
    return least


def others_gpu(nvml: Any, ours: Collection[int]) -> float | None:
    """Return the largest share of a GPU that processes other than ours use; None if no GPU reports that. Raises NVML's
    errors."""
    busiest: float | None = None
    for device in devices(nvml):
        running = {each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(device)}
        if not running & set(ours):
            share = nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
        else:
            try:
                samples = nvml.nvmlDeviceGetProcessUtilization(device, 0)
            except nvml.NVMLError:  # it does not tell them apart
                continue
            newest = {each.pid: each for each in sorted(samples, key=lambda each: each.timeStamp)}
            share = min(1.0, sum(each.smUtil for pid, each in newest.items() if pid not in ours) / 100)
        busiest = share if busiest is None else max(busiest, share)
    return busiest


def printed_by(command: Sequence[str]) -> str | None:
    """Return what a system program prints; None if the program is missing, fails, or takes too long."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        ended = subprocess.run(
            [program, *command[1:]],
            env=trainer_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=LOGIND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout if ended.returncode == 0 else None


def _minute(now: float) -> int:
    here = datetime.fromtimestamp(now).astimezone()
    return here.weekday() * DAY + here.hour * 60 + here.minute


def _cpu_s(process: Any) -> float:
    """Return the CPU time of a process and its ended children, so that a trainer's time is not lost when it ends."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return float(sum(process.cpu_times()[:4]))
    return 0.0


def _gpu_celsius(nvml: Any) -> float | None:
    found = (nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU) for device in devices(nvml))
    return max(map(float, found), default=None)


def _windows_idle_s() -> float | None:
    """Return the seconds since the last input in this Windows session; None in a service's session, which has no
    input."""
    if sys.platform == "win32":
        said = _LastInput(ctypes.sizeof(_LastInput), 0)
        if ctypes.windll.user32.GetLastInputInfo(ctypes.byref(said)):
            return float((ctypes.windll.kernel32.GetTickCount() - said.time) % 2**32) / 1000
    return None


class _LastInput(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("time", ctypes.c_uint))
