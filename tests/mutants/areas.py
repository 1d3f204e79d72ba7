"""The places in which a small bug would break a promise, and the tests that may notice one."""

from __future__ import annotations

import posixpath
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Area → files below training/fleet; a folder stands for all its modules.
AREAS: dict[str, tuple[str, ...]] = {
    "scheduling": ("scheduling/policy.py", "queue/choose.py", "scheduling/quarantine.py", "scheduling/job.py"),
    "sql": ("database/sql/queries.sql", "database/sql/recovery.sql"),
    "queue": ("queue", "service/hosts.py", "service/output.py", "database"),
    "service": tuple(
        f"service/{name}.py"
        for name in (
            *("fleet", "sessions", "claims", "heartbeats", "endings", "uploads", "operator_calls"),
            *("service", "guards", "views"),
        )
    ),
    "store": ("store/artifacts.py", "store/errors.py", "store/incoming.py", "store/index.py", "store/store_id.py",
              "store/provenance.py", "store/reserve.py", "../files.py", "../locking.py"),
    "outbox": ("worker/outbox.py", "worker/state_folder.py", "worker/state/output.py", "worker/state/reports.py"),
    "worker": ("worker/daemon.py", "worker/state", "worker"),
    "trust": ("receiver/security", "service/audit.py", "service/membership.py", "client/credentials.py",
              "client/renewal.py", "wire/identity.py"),
    "recovery": ("recovery",),
}  # fmt: skip

# Tests that start real programs by the dozen, or other people's, or plant bugs themselves: too slow to ask once a
# mutant.
LEFT_OUT = (
    "test_fleet_two_namespaces", "test_fleet_caddy", "test_fleet_many", "test_fleet_install_distrust",
    "test_fleet_end_to_end", "test_fleet_simulation",
    "test_fleet_guarantees", "test_fleet_openapi", "test_fleet_house",
)  # fmt: skip

# Modules run in programs of their own, which the map does not see: their tests are asked after those of the map. The
# trace of what reaches the kernel is one run of one program, whose tests are asked together.
TRACED = "tests/house/test_fleet_kernel_trace.py"
BESIDE = {
    posixpath.normpath(f"training/fleet/{name}"): TRACED
    for name in (
        "store/artifacts.py", "../files.py", "store/incoming.py", "store/index.py", "store/store_id.py",
        "client/credentials.py", "worker/bundle.py", "worker/state_folder.py", "recovery/backup.py",
        "recovery/files.py",
    )
}  # fmt: skip

# Holds constants equal to what the pages tell: none of their lines runs in it.
LIMITS = "tests/fleet/wire/test_fleet_limits.py"


def files_of(area: str) -> list[str]:
    """The files of an area as paths from the checkout's top; each file belongs to the first area that names it."""
    before = {path for name in list(AREAS)[: list(AREAS).index(area)] for path in files_of(name)}
    found: list[str] = []
    for name in AREAS[area]:
        place = (ROOT / "training" / "fleet" / name).resolve()
        modules = sorted(place.glob("*.py")) if place.is_dir() else [place]
        found += [each.relative_to(ROOT).as_posix() for each in modules if each.exists()]
    return [path for path in dict.fromkeys(found) if path not in before and not path.endswith("__init__.py")]


def tests() -> list[str]:
    """The test files that are asked."""
    files = (ROOT / "tests").rglob("test_fleet_*.py")
    return sorted(str(file.relative_to(ROOT)) for file in files if file.stem not in LEFT_OUT)
