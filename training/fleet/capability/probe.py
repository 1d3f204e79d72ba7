"""The capability of this host, sent to the receiver with every claim.

:func:`detect` never raises: a probe that fails leaves its fields at zero, false, empty or ``None``. Changing values
(free memory, free VRAM) are read at each call. ``python -m training.fleet.capability`` prints the capability as JSON.
"""

import dataclasses
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from training.checkout import HOME, checkout_commit
from training.command_line import parser_of
from training.fleet.capability.cuda import GIB, CudaProbe, TorchFacts, default_cache_file
from training.fleet.process.cgroup import CgroupLimits, cgroup_limits
from training.frozen import frozen
from training.installed import own_version
from training.printable import say
from training.streams import replace_unprintable

HOST_ID_VARIABLE = "FLEET_HOST_ID"
_T = TypeVar("_T")


@frozen
class CudaDevice:
    """One GPU that torch can use; memory in GiB."""

    name: str
    vram_total_gib: float
    vram_free_gib: float


@frozen
class Capability:
    """A host's capability, as scheduling uses it. Memory in GiB; ``cpu_cores`` counts the physical cores that this
    process may use."""

    hostname: str
    os: str = ""
    arch: str = ""
    cpu_cores: int = 0
    ram_total_gib: float = 0.0
    ram_available_gib: float = 0.0
    cuda_available: bool = False
    cuda_devices: Sequence[CudaDevice] = field(default_factory=tuple)
    torch_version: str | None = None
    python_version: str = ""
    training_commit: str | None = None
    version: str = ""  # of the fleet's program there
    calibration: Mapping[str, float | str] | None = None  # its speed in what trainers do; None: not measured

    def to_dict(self) -> dict[str, Any]:
        """Return the capability as plain values, for a claim."""
        plain = dataclasses.asdict(self)
        return plain | {"cuda_devices": list(plain["cuda_devices"])}

    def best_vram_gib(self) -> float:
        """Return the largest free memory of any CUDA device, 0 without one."""
        return max((device.vram_free_gib for device in self.cuda_devices), default=0.0)

    def can_run(
        self, *, require_cuda: bool = False, min_vram_gib: float = 0.0, min_ram_gib: float = 0.0, min_cores: int = 0
    ) -> tuple[bool, str]:
        """Return ``(True, "ok")`` if this host meets a job's needs, or False and the first need that is not met.

        ``min_vram_gib`` constrains a CUDA device only: without ``require_cuda`` a job may run on the CPU.
        """
        if require_cuda and not self.cuda_available:
            return False, "require_cuda but no CUDA device available"
        if require_cuda and self.best_vram_gib() < min_vram_gib:
            best = self.best_vram_gib()
            return False, (f"require_cuda but largest free VRAM {best:.1f} GiB < {min_vram_gib:.1f} GiB needed")
        if self.ram_available_gib < min_ram_gib:
            return (False, f"available RAM {self.ram_available_gib:.1f} GiB < {min_ram_gib:.1f} GiB needed")
        if self.cpu_cores < min_cores:
            return False, f"cpu_cores {self.cpu_cores} < {min_cores} needed"
        return True, "ok"


def detect(
    *, hostname_override: str | None = None, repo_root: str | Path | None = None, venv_python: str | Path | None = None
) -> Capability:
    """Return the capability of this machine as it is now.

    ``venv_python`` is the interpreter that trainers are started with (default: this one), ``repo_root`` the checkout
    whose commit is reported (default: the one that contains this file).
    """
    limits = _attempt(cgroup_limits, CgroupLimits())
    probe = _cuda_probe(Path(venv_python or sys.executable))
    torch = _attempt(probe.facts, TorchFacts())
    total, available = _attempt(lambda: _memory_bytes(limits), (0, 0))
    root = Path(repo_root) if repo_root is not None else HOME
    return Capability(
        hostname=hostname_override or os.environ.get(HOST_ID_VARIABLE) or platform.node() or "localhost",
        os=platform.system(),
        arch=platform.machine(),
        cpu_cores=_attempt(lambda: _cores(limits), 0),
        ram_total_gib=_gib(total),
        ram_available_gib=_gib(available),
        cuda_available=bool(torch.devices),
        cuda_devices=tuple(CudaDevice(device.name, _gib(device.total), _gib(device.free)) for device in torch.devices),
        torch_version=torch.version,
        python_version=platform.python_version(),
        training_commit=_attempt(lambda: checkout_commit(root), None),
        version=own_version(),
        calibration=torch.calibration,
    )


@cache
def _cuda_probe(python: Path) -> CudaProbe:
    """Return the interpreter's probe, cached so that its answer serves many claims."""
    return CudaProbe(python, cache_file=default_cache_file())


def _attempt(probe: Callable[[], _T], otherwise: _T) -> _T:
    """Return the result of a probe, or ``otherwise`` after any error of a driver, library or file system."""
    try:
        return probe()
    except Exception:  # noqa: BLE001 - foreign code of every kind runs in here
        return otherwise


def _gib(count: int) -> float:
    return round(count / GIB, 3)


def _cores(limits: CgroupLimits) -> int:
    """Return the number of physical cores within this process's affinity and CPU quota; a share of one core counts as
    one."""
    logical = os.cpu_count() or 1
    try:
        import psutil

        cores = psutil.cpu_count(logical=False) or logical
    except ImportError:
        cores = logical
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    quota = cores if limits.cpus is None else math.floor(limits.cpus)
    return max(1, min(cores, quota))


def _memory_bytes(limits: CgroupLimits) -> tuple[int, int]:
    """Return (total, available) bytes, the lesser of the machine's and the container's."""
    import psutil

    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    if limits.memory_total_bytes is not None:
        total = min(total, limits.memory_total_bytes)
    if limits.memory_available_bytes is not None:
        available = min(available, limits.memory_available_bytes)
    return total, min(total, available)


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = parser_of("training.fleet.capability", description="Print what this host can do, as JSON.")
    parser.add_argument("--host-id", help=f"name of this host (default ${HOST_ID_VARIABLE} or the node name)")
    parser.add_argument("--repo-root", type=Path, help="the checkout whose commit is reported")
    parser.add_argument("--venv-python", type=Path, help="the interpreter that starts trainers")
    args = parser.parse_args(argv)
    found = detect(hostname_override=args.host_id, repo_root=args.repo_root, venv_python=args.venv_python)
    say(json.dumps(found.to_dict(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
