"""The doctor's checks of the machine: disk space, file permissions, the database's log, the clock, and credentials that
are missing or expire soon."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from training import strict_json
from training.files import Fs, scarce, to_free
from training.fleet.database.writer import Row
from training.fleet.recovery.findings import Finding, Gravity
from training.fleet.recovery.unlinked import strange_root
from training.fleet.service.state import Deployment
from training.fleet.store.artifacts import INDEX, RESERVE_BYTES
from training.fleet.wire.identity import Role, enrolling

_DAY_S = 86_400.0
_MIB = 1024**2
WAL_BYTES_MAX = 64 * _MIB
CLOCK_STEP_S = 5.0
CERTIFICATE_LEFT_S = 5 * _DAY_S  # renewed when ten days are left
CERTIFICATE_OVER_S = 60 * _DAY_S  # later than this after its end a host is retired, not late
TOKEN_LEFT_S = 7 * _DAY_S
SERVER_LEFT_S = 30 * _DAY_S  # renewed at a start when four months are left
AUTHORITY_LEFT_S = 365 * _DAY_S


def look_at_machine(state: Deployment, fs: Fs, now: float) -> Iterator[Finding]:
    """Report problems of disk space, permissions, the database's log and the authority: the checks that need no
    rows."""
    yield from room(fs.free_bytes(state.models), state.models)
    yield from exposed(state)
    wal = fs.size(Path(f"{state.db}-wal")) or 0
    if wal > WAL_BYTES_MAX:
        yield Finding(
            "wal",
            f"the database's log has {wal // _MIB} MiB, more than {WAL_BYTES_MAX // _MIB}",
            "something reads the database without an end; restart the receiver",
            Gravity.WARNING,
        )
    if not strange_root(state.tls):
        yield from authority(state.tls, now)


def room(free: int, where: Path) -> Iterator[Finding]:
    """Report free space below twice the reserve; below the reserve no job is granted and no bundle accepted."""
    if free < 2 * RESERVE_BYTES:
        low = free < RESERVE_BYTES
        what = "no job is granted and no bundle taken in" if low else "below half of that no job is granted"
        yield Finding(
            "room",
            f"{scarce(where, free)} at {where}: {what}",
            f"{to_free(where)} there",
            Gravity.FAULT if low else Gravity.WARNING,
        )


def exposed(state: Deployment) -> Iterator[Finding]:
    """Report private files (database, index, keys) whose mode gives other users any right; on Windows report
    nothing."""
    if os.name != "posix":
        return
    companions = [Path(f"{state.db}{suffix}") for suffix in ("", "-wal", "-shm")]
    keys = [state.tls / "ca.key", state.tls / "server.key"]
    for path in [*companions, state.models / INDEX, *keys]:
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue
        if mode & 0o077 and not stat.S_ISLNK(mode):
            what = f"other users of this machine may read {path}"
            yield Finding("permissions", what, f"chmod 600 {path}")


def clock(newest: float, now: float) -> Iterator[Finding]:
    """Report a clock that is more than ``CLOCK_STEP_S`` seconds behind the newest row."""
    if newest > now + CLOCK_STEP_S:
        yield Finding(
            "clock",
            f"the newest row is {newest - now:.0f} s ahead of this machine's clock",
            "set the clock (timedatectl set-ntp true), then restart the receiver, which moves leases along",
            Gravity.WARNING,
        )


# -- credentials ------------------------------------------------------------------------------------------------


def authority(folder: Path, now: float) -> Iterator[Finding]:
    """Report missing files and soon expiring certificates of the receiver and its authority; nothing if the TLS folder
    has none of these files."""
    names = ("ca.key", "ca.pem", "server.json")
    there = {name for name in names if (folder / name).exists() and not (folder / name).is_symlink()}
    if not there:
        return
    missing = [name for name in ("ca.key", "ca.pem") if name not in there]
    if missing:
        yield Finding(
            "authority",
            f"{folder} lacks {' and '.join(missing)}",
            f"put your own copy of it there, owned by the receiver's user; without one move {folder} away, restart the "
            "receiver and enroll every host again",
        )
    ends = _authority_ends(folder / "ca.pem") if "ca.pem" in there else None
    if ends is not None and ends < now + AUTHORITY_LEFT_S:
        yield Finding(
            "authority",
            f"the authority's certificate ends in {_days(ends - now)}",
            f"move {folder} away, restart the receiver and enroll every host again",
            Gravity.FAULT if ends < now else Gravity.WARNING,
        )
    if "server.json" in there:
        yield from _server(folder / "server.json", now)


def _server(path: Path, now: float) -> Iterator[Finding]:
    try:
        ends = float(strict_json.loads(path.read_bytes())["expires_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # replaced at the next start
    if ends < now + SERVER_LEFT_S:
        yield Finding(
            "server-certificate",
            f"the receiver's certificate ends in {_days(ends - now)}",
            "restart the receiver, which makes a new one",
            Gravity.FAULT if ends < now else Gravity.WARNING,
        )


def _authority_ends(path: Path) -> float | None:
    try:
        from cryptography import x509

        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (ImportError, OSError, ValueError):
        return None


def certificates(rows: Iterable[Row], now: float) -> Iterator[Finding]:
    """Report each host, operator or other holder whose last certificate ends within 5 days or ended in the last 60
    days."""
    for (role, name), ends in _last(rows, lambda row: (row["role"], row["name"])):
        left = ends - now
        if -CERTIFICATE_OVER_S < left < CERTIFICATE_LEFT_S:
            yield Finding(
                "certificates",
                f"the certificate of {role} {name} "
                + (f"ends in {_days(left)}" if left > 0 else f"ended {_days(-left)} ago"),
                "switch it on; it renews automatically"
                if left > 0
                else f"{enrolling(Role(role), name)} enrolls it again",
                Gravity.WARNING,
            )


def tokens(rows: Iterable[Row], now: float) -> Iterator[Finding]:
    """Report tokens that expire within 7 days, unless the same name and role has a token that is valid longer."""
    for (name, option), ends in _last(rows, lambda row: (row["name"], f" --{row['role']}" if row["role"] else "")):
        if 0 < ends - now < TOKEN_LEFT_S:
            yield Finding(
                "tokens",
                f"the token of {name} ends in {_days(ends - now)}",
                f"`cis490-jobs tokens add {name}{option}` makes a further one",
                Gravity.WARNING,
            )


def _last(rows: Iterable[Row], key: Callable[[Row], tuple[str, str]]) -> list[tuple[tuple[str, str], float]]:
    """Return (key, end) for each holder: when the last of the holder's credentials that are not revoked ends."""
    last: dict[tuple[str, str], float] = {}
    for row in rows:
        if row["revoked_at"] is None:
            last[key(row)] = max(last.get(key(row), 0.0), row["expires_at"])
    return sorted(last.items())


def _days(seconds: float) -> str:
    return f"{seconds / _DAY_S:.0f} days" if abs(seconds) >= 2 * _DAY_S else f"{seconds / 3600:.0f} h"
