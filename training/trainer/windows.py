"""Windows where the loop wants them: normalised once and resident on the device, or streamed.

There is no DataLoader and no worker process: a permuted index into a resident tensor was four to
six times faster, and repeats exactly. What does not fit stays memory-mapped and is read per batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

# Decided by size alone, never by what happens to be free: equal inputs must take equal paths.
CPU_RESIDENT_BYTES = 1 << 30
CUDA_RESIDENT_SHARE = 0.5
BLOCK = 1_024
CPU = torch.device("cpu")


class Windows(Protocol):
    """Some windows in a fixed order."""

    def __len__(self) -> int: ...

    @property
    def place(self) -> torch.device:
        """The device on which ``take`` wants its rows."""
        ...

    def take(self, rows: Tensor) -> Tensor:
        """The normalised windows at ``rows`` (B,), on the device."""
        ...


@dataclass(frozen=True, slots=True)
class Resident:
    """All windows on the device."""

    data: Tensor

    def __len__(self) -> int:
        return self.data.shape[0]

    @property
    def place(self) -> torch.device:
        return self.data.device

    def take(self, rows: Tensor) -> Tensor:
        return self.data.index_select(0, moved(rows, self.place))


@dataclass(frozen=True, slots=True)
class Streamed:
    """Windows read from the memory map when they are needed."""

    X: NDArray[Any]
    rows: NDArray[np.int64]
    normalise: nn.Module
    device: torch.device

    def __len__(self) -> int:
        return int(self.rows.size)

    @property
    def place(self) -> torch.device:
        return CPU

    def take(self, rows: Tensor) -> Tensor:
        chosen = np.ascontiguousarray(self.X[self.rows[rows.numpy()]], dtype=np.float32)
        home = next(self.normalise.buffers()).device
        with torch.no_grad():
            normal: Tensor = self.normalise(moved(torch.from_numpy(chosen), home))
        return moved(normal, self.device)


def moved(values: Tensor, device: torch.device) -> Tensor:
    """``values`` on ``device``: to a GPU from pinned memory, since a copy from other memory waits for all its work."""
    if values.device.type == device.type:
        return values
    return values.pin_memory().to(device, non_blocking=True)


def windows(
    X: NDArray[Any],
    rows: NDArray[np.int64],
    normalise: nn.Module,
    device: torch.device,
    *,
    resident_bytes: int | None = None,
) -> Windows:
    """``rows`` of ``X`` (N, …) through ``normalise``, where that is, and then on ``device``."""
    streamed = Streamed(X, rows, normalise, device)
    size = rows.size * int(np.prod(X.shape[1:])) * 4
    if size > (_resident_bytes(device) if resident_bytes is None else resident_bytes):
        return streamed
    data = torch.empty((rows.size, *X.shape[1:]), dtype=torch.float32, device=device)
    for start in range(0, rows.size, BLOCK):
        stop = min(start + BLOCK, rows.size)
        data[start:stop] = streamed.take(torch.arange(start, stop))
    return Resident(data)


def _resident_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * CUDA_RESIDENT_SHARE)
    return CPU_RESIDENT_BYTES
