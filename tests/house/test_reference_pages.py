"""The reference pages against the code: every key, command, flag and endpoint stands in its page, and nothing else."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer

from training.command.program import VERBS
from training.fleet.cli.program import app
from training.fleet.install import __main__ as installer
from training.fleet.manifest import checks
from training.fleet.manifest.channels import ChannelKind
from training.fleet.manifest.reader import TomlTable
from training.fleet.receiver import program as receiver
from training.fleet.wire.routes import ROUTES
from training.fleet.worker import options as worker

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


# ── the manifest ────────────────────────────────────────────────────────────────────────────


def asked(monkeypatch):
    """Return the keys that each check asks a table for, by the check's name of that table."""
    found = {}

    def finish(self, what, _instead=None):
        found.setdefault(what, set()).update(self._asked)

    monkeypatch.setattr(TomlTable, "finish", finish)
    channels = {kind.value: {"kind": kind.value} for kind in ChannelKind}
    job = {"name": "a", "model": "gbt", "mode": "oracle"}
    values = {"defaults": {}, "retention": {}, "hosts": {"pi": {}}, "notify": channels, "jobs": [job]}
    problems = []
    checks.check_trainers(TomlTable({"trainers": {"own": {}}}, (), problems), set())
    checks.check_plan(TomlTable(values, (), problems), checks.Trainers({"gbt": {}}))
    found["a job"] = {key for what, keys in found.items() if "job" in what for key in keys}
    return found


def documented(text, heading):
    """Return the keys in the first column of a section's tables."""
    section = re.split(r"^#{2,3} ", text.partition(f"\n### {heading}")[2], maxsplit=1, flags=re.MULTILINE)[0]
    cells = (row.split("|")[1] for row in section.splitlines() if row.startswith("|") and "---" not in row)
    return {key for cell in cells for key in re.findall(r"`([a-z_<>.]+)`", cell)}


@pytest.mark.parametrize(
    ("heading", "what"),
    [
        ("`[defaults]`", "[defaults]"),
        ("`[hosts.<name>]`", "a host"),
        ("`[trainers.<name>]`", "a trainer"),
        ("`[retention]`", "[retention]"),
        ("`[[jobs]]`", "a job"),
    ],
)
def test_the_manifest_page_has_the_keys_of_each_table_and_no_others(monkeypatch, heading, what):
    keys = {"hyper.<key>" if key == "hyper" else key for key in asked(monkeypatch)[what]}
    assert documented(page("manifest.md"), heading) == keys


def test_the_manifest_page_names_every_table_and_no_other(monkeypatch):
    tables = {"hosts", "trainers", "notify", "defaults", "retention", "jobs"}
    known = asked(monkeypatch)["a manifest"] | {"trainers"}
    assert known - tables <= {"schema_version", "name", "scheduling"}
    assert "`scheduling`" in page("manifest.md")
    found = set(re.findall(r"^### `\[+([a-z]+)", page("manifest.md"), re.MULTILINE))
    assert found == tables


def test_the_notifications_page_has_every_key(monkeypatch):
    keys = {key for what, of in asked(monkeypatch).items() if "channel" in what for key in of}
    text = page("notifications.md")
    plain = {key.removesuffix("_env").removesuffix("_file") for key in keys}
    assert sorted(key for key in plain if not re.search(rf"[`\n]{key}", text)) == []


# ── the command line ────────────────────────────────────────────────────────────────────────


def cli_flags():
    def walk(command):
        for each in command.params:
            yield from each.opts
            yield from each.secondary_opts
        for below in getattr(command, "commands", {}).values():
            yield from walk(below)

    return {flag for flag in walk(typer.main.get_command(app)) if flag.startswith("--")}


def flags_of(make):
    def walk(parser):
        for action in parser._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    yield from walk(below)

    return set(walk(make()))


def test_the_page_of_commands_names_no_flag_that_nobody_has():
    known = cli_flags() | flags_of(receiver._parser) | flags_of(worker.parser) | flags_of(installer._parser)
    known |= {"--code", "--fingerprint", "--receiver-url", "--host-id"}  # of the line that enroll prints
    assert sorted(set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", page("command-line.md"))) - known) == []


# ── the API ─────────────────────────────────────────────────────────────────────────────────


def test_the_protocol_page_names_no_endpoint_that_does_not_exist():
    known = {(row.method, re.sub(r"\{[^}]+\}", "{}", row.path)) for row in ROUTES}
    known |= {("HEAD", path) for method, path in known if method == "GET"}
    said = re.findall(r"`(GET|POST|PUT|HEAD|DELETE) (/[^\s`?]*)", page("protocol.md"))
    named = {(method, re.sub(r"\{[^}]+\}", "{}", path)) for method, path in said}
    assert named, "the page names endpoints"
    assert sorted(named - known) == []


# ── a newcomer's commands ───────────────────────────────────────────────────────────────────


def steps():
    pages = (ROOT / "README.md", *(DOCS / f"{name}.md" for name in ("tutorial", "questions", "python")))
    blocks = [
        each for path in pages for each in re.findall(r"```console\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    ]
    return [line[2:] for block in dict.fromkeys(blocks) for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("step", dict.fromkeys(steps()))
def test_each_step_of_a_newcomer_can_be_typed(step):
    """The program is there and knows every flag, and each file of the checkout that is read is there."""
    words = [word for word in shlex.split(step, comments=True) if word != "&"]
    program, *words = [words[0].removeprefix(".venv/bin/"), *words[1:]]
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    if program == "cis490" and words[0] in ("jobs", "receiver", "worker"):
        program = {"jobs": "cis490-jobs"}.get(words[0], f"cis490-trainer-{words[0]}")
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    elif program == "cis490-jobs":
        command = typer.main.get_command(app)
        for word in words:
            below = getattr(command, "commands", {})
            if word in below:
                command = below[word]
        assert not getattr(command, "commands", {}), f"{step} names no command"
        assert given <= {flag for each in command.params for flag in each.opts}
    elif program == "cis490-trainer-receiver":
        assert given <= flags_of(receiver._parser)
    elif program == "cis490-trainer-worker":
        assert given <= flags_of(worker.parser)
    elif program in ("cis490", "python"):
        module = importlib.util.find_spec(VERBS[words[0]][0] if program == "cis490" else words[1])
        assert module.origin is not None
        files = [Path(module.origin), *(Path(module.origin).parent.rglob("*.py"))]
        source = "".join(each.read_text(encoding="utf-8") for each in files)
        assert all(f'"{flag}"' in source for flag in given - {"--help"})
    else:
        assert program in ("cp", "export", "git", "uv")
    for word in words:
        if word.startswith(("docs/", "etc/", "examples/", "scripts/")):
            assert (ROOT / word).exists(), word
