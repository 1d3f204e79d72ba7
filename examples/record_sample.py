"""Record the sample that the demo trains on: several hosts, every scenario and some references on each host.

    sudo .venv/bin/python examples/record_sample.py --out examples/telemetry-sample

One Linux machine plays all hosts: each is a container with its own CPU quota, memory limit, disk bandwidth, network
namespace and everyday background load. The recordings note this in ``meta.json`` (``notes``). Needs root, for control
groups and namespaces; a plain user records the machine itself with ``cis490 record``.
"""

import argparse
import ctypes
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from training.certain import certain
from training.clock import SystemClock
from training.data import episode
from training.files import settle
from training.streams import replace_unprintable
from training.watch.recording.cgroups import V1_CONTROLLERS, Cgroup, mounts
from training.watch.recording.collect import ContainerCollector
from training.watch.recording.record import RecordingOrder, record
from training.watch.recording.scenarios import ORDINARY, SCENARIOS, draw_phases, running
from training.watch.recording.stage import RecordError, Stage
from training.watch.recording.workloads import BEHAVIOURS

MIB = 1 << 20
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41
BENIGN_TAKES, MALICIOUS_TAKES, REFERENCE_TAKES = 2, 4, 4
TRIES = 3
PERIOD_US = 20_000  # short, so that a throttled container stutters below the sampling interval


class CgroupError(Exception):
    """No control group can be made: none are mounted here, or the system or this user's rights do not permit it."""


class ContainerLimits(NamedTuple):
    """The limits of a container. ``cpu_cores`` may be a fraction; the two rates are bytes a second on the disk of the
    scratch folder."""

    cpu_cores: float
    memory_bytes: int
    disk_read_bps: int
    disk_write_bps: int


class Box(NamedTuple):
    """A host of the sample: its limits, the behaviours always in its background, and those of its ordinary work, which
    its references record."""

    name: str
    limits: ContainerLimits
    background: tuple[tuple[str, float, float], ...]  # behaviour, lowest and highest intensity of an episode
    ordinary: tuple[str, ...]


def _limits(cpu: float, memory_mib: int, disk_mib_s: int) -> ContainerLimits:
    return ContainerLimits(
        cpu_cores=cpu, memory_bytes=memory_mib * MIB, disk_read_bps=disk_mib_s * MIB, disk_write_bps=disk_mib_s * MIB
    )


BOXES = (
    Box(
        "front-desk",
        _limits(0.50, 384, 30),
        (("web", 0.0, 0.3), ("cloud_sync", 0.0, 0.1)),
        ("web", "log_processing", "monitor", "cloud_sync"),
    ),
    Box(
        "build-box",
        _limits(0.80, 512, 60),
        (("log_processing", 0.02, 0.15), ("monitor", 0.0, 0.4)),
        ("compile_code", "file_copy", "compress", "numeric"),
    ),
    Box(
        "ledger",
        _limits(0.40, 320, 25),
        (("database", 0.02, 0.2),),
        ("database", "backup", "log_processing", "archive"),
    ),
    Box(
        "attic-pi", _limits(0.30, 256, 15), (("monitor", 0.0, 0.5),), ("monitor", "file_copy", "log_processing", "web")
    ),
)


def takes(box: Box, seed: int, short: bool) -> list[tuple[str, bool]]:
    """Return a pair (scenario, whether a reference) for each episode of one host.

    The order is shuffled, so that the time of an episode does not reveal its behaviour.
    """
    wanted = [(ORDINARY, True)] * (1 if short else REFERENCE_TAKES)
    for scenario in SCENARIOS.values():
        if scenario.name != ORDINARY:
            count = MALICIOUS_TAKES if scenario.malicious else BENIGN_TAKES
            wanted += [(scenario.name, False)] * (1 if short else count)
    random.Random(f"{seed}:{box.name}:order").shuffle(wanted)
    return wanted


def own_network() -> None:
    """Move this process into its own network namespace, which has only loopback. Raises RecordError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise RecordError(f"No network namespace could be made ({os.strerror(ctypes.get_errno())}): run as root.")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        import fcntl  # Linux only, like everything in this function

        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


def record_box(box: Box, out: Path, settings: argparse.Namespace) -> None:
    """Record all episodes of one host one after another, as packed files in ``out``; print a line for each."""
    own_network()
    order = takes(box, settings.seed, settings.short)
    with tempfile.TemporaryDirectory(prefix=f"cis490-{box.name}-", dir=out, ignore_cleanup_errors=True) as scratch:
        group = create_container(f"cis490-{box.name}", box.limits, device_of(Path(scratch)))
        try:
            for number, (scenario, reference) in enumerate(order, start=1):
                name = f"{settings.seed}:{box.name}:{number}"
                folder = _patiently(box, scenario, reference, group, Path(scratch), name, settings)
                packed = out / f"{folder.name}{episode.PACKED_SUFFIX}"
                episode.pack(folder, packed)
                _empty(Path(scratch))
                print(f"{box.name:12} {number:3} of {len(order)}  {scenario}", flush=True)
        finally:
            _remove(group)


def create_container(name: str, limits: ContainerLimits, device: str) -> Cgroup:
    """Make a control group with these limits, or reuse the group of this name and kill the processes left in it.

    ``device`` is ``major:minor`` of the scratch folder's disk. Raises CgroupError if this machine or this user cannot
    make a group.
    """
    v1_mounts, v2_mount = mounts()
    v2 = None if v2_mount is None else v2_mount / name
    quota, period_us = int(limits.cpu_cores * PERIOD_US), str(PERIOD_US)
    if all(c in v1_mounts for c in V1_CONTROLLERS):
        v1 = {c: v1_mounts[c] / name for c in V1_CONTROLLERS}
        group, blkio = Cgroup(v1=v1, v2=v2), v1["blkio"]
        settings = {
            v1["cpu"] / "cpu.cfs_period_us": period_us,
            v1["cpu"] / "cpu.cfs_quota_us": str(quota),
            v1["memory"] / "memory.limit_in_bytes": str(limits.memory_bytes),
            # Without a rule the kernel keeps no account of a group's disk traffic at all.
            blkio / "blkio.throttle.read_bps_device": f"{device} {limits.disk_read_bps}",
            blkio / "blkio.throttle.write_bps_device": f"{device} {limits.disk_write_bps}",
        }
    elif v2 is not None:
        group = Cgroup(v2=v2)
        settings = {
            v2 / "cpu.max": f"{quota} {period_us}",
            v2 / "memory.max": str(limits.memory_bytes),
            v2 / "io.max": f"{device} rbps={limits.disk_read_bps} wbps={limits.disk_write_bps}",
        }
    else:
        raise CgroupError("No usable control groups are mounted: recording several hosts at once needs Linux's.")
    try:
        if v2 is not None and not group.v1:
            for controller in ("cpu", "memory", "io", "pids"):
                (v2.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        for folder in group.folders():
            folder.mkdir(exist_ok=True)
        _end_leftovers(group)
        for path, value in settings.items():
            path.write_text(value)
    except OSError as error:
        raise CgroupError(
            f"A container named {name} could not be made ({error.strerror}: {error.filename}): run as root on a "
            "Linux machine, or record this machine itself with cis490 record."
        ) from None
    return group


def _end_leftovers(group: Cgroup) -> None:
    """Kill the processes in the group, which a killed recorder left running."""
    for pid in group.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def remove_container(group: Cgroup) -> None:
    """Remove the group if no process is left in it; :func:`create_container` reuses a group that remains."""
    with suppress(OSError):
        for folder in group.folders():
            if folder.is_dir():
                folder.rmdir()


def device_of(path: Path) -> str:
    """Return ``major:minor`` of the whole disk (not the partition) that holds a path; rules that limit a disk's rates
    name the disk in this form."""
    number_of = path.stat().st_dev
    partition = Path(f"/sys/dev/block/{os.major(number_of)}:{os.minor(number_of)}")
    if (partition / "partition").exists():
        partition = partition.resolve().parent
    text = (partition / "dev").read_text().strip() if (partition / "dev").exists() else ""
    return text or f"{os.major(number_of)}:{os.minor(number_of)}"


def _remove(group: Cgroup) -> None:
    for _ in range(50):  # killed processes leave their group a moment later
        if not group.pids():
            break
        time.sleep(0.1)
    remove_container(group)


def _empty(scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(exist_ok=True)


def _patiently(
    box: Box,
    scenario: str,
    reference: bool,
    group: Cgroup,
    scratch: Path,
    name: str,
    settings: argparse.Namespace,
) -> Path:
    """Record one episode and return its folder; if that fails, record it again with another seed, ``TRIES`` times in
    all."""
    for attempt in range(TRIES):
        try:
            order = _order(box, scenario, reference, random.Random(f"{name}:{attempt}"), settings)
            stage = Stage(scratch / "work", group)
            return record(order, ContainerCollector(group), stage, scratch / "episodes", clock=SystemClock())
        except RecordError as error:
            if attempt == TRIES - 1:
                raise
            print(f"record-sample: {box.name} records {scenario} again: {error}", file=sys.stderr)
            _empty(scratch)
    raise AssertionError("the last attempt returns or raises")


def _order(
    box: Box, scenario: str, reference: bool, rng: random.Random, settings: argparse.Namespace
) -> RecordingOrder:
    background = tuple(running(name, 0.0, rng.uniform(low, high), rng) for name, low, high in box.background)
    return RecordingOrder(
        scenario=scenario,
        host=box.name,
        duration_s=settings.duration_s,
        hz=settings.hz,
        reference=reference,
        seed=rng.getrandbits(31),
        phases=draw_phases(scenario, settings.duration_s, rng, ordinary=box.ordinary),
        background=background,
        notes={
            "container": "one of several containers on one machine",
            "cpu_cores": box.limits.cpu_cores,
            "memory_mib": box.limits.memory_bytes // MIB,
            "disk_mib_s": box.limits.disk_read_bps // MIB,
            "background": {p.name: round(p.intensity, 3) for p in background},
        },
    )


def main(argv: list[str] | None = None) -> int:
    replace_unprintable()
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end what was started
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        print(
            "record-sample: the sample's hosts are containers, which only root on Linux can make; record "
            "this machine itself with cis490 record.",
            file=sys.stderr,
        )
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        if args.box:
            record_box(next(b for b in BOXES if b.name == args.box), args.out, args)
            return 0
        return _all_boxes(args)
    except (RecordError, CgroupError, OSError) as error:
        print(f"record-sample: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _all_boxes(args: argparse.Namespace) -> int:
    """Record all hosts at once, one process each, into a temporary folder; when all have succeeded, their episodes
    replace those in ``--out``."""
    per_box = len(takes(BOXES[0], args.seed, args.short))
    minutes = per_box * (args.duration_s + 4) / 60
    print(f"Recording {len(BOXES)} hosts x {per_box} episodes, about {minutes:.0f} minutes.", flush=True)
    staging = Path(tempfile.mkdtemp(prefix="cis490-sample-", dir=args.out.parent))
    shared = {"--out": staging, "--seed": args.seed, "--duration-s": args.duration_s, "--hz": args.hz}
    flags = [str(word) for option in shared.items() for word in option]
    flags += ["--short"] if args.short else []
    children = [subprocess.Popen([sys.executable, __file__, "--box", box.name, *flags]) for box in BOXES]
    try:
        failed = _first_failure(children)
    except KeyboardInterrupt:
        _end(children)
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _end(children)
    if failed:
        print(f"record-sample: a host failed; the recordings are in {staging}.", file=sys.stderr)
        return 1
    for old in args.out.glob(f"*{episode.PACKED_SUFFIX}"):
        old.unlink()
    for new in sorted(staging.glob(f"*{episode.PACKED_SUFFIX}")):
        settle(new, args.out / new.name)
    shutil.rmtree(staging, ignore_errors=True)
    size = sum(p.stat().st_size for p in args.out.glob(f"*{episode.PACKED_SUFFIX}"))
    print(f"Recorded {per_box * len(BOXES)} episodes, {size / 1e6:.1f} MB, into {args.out}.")
    return 0


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.terminate()
    for child in children:
        child.wait()


def _first_failure(children: list[subprocess.Popen[bytes]]) -> bool:
    """Wait until all processes have ended or one has failed; return True if one has failed."""
    while any(child.poll() is None for child in children):
        if any(child.returncode for child in children):
            return True
        time.sleep(0.5)
    return any(child.returncode for child in children)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--out", type=Path, default=Path("examples/telemetry-sample"))
    add("--seed", type=int, default=490)
    add("--duration-s", type=float, default=42.0)
    add("--hz", type=float, default=8.0)
    add("--short", action="store_true", help="record only one episode of each scenario, as a trial")
    add("--box", choices=[b.name for b in BOXES], help=argparse.SUPPRESS)
    return parser


certain(all(name in BEHAVIOURS for box in BOXES for name in box.ordinary), "a box names behaviours that exist")

if __name__ == "__main__":
    sys.exit(main())
