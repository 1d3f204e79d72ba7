"""Provide normalised windows for training and evaluation: kept on the device, or read and normalised when needed.

There is no DataLoader and no worker process: a permuted index into a tensor on the device was four to six times faster,
and repeats exactly. Windows beyond the limit of memory are not all copied: training reads them pool by pool (`Pooled`),
evaluation batch by batch (`Streamed`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Generator, Tensor, nn

from training.data.scratch import release
from training.data.values import AnyArray, Ints
from training.trainer.task import LIMITS, MemoryLimits

CUDA_RESIDENT_SHARE = 0.5
BLOCK = 1_024
CPU = torch.device("cpu")


class Windows(ABC):
    """Windows in a fixed order, which ``take`` returns normalised, by their row numbers."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def place(self) -> torch.device:
        """The device on which ``take`` expects its rows."""
        return CPU

    @abstractmethod
    def take(self, rows: Tensor) -> Tensor:
        """Return the normalised windows at ``rows`` (B,), on the device that computes."""

    def order(self, generator: Generator, batch: int) -> Tensor:
        """Return the rows (n,) in a newly drawn order for an epoch that takes ``batch`` of them at a time."""
        del batch  # any window may come next
        return torch.randperm(len(self), generator=generator)


@dataclass(frozen=True)
class Resident(Windows):
    """Holds all windows, normalised, on the device."""

    data: Tensor

    def __len__(self) -> int:
        return self.data.shape[0]

    @property
    def place(self) -> torch.device:
        return self.data.device

    def take(self, rows: Tensor) -> Tensor:
        return self.data.index_select(0, moved(rows, self.place))


@dataclass(frozen=True)
class Streamed(Windows):
    """Reads windows from ``X``, often a memory map, and normalises them, when they are needed."""

    X: AnyArray
    rows: Ints
    normalise: nn.Module
    device: torch.device

    def __len__(self) -> int:
        return int(self.rows.size)

    @property
    def bytes_each(self) -> int:
        return 4 * int(np.prod(self.X.shape[1:]))

    def take(self, rows: Tensor) -> Tensor:
        chosen = np.ascontiguousarray(self.X[self.rows[rows.numpy()]], np.float32)
        home = next(self.normalise.buffers()).device
        with torch.no_grad():
            normal = self.normalise(moved(torch.from_numpy(chosen), home))
        return moved(normal, self.device)


@dataclass
class Pooled(Windows):
    """Reads windows pool by pool, in the order that ``order`` drew last; one pool at a time is on the device.

    Runs of neighbouring windows are shuffled and divided into pools of at most about ``limits.pool_bytes``; within a
    pool the windows are shuffled. A batch thus holds windows of many runs. An epoch reads each window once: pool by
    pool, each pool in the order of the file. Pools consist of whole batches (the last batch may be smaller), so that no
    batch needs two pools.
    """

    all: Streamed
    limits: MemoryLimits
    _pool_of: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int32))  # (n,)
    _rows: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))  # of the resident pool, ascending
    _data: Tensor = field(default_factory=lambda: torch.empty(0))
    _resident: int = -1

    def __len__(self) -> int:
        return len(self.all)

    def order(self, generator: Generator, batch: int) -> Tensor:
        count, run = len(self), self.limits.run
        size = max(1, self.limits.pool_bytes // self.all.bytes_each // batch) * batch
        runs = torch.randperm(-(-count // run), generator=generator)
        rows = (runs[:, None] * run + torch.arange(run)).flatten()
        rows = rows[rows < count]
        for start in range(0, count, size):
            pool = rows[start : start + size]
            rows[start : start + size] = pool[torch.randperm(len(pool), generator=generator)]
        self._pool_of = torch.empty(count, dtype=torch.int32)
        self._pool_of[rows] = (torch.arange(count) // size).int()
        self._resident = -1
        return rows

    def take(self, rows: Tensor) -> Tensor:
        pool = int(self._pool_of[rows[0]])
        if pool != self._resident:
            self._rows = (self._pool_of == pool).nonzero().flatten()
            self._data = filled(self.all, self._rows, self._data)
            self._resident = pool
        return self._data.index_select(0, moved(torch.searchsorted(self._rows, rows), self.all.device))


def moved(values: Tensor, device: torch.device) -> Tensor:
    """Return ``values``, which are on the CPU or on ``device``, on ``device``; copied unless they are there already.

    A copy to a GPU is made from pinned memory, because a copy from other memory waits for all of the GPU's work.
    """
    if values.device.type == device.type:
        return values
    return values.pin_memory().to(device, non_blocking=True)


def filled(streamed: Streamed, rows: Tensor, data: Tensor) -> Tensor:
    """Return the normalised windows at ascending ``rows``, written into ``data`` if they fit, else into a new tensor.

    If ``data`` is longer than ``rows``, all of it is returned, with old windows behind the new ones.
    """
    if len(data) < len(rows) or data.ndim == 1:
        data = torch.empty((len(rows), *streamed.X.shape[1:]), dtype=torch.float32, device=streamed.device)
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        data[start : start + len(part)] = streamed.take(part)
        release(streamed.X)
    return data


def windows(
    X: AnyArray, rows: Ints, normalise: nn.Module, device: torch.device, *, resident_bytes: int | None = None
) -> Windows:
    """Return the windows at ``rows`` of ``X`` (N, …), normalised by ``normalise`` and moved to ``device``, for
    evaluation."""
    streamed = Streamed(X, rows, normalise, device)
    most = _resident_bytes(device, LIMITS) if resident_bytes is None else resident_bytes
    if rows.size * streamed.bytes_each > most:
        return streamed
    return Resident(filled(streamed, torch.arange(rows.size), torch.empty(0)))


def to_learn_from(X: AnyArray, rows: Ints, normalise: nn.Module, device: torch.device, limits: MemoryLimits) -> Windows:
    """Return the windows at ``rows`` of ``X``, normalised and on ``device``, for training."""
    streamed = Streamed(X, rows, normalise, device)
    if rows.size * streamed.bytes_each > _resident_bytes(device, limits):
        return Pooled(streamed, limits)
    return windows(X, rows, normalise, device, resident_bytes=rows.size * streamed.bytes_each)


def _resident_bytes(device: torch.device, limits: MemoryLimits) -> int:
    if device.type == "cuda" and limits == LIMITS:
        return int(torch.cuda.get_device_properties(device).total_memory * CUDA_RESIDENT_SHARE)
    return limits.held_bytes
