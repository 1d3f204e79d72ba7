#!/usr/bin/env python3
"""Write locks and bills of materials of what this project installs, and look for known vulnerabilities, each with the
usual tool.

    python tools/supply_chain.py lock    # write locks/*.txt from pyproject.toml and constraints.txt (uv)
    python tools/supply_chain.py bill    # write build/*.cdx.json, bills of materials (cyclonedx-bom)
    python tools/supply_chain.py audit   # look for known vulnerabilities of the locked versions (pip-audit)

A lock names every package of one kind of machine, for all platforms and Pythons, with the SHA-256 of its files; ``pip
install --require-hashes -r locks/receiver.txt`` installs nothing else. Exit codes: 0 done, 1 a vulnerability was found
or a tool failed, 2 wrong usage.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {
    "receiver": ("receiver",),
    "training-host": ("worker", "trainer"),
    "watch": ("watch",),
    "engines": ("dask", "ray", "slurm"),
    "dev": ("dev",),
    "docs": ("docs",),
}
WITH_BILL = ("receiver", "training-host", "watch")  # what users install
# Files of others that lie in this repository, unchanged: where each came from, and its SHA-256.
VENDORED = {
    "training/fleet/pages/static/htmx.min.js": (
        "npm htmx.org 4.0.1, 0BSD",
        "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    ),
    "training/fleet/pages/static/uplot.min.js": (
        "npm uplot 1.6.32, MIT",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    ),
    "training/fleet/pages/static/uplot.min.css": (
        "npm uplot 1.6.32, MIT",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
    "tests/vendor/axe.min.js": (
        "npm axe-core 4.14.1, MPL-2.0",
        "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
    ),
}
TOOLS = Path(sys.executable).parent


class ToolFailedError(Exception):
    """A tool is missing or failed, or there is a known vulnerability. The text is one sentence."""


def lock() -> None:
    """Write every lock file, with ``uv``."""
    for name, extras in LOCKS.items():
        target = f"locks/{name}.txt"
        chosen = [word for extra in extras for word in ("--extra", extra)]
        _run(
            *("uv", "pip", "compile", "pyproject.toml", *chosen, "--constraint", "constraints.txt"),
            *("--universal", "--python-version", "3.11", "--generate-hashes", "--no-header"),
            *("--no-annotate", "--quiet", "--output-file", target),
        )
        print(f"{target}: {len(pins((ROOT / target).read_text(encoding='utf-8')))} packages")


def bill() -> None:
    """Write a bill of materials, with ``cyclonedx-py``, for each lock that users install from."""
    (ROOT / "build").mkdir(exist_ok=True)
    for name in WITH_BILL:
        target = f"build/{name}.cdx.json"
        _run(
            *("cyclonedx-py", "requirements", f"locks/{name}.txt", "--pyproject", "pyproject.toml"),
            *("--output-reproducible", "--output-file", target),
        )
        parts = json.loads((ROOT / target).read_text(encoding="utf-8"))["components"]
        print(f"{target}: {len(parts)} components")


def audit() -> None:
    """Print the known vulnerabilities of locked versions. Raises ToolFailedError if there are any; if the service does
    not answer, that is printed."""
    asked: set[str] = set()
    unknown: set[str] = set()
    found: dict[str, list[str]] = {}
    for name in LOCKS:
        for package in _asked(f"locks/{name}.txt"):
            asked.add(package["name"])
            if "skip_reason" in package:
                unknown.add(package["name"])
            elif package["vulns"]:
                ids = [weakness["id"] for weakness in package["vulns"]]
                found[f"{package['name']} {package['version']}"] = ids
    if found:
        listed = "; ".join(f"{package}: {', '.join(ids)}" for package, ids in sorted(found.items()))
        raise ToolFailedError(
            f"known vulnerabilities in {listed}; raise the versions in constraints.txt, then `make lock`"
        )
    if unknown == asked:
        print("known vulnerabilities: NOT CHECKED, the advisory service cannot be reached from here")
    else:
        missing = f"; not known to the service: {', '.join(sorted(unknown))}" if unknown else ""
        print(f"known vulnerabilities: none in {len(asked - unknown)} packages{missing}")


def pins(text: str) -> dict[str, str]:
    """Return package → version (or several, with blanks between) as the lines of a lock file pin them."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equal, rest = line.partition("==")
        if equal and not line.startswith((" ", "#")):
            version = rest.split(" ", 1)[0].rstrip("\\")
            found[name] = f"{found[name]} {version}" if name in found else version
    return found


def _asked(lock_file: str) -> list[dict[str, Any]]:
    command = ["pip-audit", "--requirement", lock_file, "--require-hashes", "--disable-pip"]
    done = subprocess.run(
        [str(TOOLS / command[0]), *command[1:], "--format", "json", "--progress-spinner", "off"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return list(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError):
        # It ends without an answer when the service cannot be reached at all.
        text = (ROOT / lock_file).read_text(encoding="utf-8")
        return [{"name": name, "skip_reason": "no answer"} for name in pins(text)]


def _run(*command: str) -> None:
    program = TOOLS / command[0]
    if not program.exists():
        raise ToolFailedError(f"{command[0]} is missing; run `make setup`")
    done = subprocess.run([str(program), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ToolFailedError(f"{command[0]} failed: {' '.join(last)}")


def main() -> int:
    verbs = {"lock": lock, "bill": bill, "audit": audit}
    if sys.argv[1:] not in [[verb] for verb in verbs]:
        print("usage: python tools/supply_chain.py {lock,bill,audit}", file=sys.stderr)
        return 2
    try:
        verbs[sys.argv[1]]()
    except ToolFailedError as error:
        print(f"supply_chain: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
