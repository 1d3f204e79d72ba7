"""Data types: a host's resources, an attempt's booking, and the room that attempts leave on a host.

The rules are in :mod:`training.fleet.scheduling.booking`. Memory in GiB.
"""

from dataclasses import asdict
from typing import Any

from training.frozen import frozen


@frozen
class Gpu:
    """The memory of a host's GPU, without the part reserved for the owner."""

    free_gib: float  # at the moment, whoever holds the rest
    total_gib: float


@frozen
class Peak:
    """The most memory that trainers of a kind were seen to use; None: not known."""

    ram_gib: float | None = None
    vram_gib: float | None = None


NOT_KNOWN = Peak()


@frozen
class Booking:
    """The part of a host that an attempt may use. An attempt's trainer has as many threads as the booking has cores."""

    cores: int = 1
    ram_gib: float = 0.0
    vram_gib: float = 0.0
    gpu: int | None = None  # its place in the host's list of CUDA devices; None: it trains on the CPU
    least_ram_gib: float = 0.0  # that must be free right before its trainer starts, the owner's reserve included …
    least_vram_gib: float = 0.0  # … and of that GPU's memory; where less is, it is handed back

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@frozen
class HeldAttempt:
    """An attempt that trains on a host: its booking, and how much memory it uses now."""

    booking: Booking
    ram_used_gib: float = 0.0
    vram_used_gib: float = 0.0


@frozen
class Left:
    """The memory of a GPU that its booked attempts leave free, and the number of these attempts."""

    gib: float
    jobs: int
    after_gib: float = 0.0  # that would be free if these had ended


@frozen
class Room:
    """The part of a host that its live attempts (at least one) leave free."""

    jobs: int
    cores: int
    ram_gib: float
    gpus: tuple[Left, ...] = ()
    ram_after_gib: float = 0.0  # that would be free if these had ended
