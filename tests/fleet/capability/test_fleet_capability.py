"""Capability: what is reported, what it can run, and that no probe can bring the worker down."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import FakeClock, FakePynvml
from hypothesis import given
from hypothesis import strategies as st

from training import checkout
from training.fleet.capability import cuda, describe, owner
from training.fleet.capability import probe as capability
from training.fleet.capability.cuda import GIB, RETRY_FAILED_S, CudaProbe, SystemNvml, TorchFacts
from training.fleet.capability.probe import Capability, CudaDevice, checkout_commit, detect
from training.fleet.process.cgroup import CgroupLimits, cgroup_limits
from training.fleet.process.driver_calls import DriverCalls

UUID = "3f0c4a5e-0000-1111-2222-333344445555"


class FakeNvml:
    def __init__(self, driver="580.1", free=6 * GIB):
        self.driver, self.free = driver, free
        self.complaint = lambda: None

    def driver_version(self):
        return self.driver

    def memory(self, uuid):
        return None if self.free is None or uuid != UUID else (8 * GIB, self.free)


class FakeTorch:
    """Stands for the child process; counts how often torch was imported."""

    def __init__(self, *, devices=1, output=None):
        device = {"uuid": UUID, "name": "GeForce", "total": 8 * GIB, "free": 7 * GIB}
        answer = {"torch": "2.13.0", "devices": [device] * devices, "calibration": {"gflops": 40.0}}
        self.output = json.dumps(answer) if output is None else output
        self.asked = 0

    def __call__(self, command):
        self.asked += 1
        return self.output


def probe(torch, nvml=None, **kwargs):
    settings = {
        "nvml": nvml or FakeNvml(),
        "run": torch,
        "clock": FakeClock(),
        "installed": lambda python: "2.13.0",
        "environ": {},
    }
    return CudaProbe(Path("/venv/bin/python"), **(settings | kwargs))


# --- can_run ---------------------------------------------------------------------------------------

GPU = Capability(
    hostname="desk",
    cpu_cores=8,
    ram_total_gib=32.0,
    ram_available_gib=16.0,
    cuda_available=True,
    cuda_devices=[CudaDevice("small", 4.0, 1.0), CudaDevice("large", 8.0, 2.0)],
)
CPU = Capability(hostname="pi", cpu_cores=4, ram_total_gib=8.0, ram_available_gib=6.0)


@pytest.mark.parametrize(
    ("host", "needs", "answer"),
    [
        (GPU, {"require_cuda": True, "min_vram_gib": 2.0}, (True, "ok")),
        (CPU, {"require_cuda": True}, (False, "require_cuda but no CUDA device available")),
        (
            GPU,
            {"require_cuda": True, "min_vram_gib": 8.0},
            (False, "require_cuda but largest free VRAM 2.0 GiB < 8.0 GiB needed"),
        ),
        (CPU, {"min_vram_gib": 8.0}, (True, "ok")),
        (CPU, {"min_ram_gib": 7.5}, (False, "available RAM 6.0 GiB < 7.5 GiB needed")),
        (CPU, {"min_cores": 5}, (False, "cpu_cores 4 < 5 needed")),
        (CPU, {}, (True, "ok")),
    ],
)
def test_can_run_names_the_first_thing_missing(host, needs, answer):
    full = {"require_cuda": False, "min_vram_gib": 0.0, "min_ram_gib": 0.0, "min_cores": 0}
    assert host.can_run(**(full | needs)) == answer


def test_best_vram_is_the_free_memory_of_the_roomiest_device():
    assert GPU.best_vram_gib() == 2.0
    assert CPU.best_vram_gib() == 0.0


def test_to_dict_is_plain_json_with_every_field():
    plain = json.loads(json.dumps(GPU.to_dict()))
    assert plain == GPU.to_dict()
    assert set(plain) == {
        "hostname",
        "os",
        "arch",
        "cpu_cores",
        "ram_total_gib",
        "ram_available_gib",
        "cuda_available",
        "cuda_devices",
        "torch_version",
        "python_version",
        "training_commit",
        "version",
        "calibration",
    }
    assert plain["cuda_devices"][1] == {"name": "large", "vram_total_gib": 8.0, "vram_free_gib": 2.0}


# --- detect ----------------------------------------------------------------------------------------


@pytest.fixture
def no_child(monkeypatch):
    """Detection without asking torch: the probe's answer is prepared."""
    monkeypatch.setattr(capability, "_cuda_probe", lambda python: probe(FakeTorch()))


def test_hostname_comes_from_argument_then_variable_then_node_name(no_child, monkeypatch):
    monkeypatch.setenv("FLEET_HOST_ID", "from-variable")
    assert detect(hostname_override="from-argument").hostname == "from-argument"
    assert detect().hostname == "from-variable"
    monkeypatch.setenv("FLEET_HOST_ID", "")
    monkeypatch.setattr("platform.node", lambda: "from-node")
    assert detect().hostname == "from-node"


def test_detect_reports_this_machine(no_child):
    found = detect(hostname_override="here")
    assert found.cpu_cores >= 1
    assert 0 < found.ram_available_gib <= found.ram_total_gib
    assert found.cuda_devices == (CudaDevice("GeForce", 8.0, 6.0),)
    assert found.cuda_available


def test_nothing_that_a_probe_does_reaches_the_caller(monkeypatch, tmp_path):
    def explode(*args, **kwargs):
        raise RuntimeError("driver on fire")

    for name in ("cgroup_limits", "_memory_bytes", "_cores", "checkout_commit"):
        monkeypatch.setattr(capability, name, explode)
    monkeypatch.setattr(CudaProbe, "facts", explode)
    found = detect(hostname_override="here", repo_root=tmp_path)
    assert found.to_dict() | {"os": "", "arch": "", "python_version": "", "version": ""} == (
        Capability(hostname="here").to_dict()
    )


def test_a_container_is_as_large_as_its_limits(no_child, monkeypatch):
    limits = CgroupLimits(cpus=1.5, memory_total_bytes=GIB, memory_available_bytes=GIB // 4)
    monkeypatch.setattr(capability, "cgroup_limits", lambda: limits)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)), raising=False)
    found = detect()
    assert (found.cpu_cores, found.ram_total_gib, found.ram_available_gib) == (1, 1.0, 0.25)
    monkeypatch.setattr(capability, "cgroup_limits", lambda: CgroupLimits(cpus=0.4))
    assert detect().cpu_cores == 1


def test_the_module_prints_json():
    run = [sys.executable, "-m", "training.fleet.capability", "--host-id", "here"]
    # An interpreter that does not exist: torch is not asked, and nothing fails.
    done = subprocess.run([*run, "--venv-python", "/no/python"], capture_output=True, check=True)
    printed = json.loads(done.stdout)
    assert printed["hostname"] == "here"
    assert printed["cuda_available"] is False


# --- torch and NVML --------------------------------------------------------------------------------


def test_torch_is_asked_once_and_free_memory_every_time(tmp_path):
    torch, nvml, kept = FakeTorch(), FakeNvml(), tmp_path / "cache" / "capability.json"
    first = probe(torch, nvml, cache_file=kept)
    assert first.facts().devices[0].free == 6 * GIB
    nvml.free = 1 * GIB
    assert first.facts().devices[0].free == 1 * GIB
    assert probe(torch, nvml, cache_file=kept).facts().devices[0].free == 1 * GIB
    assert torch.asked == 1


@pytest.mark.parametrize(
    "change",
    [
        {"installed": lambda python: "2.14.0"},
        {"nvml": FakeNvml(driver="590.2")},
        {"environ": {"CUDA_VISIBLE_DEVICES": ""}},
        {"cores": lambda: 999},
    ],
)
def test_another_torch_driver_or_visibility_is_asked_anew_once(tmp_path, change):
    torch, kept = FakeTorch(), tmp_path / "capability.json"
    for _ in range(2):  # two workers of one machine, say
        probe(torch, cache_file=kept).facts()
        probe(torch, **({"cache_file": kept} | change)).facts()
    assert torch.asked == 2


def test_the_cache_keeps_the_newest_answers(tmp_path):
    torch, kept, most = FakeTorch(), tmp_path / "capability.json", cuda.ANSWERS_KEPT
    for cores in [*range(most + 3), *range(3, most + 3)]:
        probe(torch, cache_file=kept, cores=lambda cores=cores: cores).facts()
    assert (len(json.loads(kept.read_bytes())), torch.asked) == (most, most + 3)


def test_a_gpu_that_torch_cannot_use_is_asked_about_again_later(tmp_path):
    torch, clock, kept = FakeTorch(devices=0), FakeClock(), tmp_path / "capability.json"
    asking = probe(torch, cache_file=kept, clock=clock)
    asking.facts()
    clock.advance(RETRY_FAILED_S - 1)
    asking.facts()
    assert torch.asked == 1
    clock.advance(1)
    asking.facts()
    assert torch.asked == 2
    assert not kept.exists()


def test_a_host_without_a_driver_is_asked_once_for_ever(tmp_path):
    torch, kept = FakeTorch(devices=0), tmp_path / "capability.json"
    for _ in range(3):
        probe(torch, FakeNvml(driver=None), cache_file=kept).facts()
    assert torch.asked == 1


def test_while_the_driver_does_not_answer_there_is_no_gpu_and_torch_is_not_asked():
    torch, nvml = FakeTorch(), FakeNvml()
    asked = probe(torch, nvml)
    nvml.complaint = lambda: "it does not answer"
    assert asked.facts() == TorchFacts()
    nvml.complaint = lambda: None
    assert len(asked.facts().devices) == 1
    nvml.complaint = lambda: "it does not answer"
    assert (asked.facts().version, asked.facts().devices) == ("2.13.0", ())
    assert torch.asked == 1


def test_a_probe_that_outlives_its_kill_is_waited_for_no_longer(monkeypatch):
    killed = threading.Event()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed.wait())
    monkeypatch.setattr(cuda, "_TORCH", DriverCalls("torch", 0.01))
    assert cuda._run(["python"]) == ""
    killed.set()


def test_without_nvml_the_memory_is_what_torch_said():
    assert probe(FakeTorch(), FakeNvml(driver=None, free=None)).facts().devices[0].free == 7 * GIB


@pytest.mark.parametrize("output", ["", "no json", "[]", "{}", '{"torch": 1, "devices": [{}]}'])
def test_a_child_that_talks_nonsense_has_no_cuda(output):
    assert probe(FakeTorch(output=output)).facts().devices == ()


SPEED = {"gflops": 40.0, "steps": 900.0, "branches": 120.0}


def test_a_calibration_is_measured_once_and_kept(tmp_path):
    kept = tmp_path / "capability.json"
    answer = {"torch": "2.13.0", "devices": [], "calibration": SPEED}
    torch = FakeTorch(output=json.dumps({"torch": "2.13.0", "devices": []}) + "\n" + json.dumps(answer))
    for _ in range(2):
        assert probe(torch, FakeNvml(driver=None), cache_file=kept).facts().calibration == SPEED
    assert torch.asked == 1


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ({"failed": "no kernel image"}, "no kernel image"),
        ({}, "this host's speed could not be measured: torch crashed meanwhile"),
        (None, "this host's speed could not be measured: torch crashed meanwhile"),
    ],
)
def test_a_calibration_that_failed_is_tried_again_later_and_not_kept(tmp_path, said, known):
    kept, clock = tmp_path / "capability.json", FakeClock()
    torch = FakeTorch(output=json.dumps({"torch": "2.13.0", "devices": [], "calibration": said}))
    asked = probe(torch, FakeNvml(driver=None), cache_file=kept, clock=clock)
    assert asked.facts().calibration == {"failed": known}
    clock.advance(RETRY_FAILED_S - 1)
    assert asked.facts().calibration == {"failed": known}
    assert torch.asked == 1
    torch.output = json.dumps({"torch": "2.13.0", "devices": [], "calibration": SPEED})
    clock.advance(2)
    assert asked.facts().calibration == SPEED
    assert kept.exists()


@pytest.mark.parametrize("said", ["", json.dumps({"torch": None, "devices": []})])
def test_torch_that_is_installed_and_does_not_start_is_a_calibration_that_failed(tmp_path, said):
    kept, clock = tmp_path / "capability.json", FakeClock()
    torch = FakeTorch(output=said)
    asked = probe(torch, FakeNvml(driver=None), cache_file=kept, clock=clock)
    assert "torch is installed and did not start" in asked.facts().calibration["failed"]
    torch.output = json.dumps({"torch": "2.13.0", "devices": [], "calibration": SPEED})
    clock.advance(RETRY_FAILED_S + 1)
    assert asked.facts().calibration == SPEED


def test_a_child_that_crashes_while_it_measures_has_said_what_there_is():
    crash = "import json, os; print(json.dumps({'torch': '2.13.0', 'devices': []}), flush=True); os._exit(3)"
    facts = probe(FakeTorch(output=cuda._run([sys.executable, "-c", crash]))).facts()
    assert (facts.version, facts.devices) == ("2.13.0", ())


def test_nvml_is_asked_by_the_uuid_that_torch_gives(monkeypatch):
    library = FakePynvml(
        monkeypatch,
        SystemGetDriverVersion=lambda: "580.1",
        DeviceGetHandleByUUID=lambda uuid: {"GPU-whole": 5, "MIG-slice": 2}.get(uuid) or library.nvmlNothing(),
        DeviceGetMemoryInfo=lambda free: SimpleNamespace(total=8 * GIB, free=free * GIB),
    )
    nvml = SystemNvml()
    assert nvml.driver_version() == "580.1"
    assert nvml.memory("whole") == nvml.memory("GPU-whole") == (8 * GIB, 5 * GIB)
    assert nvml.memory("slice") == (8 * GIB, 2 * GIB)
    assert nvml.memory("another") is None
    assert library.open == 0


@pytest.mark.parametrize("installed", [True, False])
def test_a_machine_without_a_driver_has_no_answer(monkeypatch, installed):
    library = FakePynvml(monkeypatch)
    monkeypatch.setattr(library, "nvmlInit", library.nvmlNothing)
    if not installed:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    assert SystemNvml().driver_version() is None
    assert SystemNvml().memory("whole") is None


def test_warnings_before_the_answer_are_ignored():
    noisy = FakeTorch()
    noisy.output = "UserWarning: old driver\n" + noisy.output
    assert probe(noisy).facts().version == "2.13.0"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}', "[" * 10_000])
def test_a_broken_cache_is_no_cache(tmp_path, text):
    kept, torch = tmp_path / "capability.json", FakeTorch()
    kept.write_text(text)
    assert probe(torch, cache_file=kept).facts().version == "2.13.0"
    assert torch.asked == 1


def test_an_unwritable_cache_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert probe(FakeTorch(), cache_file=tmp_path / "file" / "capability.json").facts().devices


def test_the_child_is_given_no_secret(monkeypatch):
    monkeypatch.setenv("CIS490_OPERATOR_TOKEN", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "hunter2")
    tell = [sys.executable, "-c", "import os; print(dict(os.environ))"]
    said = [cuda._run(tell), describe._run(tell, threading.Event()).decode(), owner.printed_by(tell) or ""]
    assert [("hunter2" in each, "PATH" in each) for each in said] == [(False, True)] * 3


def test_the_version_is_read_from_the_trainers_environment(tmp_path):
    info = tmp_path / "lib" / "python3.11" / "site-packages" / "torch-9.8.7+cu130.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.8.7+cu130\n")
    assert cuda.installed_torch(tmp_path / "bin" / "python") == "9.8.7+cu130"
    assert cuda.installed_torch(tmp_path / "x" / "bin" / "python") is None


# --- control groups --------------------------------------------------------------------------------


def lay(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "36 31 0:33 / / rw - ext4 /dev/sda rw\n"
)


def test_unified_limits_hold_wherever_on_the_way_they_stand(tmp_path):
    group = "sys/fs/cgroup/system.slice/worker.service"
    lay(
        tmp_path,
        {
            "proc/self/mountinfo": V2_MOUNT,
            "proc/self/cgroup": "0::/system.slice/worker.service\n",
            f"{group}/cpu.max": "max 100000\n",
            "sys/fs/cgroup/system.slice/cpu.max": "150000 100000\n",
            f"{group}/memory.max": f"{4 * GIB}\n",
            f"{group}/memory.current": f"{3 * GIB}\n",
            f"{group}/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "sys/fs/cgroup/system.slice/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/system.slice/memory.current": f"{7 * GIB}\n",
        },
    )
    assert cgroup_limits(tmp_path) == CgroupLimits(1.5, 4 * GIB, 1 * GIB)


def test_version_one_inside_a_container_reads_the_mounted_group(tmp_path):
    lay(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNTS,
            "proc/self/cgroup": "4:memory:/docker/ab/inner\n1:cpu,cpuacct:/docker/ab\n",
            "sys/fs/cgroup/memory/inner/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/inner/memory.usage_in_bytes": "0\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIB // 2}\n",
        },
    )
    assert cgroup_limits(tmp_path) == CgroupLimits(0.5, GIB, GIB)


def test_no_limit_is_none(tmp_path):
    lay(
        tmp_path,
        {
            "proc/self/mountinfo": V1_MOUNTS + V2_MOUNT,
            "proc/self/cgroup": "4:memory:/docker/ab\n1:cpu,cpuacct:/\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cgroup_limits(tmp_path) == CgroupLimits()
    assert cgroup_limits(tmp_path / "nothing") == CgroupLimits()


@given(mountinfo=st.text(), cgroup=st.text())
def test_no_text_in_proc_is_an_error(tmp_path_factory, mountinfo, cgroup):
    root = tmp_path_factory.getbasetemp() / "proc-fuzz"
    for name, text in (("mountinfo", V2_MOUNT + mountinfo), ("cgroup", "0::/" + cgroup)):
        path = root / "proc/self" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert isinstance(cgroup_limits(root), CgroupLimits)


# --- the checkout's commit -------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = {"training/__init__.py": ""}  # another one's trainers would start there


@pytest.mark.parametrize(
    "files",
    [
        {".git/HEAD": COMMIT},
        {".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": COMMIT + "\n"},
        {".git/HEAD": "ref: refs/heads/main", ".git/packed-refs": f"# pack-refs\n{COMMIT} refs/heads/main\n"},
        {
            ".git": "gitdir: real/worktrees/x",
            "real/worktrees/x/HEAD": "ref: refs/heads/main",
            "real/worktrees/x/commondir": "../..",
            "real/refs/heads/main": COMMIT,
        },
    ],
    ids=["detached", "branch", "packed", "worktree"],
)
def test_the_commit_is_read_from_gits_own_files(tmp_path, files):
    lay(tmp_path, files | PROGRAM)
    assert checkout_commit(tmp_path) == COMMIT


def test_a_folder_without_a_program_has_the_commit_of_ours(no_child, tmp_path):
    assert detect(repo_root=tmp_path).training_commit == checkout_commit(checkout.ROOT)
    lay(tmp_path, {".git/HEAD": "ref: refs/heads/main", ".git/refs/heads/main": "rubbish", **PROGRAM})
    assert checkout_commit(tmp_path) is None
