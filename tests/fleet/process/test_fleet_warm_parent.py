"""Trainers forked from a warm parent, as real processes: like fresh ones in all that counts, and nothing depends on it.

The children are programs of a few lines; what our real trainers make of it is in the last test.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from places import CHILDREN
from processes import PATIENCE_S, end_of, is_running, until

from training.checkout import ROOT
from training.contract import THEN
from training.families import preloads, program
from training.fleet.process.environment import trainer_environment
from training.fleet.process.parents import FAULTS_MAX, Preload, WarmParents
from training.fleet.process.supervise import STATE_VARIABLE, CommandSpec, LocalRunner, SpawnFailedError, end_leftovers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing shows a process's threads")


class Fleet:
    """A runner with warm parents, and what it started."""

    def __init__(self, folder, *, free_kib=2**30, idle_s=600.0, own_kib_max=2**19):
        self.folder = folder
        self.warm = WarmParents(
            folder / "state", STATE_VARIABLE, free_kib=lambda: free_kib, idle_s=idle_s, own_kib_max=own_kib_max
        )
        self.runner = LocalRunner(folder / "state", warm=self.warm)

    def start(self, *words, modules=("wave",), then=(), env=None, file_bytes=None, name="job", preload=True):
        argv = [sys.executable, "-m", "forked", *map(str, words)]
        environment = {**trainer_environment(os.environ), STATE_VARIABLE: str(self.folder / "state" / name)}
        output = self.folder / f"{name}.log"
        return self.runner.start(
            CommandSpec(
                argv,
                CHILDREN,
                {**environment, **(env or {})},
                output,
                file_bytes=file_bytes,
                preload=Preload(modules, then) if preload else None,
            )
        )

    def printed(self, name="job"):
        return (self.folder / f"{name}.log").read_text("utf-8")


@pytest.fixture
def fleets(tmp_path):
    made = []

    def make(**options):
        made.append(Fleet(tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.runner.close()


@pytest.fixture
def fleet(fleets):
    return fleets()


def inherits(number):
    try:
        return os.get_inheritable(number)
    except OSError:  # closed meanwhile, as the one that lists them
        return False


def sentences(caplog):
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.fixture
def memory_images():
    """Let crashes of this process leave as much as they may."""
    usual = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (usual[1], usual[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, usual)


@pytest.mark.usefixtures("memory_images")
def test_a_forked_trainer_finds_what_a_fresh_one_finds(fleet):
    env = {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "3"}
    forked = fleet.start("tell", 3, env=env, file_bytes=2**20)
    assert fleet.warm.pids, "it was not forked"
    assert end_of(forked).code == 3
    assert end_of(fleet.start("tell", 3, env=env, file_bytes=2**20, preload=False)).code == 3
    a_fork, afresh = map(json.loads, fleet.printed().splitlines())
    assert a_fork.pop("imported"), "what was to be imported was not"
    assert not afresh.pop("imported")
    assert a_fork == afresh
    assert a_fork["leads"]
    assert a_fork["core_bytes"] == 0, "a crash would leave a memory image in the checkout"
    assert a_fork["files"] == [0, 1, 2]
    assert "CIS490_STATE_DIR" in a_fork["environ"]


def test_it_is_supervised_like_any_other(fleet):
    """Judged by its exit, stopped politely, ended whole, counted."""
    assert end_of(fleet.start("raise", 0, name="raised")).code == 1
    assert "ValueError: on purpose" in fleet.printed("raised")
    polite = fleet.start("wait", 0, name="polite")
    until(lambda: "ready" in fleet.printed("polite"))
    assert polite.used().memory_bytes
    assert polite.stop(PATIENCE_S).signal == signal.SIGTERM
    forks = fleet.start("fork on", 0, name="forks")
    assert (end_of(forks).code, end_of(forks).left) == (0, 0)
    until(lambda: not is_running(int(fleet.printed("forks"))))


def test_two_at_once_come_from_one_parent(fleet):
    both = [fleet.start("wait", 0, name=name) for name in ("a", "b")]
    assert len(fleet.warm.pids) == 1
    until(lambda: all("ready" in fleet.printed(name) for name in ("a", "b")))
    both[0].stop(PATIENCE_S)
    assert both[1].poll() is None, "one's end is not the other's"
    both[1].stop(PATIENCE_S)


def launcher_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_forked_trainer_enters_its_control_group(fleet, monkeypatch):
    group = fleet.folder / "group"
    monkeypatch.setattr(fleet.runner, "_group", lambda: group)
    end_of(fleet.start("word", 0))
    assert fleet.warm.pids
    assert (group / "cgroup.procs").read_text() == "0", "the kernel takes this for the process that writes it"


def test_no_other_child_inherits_the_pipes_of_a_launcher(fleet):
    def inheritable():
        return sorted(each.name for each in Path("/proc/self/fd").iterdir() if inherits(int(each.name)))

    before = inheritable()
    process = fleet.start("wait", 0)
    assert inheritable() == before
    process.stop(PATIENCE_S)


def test_a_killed_launcher_takes_its_forked_trainer_along(fleet):
    process = fleet.start("wait", 0)
    until(lambda: "ready" in fleet.printed())
    os.kill(launcher_of(process.pid), signal.SIGKILL)
    assert end_of(process).lost
    until(lambda: not is_running(process.pid))
    assert end_of(fleet.start("word", 0, name="next")).code == 0


def test_a_killed_worker_leaves_neither_trainer_nor_parent(tmp_path):
    program = (
        "import sys, threading; from pathlib import Path; "
        "from tests.fleet.process.test_fleet_warm_parent import Fleet; f = Fleet(Path(sys.argv[1])); "
        "p = f.start('wait', 0); print(p.pid, *f.warm.pids, flush=True); threading.Event().wait()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    with worker, worker.stdout as out:
        pids = [int(each) for each in out.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        worker.kill()
    until(lambda: not any(map(is_running, pids)))


def test_the_next_worker_ends_a_parent_that_was_left(fleet, tmp_path):
    process = fleet.start("wait", 0)
    (parent,) = fleet.warm.pids
    assert {parent, process.pid} <= set(end_leftovers(tmp_path / "state"))
    until(lambda: not is_running(parent))


# ── when it is not to be had ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"modules": ("wave", "starts_a_thread")}, "importing starts_a_thread started a thread: "),
        ({"modules": ("no_such_module",)}, "no_such_module cannot be imported"),
        ({"modules": ("is_large",)}, "has grown to"),
        ({"then": ("dies_when_imported",)}, "its child ended on the way (-6)"),
        ({"then": ("no_such_module",)}, "No module named"),
    ],
)
def test_a_trainer_that_cannot_be_forked_starts_afresh(fleets, caplog, trouble, words):
    fleet = fleets(own_kib_max=60_000)
    assert end_of(fleet.start("word", 0, **trouble)).code == 0
    assert fleet.printed() == "word\n"
    (sentence,) = sentences(caplog)
    assert words in sentence
    assert sentence.startswith("a trainer starts afresh, because its warm parent failed: ")


def test_a_parent_that_started_a_thread_later_forks_no_more(fleet, caplog):
    end_of(fleet.start("word", 0, modules=("starts_a_thread_later",)))
    (parent,) = fleet.warm.pids
    until(lambda: len(list(Path(f"/proc/{parent}/task").iterdir())) == 2)
    assert end_of(fleet.start("word", 0, modules=("starts_a_thread_later",))).code == 0
    (sentence,) = sentences(caplog)
    assert "it has further threads" in sentence


def test_an_allocators_thread_which_a_fork_does_not_harm_keeps_no_trainer_from_being_forked(fleet, caplog):
    assert end_of(fleet.start("word", 0, modules=("starts_an_allocators_thread",))).code == 0
    assert fleet.printed() == "word\n"
    assert (len(fleet.warm.pids), sentences(caplog)) == (1, [])


def test_after_three_faults_in_a_row_it_is_not_tried_again(fleet, caplog):
    for _ in range(FAULTS_MAX + 2):
        assert end_of(fleet.start("word", 0, then=("dies_when_imported",))).code == 0
    assert len(sentences(caplog)) == FAULTS_MAX
    assert "until this worker is started again" in sentences(caplog)[-1]
    assert "until" not in "".join(sentences(caplog)[:-1])


def test_a_parent_that_died_is_replaced(fleet, caplog):
    running = fleet.start("wait", 0, name="running")
    (parent,) = fleet.warm.pids
    os.kill(parent, signal.SIGKILL)
    until(lambda: not is_running(parent))
    assert end_of(fleet.start("word", 0)).code == 0
    assert len(sentences(caplog)) == 1
    assert running.poll() is None, "the parent's end is not its trainers'"
    running.stop(PATIENCE_S)
    assert end_of(fleet.start("tell", 0)).code == 0
    assert json.loads(fleet.printed().splitlines()[-1])["imported"]
    assert len(sentences(caplog)) == 1


def test_a_parent_that_nobody_needs_gives_its_memory_back(fleets, caplog):
    fleet = fleets(idle_s=0.05)
    waits = fleet.start("wait", 0)
    (parent,) = fleet.warm.pids
    threading.Event().wait(0.2)
    assert is_running(parent), "it ends while a trainer of it runs"
    waits.stop(PATIENCE_S)
    until(lambda: not is_running(parent))
    assert end_of(fleet.start("tell", 0, name="next")).code == 0
    assert json.loads(fleet.printed("next"))["imported"]
    assert sentences(caplog) == []


def test_ended_launchers_are_not_kept(fleet):
    end_of(fleet.start("word", 0))
    open_files = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(5):
        end_of(fleet.start("word", 0))
    assert len(fleet.runner._launchers) <= 2
    until(lambda: len([*Path("/proc/self/fd").iterdir()]) <= open_files)


def test_closing_does_not_wait_for_an_import(fleet, caplog):
    start = threading.Thread(target=fleet.start, args=("word", 0), kwargs={"modules": ("never_imported",)})
    start.start()
    until(lambda: fleet.warm.pids)
    fleet.warm.close()
    start.join(PATIENCE_S)
    assert not start.is_alive()
    assert sentences(caplog) == []


def test_no_parent_imports_for_a_worker_that_closed_meanwhile(fleet):
    fleet.warm.free_kib = lambda: setattr(fleet.warm, "_off", True) or 2**30
    assert end_of(fleet.start("word", 0)).code == 0
    assert fleet.warm.pids == []


def test_little_memory_is_no_fault(fleets, caplog):
    fleet = fleets(free_kib=1_000_000)
    assert end_of(fleet.start("word", 0)).code == 0
    assert (fleet.warm.pids, sentences(caplog)) == ([], [])


def test_a_parent_serves_only_trainers_with_its_variables(fleet):
    for number, variable in enumerate(("0", "1", "0", "2")):
        end_of(fleet.start("word", 0, env={"CUDA_VISIBLE_DEVICES": str(number), "LC_ALL": f"C.{variable}"}))
        if number == 1:
            first, second = fleet.warm.pids
    assert len(fleet.warm.pids) == 2, "the oldest is ended"
    assert fleet.warm.pids[0] == first, "the one that was used last but one stays"
    until(lambda: not is_running(second))


def test_forked_trainers_have_the_temporary_files_of_their_own_variables(fleet, tmp_path):
    for name in ("job-a", "job-b"):
        (tmp_path / name).mkdir()
        env = {"TMPDIR": str(tmp_path / name)}
        end_of(fleet.start("tell", 0, modules=("finds_a_folder",), env=env, name=name))
        assert json.loads(fleet.printed(name))["temporary"] == str(tmp_path / name)
    assert len(fleet.warm.pids) == 1


def test_installed_packages_end_a_parent(fleet, tmp_path, caplog):
    """What a trainer notes of its libraries' versions is read from the disk."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    env = {"PYTHONPATH": str(packages)}
    end_of(fleet.start("word", 0, env=env))
    (first,) = fleet.warm.pids
    end_of(fleet.start("word", 0, env=env))
    assert fleet.warm.pids == [first]
    (packages / "torch").mkdir()
    assert end_of(fleet.start("tell", 0, env=env, name="next")).code == 0
    assert fleet.warm.pids != [first]
    assert json.loads(fleet.printed("next"))["imported"]
    assert sentences(caplog) == []


def test_what_cannot_start_at_all_says_so(fleet, tmp_path):
    spec = CommandSpec(
        [str(tmp_path / "python"), "-m", "forked"], CHILDREN, {}, tmp_path / "log", preload=Preload(("wave",))
    )
    with pytest.raises(SpawnFailedError, match="No such file"):
        fleet.runner.start(spec)


# ── our trainers ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("model", "threads"), [("gbt", 1), pytest.param("mlp", 2, marks=pytest.mark.thorough)])
def test_a_forked_trainer_leaves_the_same_bytes(tmp_path, model, threads):
    from tests.support.trainer_builders import SHORT, arguments, make_data  # not for the processes that import this

    data = make_data(tmp_path / "data", episodes=18)
    fleet = Fleet(tmp_path)
    left = []
    for way in ("forked", "fresh"):
        out = tmp_path / way
        given = [*arguments(model, data, out, *SHORT[model], "--threads", str(threads))]
        argv = [sys.executable, *program(model), *given[2:]]
        preload = Preload(preloads(model), THEN) if way == "forked" else None
        environment = {**trainer_environment(os.environ), STATE_VARIABLE: str(tmp_path / "resume")}
        process = fleet.runner.start(CommandSpec(argv, ROOT, environment, tmp_path / f"{way}.log", preload=preload))
        assert end_of(process).code == 0, (tmp_path / f"{way}.log").read_text()
        files = sorted(each for each in out.rglob("*") if each.is_file() and "timing" not in each.name)
        left.append({each.name: each.read_bytes() for each in files})
    assert fleet.warm.pids, "it was not forked"
    fleet.runner.close()
    assert left[0] == left[1]
    assert len(left[0]) >= 3
