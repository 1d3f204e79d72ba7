"""The operator's file: every text is either a plan or a list of mistakes, each one line that a terminal may see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fuzz import scratch
from fuzz.checks import shows_nothing_unseen
from training.families import RUN_MODELS, SSL_MODELS, describe
from training.fleet.capability.describe import (
    DescribeError,
    Description,
    describe_command,
    parse_description,
)
from training.fleet.manifest.load import Manifest, ManifestError, load_manifest

WORDS = (
    b"[[jobs]]\n", b"[hosts.a]\n", b"[defaults]\n", b"hyper.", b"hyper.out_dir = \"/etc\"\n", b"[[", b"]]", b"[" * 60,
    b"{", b"}", b'"""', b"'''", b'"', b"\\u0000", b"\\u001b]0;x\\u0007", b"\\U000e0041", b"= nan", b"= -inf",
    b"= 1e999",
    b"= 9223372036854775808", b"= 1979-05-27T07:32:00Z", b"= true", b".", b"a.b.c.d = 1\n", b"model = ", b"name = ",
    b"priority = -1\n", b"\xef\xbb\xbf", b"\r", b"\x00", b"\x1b[2J", b"#", b"\n", b"train_hosts = [\"a\"]\n",
    b"schema_version = 1\n", b"allow_jobs = []\n", b"trainer = ", b"dataset = ",
)  # fmt: skip


class _Table:
    """Answers for the trainers from their table, without a process; others cannot be started."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Description] = {}
        for program, models in (
            ("training.trainer.run", RUN_MODELS),
            ("training.trainer.run_ssl", SSL_MODELS),
        ):
            said = json.dumps(describe(program, models))
            self._known[tuple(describe_command(program))] = parse_description(said)

    def __call__(self, command: Sequence[str]) -> Description:
        if tuple(command) in self._known:
            return self._known[tuple(command)]
        raise DescribeError(f"`{command[0]!a}` cannot be started: no such file")


_DESCRIBER = _Table()
_FOLDER = scratch.folder("manifest")
_FILE = Path(_FOLDER.name) / "plan.toml"


def one_input(data: bytes) -> None:
    _FILE.write_bytes(data)
    try:
        plan = load_manifest(_FILE, describer=_DESCRIBER)
    except ManifestError as error:
        mistakes = [str(each) for each in error.mistakes]
    else:
        _sound(plan)
        return
    assert mistakes, "refused without a mistake"
    for mistake in mistakes:
        shows_nothing_unseen(mistake, lines=False)


def _sound(plan: Manifest) -> None:
    for job in plan.jobs:
        json.dumps(job.to_dict(), allow_nan=False)
        assert not {"out_dir", "seed", "out-dir", "reports_dir"} & set(job.hyper), job.hyper
