"""Trainers that behave badly, as real processes: each must end, whole, and say how."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import CHILDREN
from processes import PATIENCE_S, begun, end_of, is_running, nap, printed, state_of, until

from training.fleet.process import posix as supervise_posix
from training.fleet.process import supervise
from training.fleet.process import windows as supervise_windows
from training.fleet.process.ended import Ended
from training.fleet.process.environment import planned, trainer_environment
from training.fleet.process.memory import MemoryState, memory_state, usable_kib
from training.fleet.process.supervise import (
    STATE_VARIABLE,
    CommandSpec,
    Launcher,
    LauncherLostError,
    LocalRunner,
    SpawnFailedError,
    end_on_record,
)
from training.fleet.worker.tail import KEPT_BYTES, LINE_BYTES_MAX, QUEUE_BYTES, READ_BYTES, OutputTail, clean_line

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and groups of POSIX")


@pytest.fixture
def runner():
    one = LocalRunner()
    yield one
    one.close()


@pytest.fixture
def start(runner, tmp_path):
    return lambda child, *arguments, **how: begun(runner, tmp_path, child, *arguments, **how)


def test_exit_status_and_usage_come_back(start):
    ended = end_of(start("silent", 3))
    assert (ended.code, ended.signal) == (3, None)
    assert ended.max_rss_kib > 0
    assert ended.describe() == "exit status 3"


def test_polite_stop_lets_the_trainer_write_its_state(start, tmp_path):
    assert start("exits_late", 0.2, says="ready").stop(PATIENCE_S).code == 75
    assert "state written" in printed(tmp_path)


def test_deaf_trainer_is_killed_after_its_grace(start, tmp_path):
    process = start("ignores_sigterm", says="ready")
    ended = process.stop(0.05)
    assert ended.signal == signal.SIGKILL
    assert ended.describe() == "killed by SIGKILL"
    assert process.stop(0.05) == ended, "stopping twice is harmless"


def test_kill_reaches_the_whole_group(start, tmp_path):
    process = start("forks", says="\n")
    tree = [int(pid) for pid in printed(tmp_path).split()]
    assert all(is_running(pid) for pid in tree)
    process.stop(0.05)
    until(lambda: not any(is_running(pid) for pid in tree), process.wait)


def test_grandchild_holding_the_output_delays_nobody_and_is_swept(start, tmp_path):
    process = start("leaks_stdout")
    assert end_of(process).code == 0
    grandchild = int(printed(tmp_path))
    until(lambda: not is_running(grandchild), process.wait)


def test_paused_trainer_can_be_resumed_and_stopped(start, tmp_path):
    process = start("exits_late", 0, says="ready")
    process.pause()
    until(lambda: state_of(process.pid) == "T", process.wait)
    process.resume()
    until(lambda: state_of(process.pid) != "T", process.wait)
    process.pause()
    assert process.stop(PATIENCE_S).code == 75, "a paused trainer hears the polite signal"


def test_one_launcher_serves_one_trainer_after_another(runner, start):
    for code in (0, 7, 0):
        assert end_of(start("silent", code)).code == code
    assert len(runner._launchers) == 1


def test_two_trainers_at_once_have_a_launcher_each(runner, start):
    first, second = start("hangs"), start("hangs")
    assert first.pid != second.pid
    assert first.stop(PATIENCE_S).signal == signal.SIGTERM
    assert second.poll() is None
    runner.close()
    assert second.wait(PATIENCE_S) is not None


@pytest.mark.parametrize(
    ("argv", "cwd", "words"),
    [
        (["/nonexistent/python"], ".", "No such file or directory: /nonexistent/python"),
        ([sys.executable], "absent", "No such file or directory"),
        (["/"], ".", "Permission denied"),
    ],
)
def test_what_cannot_start_says_why(runner, tmp_path, argv, cwd, words):
    spec = CommandSpec(argv, tmp_path / cwd, {}, tmp_path / "output.log")
    with pytest.raises(SpawnFailedError, match="could not be started") as caught:
        runner.start(spec)
    assert words in str(caught.value)
    good = CommandSpec([sys.executable, "-c", ""], tmp_path, {}, tmp_path / "output.log")
    assert runner.start(good).wait(PATIENCE_S), "the launcher is none the worse for it"
    assert len(runner._launchers) == 1


def test_killed_launcher_takes_its_trainer_along(runner, start, tmp_path):
    process = start("ignores_sigterm", says="ready")
    runner._launchers[0]._popen.kill()
    assert process.wait(PATIENCE_S) == Ended()
    until(lambda: not is_running(process.pid), process.wait)
    assert end_of(start("silent", 0)).code == 0, "the next one gets a new launcher"


@pytest.mark.skipif(sys.platform == "win32", reason="a job object holds trainers there")
def test_a_trainer_whose_launcher_died_before_it_said_so_is_not_run_twice(runner, tmp_path, monkeypatch):
    """Found by `kill -9` of launchers: the second one started the same trainer beside the first."""
    spec = CommandSpec(
        [sys.executable, "-c", "print('said')"],
        tmp_path,
        {STATE_VARIABLE: str(tmp_path / "state")},
        tmp_path / "output.log",
    )
    orphans = []
    run = Launcher.run

    def dies_meanwhile(launcher, spec, group):
        if orphans:
            return run(launcher, spec)
        hangs = [sys.executable, "-c", "import signal; signal.pause()"]
        orphans.append(subprocess.Popen(hangs, env=dict(spec.env), start_new_session=True))
        spec.output.write_text("half a li")
        raise LauncherLostError("the launcher that was to start it has ended")

    monkeypatch.setattr(Launcher, "run", dies_meanwhile)
    assert runner.start(spec).wait(PATIENCE_S) is not None
    assert orphans[0].wait(PATIENCE_S) == -signal.SIGKILL
    assert spec.output.read_text() == "said\n"


def test_stopped_launcher_cannot_save_its_trainer(runner, start, tmp_path, monkeypatch):
    monkeypatch.setattr("training.fleet.process.supervise.KILL_WAIT_S", 0.2)
    process = start("hangs", says="ready")
    runner._launchers[0]._popen.send_signal(signal.SIGSTOP)
    # Launcher and trainer die together; which of the two is heard of first is chance.
    assert process.stop(0.05).code is None
    until(lambda: not is_running(process.pid), nap)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
@pytest.mark.parametrize("line", [b"a library's warning\n", b'{"ended": "soon"}\n', b"[" * 5000 + b"\n"])
def test_a_line_that_is_no_report_ends_the_trainer(runner, start, line):
    process = start("hangs", says="ready")
    Path(f"/proc/{runner._launchers[-1]._popen.pid}/fd/1").write_bytes(line)
    assert end_of(process).lost
    until(lambda: not is_running(process.pid))
    assert end_of(start("silent", 0)).code == 0


def test_closing_does_not_wait_for_a_launcher_that_does_not_answer(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "LAUNCHER", CHILDREN / "never_imported.py")  # it says nothing
    monkeypatch.setattr(supervise, "START_WAIT_S", 600.0)
    monkeypatch.setattr(supervise, "KILL_WAIT_S", 0.1)
    failed = []

    def start():
        try:
            runner.start(CommandSpec(["python"], tmp_path, {}, tmp_path / "output.log"))
        except SpawnFailedError as error:
            failed.append(str(error))

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    until(lambda: runner._launchers)
    runner.close()
    starting.join(PATIENCE_S)
    assert failed == ["python could not be started: the worker ends"]


def test_kill_9_of_the_worker_leaves_no_trainer(tmp_path):
    command = [sys.executable, str(CHILDREN / "worker_alone.py"), str(tmp_path)]
    command += [sys.executable, str(CHILDREN / "forks.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert int(worker.stdout.readline()) > 0
        until(lambda: printed(tmp_path).endswith("\n"), nap)
        tree = [int(pid) for pid in printed(tmp_path).split()]
        assert all(is_running(pid) for pid in tree)
        worker.kill()
    until(lambda: not any(is_running(pid) for pid in tree), nap)


# ── what leaves the process group ───────────────────────────────────────────────────────────


@pytest.fixture(params=["control group", "no control group"])
def contained(request, tmp_path):
    owner = tmp_path if request.param == "control group" else None
    if owner is not None and not may_make_groups():
        pytest.skip("no control group can be made here")
    one = LocalRunner(owner)
    yield one
    one.close()


def may_make_groups():
    """Return True when one with ``cgroup.kill`` can be made here: by trying it."""
    folder = supervise_posix.group_for(Path("trial"))
    if folder is None:
        return False
    try:
        folder.mkdir()
        able = (folder / "cgroup.kill").exists()
        folder.rmdir()
    except OSError:
        return False
    return able


def escaped(folder):
    """The numbers that children/escapes.py printed, which are alive."""
    numbers = [int(number) for number in printed(folder).split()]
    assert len(numbers) == 2
    return numbers


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")


@linux_only
@pytest.mark.parametrize("end", ["completion", "cancel", "pause and cancel"])
def test_what_left_the_process_group_ends_with_the_trainer(contained, tmp_path, end):
    process = begun(contained, tmp_path, "escapes", "hang" if end != "completion" else "end", env={})
    if end != "completion":
        until(lambda: printed(tmp_path).endswith("\n"), process.wait)
        assert all(map(is_running, escaped(tmp_path)))
        if end == "pause and cancel":
            process.pause()
            until(lambda: all(state_of(pid) == "T" for pid in escaped(tmp_path)), process.wait)
        assert process.stop(0.05).signal == signal.SIGKILL
    assert end_of(process).left == 0
    assert not any(map(is_running, escaped(tmp_path))), "reported only when the tree is empty"


@linux_only
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("group", ["", "yes"])
def test_what_left_the_process_group_ends_with_the_worker(tmp_path, ending, group):
    command = [sys.executable, str(CHILDREN / "worker_alone.py"), str(tmp_path), sys.executable]
    command += [str(CHILDREN / "escapes.py"), "hang"]
    environment = os.environ | {"OWN_GROUP": group}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert int(worker.stdout.readline()) > 0
        until(lambda: printed(tmp_path).endswith("\n"), nap)
        tree = escaped(tmp_path)
        assert all(map(is_running, tree))
        worker.send_signal(ending)
    until(lambda: not any(map(is_running, tree)), nap)


@linux_only
def test_chain_of_processes_that_never_stands_still_is_ended(contained, tmp_path):
    argv = [sys.executable, "-I", "-S", str(CHILDREN / "hops.py"), "20000"]
    ended = end_of(contained.start(CommandSpec(argv, tmp_path, {}, tmp_path / "output.log")))
    assert (ended.code, ended.left) == (0, 0)
    assert not (tmp_path / "hopped").exists()
    for _ in range(20):  # one look may miss a process that is being replaced
        assert not [entry for entry in Path("/proc").glob("[0-9]*") if works_in(entry, tmp_path)]


@linux_only
def test_control_group_of_a_trainer_is_gone_after_it(contained, tmp_path):
    process = begun(contained, tmp_path, "hangs", env={}, says="\n")
    if process._group is not None:
        assert str(process.pid) in (process._group / "cgroup.procs").read_text().split()
    process.stop(PATIENCE_S)
    assert process._group is None or not process._group.exists()


@linux_only
def test_killed_launcher_lets_nothing_of_a_control_group_go(contained, tmp_path):
    if contained._owner is None:
        pytest.skip("without a group a daemon with an empty environment is not found then")
    process = begun(contained, tmp_path, "escapes", "hang", env={}, says="\n")
    contained._launchers[0]._popen.kill()
    assert process.wait(PATIENCE_S) == Ended()
    until(lambda: not any(map(is_running, escaped(tmp_path))), nap)


@linux_only
def test_a_leftover_is_found_that_shows_no_environment_yet(tmp_path, monkeypatch):
    """As while the kernel loads its program."""
    looks = []
    environ = supervise_posix._environ

    def shows_it_late(pid):
        looks.append(pid)
        return environ(pid) if looks.count(pid) > 2 else b""

    monkeypatch.setattr(supervise_posix, "_environ", shows_it_late)
    argv = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(argv, env={STATE_VARIABLE: str(tmp_path)}, start_new_session=True) as orphan:
        assert supervise.end_leftovers(tmp_path) == [orphan.pid]
        assert orphan.wait(PATIENCE_S) == -signal.SIGKILL


@linux_only
def test_next_worker_ends_the_control_group_that_nobody_holds(tmp_path):
    if not may_make_groups():
        pytest.skip("no control group can be made here")
    folder = supervise_posix.group_for(tmp_path)
    folder.mkdir()
    argv = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(argv, env={}, start_new_session=True) as orphan:
        (folder / "cgroup.procs").write_text(str(orphan.pid))
        assert supervise.end_leftovers(tmp_path / "another") == []
        assert supervise.end_leftovers(tmp_path) == [orphan.pid]
        assert orphan.wait(PATIENCE_S) == -signal.SIGKILL
    supervise.end_leftovers(tmp_path)
    assert not folder.exists()


def works_in(process, folder):
    try:
        return (process / "cwd").readlink() == folder
    except OSError:
        return False


def test_trainer_gets_a_clean_start(start, tmp_path, monkeypatch):
    for name in ("CIS490_OPERATOR_TOKEN", "AWS_SECRET_ACCESS_KEY", "NVIDIA_API_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    start("environment", "--lr", "0.1", "naïve").wait(PATIENCE_S)
    facts = json.loads(printed(tmp_path))
    assert "hidden" not in facts["env"].values()
    assert facts["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert facts["env"]["PYTHONUNBUFFERED"] == "1"
    assert facts["argv"] == ["--lr", "0.1", "naïve"]
    assert Path(facts["cwd"]) == tmp_path
    assert signal.SIGTERM not in facts["ignored"]
    assert signal.SIGHUP not in facts["ignored"]
    if facts["fds"]:
        assert facts["fds"][:3] == [0, 1, 2]
        assert len(facts["fds"]) == 4, "nothing of ours is inherited; the fourth lists the folder"


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_a_trainer_reads_nothing_of_its_launcher(tmp_path, monkeypatch):
    programs = ("without_rights", "worker_alone", "reads_another")
    alone, worker, trainer = ([sys.executable, str(CHILDREN / f"{name}.py")] for name in programs)
    with subprocess.Popen([*alone, *worker, str(tmp_path), *trainer], stdout=subprocess.PIPE) as process:
        until(lambda: printed(tmp_path))
        process.terminate()
    assert printed(tmp_path) == "[[], ['environ', 'maps']]\n", "this worker in miniature hides nothing"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setattr(supervise, "LAUNCHER", CHILDREN / "environment.py")
    said, _ = supervise._fresh_launcher().communicate()
    assert "hidden" not in json.loads(said)["env"].values()


def test_binary_output_becomes_harmless_text(start, tmp_path):
    assert end_of(start("binary")).code == 1
    lines = OutputTail(tmp_path / "output.log").poll(final=True)
    assert lines[-1] == "ValueError: �[31mwrong shape"
    assert all(len(line) <= 500 and line.isprintable() for line in lines)


def test_flood_of_output_keeps_beginning_and_end(start, tmp_path):
    process = start("floods", 40_000_000)
    tail = OutputTail(tmp_path / "output.log", file_bytes_max=2_000_000, kept_bytes=10_000, queue_bytes=300_000)
    until(lambda: tail.poll() and (tmp_path / "flooded").exists(), process.wait)
    tail.poll()
    process.terminate()
    assert process.wait(PATIENCE_S) is not None
    assert tail.poll(final=True)[-1] == "last words"
    assert (tmp_path / "output.log.head").read_text().startswith("line 0-0 ")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2_000_000 + 2 * 10_000


@pytest.fixture
def file(tmp_path):
    return tmp_path / "output.log"


@pytest.mark.skipif(os.name != "posix", reason="files that are written are cut on POSIX alone")
def test_a_cut_within_a_line_joins_it_to_no_other(file):
    file.write_text("x" * 200 + "\nhalf a li")
    tail = OutputTail(file, file_bytes_max=100, kept_bytes=10)
    assert tail.poll() == ["x" * 200, "half a li"]
    assert file.read_text() == ""
    file.write_text("last words\n")
    assert tail.poll(final=True) == ["last words"]


def test_tail_takes_lines_whole_and_in_order(file):
    tail = OutputTail(file)
    assert tail.poll() == [], "no file yet"
    file.write_bytes(b"one\ntwo\r\nth")
    assert tail.poll() == ["one", "two"]
    with file.open("ab") as more:
        more.write(b"ree\n 10%\r 20%\r 30%\nrest")
    assert tail.poll() == ["three", " 30%"]
    assert tail.poll(final=True) == ["rest"]
    assert tail.poll(final=True) == []


def test_tail_skips_what_is_too_much_and_says_so(file):
    file.write_bytes(b"".join(b"line %d\n" % number for number in range(200_000)))
    tail = OutputTail(file, queue_bytes=4 * READ_BYTES)
    lines = tail.poll()
    assert lines[0] == f"[… {file.stat().st_size - 2 * READ_BYTES:,} bytes of output left out …]"
    while more := tail.poll():
        lines += more
    assert lines[-1] == "line 199999"
    assert sum(map(len, lines)) < 2 * READ_BYTES
    assert tail.position == file.stat().st_size
    assert file.stat().st_size > KEPT_BYTES


def test_a_line_without_an_end_is_taken_once_it_is_long(file):
    tail = OutputTail(file)
    file.write_bytes(b"a" * LINE_BYTES_MAX)
    assert tail.poll() == [], "its end may still come"
    with file.open("ab") as more:
        more.write(b"b" * LINE_BYTES_MAX)
    (long,) = tail.poll()
    assert set(long) == {"a"}
    with file.open("ab") as more:
        more.write(b"the rest\n")
    assert tail.poll() == ["the rest"]


def test_a_file_in_use_that_cannot_be_cut_is_said_to_overflow(file, monkeypatch):
    tail = OutputTail(file, file_bytes_max=100)
    file.write_bytes(b"x\n" * 50)
    monkeypatch.setattr("training.fleet.worker.tail.os", SimpleNamespace(name="nt"))
    tail.poll()
    assert not tail.overflowing
    with file.open("ab") as more:
        more.write(b"x\n")
    tail.poll()
    assert tail.overflowing


def test_burst_of_output_is_read_whole_piece_by_piece(file):
    printed = [f"line {number} " + "x" * 200 for number in range(4_000)]
    file.write_text("\n".join(printed) + "\nno end")
    assert 2 * READ_BYTES < file.stat().st_size < QUEUE_BYTES
    tail = OutputTail(file)
    pieces = []
    while lines := tail.poll():
        assert sum(map(len, lines)) <= READ_BYTES, "at one look"
        pieces.append(lines)
        again = OutputTail(file, tail.position).poll(final=True)
        assert printed == [*itertools.chain(*pieces), *again][:-1], "a worker that starts again"
    assert len(pieces) > 2
    assert [line for lines in pieces for line in lines] == printed
    assert tail.poll(final=True) == ["no end"]
    assert OutputTail(file).poll(final=True) == [*printed, "no end"]


def test_long_progress_comes_whole_and_too_much_of_it_is_said_once(file):
    good = json.dumps({"event": "epoch", "note": "x" * 3000})
    much = json.dumps({"event": "epoch", "note": "x" * 10_000})
    more = json.dumps({"event": "epoch", "note": "x" * 100_000})
    file.write_text(f"{good}\n{much}\n{more}\n{'{' * 3000}\n")
    lines = OutputTail(file).poll()
    assert lines[0] == good
    assert lines[1] == much
    assert "1 of 2 fields are not taken" in lines[2]
    assert lines[3:] == [more[:500], "{" * 500]
    file.write_text(f"{more}\n")
    assert OutputTail(file).poll()[1] == "[… a progress line of more than 16 KiB is not taken …]"


def test_tail_survives_a_vanished_and_a_cut_file(file):
    tail = OutputTail(file)
    file.write_bytes(b"a long first line\n")
    assert tail.poll() == ["a long first line"]
    file.write_bytes(b"cut\n")
    assert tail.poll() == ["cut"]
    file.unlink()
    assert tail.poll(final=True) == []


def test_clean_line_is_bounded():
    assert clean_line(b"x" * 100_000) == "x" * 500
    assert clean_line("\x1b]0;title\x07é\t|".encode()) == "]0;titleé    |"


def test_environment_is_an_allow_list():
    parent = {"PATH": "/bin", "HF_TOKEN": "x", "OMP_NUM_THREADS": "2", "SSH_AUTH_SOCK": "x"}
    parent |= {"Path": "C:\\", "SystemRoot": "C:\\Windows", "CUDA_API_KEY": "x"}
    kept = trainer_environment(parent)
    assert {"PATH", "Path", "SystemRoot", "OMP_NUM_THREADS"} <= kept.keys()
    assert "x" not in kept.values()


def test_variables_of_the_plan_are_over_the_worker_s_own_and_carry_no_secret():
    own = {"trainer": {"env": {"A": "1", "B": "2", "HF_TOKEN": "x", "CIS490_STATE_DIR": "/"}}}
    assert planned(own, {"B": "3", "N": 4, "Z": "a\0b"}) == {"A": "1", "B": "3"}
    assert planned({"trainer": None}, {}) == planned({"trainer": {"env": [1]}}, {}) == {}


def test_windows_half_imports_here_and_has_the_same_names():
    posix = importlib.import_module("training.fleet.process.posix")
    own = {"os", "signal", "hashlib", "itertools", "time", "own_group", "REMOVE_TRIES", "ENVIRON_LOOKS"}
    shared = {name for name in vars(posix) if not name.startswith("_")} - own
    assert shared <= set(vars(supervise_windows))


def test_no_posix_module_is_needed_to_import_the_worker():
    """Modules that Windows lacks are imported, if at all, by the function that needs them."""
    program = """
import importlib, sys
for name in ("fcntl", "resource", "termios", "pwd", "grp", "posix_ipc", "syslog"):
    sys.modules[name] = None
for name in sys.argv[1:]:
    importlib.import_module("training.fleet." + name)
"""
    folder = Path(supervise.__file__).parents[1]
    files = [*folder.glob("worker/**/[a-z]*.py"), *folder.glob("process/[a-z]*.py")]
    names = [".".join(path.relative_to(folder).with_suffix("").parts) for path in files]
    names.remove("process.posix")
    subprocess.run([sys.executable, "-c", program, *names], check=True)


class FakeWindows:
    """The system's half as it is there: a job object instead of groups, one launcher a trainer."""

    LAUNCHER_IS_REUSABLE = False

    def __init__(self):
        self.calls = []

    def popen_options(self):
        return {"start_new_session": True}

    def job_object(self, process):
        return process.pid

    def open_job_object(self, handle):
        self.calls.append("open_job_object")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(str(handle)), signal.SIGKILL)

    def kill_group(self, *_):
        pass

    group_for = end_group = kill_descendants = kill_group

    def pause_tree(self, pid):
        self.calls.append(f"pause {pid}")

    def resume_tree(self, pid):
        self.calls.append(f"resume {pid}")


@pytest.fixture
def windows(monkeypatch):
    fake = FakeWindows()
    monkeypatch.setattr(supervise, "system", fake)
    monkeypatch.setattr(supervise, "LAUNCHER", CHILDREN / "windows_launcher.py")
    return fake


def test_windows_way_of_one_launcher_a_trainer(windows, runner, start, tmp_path):
    assert start("silent", 3).wait(PATIENCE_S) == Ended(code=3)
    process = start("exits_late", 0, says="ready")
    process.pause()
    assert process.stop(PATIENCE_S).code == 75
    assert windows.calls.count(f"pause {process.pid}") == 1
    assert f"resume {process.pid}" in windows.calls, "a suspended trainer cannot hear Ctrl-Break"
    until(lambda: windows.calls.count("open_job_object") == 2, nap)


def test_windows_way_of_killing_is_the_job_object(windows, start, tmp_path):
    process = start("ignores_sigterm", says="ready")
    assert process.stop(0.05).code is None
    until(lambda: not is_running(process.pid), nap)


def test_windows_way_of_a_program_that_is_not_there(windows, runner, tmp_path):
    with pytest.raises(SpawnFailedError, match="No such file or directory"):
        runner.start(CommandSpec(["/nonexistent"], tmp_path, {}, tmp_path / "output.log"))


def test_windows_way_of_a_worker_that_was_killed(windows, runner, start, tmp_path):
    process = start("ignores_sigterm", says="ready")
    runner._launchers[-1]._close_input()
    until(lambda: not is_running(process.pid), nap)


# ── the end on record ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [0, 3])
def test_end_is_on_record_before_it_is_reported(runner, tmp_path, code):
    ended = begun(runner, tmp_path, "silent", code, end=tmp_path / "end").wait(PATIENCE_S)
    assert end_on_record(tmp_path / "end") == ended
    assert ended.code == code


def test_end_that_was_ordered_is_not_on_record(runner, tmp_path):
    for child, grace_s in (("exits_late", PATIENCE_S), ("ignores_sigterm", 0.05)):
        (tmp_path / "output.log").unlink(missing_ok=True)
        begun(runner, tmp_path, child, 0.05, end=tmp_path / "end", says="ready").stop(grace_s)
        assert end_on_record(tmp_path / "end") is None


def test_trainer_that_dies_with_its_worker_leaves_no_record(tmp_path):
    one = LocalRunner()
    begun(one, tmp_path, "hangs", end=tmp_path / "end", says="ready")
    one.close()
    assert end_on_record(tmp_path / "end") is None


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"ended": null}', b"{}", b"\xff", b'{"ended": 1e999}', b'{"ended": 99999999999}', b"[" * 9999],
)
def test_record_that_was_not_written_whole_is_none(tmp_path, content):
    (tmp_path / "end").write_bytes(content)
    assert end_on_record(tmp_path / "end") is None
    assert end_on_record(tmp_path / "missing") is None


# ── whether it computes, and what the kernel says of memory ─────────────────────────────────


def test_cpu_time_tells_who_computes_from_who_hangs(start, tmp_path):
    process = start("computes")
    until(lambda: process.used().cpu_s > 0.05, process.wait)
    process.stop(0.05)
    assert process.used().cpu_s == 0.0, "it has ended"
    hanging = start("hangs")
    until(lambda: printed(tmp_path), hanging.wait)
    before = hanging.used().cpu_s
    nap(0.2)
    assert hanging.used().cpu_s - before < 0.05


def fake_system(root, *, vmstat, events, available_kib):
    group = root / "sys/fs/cgroup/unit"
    for folder in (root / "proc/self", group):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {available_kib} kB\n")
    (root / "proc/self/cgroup").write_text("0::/unit\n")
    (root / "proc/self/mountinfo").write_text("30 29 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    if vmstat is not None:
        (root / "proc/vmstat").write_text(f"nr_free_pages 7\noom_kill {vmstat}\npgfault 3\n")
    if events is not None:
        (group / "memory.events").write_text(f"low 0\noom 4\noom_kill {events}\n")


@pytest.mark.parametrize(("vmstat", "events", "kills"), [(3, 2, 3), (None, 2, 2), (3, None, 3), (None, None, 0)])
def test_kernels_count_is_read_wherever_it_shows(tmp_path, vmstat, events, kills):
    fake_system(tmp_path, vmstat=vmstat, events=events, available_kib=1000)
    assert memory_state(tmp_path) == MemoryState(free_kib=1000, kills=kills)


def test_group_with_less_memory_than_the_machine_is_what_counts(tmp_path):
    fake_system(tmp_path, vmstat=0, events=0, available_kib=1000)
    group = tmp_path / "sys/fs/cgroup/unit"
    (group / "memory.max").write_text(f"{512 * 1024}\n")
    (group / "memory.current").write_text(f"{112 * 1024}\n")
    assert memory_state(tmp_path).free_kib == 1000
    assert usable_kib(1000, tmp_path) == 400
    assert usable_kib(300, tmp_path) == 300
    assert memory_state(tmp_path / "nowhere") == MemoryState()
    assert usable_kib(7, tmp_path / "nowhere") == 7


def test_kill_for_want_of_memory_is_told_from_any_other(start, monkeypatch):
    states = [MemoryState(free_kib=2**40, kills=1), MemoryState(free_kib=5, kills=2)]
    monkeypatch.setattr(supervise, "memory_state", lambda: states.pop(0))
    monkeypatch.setattr(supervise, "usable_kib", lambda free_kib: free_kib)
    process = start("hangs")
    os.kill(process.pid, signal.SIGKILL)
    ended = end_of(process)
    assert (ended.oom_kills, ended.free_kib) == (1, 2**40)
    assert ended.killed_for_memory
