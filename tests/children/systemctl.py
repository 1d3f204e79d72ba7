#!/usr/bin/env python3
"""A stand-in for systemctl that really starts units: their User, EnvironmentFile, WorkingDirectory and ExecStart.

For machines where systemd does not run. It writes down each call, and keeps its state in $STUB_SYSTEMD.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

STATE = Path(os.environ.get("STUB_SYSTEMD", "/run/stub-systemd"))
UNITS = Path("/etc/systemd/system")


def said(unit: str) -> dict[str, list[str]]:
    text = (UNITS / unit).read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name.strip(), []).append(value.strip())
    return found


def environment(unit: dict[str, list[str]]) -> dict[str, str]:
    lines = list(unit.get("Environment", []))
    for file in unit.get("EnvironmentFile", []):
        lines += Path(file.removeprefix("-")).read_text().splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def command(line: str, known: dict[str, str]) -> list[str]:
    """As systemd.service(5) has it: ${NAME} is one word, $NAME as a word of its own is split, unset is nothing."""
    words: list[str] = []
    for word in shlex.split(line):
        if re.fullmatch(r"\$[A-Z0-9_]+", word):
            words += known.get(word[1:], "").split()
        else:
            words.append(re.sub(r"\$\{([A-Z0-9_]+)\}", lambda at: known.get(at[1], ""), word).replace("$$", "$"))
    return words


def pid_of(unit: str) -> int:
    try:
        pid = int((STATE / unit).read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return 0
    return 0 if state in "ZX" else pid


def start(unit: str) -> None:
    if pid_of(unit):
        return
    text = said(unit)
    who = pwd.getpwnam(text["User"][0])
    known = {"PATH": os.defpath, "HOME": who.pw_dir, **environment(text)}
    places = {"StateDirectory": "/var/lib", "RuntimeDirectory": "/run"}
    folders = [Path(place, name) for each, place in places.items() for name in text.get(each, [])]
    for folder in folders:
        if not folder.exists():
            folder.mkdir(0o750)
            os.chown(folder, who.pw_uid, who.pw_gid)
    with (STATE / f"{unit}.log").open("ab") as log:
        process = subprocess.Popen(
            command(text["ExecStart"][0], known),
            cwd=text["WorkingDirectory"][0],
            env=known,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=who.pw_uid,
            group=who.pw_gid,
            extra_groups=[],
            umask=0o077,
            start_new_session=True,
        )
    (STATE / unit).write_text(str(process.pid))


def stop(unit: str) -> None:
    pid = pid_of(unit)
    if pid:
        os.kill(pid, signal.SIGTERM)
        for _ in range(450):
            if not pid_of(unit):
                break
            threading.Event().wait(0.1)
        else:
            os.kill(pid, signal.SIGKILL)
    with suppress(FileNotFoundError):  # the unit may be gone
        for name in said(unit).get("RuntimeDirectory", []):
            shutil.rmtree(Path("/run", name), ignore_errors=True)


def main() -> int:
    STATE.mkdir(exist_ok=True)
    with (STATE / "calls").open("a") as calls:
        calls.write(shlex.join(sys.argv[1:]) + "\n")
    verb, *rest = (word for word in sys.argv[1:] if not word.startswith("--"))
    if verb == "daemon-reload":
        return 0
    unit = rest[0]
    wanted = UNITS / "multi-user.target.wants" / unit
    if verb == "enable":
        wanted.parent.mkdir(exist_ok=True)
        wanted.symlink_to(UNITS / unit)
    elif verb == "disable":
        wanted.unlink(missing_ok=True)
        if "--now" in sys.argv:
            stop(unit)
    elif verb == "is-enabled":
        return not wanted.is_symlink()
    elif verb == "is-active":
        return 0 if pid_of(unit) else 3
    elif verb in ("start", "restart", "stop"):
        if verb != "start":
            stop(unit)
        if verb != "stop":
            start(unit)
    else:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
