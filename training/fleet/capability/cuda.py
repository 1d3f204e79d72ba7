"""Probe the GPUs: which ones torch can use in the trainer's environment, how much memory is free, and how fast the host
is.

Finding out which devices torch can use takes seconds; the answer changes only with the interpreter, torch, the driver,
CUDA_VISIBLE_DEVICES or the cores. A short child process asks torch, and the answer is stored unless it is doubtful. The
same child measures the calibration, the host's speed at what trainers do. The calibration takes one or two seconds
more, once per stored answer, before the host first asks for work. Free memory changes by the minute and costs a
millisecond through NVML: it is read every time. The worker itself never imports torch.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from training.clock import Clock, SystemClock
from training.files import write_whole
from training.fleet.process.driver_calls import DriverCalls
from training.fleet.process.environment import trainer_environment
from training.fleet.process.usage import ask_nvml, driver_complaint
from training.installed import version
from training.strict_json import JsonObject

GIB = 1024**3
PROBE_TIMEOUT_S = 120.0  # a Raspberry Pi takes half a minute to import torch from a cold SD card
# An environment with a GPU in which torch cannot use it may be mended (a driver reloaded after sleep): ask again.
RETRY_FAILED_S = 600.0
ANSWERS_KEPT = 16
_TORCH = DriverCalls("torch's look at this machine's GPUs", PROBE_TIMEOUT_S + 10.0)

# Runs in the trainer's interpreter. The last line counts: libraries like to print warnings first, and a child that a
# broken driver ends while it measures has said before what there is. Each measurement takes 0.3 s.
PROBE = """
import json, math, random, time
try:
    import torch
except Exception:
    print(json.dumps({"torch": None, "devices": []}))
    raise SystemExit
devices = []
try:
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        devices.append({"uuid": str(getattr(properties, "uuid", "")), "name": properties.name,
                        "total": total, "free": free})
except Exception:
    devices = []
answer = {"torch": torch.__version__, "devices": devices}
print(json.dumps(answer), flush=True)

def rate(step):
    # by the fastest: others may be using this host
    step()
    fastest, began = math.inf, time.perf_counter()
    while (now := time.perf_counter()) - began < 0.3:
        step()
        fastest = min(fastest, time.perf_counter() - now)
    return round(1 / fastest, 3)

def product(n, device):
    matrix = torch.rand(n, n, device=device)
    def step():
        (matrix @ matrix)[0, 0].item()
    return round(2e-9 * n ** 3 * rate(step), 3)

def steps(device):
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)).to(device)
    rows = torch.rand(64, 32, device=device)
    def step():
        net.zero_grad()
        net(rows).sum().backward()
        net[2].bias.grad[0].item()
    return rate(step)

try:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for one another where others are at work, and measure that
    shuffled = random.Random(0).sample(range(20000), 20000)
    found = {"gflops": threads * product(384, "cpu"), "steps": steps("cpu"),
             "branches": threads * rate(lambda: sorted(shuffled))}
    if devices:
        found |= {"cuda_gflops": product(2048, "cuda"), "cuda_steps": steps("cuda")}
except Exception as error:
    found = {"failed": f"this host's speed could not be measured: {error}"[:200]}
print(json.dumps(answer | {"calibration": found}))
"""

_SILENT = "this host's speed could not be measured: torch is installed and did not start in time"
_CRASHED = "this host's speed could not be measured: torch crashed meanwhile"


class TorchDevice(msgspec.Struct, frozen=True):
    """A CUDA device as torch sees it; memory in bytes, ``free`` at the moment of asking."""

    uuid: str
    name: str
    total: int
    free: int


class TorchFacts(msgspec.Struct, frozen=True):
    """The facts about torch in one environment, as the child process prints them: version, devices and the host's
    speed.

    ``version`` is ``None`` when torch cannot be imported, or nothing could be found out about it.
    """

    version: str | None = msgspec.field(default=None, name="torch")
    devices: tuple[TorchDevice, ...] = ()
    calibration: dict[str, float | str] | None = None  # its speed by sort of work; or: failed, and why


class _Kept(msgspec.Struct, frozen=True):
    """A stored answer of the probe, which later starts with the same key use. The file holds several, because a
    machine's workers may see different GPUs."""

    key: JsonObject
    facts: TorchFacts


class SystemNvml:
    """NVML through nvidia-ml-py, opened for each question, so that the driver may be replaced while the worker runs."""

    def driver_version(self) -> str | None:
        """Return the driver's version; ``None`` without a working driver."""
        return ask_nvml(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))

    def complaint(self) -> str | None:
        """Return a sentence if the driver does not answer, else None."""
        return driver_complaint()

    def memory(self, uuid: str) -> tuple[int, int] | None:
        """Return (total, free) bytes of the device with torch's ``uuid``; ``None`` when the driver does not report
        them."""
        # torch drops the prefix; a slice of a partitioned GPU (MIG) is a device too.
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        return ask_nvml(lambda nvml: _memory(nvml, f"GPU-{bare}")) or ask_nvml(
            lambda nvml: _memory(nvml, f"MIG-{bare}")
        )


def _memory(nvml: Any, uuid: str) -> tuple[int, int]:
    info = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid))
    return int(info.total), int(info.free)


def _cores() -> int:
    """Return the number of processor cores that a child would have."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(command: Sequence[str]) -> str:
    """Return the standard output of ``command``, run as a child process, so that a crash inside CUDA ends only the
    child. The text is empty if a child, this one or an earlier one, hangs and cannot be ended."""
    done = _TORCH.ask(  # a child that hangs in the driver outlives its kill
        lambda: subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            env=trainer_environment(os.environ),
            check=False,  # what it said before it crashed counts
        )
    )
    return done.stdout if done else ""


def installed_torch(python: Path) -> str | None:
    """Return the version of torch that ``python`` would import; ``None`` if not found."""
    if python == Path(sys.executable):
        return version("torch")
    prefix = python.parent.parent
    return version("torch", [*prefix.glob("lib*/python3*/site-packages"), prefix / "Lib" / "site-packages"])


@dataclass
class CudaProbe:
    """The probe for one interpreter; it caches the facts about torch until torch, the driver, the visible GPUs or the
    cores change; doubtful facts for ten minutes."""

    python: Path
    nvml: SystemNvml = field(default_factory=SystemNvml)
    run: Callable[[Sequence[str]], str] = _run
    cache_file: Path | None = None
    clock: Clock = field(default_factory=SystemClock)
    installed: Callable[[Path], str | None] = installed_torch
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cores: Callable[[], int] = _cores
    _kept: tuple[JsonObject, TorchFacts, float] | None = None

    def facts(self) -> TorchFacts:
        """Return the facts about torch: its version, the devices that it can use, and the host's speed. Memory is the
        present one if the driver reports it; while the driver does not answer, there are no devices."""
        known = self._known()
        return replace(known, devices=tuple(self._refreshed(device) for device in known.devices))

    def _refreshed(self, device: TorchDevice) -> TorchDevice:
        memory = self.nvml.memory(device.uuid) if device.uuid else None
        return device if memory is None else replace(device, total=memory[0], free=memory[1])

    def _known(self) -> TorchFacts:
        if self.nvml.complaint() is not None:  # torch would wait for it, too
            return TorchFacts() if self._kept is None else replace(self._kept[1], devices=())
        key = self._key()
        if self._kept is not None and self._kept[0] == key and not self._stale(*self._kept[1:]):
            return self._kept[1]
        facts = next((each.facts for each in _answers(self.cache_file) if each.key == key), None)
        if facts is None or self._doubtful(facts):
            facts = self._ask()
            if not self._doubtful(facts):
                _write_cache(self.cache_file, key, facts)
        self._kept = (key, facts, self.clock.monotonic())
        return facts

    def _key(self) -> JsonObject:
        return {
            "python": str(self.python),
            "torch": self.installed(self.python),
            "driver": self.nvml.driver_version(),
            "visible": self.environ.get("CUDA_VISIBLE_DEVICES"),
            "cores": self.cores(),
            "asked": "devices and three sorts of work",
        }

    def _doubtful(self, facts: TorchFacts) -> bool:
        """Return True for an answer that is not written to the cache file, and is asked for again after ten minutes.

        A doubtful answer has no GPU although a driver answers, comes from an interpreter whose torch was not found, or
        lacks the host's speed.
        """
        key_is_weak = self.installed(self.python) is None
        unmeasured = facts.version is None or "failed" in (facts.calibration or {})
        return key_is_weak or unmeasured or (not facts.devices and self.nvml.driver_version() is not None)

    def _stale(self, facts: TorchFacts, asked_at: float) -> bool:
        return self._doubtful(facts) and self.clock.monotonic() - asked_at >= RETRY_FAILED_S

    def _ask(self) -> TorchFacts:
        try:
            said = self.run([str(self.python), "-c", PROBE]).splitlines()[-1]
            facts = msgspec.json.decode(said, type=TorchFacts)
        except (OSError, IndexError, msgspec.MsgspecError, subprocess.SubprocessError):
            facts = TorchFacts()
        if facts.version is None:
            return facts if self.installed(self.python) is None else replace(facts, calibration={"failed": _SILENT})
        return facts if facts.calibration else replace(facts, calibration={"failed": _CRASHED})


def default_cache_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path at which the facts are kept between starts; ``None`` for an account without a home."""
    if base := environ.get("XDG_CACHE_HOME") or environ.get("LOCALAPPDATA"):
        return Path(base) / "cis490" / "capability.json"
    try:
        return Path.home() / ".cache" / "cis490" / "capability.json"
    except RuntimeError:
        return None


def _answers(path: Path | None) -> list[_Kept]:
    """Return the answers in the cache file, the newest first; none if it cannot be read."""
    try:
        return [] if path is None else msgspec.json.decode(path.read_bytes(), type=list[_Kept])
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return []


def _write_cache(path: Path | None, key: JsonObject, facts: TorchFacts) -> None:
    """Write the facts to the cache file if possible; otherwise the next start of the worker asks again."""
    if path is not None:
        others = [each for each in _answers(path) if each.key != key][: ANSWERS_KEPT - 1]
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            write_whole(path, msgspec.json.encode([_Kept(key, facts), *others]), durable=False, part=part)
