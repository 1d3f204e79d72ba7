"""The locks say what the pins say, with a hash for every package; what a Pi installs stays light."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from supply_chain import LOCKS, VENDORED, pins


def text_of(name):
    return (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_hashes(name):
    for entry in re.split(r"(?m)^(?=\S)", text_of(name))[1:]:
        assert "==" in entry.splitlines()[0], entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_the_pinned_versions(name):
    """A changed pin needs `make lock`."""
    pinned = {
        normal(line.partition("==")[0]): line.partition("==")[2]
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    }
    locked = {normal(package): version for package, version in pins(text_of(name)).items()}
    assert {"msgspec", "typer"} <= locked.keys() & pinned.keys()
    for package in locked.keys() & pinned.keys():
        assert locked[package] == pinned[package], f"{package}: run `make lock`"


def test_what_others_wrote_lies_here_unchanged_with_its_licence():
    for name, (origin, digest) in VENDORED.items():
        assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == digest, f"{name} is not {origin}"
    folders = {ROOT / "tests" / "vendor", ROOT / "training" / "fleet" / "pages" / "static"}
    minified = {str(path.relative_to(ROOT)) for folder in folders for path in folder.glob("*.min.*")}
    assert minified == VENDORED.keys()
    for name in minified:
        stem = (ROOT / name).name.split(".")[0]
        assert (ROOT / name).with_name(f"{stem}.LICENSE.txt").exists(), name


def test_a_receiver_installs_nothing_heavy():
    heavy = {"torch", "numpy", "polars", "xgboost", "xgboost-cpu", "scikit-learn", "scipy"}
    assert not heavy & pins(text_of("receiver")).keys()
    assert heavy - {"xgboost"} <= pins(text_of("training-host")).keys()


@pytest.mark.thorough
@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("extra", ["receiver", "worker", "watch"])
def test_a_raspberry_pi_finds_wheels_of_every_package(extra, python):
    """The index is asked for metadata; nothing is downloaded or installed."""
    ask = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "pyproject.toml", "--extra", extra]
    ask += ["--python-platform", "aarch64-manylinux_2_28", "--python-version", python, "--only-binary", ":all:"]
    done = subprocess.run([*ask, "--constraint", "constraints.txt"], cwd=ROOT, capture_output=True, text=True)
    if "Failed to fetch" in done.stderr or "network" in done.stderr:
        pytest.skip("the package index does not answer from here")
    assert done.returncode == 0, done.stderr
    assert "msgspec==" in done.stdout
