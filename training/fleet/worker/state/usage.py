"""PURE: measure what a trainer used of its host since the last heartbeat, for the next heartbeat."""

from __future__ import annotations

from dataclasses import replace

from training.fleet.process.usage import Used
from training.fleet.wire.attempts import Usage
from training.frozen import frozen


@frozen
class UsageMeter:
    """The measurements since the last sample, from which a sample takes the means of CPU and GPU use and the highest
    memory."""

    since: float | None = None  # the measurement before the first of them, and its CPU time
    since_cpu_s: float = 0.0
    at: float | None = None  # the last
    cpu_s: float = 0.0
    memory_bytes: int | None = None
    gpus: tuple[float, ...] = ()
    gpu_memory_bytes: int | None = None

    def add(self, used: Used, now: float) -> UsageMeter:
        begun = self.since is None
        return UsageMeter(
            since=now if begun else self.since,
            since_cpu_s=used.cpu_s if begun else self.since_cpu_s,
            at=now,
            cpu_s=used.cpu_s,
            memory_bytes=_higher(self.memory_bytes, used.memory_bytes),
            gpus=self.gpus if used.gpu is None else (*self.gpus[-100:], used.gpu),
            gpu_memory_bytes=_higher(self.gpu_memory_bytes, used.gpu_memory_bytes),
        )

    def sample(self) -> Usage | None:
        """Return the sample for a heartbeat; None if nothing was measured since the last one."""
        if self.at is None or self.since is None:
            return None
        passed_s = self.at - self.since
        return Usage(
            # processes that ended in between may take their time with them
            cpu=round(max(0.0, self.cpu_s - self.since_cpu_s) / passed_s, 3) if passed_s > 0 else None,
            memory_bytes=self.memory_bytes,
            gpu=round(sum(self.gpus) / len(self.gpus), 3) if self.gpus else None,
            gpu_memory_bytes=self.gpu_memory_bytes,
        )

    def sent(self) -> UsageMeter:
        """Return a meter for the next sample; its CPU time counts from the last measurement of this sample."""
        return replace(UsageMeter(), since=self.at or self.since, since_cpu_s=self.cpu_s, cpu_s=self.cpu_s)


@frozen
class TrainerMemory:
    """A trainer's use of host memory and GPU memory in bytes: the last measurement and the highest of each."""

    ram: int = 0
    vram: int = 0
    ram_peak: int = 0
    vram_peak: int = 0

    def add(self, used: Used) -> TrainerMemory:
        ram, vram = used.memory_bytes or 0, used.gpu_memory_bytes or 0
        return TrainerMemory(ram, vram, max(ram, self.ram_peak), max(vram, self.vram_peak))

    @property
    def ram_gib(self) -> float:
        return self.ram / 1024**3

    @property
    def vram_gib(self) -> float:
        return self.vram / 1024**3

    def record(self, max_rss_kib: int) -> dict[str, int]:
        """Return the highest values in KiB for an attempt's record; ``max_rss_kib`` is the system's exact value for the
        trainer's largest process."""
        told = {"max_rss_kib": max(max_rss_kib, self.ram_peak // 1024)}
        return told | ({"max_vram_kib": self.vram_peak // 1024} if self.vram_peak else {})


def _higher(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
