"""`cis490 demo` (in a clone, `make demo`): the whole fleet on one machine, from recorded telemetry to verified models.

The demo builds the data set from the recorded sample, starts a receiver and two workers as separate processes, and
shows the jobs while they are trained. It ends with one screen: a table of the models, which one to use, what the watch
of this machine saw, and what to type next. The exit code is 0 only when every job ended as it should, every artifact
was verified, and the watch of this machine worked. All files are under demo/, each run in a folder of its own. However
this program ends, the processes that it started end with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from training.checkout import HOME, shipped
from training.clock import SystemClock
from training.command.sample import DemoError, sample
from training.command_line import parser_of
from training.fleet.cli.models import BundleRefused, fetch_model
from training.fleet.cli.render import cell
from training.fleet.cli.report import write_site
from training.fleet.cli.standings import standings
from training.fleet.cli.status import render_status, status_data
from training.fleet.client.client import ClientError, FleetClient
from training.fleet.process.supervise import CommandSpec, LocalProcess, LocalRunner
from training.fleet.wire.results import which
from training.fleet.wire.words import duration
from training.printable import counted, one_line, printable_lines
from training.streams import replace_unprintable

WORK = HOME.absolute() / "demo"
RUNS_KEPT = 3
HOSTS = ("office-print", "spectral-desktop")
WATCHING = "gbt_realistic.ckpt.json"
OWN = "this-host"
CALLED = "The watch of this host called a person while a program here ground hashes, as a miner does."
NOT_CALLED = "The watch called no person when hashes were ground: it does not know this host (cis490 docs watch)."
FAILED = "The watch of this host failed."
REFERENCE_S, WATCHED_S, QUIET_S = 42, 30, 12
START_S = 60.0
STOP_S = 30.0
Json = dict[str, Any]
FINAL = ("completed", "failed", "cancelled")
BEGUN, HALF = "at the beginning", "when half were trained"

FAILING_JOB = """
# Added by `make demo-failure`: a trainer that fails on purpose, to show how its error reaches the operator.

[trainers.fragile]
command = ["{python}", "{file}"]
outputs = ["never.json"]

[[jobs]]
name = "fails-on-purpose"
model = "fragile"
mode = "realistic"
priority = 200
"""


@dataclass(frozen=True)
class Processed:
    """The data set that every worker of this demo trains on."""

    folder: Path

    @property
    def flags(self) -> list[str]:
        return [
            "--validation", str(self.folder / "validation_v1.parquet"),
            "--summary", str(self.folder / "features_window_v1.parquet"),
            "--tensors", str(self.folder / "tensor_window_v1"),
        ]  # fmt: skip


class Demo:
    """A run of the demo: its folder, its processes, and the client of its receiver."""

    def __init__(self, console: Console, *, with_failure: bool, place: str | None = None) -> None:
        self.console = console
        self.place = place
        self.with_failure = with_failure
        self.clock = SystemClock()
        self.runner = LocalRunner()
        self.token = secrets.token_urlsafe(32)
        self.stopping = Event()
        WORK.mkdir(exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=WORK))
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = FleetClient(self.url, operator_token=self.token, tries=1)
        self.foretold: dict[str, Json] = {}  # when → the forecast of then

    def run(self) -> int:
        """Run the whole demo and return the exit code."""
        began = self.clock.monotonic()
        data = self._build_data()
        manifest = self._write_manifest()
        self._start_receiver(manifest)
        workers = [self._start_worker(host, data) for host in HOSTS]
        jobs = self._watch(workers)
        for worker in workers:
            worker.terminate()
        good = self._fetch(jobs)
        self._say_failures(jobs)
        self.console.print(forecasts(self.foretold, jobs))
        models, site = self.client.models()["models"], self._write_site()
        watched = self._watch_this_host()
        trained, took_s = sum(job["status"] == "completed" for job in jobs), self.clock.monotonic() - began
        host = f"{counted(trained, 'models')} trained and verified, {duration(took_s)} in all. {watched}"
        self.console.print(ending(models, host, site, _command()), highlight=False)
        return 0 if good and watched != FAILED else 1

    def close(self) -> None:
        """End every process that was started."""
        self.runner.close()

    # ── setting up ──────────────────────────────────────────────────────────────────────────

    def _build_data(self) -> Processed:
        recordings = sample(WORK, self.place)
        self._step(f"Building the data set from the recorded sample ({_short(recordings)})")
        processed = Processed(WORK / "processed")
        build = self._start("build", ["training.data.build", recordings, "--out-dir", processed.folder])
        ended = self._wait_for(build)
        if not ended:
            raise DemoError(f"the data set could not be built: {self._tail('build')}")
        self.console.print(cell(self._tail("build"), "dim"))
        return processed

    def _write_manifest(self) -> Path:
        path = self.folder / "manifest.toml"
        text = shipped("examples/demo_manifest.toml").read_text(encoding="utf-8")
        if self.with_failure:
            text += FAILING_JOB.format(python=sys.executable, file=shipped("examples/failing_trainer.py"))
        path.write_text(text, encoding="utf-8")
        return path

    def _start_receiver(self, manifest: Path) -> None:
        self._step(f"Starting the receiver on {self.url} with {_short(manifest)}")
        receiver = self._start(
            "receiver",
            ["training.fleet.receiver", "--port", self.port, "--manifest", manifest,
             "--db", self.folder / "training_jobs.db", "--models-dir", self.folder / "models"],
            CIS490_OPERATOR_TOKEN=self.token,
        )  # fmt: skip
        deadline = self.clock.monotonic() + START_S
        while True:
            with contextlib.suppress(ClientError):
                self.client.health()
                return
            if receiver.poll() is not None or self.clock.monotonic() > deadline:
                raise DemoError(f"the receiver did not start: {self._tail('receiver')}")
            self.stopping.wait(0.1)

    def _start_worker(self, host: str, data: Processed) -> LocalProcess:
        self._step(f"Starting the worker {host}")
        home = self.folder / host
        return self._start(
            host,
            ["training.fleet.worker", "--receiver-url", self.url, "--host-id", host, "--repo-root", HOME,
             "--venv-python", sys.executable, "--artifacts-dir", home / "artifacts",
             "--reports-dir", home / "reports", "--state-dir", home / "state", *data.flags,
             "--heartbeat-s", 2, "--poll-s", 1],
        )  # fmt: skip

    # ── watching ────────────────────────────────────────────────────────────────────────────

    def _watch(self, workers: list[LocalProcess]) -> list[Json]:
        """Show the jobs until all have ended, and return them."""
        seen: dict[str, str] = {}
        live = Live(console=self.console, auto_refresh=False, transient=True)
        with live if self.console.is_terminal else contextlib.nullcontext():
            while True:
                page, health = self.client.jobs(), self.client.health()
                jobs: list[Json] = page["jobs"]
                if self.console.is_terminal:
                    data = status_data(jobs, page, health, whole=True)
                    live.update(render_status(data, health), refresh=True)
                else:
                    self._say_changes(jobs, seen)
                if all(job["status"] in FINAL for job in jobs):
                    return jobs
                self._foretell(jobs)
                for host, worker in zip(HOSTS, workers, strict=True):
                    if worker.poll() is not None:
                        raise DemoError(f"the worker {host} ended: {self._tail(host)}")
                self.stopping.wait(0.5)

    def _foretell(self, jobs: list[Json]) -> None:
        """Ask for the forecast twice: when both hosts train, and when half of the jobs have ended."""
        ended = sum(job["status"] in FINAL for job in jobs)
        when = HALF if 2 * ended >= len(jobs) else BEGUN
        begun = {job["host"] for job in jobs if job["host"]} >= set(HOSTS)
        if when not in self.foretold and (begun or when == HALF):
            # A question of its own: the answer to the plain one may be half a minute old.
            self.foretold[when] = self.client.forecast({"without": []})

    def _say_changes(self, jobs: list[Json], seen: dict[str, str]) -> None:
        for job in jobs:
            state = f"{job['status']} on {job['host']}" if job["host"] else job["status"]
            if seen.get(job["job_id"]) != state:
                seen[job["job_id"]] = state
                if job["status"] != "pending":
                    self.console.print(f"  {one_line(job['name'])}: {one_line(state)}", highlight=False)

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def _fetch(self, jobs: list[Json]) -> bool:
        """Fetch, verify and unpack every model; return whether each job ended as it should."""
        folder = self.folder / "fetched"
        self._step(f"Fetching every model back from the receiver into {_short(folder)} and verifying it")
        for job in jobs:
            if job["status"] == "completed":
                fetch_model(self.client, self.client.job(job["job_id"]), folder / job["name"], None)
        return all(job["status"] == ("failed" if self._meant_to_fail(job) else "completed") for job in jobs)

    @staticmethod
    def _meant_to_fail(job: Json) -> bool:
        return bool(job["name"] == "fails-on-purpose")

    def _say_failures(self, jobs: list[Json]) -> None:
        """Show jobs that failed with the command ``cis490-jobs status``, which an operator would use; nothing if none
        failed."""
        failed = [job for job in jobs if job["status"] != "completed"]
        if failed:
            self.console.print("\n[bold]$ cis490-jobs status[/]", highlight=False)
            status = self._start("status", ["training.fleet.cli", "status", "--receiver-url", self.url])
            self._wait_for(status)
            said = printable_lines(_read(self.folder / "status.log"))
            self.console.print(Text("\n".join(said)))

    def _write_site(self) -> str:
        """Write the pages of this run, which outlive its receiver; return the file with its models."""
        out = self.folder / "site"
        write_site(self.client, out, [], lambda *_: None)
        return _short(out / "models.html")

    def _watch_this_host(self) -> str:
        """Record this host's ordinary work, then watch the host with a fetched model, and stage something unusual.

        Return what happened, in a sentence. Except on Linux, or without the model, nothing is done.
        """
        found = sorted((self.folder / "fetched").rglob(WATCHING))
        if not found or sys.platform != "linux":
            return "This host was not watched: that needs Linux and the model gbt-realistic."
        self._step(f"Recording {REFERENCE_S} s of this host's ordinary work, its reference")
        reference = self.folder / "reference"
        record = ["training.data.record", "--host", OWN]
        recorded = self._start(
            "reference", [*record, "--baseline", "--duration-s", REFERENCE_S, "--out", reference, "--seed", 1]
        )
        if not self._wait_for(recorded):
            self.console.print(cell(f"This host could not be recorded: {self._tail('reference')}", "red"))
            return FAILED
        self._step(
            f"Watching this host for {WATCHED_S} s with {found[0].name.partition('.')[0]}; after {QUIET_S} s a program "
            f"here grinds hashes, as a miner does"
        )
        watch = self._start(
            "watch",
            ["training.watch", found[0], "--host", OWN, "--reference", reference, "--for", WATCHED_S,
             "--state", self.folder / "watch.json"],
        )  # fmt: skip
        self.stopping.wait(QUIET_S)
        staged = self._start(
            "staged",
            [*record, "--scenario", "hash_grind", "--duration-s", WATCHED_S - QUIET_S, "--out", self.folder / "staged"],
        )
        ended = self._wait_for(watch)
        self._wait_for(staged)
        said = _read(self.folder / "watch.log")
        self.console.print(Text("\n".join(f"  {line}" for line in printable_lines(said))))
        return (CALLED if " INCIDENT " in said else NOT_CALLED) if ended else FAILED

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _start(self, name: str, module: list[Any], **environment: str) -> LocalProcess:
        env = {key: value for key, value in os.environ.items() if not key.startswith("CIS490_")}
        argv = [sys.executable, "-m", *map(str, module)]
        spec = CommandSpec(argv, HOME.absolute(), env | environment, self.folder / f"{name}.log")
        return self.runner.start(spec)

    def _wait_for(self, process: LocalProcess) -> bool:
        while process.poll() is None:
            self.stopping.wait(0.05)
        ended = process.poll()
        return ended is not None and ended.code == 0

    def _tail(self, name: str) -> str:
        """Return the last line that a process of this run printed, or where its log is."""
        lines = [line for line in _read(self.folder / f"{name}.log").splitlines() if line.strip()]
        return lines[-1] if lines else f"see {_short(self.folder / name)}.log"

    def _step(self, sentence: str) -> None:
        self.console.print(f"[bold]•[/] {sentence}", highlight=False)


def forecasts(foretold: Mapping[str, Json], jobs: Sequence[Json]) -> Table:
    """Return a table of the predicted durations beside the real one; in a narrow terminal the words wrap, and the
    figures stay whole."""
    made = Table(title="\nForecast and what came", title_justify="left", header_style="bold", box=None)
    for column in ("forecast", "all done in", "80 %", "came"):
        made.add_column(column, no_wrap=column != "forecast", overflow="fold")
    came = max((job["finished_at"] or 0.0 for job in jobs), default=0.0)
    for when, told in foretold.items():
        now, done, low, high = (told.get(key) for key in ("now", "done_at", "done_low_at", "done_high_at"))
        if now and done and low and high:
            interval = f"{duration(low - now)} to {duration(high - now)}"
            made.add_row(cell(when), cell(duration(done - now)), cell(interval), cell(duration(came - now)))
    return made


def ending(models: list[Json], host: str, site: str, command: str) -> Group:
    """Make the last screen, of at most 23 lines of 80 columns with 14 models: a table of them, which one to use,
    ``host``, which says what happened here, and three commands. ``site`` is the file with the models' page; ``command``
    is how `cis490` is typed here."""
    after = (
        f"To plan:   {command} init",
        f"To record: {command} record --help",
        f"To look:   python3 -m webbrowser {site}",
    )
    return Group(standings(models), Text(one_line(which(models), 400)), Text(host), *map(Text, after))


def _command() -> str:
    """Return how this installation's `cis490` is typed in this folder."""
    beside = Path(sys.executable).with_name("cis490")
    if shutil.which("cis490"):
        return "cis490"
    return _short(beside) if beside.exists() else f"{_short(Path(sys.executable))} -m training.command"


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _prune() -> None:
    """Remove all but the last few runs. These are kept because people look at their models afterwards."""
    runs = sorted(WORK.glob("run-*"), key=lambda path: path.stat().st_mtime)
    for old in runs[:-RUNS_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the demo as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def main() -> int:
    replace_unprintable()
    parser = parser_of("training.command.demo", description=__doc__)
    parser.add_argument("--with-failure", action="store_true", help="add a job that fails on purpose")
    parser.add_argument("--sample", help="the sample: a folder, or the file or address of its archive")
    args = parser.parse_args()
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    demo = Demo(console, with_failure=args.with_failure, place=args.sample)
    try:
        with _interruptible():
            return demo.run()
    except DemoError as error:
        console.print(f"[red]The demo stopped:[/] {one_line(str(error))}")
        return 1
    except (ClientError, BundleRefused) as error:
        console.print(f"[red]The demo stopped:[/] {one_line(str(error))}; see {_short(demo.folder)}/*.log")
        return 1
    except KeyboardInterrupt:
        console.print("\nInterrupted; everything that was started is being stopped.")
        return 130
    finally:
        demo.close()
        _prune()


if __name__ == "__main__":
    sys.exit(main())
