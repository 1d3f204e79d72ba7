"""The house is kept: who may know whom, who may touch what. Each rule is itself tried on a snippet that breaks it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache

import house
import pytest
from house import RULES, Module, modules
from places import ROOT

from training.fleet.cli.program import MODULES, app
from training.fleet.receiver import program as receiver_program
from training.fleet.scheduling.job import EndReason, JobStatus
from training.fleet.wire.routes import PAGES
from training.fleet.worker import options as worker_options


@cache
def the_house():
    """Every module, read by the first test that asks and not by whoever only lists the tests."""
    return modules(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_is_kept(rule):
    broken = [f"{module.name}:{line} {said}" for module in the_house() for line, said in rule(module)]
    assert not broken, "\n" + "\n".join(broken)


def test_the_walk_sees_the_house():
    names = {module.name for module in the_house()}
    assert {"training", "training.clock", "training.fleet.queue", "training.trainer.run"} <= names
    for pattern in (house.STARTERS + " " + house.PURE_PACKAGES).split():
        assert any(module.is_any(pattern) for module in the_house()), f"{pattern} names nothing: a stale rule"


def test_every_room_of_the_fleet_stands_in_the_table():
    rooms = {house.room(module.name) for module in the_house() if house.within(module.name, "training.fleet")}
    assert rooms - {"training.fleet"} == {f"training.fleet.{name}" for name in house.MAY_IMPORT}
    assert len(rooms - {"training.fleet", "training.fleet.join"}) <= 16


def test_no_two_packages_import_each_other():
    assert list(house.each_other(the_house())) == []


def test_no_modules_import_each_other_in_a_circle():
    assert list(house.circles(the_house())) == []


def test_a_circle_is_seen_inside_functions_too():
    three = [
        Module.of("training.a", "from training.b import x"),
        Module.of("training.b", "def f():\n  from training import c"),
        Module.of("training.c", "import training.a"),
        Module.of("training.d", "import training.a"),
    ]
    assert list(house.circles(three)) == [["training.a", "training.b", "training.c"]]


def test_two_packages_that_import_each_other_are_seen():
    pair = [
        Module.of("training.fleet.client", "from training.fleet.store import datasets"),
        Module.of("training.fleet.store.datasets", "def f():\n  import training.fleet.client"),
        Module.of("training.fleet.wire.dataset_listing", "from training.fleet.store import datasets"),
    ]
    assert len(list(house.each_other(pair))) == 1


BREAKS = [
    (house.keeps_its_layer, "training.fleet.receiver", "import torch"),
    (house.keeps_its_layer, "training.fleet.capability.cuda", "def f():\n  import numpy.linalg"),
    (house.keeps_its_layer, "training.fleet.worker", "from training.trainer.run import main"),
    (house.keeps_its_layer, "training.fleet.manifest", "from training import trainer"),
    (house.keeps_its_layer, "training.trainer.run", "from training.fleet import protocol"),
    (house.keeps_its_layer, "training.data.windows", "import training.trainer.task"),
    (house.keeps_its_layer, "training.fleet.scheduling.policy", "from training.fleet.queue import JobQueue"),
    (house.keeps_its_layer, "training.fleet.scheduling.policy", "from training.clock import Clock"),
    (house.keeps_its_layer, "training.fleet.scheduling.job", "from training.fleet.scheduling import policy"),
    (house.keeps_its_layer, "training.fleet.queue", "from training.fleet.service import Service"),
    (house.keeps_its_layer, "training.fleet.service", "from starlette.requests import Request"),
    (house.keeps_its_layer, "training.fleet.store", "import sqlite3"),
    (house.keeps_its_layer, "training.fleet.worker.state.step", "from training.fleet import queue"),
    (house.keeps_its_layer, "training.fleet.receiver.http.context", "from training.fleet.worker import main"),
    (house.keeps_its_layer, "training.fleet.client", "import httpx"),
    (house.keeps_its_layer, "training.fleet.cli.status", "from training.fleet import queue"),
    (house.keeps_its_layer, "training.fleet.capability.describe", "import sqlite3"),
    (house.reads_no_clock, "training.fleet.queue", "import time\nx = time.time()"),
    (house.reads_no_clock, "training.data.record", "from time import monotonic"),
    (house.reads_no_clock, "training.trainer.loop", "import time\nf(clock=time.perf_counter_ns)"),
    (house.reads_no_clock, "training.fleet.cli", "x = datetime.datetime.now(UTC)"),
    (house.reads_no_clock, "training.fleet.cli", "x = date.today()"),
    (house.holds_no_sql, "training.fleet.queue", "q = 'SELECT * FROM jobs'"),
    (house.holds_no_sql, "training.fleet.service.views", "q = f'''\n  update jobs SET status = {x}'''"),
    (house.holds_no_sql, "training.fleet.database.sqlite", "q = 'DELETE FROM jobs'"),
    (house.holds_no_sql, "training.fleet.queue", "q = 'PRAGMA synchronous = OFF'"),
    (house.starts_no_process, "training.fleet.queue", "import subprocess"),
    (house.starts_no_process, "training.fleet.receiver", "from subprocess import Popen"),
    (house.starts_no_process, "training.fleet.worker", "import os\nos.execv('a', [])"),
    (house.starts_no_process, "training.fleet.cli", "import os\nos.system('ls')"),
    (house.starts_no_process, "training.trainer.loop", "import multiprocessing.pool"),
    (house.stays_pure, "training.fleet.scheduling.policy", "import random"),
    (house.stays_pure, "training.fleet.worker.state.step", "from training.clock import SystemClock"),
    (house.stays_pure, "training.data.split", '"""Splits. Pure."""\ndef f(path):\n  return open(path)'),
    (house.stays_pure, "training.data.doubts.constant_values", '"""Values. All functions are pure."""\nimport random'),
    (house.stays_pure, "training.fleet.scheduling.job", "from pathlib import Path"),
    (house.writes_files_one_way, "training.trainer.evaluation.report", "part.replace(path)"),
    (house.writes_files_one_way, "training.fleet.client.credentials", "import os\nos.fsync(3)"),
    (house.imports_on_windows, "training.fleet.store", "import fcntl"),
    (house.imports_on_windows, "training.fleet.store", "if True:\n  from resource import getrusage"),
    (house.asserts_no_promise, "training.fleet.queue", "assert changed == 1"),
    (house.asserts_no_promise, "training.fleet.queue", "assert row is not None, 'an attempt ends once'"),
    (house.asserts_no_promise, "training.data.build", "about = __doc__.split('.')[0]"),
    (house.opens_plainly, "training.fleet.queue", '"""PURE: what a host does."""'),
    (house.opens_plainly, "training.fleet.queue", 'class Host:\n  """Whoever asks."""'),
    (house.opens_plainly, "training.data.split", 'async def f():\n  """How many there are."""'),
]


@pytest.mark.parametrize(("rule", "name", "source"), BREAKS)
def test_each_rule_sees_what_breaks_it(rule, name, source):
    assert list(rule(Module.of(name, source)))


ALLOWED = [
    ("training.fleet.queue", '"""Whole numbers."""\ndef f():\n  """Show what is there."""'),
    ("training.clock", "import time\nx = time.time()"),
    ("training.trainer.evaluation.report", "x = text.replace('a', 'b')\ny = replace(state, jobs=1)"),
    ("training.fleet.process.posix", "import fcntl, subprocess"),
    ("training.locking", "def lock():\n  import fcntl"),
    ("training.fleet.database.sqlite", "import sqlite3\nq = 'PRAGMA foreign_keys = ON'"),
    ("training.fleet.scheduling.policy", "from training.fleet.scheduling.job import Job"),
    ("training.fleet.queue", "from training.fleet.scheduling.policy import fits\nimport secrets"),
    ("training.trainer.run", "import torch\nfrom training.data.split import split"),
    ("training.fleet.receiver", "import uvicorn\nname = 'select a job'"),
    ("training.data.record", "import time\ntime.sleep(1)"),
    ("training.fleet.service", "pass\n" * 499),
    ("training.fleet.queue", "assert self.row is not None\nassert isinstance(row, dict)"),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_no_rule_sees_what_is_allowed(name, source):
    assert [each for rule in RULES for each in rule(Module.of(name, source))] == []


def test_every_rule_is_tried():
    assert {rule for rule, _, _ in BREAKS} == set(RULES)


# ── at run time ─────────────────────────────────────────────────────────────────────────────


def loaded_by(module):
    """List everything that a fresh interpreter has loaded after importing this."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["receiver", "worker", "cli", "manifest", "client", "capability", "queue"])
def test_what_coordinates_loads_no_ml_library(module):
    loaded = loaded_by(f"training.fleet.{module}")
    assert loaded & {*house.HEAVY.split(), "prometheus_client", "training.fleet.receiver.metrics.snapshot"} == set()
    assert [m for m in loaded if house.within(m, "training.data training.trainer")] == []


LATE = """difflib jinja2 cryptography ctypes xml statistics http.server urllib.request websockets h11 anyio._backends
    importlib.metadata tree_sitter prometheus_client training.watch.recording training.fleet.pages
    training.fleet.receiver.metrics.snapshot training.fleet.process.supervise training.fleet.receiver.notify.senders
    training.fleet.service.forecasts training.fleet.scheduling.forecast
"""


def test_a_receiver_at_rest_holds_nothing_that_it_does_not_use():
    """With the parts of uvicorn that its start asks for by name. A megabyte is much on a small board."""
    loaded = loaded_by("training.fleet.receiver.program, uvicorn.lifespan.off, uvicorn.loops.auto")
    assert [each for each in sorted(loaded) if house.within(each, LATE)] == []


@pytest.mark.parametrize("module", ["worker", "client", "process.launcher"])
def test_what_runs_on_every_host_stays_small(module):
    loaded = loaded_by(f"training.fleet.{module}")
    assert loaded & {"msgspec", "starlette", "uvicorn", "typer", "rich", "sqlite3"} == set()


# ── what is documented ──────────────────────────────────────────────────────────────────────


def page(name):
    path = ROOT / "docs" / name
    if not path.exists():
        pytest.skip(f"docs/{name} is not written yet")
    return path.read_text(encoding="utf-8")


def addresses(module):
    """Every address of the API in a module's text, without its query; each value put into it is an ``x``."""
    joined = {id(part) for node in module.nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in module.nodes:
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in joined:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)
            if said.startswith("/v1/"):
                yield said.partition("?")[0]


def test_callers_use_addresses_of_the_route_table_alone():
    """The client takes them from the table; the installer, which needs no message, spells its two out."""
    from training.fleet.wire.routes import ROUTES

    known = [re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path)) for route in ROUTES]
    callers = "training.fleet.client.* training.fleet.cli.* training.fleet.install.* training.fleet.join"
    said = {(one.name, each) for one in the_house() if one.is_any(callers) for each in addresses(one)}
    assert {one for one, _ in said} == {"training.fleet.install.system"}
    assert [each for each in sorted(said) if not any(path.fullmatch(each[1]) for path in known)] == []


def test_the_protocol_page_names_every_address_and_every_refusal():
    text = page("protocol.md")
    from training.fleet.wire.constants import ProblemType
    from training.fleet.wire.routes import ROUTES

    methods = {
        f"{row.method} {re.sub(r'{[^}]+}', '{id}', row.path)}"
        for row in ROUTES
        if row.method != "HEAD" and not row.page
    }
    text = re.sub(r"\{\w+\}", "{id}", text)
    assert sorted(each for each in methods if each not in text) == []
    assert sorted(problem_type for problem_type in ProblemType if f"`{problem_type}`" not in text) == []


def test_the_protocol_page_speaks_of_every_status_and_end():
    assert [word for word in [*JobStatus, *EndReason] if word not in page("protocol.md")] == []


@pytest.mark.parametrize(
    ("program", "where"),
    [("receiver/program.py", "operations.md"), ("worker/options.py", "operations.md"), ("cli/*.py", "command-line.md")],
)
def test_the_pages_for_operators_name_every_flag(program, where):
    text = page(where)
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "training" / "fleet").glob(program)))
    flags = set(re.findall(r'"(--[a-z][a-z-]+)[/"]', source))
    assert flags, "the flags of this program can be read"
    assert sorted(flag for flag in flags - {"--help"} if flag not in text) == []


@pytest.mark.parametrize(
    ("program", "make"), [("receiver", receiver_program._parser), ("worker", worker_options.parser)]
)
def test_the_tables_of_flags_have_the_programs_flags_and_defaults(program, make):
    table = re.search(rf"^\| {program} \| default \|.*\n\|[-|]+\n((?:\|.*\n)+)", page("operations.md"), re.MULTILINE)
    told = {}
    for row in table[1].splitlines():
        flags, defaults = row.split("|")[1:3]
        names = re.findall(r"--[a-z-]+", flags)
        values = defaults.replace("`", "").strip().split(", ")
        told |= dict(zip(names, values if len(values) == len(names) else [""] * len(names), strict=True))
    defaults_of = {
        each.option_strings[-1]: each.default for each in make()._actions if each.dest not in ("help", "version")
    }
    assert sorted(told) == sorted(defaults_of)
    numbers = {flag: each for flag, each in defaults_of.items() if type(each) in (int, float)}
    texts = {flag: each for flag, each in defaults_of.items() if isinstance(each, str) or told[flag].startswith("/etc")}
    assert {flag: told[flag] for flag in numbers | texts} == {
        **{flag: f"{each:g}" for flag, each in numbers.items()},
        **{flag: str(each) for flag, each in texts.items()},
    }


def test_every_command_that_is_suggested_stands_in_backticks():
    """By them the flags that were given are put in; what is not within a sentence is not looked at."""
    bare = []
    for module in modules(ROOT, "training/fleet"):
        nodes = module.nodes
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        about = {ast.get_docstring(each, clean=False) for each in nodes if isinstance(each, documented)}
        texts = [each.value for each in nodes if isinstance(each, ast.Constant)]
        said = [each for each in texts if isinstance(each, str) and each not in about]
        bare += [each for each in said if re.search(r".(?<!`)cis490-jobs (?!may)[a-z]", each)]
    assert bare == []


def commands():
    found = {each.name or each.callback.__name__ for each in app.registered_commands}
    groups = {each.name for each in app.registered_groups if isinstance(each.name, str)}
    return {name.replace("_", "-") for name in found | groups}


def test_the_page_of_commands_names_each_in_its_tables_and_with_its_json():
    tables, _, rest = page("command-line.md").partition("\n## Curves\n")
    shapes = rest.partition("\n## JSON\n")[2]
    rows = " ".join(re.findall(r"^\| (.*?) \| ", tables, re.MULTILINE))
    assert set(re.findall(r"`([a-z-]+)", rows)) == commands()
    assert sorted(name for name in commands() if not re.search(rf"`{name}[ `]", shapes)) == []


def test_a_function_that_takes_what_a_command_takes_is_registered_or_called():
    files = sorted((ROOT / "training/fleet/cli").glob("*.py"))
    everything = "".join(path.read_text(encoding="utf-8") for path in files)
    for mark, name in re.findall(r"(@.+\n)?def ([a-z]\w*)\(\s*context: CommandContext", everything):
        used = re.search(rf"(?<!def )(?<![.\w]){name}\(|import .*\b{name}\b", everything)
        assert mark or used, f"{name} is no command: write @as_command() above it"
    assert {path.stem for path in files if "@as_command(" in path.read_text(encoding="utf-8")} == {
        module.__name__.rpartition(".")[2] for module in MODULES
    }


def test_the_page_of_the_dashboard_has_each_page_of_the_menu():
    text = page("dashboard.md")
    assert [row.path for row in PAGES.values() if row.shown and row.shown.menu and f"`{row.path}`" not in text] == []


def test_no_page_names_a_command_that_does_not_exist():
    known = commands()
    for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]:
        named = set(re.findall(r"cis490-jobs ([a-z]+(?:-[a-z]+)*)", path.read_text(encoding="utf-8")))
        assert named <= known, f"{path.name}: {sorted(named - known)}"


PAST = ("CHANGELOG.md", "docs/decisions/", "docs/guarantees.md")  # they speak of what was


# A folder of a fleet that was tried by hand is soon committed by mistake: its logs, locks and outbox with it.
FOLDERS = {".ci", "bench", "docs", "etc", "examples", "fuzz", "locks", "scripts", "tests", "tools", "training"}


def tracked_names():
    """The path of every file of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def test_the_repository_holds_no_folder_that_a_run_left():
    assert {name.split("/")[0] for name in tracked_names() if "/" in name} == FOLDERS


def tracked():
    """The text of every file of the repository, but for recorded data."""
    kinds = (".py", ".md", ".sql", ".toml", ".sh", ".html", ".js", ".ini", "Makefile", ".ci/run")
    return {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in tracked_names()
        if name.endswith(kinds) and (ROOT / name).is_file()
    }


def test_every_name_in_prose_exists():
    stale = list(house.Names(tracked(), PAST).mean_nothing())
    assert stale == [], "\n" + "\n".join(stale)


@pytest.mark.parametrize("prose", ["see work/gone.py", "training.fleet.gone does", "the gone_module", "docs/gone.md"])
def test_a_name_that_means_nothing_is_seen(prose):
    known = {"training/fleet/work/here.py": "x = 1", "docs/here.md": "`work/here.py`, x"}
    for more in ({"docs/page.md": prose}, {"a.py": f'"""{prose}"""'}, {"a.py": f"x = 1  # {prose}"}):
        assert len(list(house.Names({**known, **more}).mean_nothing())) == 1
    assert list(house.Names(known).mean_nothing()) == []


def test_every_target_of_make_that_people_and_ci_name_is_there():
    named = {
        name
        for page in ("README.md", "CONTRIBUTING.md", ".ci/run")
        for name in re.findall(r"\bmake (?:[A-Z]\S+ )*([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"))
    }
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named >= {"demo", "setup", "test", "test-all"}
    assert named <= targets


def test_every_test_that_windows_runs_is_there():
    """``make windows`` leaves out a name without a file in silence."""
    found = re.search(r"^WINDOWS_TESTS := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    names = found[1].replace("\\", " ").split()
    assert len(names) > 10
    assert [name for name in names if not list((ROOT / "tests").glob(f"**/test_fleet_{name}.py"))] == []
