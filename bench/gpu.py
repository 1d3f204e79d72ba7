"""All that is to be known of a GPU, in one run of a few minutes: speed, repeatability, sharing, warm starts.

    python bench/gpu.py [--out FOLDER] [--seconds 400] [--parts speed,repeat] [--networks transformer,mlp]
        [--device cuda|cpu] [--windows 200000]

=========  ============================================================================================================
about      The GPU as torch, NVML and the worker's probe see it; if NVML tells the memory of one's own process
sample     The recorded sample as a data set, which most of the others need
speed      Samples a second of each network: ours, the plain loop, skorch, Lightning in turn; ours at other batch sizes,
           and on one CPU thread
profile    A step of ours and of the plain loop: waits, copies and launches; the GPU's share of the time. Operations
           that torch cannot repeat on it
repeat     Real trainers on the recorded sample: two equal runs, and one that gets SIGTERM and goes on: the same bytes?
trees      ``gbt --device cuda``; with an XGBoost that was built without CUDA, what the trainer says of it
warm       ``bench/turnaround.py``: from a trainer that used the GPU to torch ready in the next
memory     Another program holds most of the GPU's memory: no job may begin there that needs more, until it has ended.
           Then two jobs that do not fit together, though the plan says so: one runs out of memory, and is trained alone
share      A receiver, a worker, six networks: one at a time, as many as fit (``slots = "auto"``), and bare trainers
data       Windows like the sample's, with noise, ``--windows`` of them; made beside the parts above
jobs       The demo's 14 jobs on these, short (2 epochs, 50 trees), side by side: seconds by phase, peak of GPU memory;
           only two are judged, which is work of one CPU thread on any machine and takes minutes
=========  ============================================================================================================

Each part is a process of its own with a limit of its own. What it has noted is kept however it ends: the folder holds
``gpu.json`` with everything, and ``gpu.txt``, the table. ``--device cpu`` shows that the parts work, in small; those
that need a GPU say so.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import slots
import zstandard
from fleet_makespan import _wait as wait
from receivers import receiver
from trainers import arguments

from training.checkout import ROOT
from training.contract import THREAD_VARIABLES
from training.fleet.client.client import FleetClient
from training.fleet.process.usage import ask_nvml

NETWORKS = ("mlp", "cnn", "gru", "lstm", "transformer", "transformer_ssl")
TOKEN = "CIS490_OPERATOR_TOKEN"
AT_ONCE = 4  # trainers, where only their bytes count
LOOK_S = 0.2
FOREIGN_S = 12.0  # that a worker is watched beside a GPU that somebody else has filled
WHOLE = ("mlp-realistic", "gbt-realistic")  # of the many windows: the others end when their training has
LEFT_GIB = 20.0  # that this one leaves
SAMPLES_HZ = 8.0  # of the recorded sample


@dataclass
class Run:
    """A part under way: its choices, and its notes, which are on the disk at once."""

    name: str
    work: Path
    device: str
    windows: int
    networks: tuple[str, ...] = NETWORKS
    notes: dict[str, Any] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def note(self, **facts: Any) -> None:
        target = self.work / f"{self.name}.json"
        part = target.with_suffix(".part")
        with self._lock:
            self.notes |= facts
            part.write_text(json.dumps(self.notes, indent=1, default=str))
            part.replace(target)

    def folder(self, name: str) -> Path:
        made = self.work / f"{self.name}-{name}"
        made.mkdir()
        return made

    @property
    def sample(self) -> Path:
        return self.work / "sample"

    @property
    def short(self) -> bool:
        return self.device == "cpu"


# -- the GPU's memory, as the driver tells it -----------------------------------------------------------------------


def on_gpu() -> dict[int, int]:
    """The bytes that each process holds on the GPUs, by its id."""

    def ask(nvml: Any) -> dict[int, int]:
        found: Counter[int] = Counter()
        for number in range(nvml.nvmlDeviceGetCount()):
            for each in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(number)):
                found[each.pid] += each.usedGpuMemory or 0
        return dict(found)

    return ask_nvml(ask) or {}


def used_mib() -> float:
    """The memory of the first GPU that is in use."""
    told = ask_nvml(lambda nvml: nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used)
    return (told or 0) / 2**20


class Watched:
    """The most that was seen on the GPU while this was open, for ``fact`` as well; ``by_pid`` in bytes."""

    def __init__(self, fact: dict[str, Any]) -> None:
        self.fact = fact
        self.processes, self.mib = 0, 0.0
        self.by_pid: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.fact |= {"processes_most": self.processes, "memory_most_mib": round(self.mib)}

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            held = on_gpu()
            self.processes = max(self.processes, len(held))
            self.mib = max(self.mib, used_mib())
            for pid, count in held.items():
                self.by_pid[pid] = max(count, self.by_pid.get(pid, 0))


# -- a trainer, watched ---------------------------------------------------------------------------------------------


@dataclass
class Ended:
    """The end of a trainer: its progress lines with the second of each, and the digests of what it left."""

    code: int
    seconds: float
    events: list[dict[str, Any]]
    last_word: str
    files: dict[str, str]
    stopped_after_s: float | None = None  # from the signal to the end

    def phases(self) -> dict[str, float]:
        return phases(self.events) | {"end": round(self.seconds, 2)}

    @property
    def metric(self) -> float | None:
        return next((event.get("metric") for event in self.events if event["event"] == "done"), None)


def phases(events: list[dict[str, Any]]) -> dict[str, float]:
    """The second of the first line of each kind, and of the last epoch's."""
    found: dict[str, float] = {}
    for event in events:
        found.setdefault(event["event"], event["at_s"])
    epochs = [event["at_s"] for event in events if event["event"] == "epoch"]
    return found | ({"last epoch": epochs[-1]} if epochs else {})


def train(
    command: list[str],
    out: Path,
    *,
    stop_at_epoch: int | None = None,
    kill_at: str | None = None,
    live: Callable[[int, list[dict[str, Any]]], None] = lambda _pid, _events: None,
) -> Ended:
    """Run a trainer to its end, with SIGTERM after so many epochs, or killed at an event.

    ``live`` hears of each progress line.
    """
    began, told = time.monotonic(), None
    events: list[dict[str, Any]] = []
    with (out / "stderr").open("a+") as stderr:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                events.append({**json.loads(line), "at_s": round(time.monotonic() - began, 2)})
                live(process.pid, events)
                if events[-1]["event"] == kill_at:
                    process.kill()
            epoch = events[-1].get("epoch", 0) if events else 0
            if stop_at_epoch is not None and told is None and epoch >= stop_at_epoch:
                told = time.monotonic()
                process.send_signal(signal.SIGTERM)
        code = process.wait()
        seconds = time.monotonic() - began
        stderr.seek(0)
        words = stderr.read().strip().splitlines()
    kept = (path for path in out.iterdir() if path.suffix in {".json", ".pt", ".html"} and "timing" not in path.name)
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(kept)}
    after = None if told is None else round(time.monotonic() - told, 2)
    return Ended(code, seconds, events, words[-1] if words else "", files, after)


def demo_plan(**changed: Any) -> str:
    """The demo's plan with other defaults, for one host."""
    head, *entries = slots.demo(14, '"auto"').split("[[jobs]]")
    for key, value in changed.items():
        head = "\n".join(f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in head.splitlines())
    return "\n[[jobs]]".join([head, *entries])


def commands(run: Run, folder: Path, data: Path, plan: str) -> dict[str, list[str]]:
    """The trainers' commands of a plan; networks are told the device."""
    made = slots.commands(folder, data, plan)
    return {name: words + ([] if "gbt" in name else ["--device", run.device]) for name, words in made.items()}


# -- the parts ------------------------------------------------------------------------------------------------------


# A warm parent after its imports: it may have one thread, and so much memory of its own. Of each import that
# started one: the threads' names, and the files of code that it brought, of which one must have done it.
IMPORTED = """
import importlib, json
from pathlib import Path
from training.families import preloads
from training.fleet.process import warm
def code():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split()[-1]).name for line in lines if ".so" in line}
started, threads = {}, 0
for name in preloads("cnn"):
    before = code()
    importlib.import_module(name)
    if len(told := warm.further_threads()) > threads:
        started[name], threads = {"threads": told, "code": sorted(code() - before)}, len(told)
unfit = None
try:
    warm.check(2**19)
except warm.UnfitError as error:
    unfit = str(error)
print(json.dumps({"own_mib": warm.own_memory_kib() // 1024, "started": started, "unfit": unfit}))
"""


def about(run: Run) -> None:
    for turn in ("first", "second"):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        run.note(**{f"import_torch_{turn}_s": round(time.monotonic() - began, 2)})
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-m", "training.fleet.capability"], cwd=ROOT, capture_output=True, text=True)
    run.note(probe_s=round(time.monotonic() - began, 2), capability=json.loads(said.stdout))
    single = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")  # as the worker starts it
    said = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, env=single, capture_output=True, text=True)
    run.note(warm_parent=json.loads(said.stdout) if said.stdout else said.stderr[-400:])
    import torch

    from training.trainer import machine

    run.note(torch=torch.__version__, device=machine.device_name(run.device))
    if run.device == "cuda":
        block = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
        held = on_gpu()
        run.note(nvml_tells_own_memory_mib=held.get(os.getpid(), 0) >> 20, nvml_processes=len(held), block=len(block))


def sample(run: Run) -> None:
    slots.sample(run.sample)


def speed(run: Run) -> None:
    import train_speed

    train_speed.now = train_speed.wall
    settle()
    rounds = 1 if run.short else 3
    for case in (each for each in train_speed.CASES if each.name in run.networks):
        with noted(run, case.name) as fact:
            work = train_speed.prepare(case, run.device, 1)
            work = replace(work, epochs=1) if run.short else work
            fact |= {"batch": work.hyper["batch_size"]}
            able = []
            for name, contender in train_speed.CONTENDERS.items():
                with noted(run, f"{case.name}, {name}", only_errors=True):
                    contender(replace(work, epochs=1))
                    able.append(name)
            found = train_speed.turns(work, tuple(able), rounds)
            fact |= {name: round(statistics.median(rates)) for name, rates in found.items()}
            fact |= {f"ours/{name}": round(train_speed.ratio(found, name), 2) for name in able if name != "ours"}
            if run.short:
                continue
            for batch in train_speed.BATCHES:
                other = replace(work, hyper=work.hyper | {"batch_size": batch})
                fact[f"ours at {batch}"] = round(train_speed.WINDOWS * work.epochs / train_speed.ours(other))
            on_cpu = replace(work, x=work.x.cpu(), y=work.y.cpu(), device="cpu", epochs=1)
            fact["ours on a CPU thread"] = round(train_speed.WINDOWS / train_speed.ours(on_cpu))


LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")


def profile(run: Run) -> None:
    import torch
    import train_speed
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    from training.trainer import machine

    train_speed.now = train_speed.wall
    settle()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (run.device == "cuda")
    counted: dict[str, Any] = {}

    def profiled(work: Callable[[], object]) -> float:
        with profiler(activities=activities) as told:
            began = train_speed.wall()
            work()
            seconds = train_speed.wall() - began
        counts: Counter[str] = Counter()
        busy_us = 0.0
        for each in told.events() or ():
            on_device = each.device_type != DeviceType.CPU
            if "Synchronize" in each.name or each.name.startswith("Memcpy"):
                counts[each.name] += 1
            counts["launches"] += each.name in LAUNCHES
            if on_device and not getattr(each, "is_user_annotation", False) and not each.name.startswith("Optimizer."):
                busy_us += each.time_range.elapsed_us()
        counted.update(counts=dict(counts), seconds=seconds, gpu_busy=round(busy_us / 1e6 / seconds, 3))
        return seconds

    real, strict = train_speed.timed, machine.settle_torch

    def lenient(threads: int) -> None:
        strict(threads)
        torch.use_deterministic_algorithms(True, warn_only=True)

    for case in (each for each in train_speed.CASES if each.name in run.networks):
        with noted(run, case.name) as fact:
            work = replace(train_speed.prepare(case, run.device, 1), epochs=2)
            steps = work.epochs * -(-train_speed.WINDOWS // int(work.hyper["batch_size"]))
            fact["epochs"], fact["steps"] = work.epochs, steps
            for name in ("ours", "plain"):
                train_speed.CONTENDERS[name](replace(work, epochs=1))
                train_speed.timed, machine.settle_torch = profiled, lenient
                try:
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.simplefilter("always")
                        train_speed.CONTENDERS[name](work)
                finally:
                    train_speed.timed, machine.settle_torch = real, strict
                waits = sum(count for each, count in counted["counts"].items() if "Synchronize" in each)
                fact[name] = {**counted, "waits_a_step": round(waits / steps, 2)}
                fact[name]["launches_a_step"] = round(counted["counts"].get("launches", 0) / steps, 1)
                if name == "ours":
                    fact["not_repeatable"] = sorted(
                        {str(each.message)[:200] for each in caught if "determinis" in str(each.message)}
                    )


def repeat(run: Run) -> None:
    plan = demo_plan(n_resamples=200)
    chosen = [f"{model}-oracle" for model in (("mlp", "transformer_ssl") if run.short else run.networks)]
    runs = ("once", "again", "stopped")
    made = {way: commands(run, run.folder(way), run.sample, plan) for way in runs}

    def go(name: str) -> None:
        with noted(run, name) as fact:
            for way in runs:
                out = run.work / f"repeat-{way}" / name
                ended = train(made[way][name], out, stop_at_epoch=4 if way == "stopped" else None)
                if way == "stopped":
                    fact |= {"sigterm_exit": ended.code, "sigterm_to_end_s": ended.stopped_after_s}
                    ended = train(made[way][name], out) if ended.code == 75 else ended
                fact[way] = ended.phases()
                if ended.code != 0:
                    raise RuntimeError(f"{way}: exit {ended.code}: {ended.last_word}")
                if way == "once":
                    first, fact["auroc"], fact["files"] = ended.files, ended.metric, ended.files
                else:
                    fact[f"{way}_same_bytes"] = ended.files == first
                    fact[f"{way}_other_files"] = [n for n in first if ended.files.get(n) != first[n]]

    with noted(run, "gpu") as seen, Watched(seen), ThreadPoolExecutor(1 if run.short else AT_ONCE) as pool:
        list(pool.map(go, chosen))
    with tarfile.open(run.work / "models.tar.gz", "w:gz") as kept:  # to be looked at elsewhere
        kept.add(run.work / "repeat-once", "models", filter=lambda each: None if "html" in each.name else each)


def trees(run: Run) -> None:
    folder = run.folder("once")
    words = slots.commands(folder, run.sample, demo_plan(n_resamples=0))["gbt-oracle"]
    ended = train([*words, "--device", run.device, "--n-estimators", "20"], folder / "gbt-oracle")
    run.note(exit=ended.code, said=ended.last_word, phases=ended.phases())


def warm(run: Run) -> None:
    jobs = "2" if run.short else "5"
    words = ["-m", "bench.turnaround", "--jobs", jobs, "--rounds", "1", "--without", "HyperQueue"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    run.note(exit=done.returncode, said=done.stdout.splitlines(), log=done.stderr.splitlines()[-20:])


# A trainer of one's own, and the program of somebody else: it takes a share of the GPU's memory, or leaves so many GiB.
HOG = """
import json, os, pathlib, sys, time
import torch
given = dict(zip(sys.argv, sys.argv[1:]))
folder, role = pathlib.Path(given["--folder"]), given["--role"]
def until(name, seconds):
    by = time.monotonic() + seconds
    while not (folder / name).exists() and time.monotonic() < by:
        time.sleep(0.1)
if role == "want":
    until("held", 60)
free, total = torch.cuda.mem_get_info()
size = free - float(given["--leave"]) * 2**30 if "--leave" in given else float(given["--share"]) * total
try:
    block = torch.zeros(int(size), dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    (folder / "refused").touch()
    raise
(folder / ("held" if role != "want" else "granted")).touch()
until({"hold": "refused", "foreign": "enough"}.get(role, "granted"), 90)
if "--out-dir" in given:
    told = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "devices": torch.cuda.device_count()}
    pathlib.Path(given["--out-dir"], "out").write_text(json.dumps(told))
    print(json.dumps(told), flush=True)
"""


def hogs(folder: Path, jobs: Mapping[str, tuple[str, float, float]]) -> str:
    """A plan of jobs of such trainers: role, share of the memory, and what the plan says that they need, in GiB."""
    (folder / "hog.py").write_text(HOG)
    lines = ["schema_version = 1", 'name = "bench"', "[hosts.bench]", 'slots = "auto"']
    for name, (role, share, _) in jobs.items():
        words = [sys.executable, str(folder / "hog.py"), "--folder", str(folder), "--role", role, "--share", str(share)]
        lines += [f"[trainers.{name}]", f"command = {json.dumps(words)}", 'outputs = ["out"]']
    for n, (name, (_, _, gib)) in enumerate(jobs.items()):
        lines += ["[[jobs]]", f'name = "{name}"', f'model = "{name}"', 'mode = "oracle"', f"priority = {90 - n}"]
        lines += ["require_cuda = true", f"min_vram_gib = {gib}"]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def fleet(folder: Path, data: Path, plan: str) -> Iterator[FleetClient]:
    """A receiver and a worker that are at this plan."""
    os.environ.setdefault(TOKEN, secrets.token_urlsafe(32))
    with receiver(folder, plan=plan) as served, slots.worker(folder, data, served.port):
        yield FleetClient(f"http://127.0.0.1:{served.port}", operator_token=os.environ[TOKEN])


def attempts(client: FleetClient, name: str) -> list[dict[str, Any]]:
    """The ends of a job's attempts."""
    kept = ("attempt", "end_reason", "error", "exit_code", "granted_at", "ended_at")
    return [{key: each.get(key) for key in kept} for each in client.job(name)["attempts"]]


def memory(run: Run) -> None:
    if run.device != "cuda":
        raise RuntimeError("needs a GPU")
    for piece in (foreign, crowded):
        with noted(run, piece.__name__) as fact:
            piece(run, fact)


def foreign(run: Run, fact: dict[str, Any]) -> None:
    folder = run.folder("foreign")
    plan = hogs(folder, {"small": ("want", 0.02, LEFT_GIB + 4)})
    words = [sys.executable, str(folder / "hog.py"), "--folder", str(folder)]
    words += ["--role", "foreign", "--leave", str(LEFT_GIB)]
    other = subprocess.Popen(words)
    by = time.monotonic() + 60
    while not (folder / "held").exists():
        if time.monotonic() > by or other.poll() is not None:
            raise RuntimeError("the other program did not get its memory")
        time.sleep(0.1)
    try:
        with fleet(folder, run.sample, plan) as client:
            by = time.monotonic() + FOREIGN_S
            while time.monotonic() < by:
                fact |= {"begun_beside": len(attempts(client, "small")), "gpu_used_mib": round(used_mib())}
                time.sleep(0.5)
            fact["explained"] = client.explain("small")["hosts"]
            (folder / "enough").touch()
            other.wait()
            freed = time.time()
            wait(folder)
            told = attempts(client, "small")
            fact |= {"attempts": told, "begun_after_s": round(told[0]["granted_at"] - freed, 1)}
            fact["said"] = log_of(client, "small")
    finally:
        other.kill()
        fact["worker"] = (folder / "worker.log").read_text().splitlines()[-10:]


def crowded(run: Run, fact: dict[str, Any]) -> None:
    folder = run.folder("crowded")
    plan = hogs(folder, {"hold": ("hold", 0.6, 1.0), "want": ("want", 0.6, 1.0)})
    try:
        with fleet(folder, run.sample, plan) as client:
            wait(folder)
            for name in ("hold", "want"):
                fact |= {name: attempts(client, name), f"{name}_said": log_of(client, name)}
            fact["want_failures"] = client.job("want")["job"]["trainer_failures"]
    finally:
        fact["worker"] = (folder / "worker.log").read_text().splitlines()[-10:]


def log_of(client: FleetClient, name: str) -> list[str]:
    return [str(line)[:300] for line in client.log(name).get("lines", [])[-5:]]


def share(run: Run) -> None:
    # The plan's word on GPU memory lets jobs share a GPU before one of their kind has been seen.
    names = ("mlp", "cnn") if run.short else run.networks
    jobs = "".join(
        f'[[jobs]]\nname = "{name}"\nmodel = "{name}"\nmode = "realistic"\nmin_vram_gib = 1.5\nhyper.epochs = 10\n'
        for name in names
    )

    def plan(slots_: str) -> str:
        return demo_plan().split("[hosts.")[0] + f"[hosts.bench]\nslots = {slots_}\n\n{jobs}"

    weights: dict[str, dict[str, str]] = {}
    for what in ("auto", "bare", "one"):
        with noted(run, what) as fact, Watched(fact):
            folder = run.folder(what)
            if what == "bare":
                made = list(commands(run, folder, run.sample, plan("1")).values())
                began = time.time()
                slots.side_by_side(made, len(made))
                fact["seconds"] = round(time.time() - began, 1)
            else:
                fact["seconds"] = round(slots.fleet(folder, run.sample, plan({"one": "1"}.get(what, '"auto"'))), 1)
                fact["worker"] = (folder / "worker.log").read_text().splitlines()[-6:]
                fact["seen"] = learned(folder)
            weights[what] = sidecars(folder)
            if what != "auto":
                fact["weights_as_auto"] = weights[what] == weights.get("auto")
    auto, *others = (run.notes.get(what, {}).get("seconds") for what in ("auto", "one", "bare"))
    if auto and all(others):
        run.note(one_over_auto=round(others[0] / auto, 2), bare_over_auto=round(others[1] / auto, 2))


def sidecars(folder: Path) -> dict[str, str]:
    """The digests of the trained weights by their files' names, as trainers left them or from a store's bundles."""
    found = {path.name: path.read_bytes() for path in folder.rglob("*.pt")}
    for bundle in folder.rglob("bundle.tar.zst"):
        plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(bundle.read_bytes())).read()
        with tarfile.open(fileobj=io.BytesIO(plain)) as packed:
            for member in packed:
                if member.name.endswith(".pt") and (file := packed.extractfile(member)) is not None:
                    found[Path(member.name).name] = file.read()
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(found.items())}


def learned(folder: Path) -> dict[str, Any]:
    """The fleet's record of each job: seconds of training and the peak of its GPU memory, in MiB."""
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'jobs.db'}?mode=ro", uri=True)) as reader:
        rows = reader.execute("SELECT name, record FROM attempts JOIN jobs USING (job_id) WHERE record IS NOT NULL")
        records = {name: json.loads(record) for name, record in rows}
    return {name: [each.get("train_s"), each.get("max_vram_kib", 0) >> 10] for name, each in records.items()}


def data(run: Run) -> None:
    import numpy as np
    import polars as pl

    tensors = run.sample / "tensor_window_v1"
    recorded = np.load(tensors / "tensors.npy")
    index = pl.read_parquet(tensors / "index.parquet")
    schema = json.loads((tensors / "manifest.json").read_text())["schema"]
    rows, turn = np.arange(run.windows) % len(recorded), np.arange(run.windows) // len(recorded)
    X = recorded[rows]
    noise = 0.1 * recorded.std(axis=(0, 2), keepdims=True)
    rng = np.random.default_rng(0)
    for low in range(0, run.windows, 10_000):
        part = X[low : low + 10_000]
        part += noise * rng.standard_normal(part.shape, dtype=np.float32)
    label = np.array([schema["label_map"][each] for each in index["label"].to_list()])
    episode = zip(index["episode_id"].to_numpy()[rows], turn, strict=True)
    file = run.work / "windows.npz"
    np.savez(
        file,
        X=X,
        y=label[rows],
        episode=np.array([f"{one}-{number}" for one, number in episode]),
        host=index["host"].to_numpy().astype(str)[rows],
        channel=np.array([each["name"] for each in schema["channels"]]),
        oracle=np.array([each["modes"] == ["oracle"] for each in schema["channels"]]),
        t=index["t_start"].to_numpy()[rows] + turn * 1e5,
    )
    run.note(made_mib=file.stat().st_size >> 20)
    began = time.monotonic()
    words = [sys.executable, "-m", "training.data.ingest", str(file), "--hz", str(SAMPLES_HZ)]
    words += ["--out-dir", str(run.work / "many"), "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    file.unlink()
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    run.note(ingest_s=round(time.monotonic() - began, 1), windows=run.windows)
    (run.work / "many-complete").touch()


def jobs(run: Run) -> None:
    while not (run.work / "many-complete").exists():
        if (run.work / "data-over").exists():
            raise RuntimeError("the data set was not made")
        time.sleep(0.5)
    folder = run.folder("all")
    made = commands(run, folder, run.work / "many", demo_plan(n_resamples=0))
    first = [name for name in made if name.endswith("realistic") and "gbt" not in name]
    order = [*first, *(name for name in made if name not in first)]

    def go(name: str) -> None:
        with noted(run, name) as fact:
            short = ["--n-estimators", "50"] if "gbt" in name else ["--epochs", "2"]

            def live(pid: int, events: list[dict[str, Any]]) -> None:
                fact["phases"], fact["gpu_mib"] = phases(events), watched.by_pid.get(pid, 0) >> 20
                if events[-1]["event"] != "epoch" or events[-1]["epoch"] < 4:
                    run.note(**{name: fact})

            ended = train(
                [*made[name], *short], folder / name, kill_at=None if name in WHOLE else "evaluate", live=live
            )
            fact |= {"exit": ended.code, "said": ended.last_word, "auroc": ended.metric, "phases": ended.phases()}

    began = time.monotonic()
    with noted(run, "all") as fact, Watched(fact) as watched, ThreadPoolExecutor(1 if run.short else 7) as pool:
        list(pool.map(go, order[:2] if run.short else order))
        fact["seconds"] = round(time.monotonic() - began, 1)


def settle() -> None:
    """Make this process what a trainer's is, and keep the libraries from talking."""
    import logging

    from training.trainer.contract import limit_threads

    limit_threads(1)  # cuBLAS wants to know before CUDA starts that results must repeat
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def noted(run: Run, name: str, *, only_errors: bool = False) -> Iterator[dict[str, Any]]:
    """Note a piece of a part, whatever becomes of it; an error ends the piece alone."""
    fact: dict[str, Any] = {}
    try:
        yield fact
    except (Exception, SystemExit) as error:  # a benchmark of ours gives up by SystemExit
        fact["error"] = f"{type(error).__name__}: {error}"[:600]
        traceback.print_exc()
    if fact or not only_errors:
        run.note(**{name: fact})


stopped = threading.Event()
running: set[int] = set()  # groups of processes


def stop_all() -> None:
    """End the parts that run, and begin no more: what they noted is kept."""
    stopped.set()
    for group in tuple(running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)


# -- parts in turn --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One of the parts; of parts with the same ``turn`` all run at the same time, and ``beside`` ones are not waited
    for."""

    work: Callable[[Run], None]
    turn: int
    limit_s: float
    beside: bool = False


PARTS: dict[str, Part] = {
    "about": Part(about, 0, 90),
    "sample": Part(sample, 0, 60),
    "data": Part(data, 1, 300, beside=True),
    "repeat": Part(repeat, 1, 120),
    "trees": Part(trees, 1, 60),
    "memory": Part(memory, 1, 130),
    "speed": Part(speed, 2, 110),
    "profile": Part(profile, 3, 60),
    "warm": Part(warm, 3, 90),
    "share": Part(share, 4, 300),
    "jobs": Part(jobs, 5, 300),
}


class Book:
    """All results so far, written anew whenever one is there."""

    def __init__(self, out: Path, work: Path, **facts: Any) -> None:
        self.out, self.work = out, work
        self.facts: dict[str, Any] = {**facts, "parts": {}}
        self._lock = threading.Lock()

    def enter(self, name: str, seconds: float, words: str) -> None:
        with self._lock:
            told = self.work / f"{name}.json"
            notes = json.loads(told.read_text()) if told.exists() else {}
            self.facts["parts"][name] = {"ended": words, "seconds": round(seconds, 1), **notes}
            keep_logs(self.work, self.out)
            (self.out / "gpu.json").write_text(json.dumps(self.facts, indent=1) + "\n")
            with (self.out / "gpu.txt").open("a") as file:
                for line in table(name, self.facts["parts"][name]):
                    print(line, flush=True)
                    print(line, file=file)


def table(name: str, notes: Mapping[str, Any]) -> list[str]:
    """A part for people: a line for each thing that it noted."""
    lines = [f"{name}: {notes['ended']}, {notes['seconds']:.0f} s"]
    for key, value in notes.items():
        if key in ("ended", "seconds", "capability", "workers", "job", "log"):
            continue
        if isinstance(value, dict):
            shown = "  ".join(f"{inner} {_brief(one)}" for inner, one in value.items() if inner != "files")
        else:
            shown = _brief(value)
        lines.append(f"  {key:<18} {shown}"[:1000])
    return lines


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, default=str)[:160] if isinstance(value, dict | list) else f"{value}"


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="(default: cuda, and nothing where there is none)")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--seconds", type=float, default=400.0, help="for all of it")
    parser.add_argument("--parts", default=",".join(PARTS), help="names with commas")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names with commas")
    parser.add_argument("--windows", type=int, default=200_000)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = args.parts.split(",")
    if unknown := set(chosen) - PARTS.keys():
        parser.error(f"no part is called {min(unknown)}: choose from {', '.join(PARTS)}")
    if args.work is not None:  # a part, in a process of its own
        PARTS[chosen[0]].work(Run(chosen[0], args.work, args.device, args.windows, tuple(args.networks.split(","))))
        return 0
    if args.device is None:
        code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
        if subprocess.run([sys.executable, "-c", code], check=False).returncode:
            print("there is no GPU here that torch can use; --device cpu tries the parts in small")
            return 0
        args.device = "cuda"
    args.out.mkdir(parents=True, exist_ok=True)
    by = time.monotonic() + args.seconds
    signal.signal(signal.SIGTERM, lambda *_: stop_all())
    with tempfile.TemporaryDirectory(prefix="cis490-bench-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        book = Book(args.out, work, device=args.device, load=os.getloadavg()[0], cores=os.cpu_count())
        ended = in_turns(args, chosen, book, by)
    return 0 if ended else 1


def in_turns(args: Any, chosen: list[str], book: Book, by: float) -> bool:
    """Run the parts; False if one did not end well."""
    well, beside = [], []
    with ThreadPoolExecutor(len(PARTS)) as pool:
        for turn in sorted({PARTS[name].turn for name in chosen}):
            now = {name: part for name, part in PARTS.items() if name in chosen and part.turn == turn}
            begun = {name: pool.submit(one, args, name, part, book, by) for name, part in now.items()}
            beside += [each for name, each in begun.items() if now[name].beside]
            well += [each.result() for name, each in begun.items() if not now[name].beside]
        well += [each.result() for each in beside]
    return all(well)


def one(args: Any, name: str, part: Part, book: Book, by: float) -> bool:
    """Run a part as a process, and enter what it noted."""
    limit_s = min(part.limit_s * (1 if args.device == "cuda" else 6), by - time.monotonic())
    if limit_s < 5 or stopped.is_set():
        book.enter(name, 0, "no time was left for it")
        return False
    words = [sys.executable, __file__, "--parts", name, "--work", str(book.work), "--device", args.device]
    words += ["--windows", str(args.windows), "--networks", args.networks]
    began = time.monotonic()
    with (book.work / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        running.add(process.pid)
        try:
            code = process.wait(limit_s)
            ended = "ended" if code == 0 else f"failed: {last_line(book.work / f'{name}.log')}"
        except subprocess.TimeoutExpired:
            code, ended = 1, f"cut off after {limit_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            running.discard(process.pid)
    (book.work / f"{name}-over").touch()
    book.enter(name, time.monotonic() - began, ended)
    return code == 0


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else "it said nothing"


def keep_logs(work: Path, out: Path) -> None:
    """Keep the ends of what the parts printed, and the models."""
    for path in work.glob("*.tar.gz"):
        shutil.copy(path, out)
    text = [f"== {path.stem}\n{path.read_text(errors='replace')[-20_000:]}" for path in sorted(work.glob("*.log"))]
    (out / "gpu.log").write_text("\n".join(text))


if __name__ == "__main__":
    sys.exit(main())
