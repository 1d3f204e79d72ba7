"""The system calls of the real adapters: writes are synced before a name is given, names before the word is.

The imitated file system of the other tests believes what the adapter says it does; this one listens to the calls.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from places import TESTS
from programs import installed

PROGRAM = TESTS / "support" / "traced_writes.py"
CALLS = "openat,write,pwrite64,fsync,fdatasync,ftruncate,mkdir,unlink,unlinkat,stat,newfstatat,/^rename"
PROMISES = [
    "store_opened",
    "published",
    "equal_bundle_found",
    "confirmed",
    "rotten_bundle_replaced",
    "provenance_written",
    "index_line_added",
    "index_rebuilt",
    "damaged_bundle_put_aside",
    "committed",
    "granted",
    "worker_state_saved",
    "delivery_kept",
    "report_kept",
    "backups_begun",
    "private_key_kept",
    "end_of_a_file_cut",
    "bundle_packed",
]


@dataclass(frozen=True)
class Call:
    """One system call on a path of the program's own folder."""

    what: str  # write, sync, name (create or rename), gone
    path: Path
    source: Path | None = None  # of a rename


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The calls of each section of the program."""
    strace, folder = installed("strace", "strace"), tmp_path_factory.mktemp("traced")
    (folder / "work").mkdir()
    log = folder / "trace.txt"
    subprocess.run(
        [strace, "-f", "-y", "-s", "0", "-e", f"trace={CALLS}", "-o", log, sys.executable, PROGRAM, folder / "work"],
        check=True,
        capture_output=True,
        text=True,
    )  # fmt: skip
    sections = {}
    current = []
    known = set()
    for line in log.read_text().splitlines():
        if mark := re.search(r'/mark\.(\w+)"', line):
            current = sections.setdefault(mark[1], [])
        elif (call := _call(line, folder / "work")) is not None:
            if call.what != "name" or call.source is not None or call.path not in known:
                current.append(call)  # what is opened to be made, and is there, gets no new name
            known.add(call.path)
    return sections


def _call(line, folder):
    found = re.match(r"\d+\s+(\w+)\((.*)\)\s+=\s+(\d+)", line)
    if found is None or str(folder) not in line:
        return None  # failed calls, others' files
    name, arguments, _ = found.groups()
    quoted = [Path(each) for each in re.findall(r'"([^"]+)"', arguments)]
    held = re.match(r"\d+<([^>]+)>", arguments)
    if name in {"write", "pwrite64", "ftruncate"} and held:
        return Call("write", Path(held[1]))
    if name in {"fsync", "fdatasync"} and held:
        return Call("sync", Path(held[1]))
    if name.startswith("rename"):
        return Call("name", quoted[-1], quoted[0])
    if name.startswith("unlink"):
        return Call("gone", quoted[-1])
    if name == "mkdir" or (name == "openat" and "O_CREAT" in arguments):
        return Call("name", quoted[-1])
    return None


def unsynced(calls):
    """All that a power cut after these calls could take away, and every name that was given too early."""
    dirty = set()
    renamed_in = {}
    wrong = []
    for call in calls:
        if call.what == "write":
            dirty.add(call.path)
        elif call.what == "sync":
            dirty.discard(call.path)
            renamed_in.pop(call.path, None)
        elif call.what == "gone":
            dirty.discard(call.path)
            renamed_in.get(call.path.parent, set()).discard(call.path)
        elif call.what == "name":
            if call.source is not None:
                if call.source in dirty:
                    wrong.append(f"{call.path.name} got its name before its bytes were synced")
                dirty.discard(call.source)
                renamed_in.get(call.source.parent, set()).discard(call.source)
            renamed_in.setdefault(call.path.parent, set()).add(call.path)
    wrong += [f"the bytes of {path.name} were not synced" for path in dirty]
    wrong += [f"the folder of {name.name} was not synced" for names in renamed_in.values() for name in names]
    return wrong


@pytest.mark.parametrize("promise", PROMISES)
def test_what_is_called_durable_is_synced(trace, promise):
    calls = trace[promise]
    assert any(call.what == "sync" for call in calls), "the trace shows nothing: is it one?"
    assert not unsynced([call for call in calls if not call.path.name.endswith("-shm")])


def test_a_bundle_is_written_synced_renamed_and_its_folders_synced(trace):
    made = {"gone", "name"}  # folders and the part itself; the bundle's name comes by a rename
    calls = [call for call in trace["published"] if call.what not in made or call.source]
    bundle = next(call for call in calls if call.path.name == "bundle.tar.zst")
    assert bundle.source is not None
    digest = bundle.path.parent
    at = calls.index(bundle)
    written = Call("write", bundle.source)
    assert calls[at - 3 : at] == [written, written, Call("sync", bundle.source)]
    assert calls[at + 1 :] == [Call("sync", each) for each in (digest, digest.parent, digest.parent.parent)]


@pytest.mark.parametrize("promise", ["equal_bundle_found", "confirmed"])
def test_a_bundle_that_was_there_is_synced_before_it_is_taken_for_durable(trace, promise):
    synced = [call.path.name for call in trace[promise] if call.what == "sync"]
    assert synced[synced.index("bundle.tar.zst") + 2 :] == ["gbt_oracle", "models"]


def test_the_listening_finds_what_is_missing(trace):
    calls = trace["published"]
    for number, call in enumerate(calls):
        if call.what == "sync":
            assert unsynced([*calls[:number], *calls[number + 1 :]]), f"{call} could be left out"
