"""The daemon on a training host: it claims jobs, runs their trainers, and delivers their bundles.

The decisions are in state/slots.py and state/step.py. This file executes the decisions: one loop takes an event from an
inbox and executes the resulting actions. Requests (worker/requests.py), trainers (worker/attempt.py) and signal
handlers run outside the loop and only post events.

Start the daemon with ``python -m training.fleet.worker`` or ``cis490-trainer-worker``.
"""

import logging
import os
import queue
import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from training import logs
from training.checkout import is_ours
from training.clock import Clock, SystemClock
from training.files import cause_of, keep_others_out
from training.fleet.capability.owner import Observer as OwnerObserver
from training.fleet.client.address import Address
from training.fleet.client.client import ClientError, FleetClient, Unavailable, Unreachable
from training.fleet.client.credentials import Credentials, CredentialsError
from training.fleet.process.inhibitor import Inhibitor
from training.fleet.process.launcher import be_readable
from training.fleet.process.parents import WarmParents
from training.fleet.process.supervise import STATE_VARIABLE, LocalRunner, end_leftovers
from training.fleet.wire.attempts import SetAsideWork
from training.fleet.wire.constants import SET_ASIDE_TOLD, UNCONFIRMED
from training.fleet.worker import requests, saved_states, start_check
from training.fleet.worker.actions import Actions, Own
from training.fleet.worker.attempt import TrainerAttempt
from training.fleet.worker.certificate import CertificateKeeper
from training.fleet.worker.datasets import CacheInUse, DatasetCache
from training.fleet.worker.options import PROGRAM, Options, detect, installed_digests, options_of, parser, show_devices
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.owner_monitor import Lookout
from training.fleet.worker.requests import Asker, Calls
from training.fleet.worker.saved_states import Leftovers
from training.fleet.worker.scratch import ScratchSpace
from training.fleet.worker.self_test import SelfTest
from training.fleet.worker.set_aside import SetAside
from training.fleet.worker.sizes import grown
from training.fleet.worker.state import events as t
from training.fleet.worker.state.slots import Slots, step
from training.fleet.worker.state.state import Chance
from training.fleet.worker.state.trainer import measure_s
from training.fleet.worker.state_folder import StateFolder, StateFolderError
from training.fleet.worker.state_transfer import StateTransfer
from training.printable import printable
from training.streams import complain, ignore_strays, replace_unprintable

log = logging.getLogger("training.fleet.worker")

LOOK_AROUND_S = 5.0  # at least so often the loop looks whether the machine slept while it holds a job …
IDLE_S = 60.0  # … and while it does not
SLEPT_S = 5.0  # two clocks, one of which stands still in sleep, differ by more: we slept
BEAT_TIMEOUT_S = 10.0
PRESENT_S = 1.0  # a claim so soon after another tells the same of its host: looking takes longer than a short job
CALL_TIMEOUT_S = 30.0


class TrainerWorker:
    """Runs the worker's loop. A test may replace the parts that it uses, such as its client, runner and clock."""

    def __init__(
        self,
        options: Options,
        *,
        capability: Callable[[], Mapping[str, object]] | None = None,
        trainer_digests: Callable[[], Mapping[str, str]] = dict,
        client: Callable[[float], FleetClient] | None = None,
        runner: LocalRunner | None = None,
        clock: Clock | None = None,
        chance: Chance = random.random,
        self_test: Callable[[], str | None] | None = None,
        observer: OwnerObserver | None = None,
        inhibitor: Inhibitor | None = None,
    ) -> None:
        """``client`` makes a FleetClient with the given time-out in seconds. Raises StateFolderError, CredentialsError
        or ValueError, each with a one-sentence text."""
        self._options = options
        self._clock = clock or SystemClock()
        self._chance = chance
        self._capability = capability or (lambda: detect(options))
        self._self_test = self_test or SelfTest(options.places, options.state_dir, self._clock)
        self._complaint: str | None = None
        self._looked: tuple[float, Mapping[str, object]] | None = None  # at this host, for a claim
        credentials = None if options.tls_dir is None else Credentials(options.tls_dir)
        make = client or (
            lambda timeout_s: FleetClient(
                options.receiver_url,
                options.host_id,
                timeout_s=timeout_s,
                tls=None if credentials is None else credentials.context(),
                one_database=False,
            )
        )
        self._clients = make(CALL_TIMEOUT_S), make(BEAT_TIMEOUT_S)
        self._standing: CertificateKeeper | None = None
        if credentials is not None:
            self._standing = CertificateKeeper(
                credentials,
                options.receiver_url,
                self._clock,
                on_renewed=self._reconnect,
                on_revoked=self._on_revoked,
                granted_by=self._granted_by,
            )
        self._disk = StateFolder(options.state_dir, options.own_folders, options.host_id)
        self._datasets = DatasetCache(options.cache_dir, options.cache_bytes, in_use=self._datasets_in_use)
        if options.state_dir not in options.cache_dir.parents:  # perhaps another worker's, too
            self._hold_datasets()
        self._aside = SetAside(options.aside)
        self._outbox = Outbox(options.outbox)
        self._scratch = ScratchSpace(f"cis-{self._disk.instance_id[:8]}-")
        warm = WarmParents(self._disk.folder, STATE_VARIABLE) if options.warm_start else None
        self._runner = runner or LocalRunner(self._disk.folder, warm=warm)
        self._inbox: queue.SimpleQueue[t.Event] = queue.SimpleQueue()
        self._state = Slots.of(self._disk.session_id)
        self._looking = threading.Lock()
        self._wake_at: float | None = None
        self._exit: t.EndProcess | None = None
        self._turn = threading.Lock()
        asker = Asker(
            self._disk.instance_id,
            self._disk.session_id,
            self._present,
            trainer_digests,
            self._lying_here,
            Leftovers(options.resume, self._clock.now, self._resumes_in_use).drop,
        )
        self._calls = Calls(*self._clients, asker, self._outbox.read, self.post)
        self._actions = Actions(
            self._calls, self._outbox, attempt=self._new_attempt, in_hand=self._in_hand, own=self._own
        )
        self._lookout = Lookout(
            observer or OwnerObserver(self._clock),
            Inhibitor() if inhibitor is None else inhibitor,
            lambda: self._state.terms,
            lambda: bool(self._state.works),
            self.post,
        )

    def post(self, event: t.Event) -> None:
        """Put an event into the loop's inbox; any thread and any signal handler may call this."""
        self._inbox.put(event)

    def run(self) -> int:
        """Run the loop until the state machine ends the process; return the exit code."""
        url = self._options.receiver_url
        log.info("host %s asks %s for work", self._options.host_id, url)
        if not Address.of(url).private:
            log.warning("the program that answers at %s decides what runs here; join over https instead", url)
        asleep_s = self._asleep_s()
        if self._standing is not None:
            self._standing.start()
        self._lookout.start()
        try:
            if leftovers := end_leftovers(self._disk.folder):
                log.warning("ended %d processes of an earlier session", len(leftovers))
            self._scratch.clear()
            self._handle(self._actions.beginning(self._disk.load_all(), self._disk.load_alone()))
            while self._exit is None:
                event = self._next_event()
                slept_s, asleep_s = self._asleep_s() - asleep_s, self._asleep_s()
                if slept_s > SLEPT_S:
                    self._handle(t.Slept(slept_s))
                self._handle(event)
        finally:
            self._lookout.stop()
            if self._standing is not None:
                self._standing.stop()
            self._reconnect()
            self._runner.close()
            self._scratch.clear()  # the attempts' threads end with this process
            self._datasets.close()
            self._disk.close()
        if self._exit.sentence:
            complain(f"{PROGRAM}: {self._exit.sentence}")
        return self._exit.code

    def _hold_datasets(self) -> None:
        """Lock the folder of data sets. Raises StateFolderError if another worker uses this folder, because every job
        with a data set would fail."""
        try:
            self._datasets.hold()
        except CacheInUse as error:
            self._disk.close()
            raise StateFolderError(str(error)) from None
        except OSError as error:
            log.warning("%s cannot be used yet: %s", self._datasets.folder, cause_of(error, self._datasets.folder))

    def _reconnect(self) -> None:
        """Close the clients' idle connections, so that new ones use the renewed certificate."""
        for client in self._clients:
            client.close()

    def _on_revoked(self, sentence: str) -> None:
        """Stop the worker and its trainers as a signal does, because an operator revoked this host."""
        log.error("%s", sentence)
        self.post(t.SignalReceived())

    def _granted_by(self) -> str | None:
        """Return the id of the database that granted the current work, None without work; other threads call this
        too."""
        return next((each.database_id for each in self._in_hand()), None)

    def _in_hand(self) -> list[t.Assignment]:
        """Return the assignments of the current jobs; other threads call this too."""
        return [work.assignment for work in self._state.works.values()]

    def _datasets_in_use(self) -> set[str]:
        return {each.dataset for each in self._in_hand() if each.dataset is not None}

    def _resumes_in_use(self) -> set[Path]:
        return {saved_states.folder_of(self._options.resume, each.job_id) for each in self._in_hand()}

    def _asleep_s(self) -> float:
        return self._clock.monotonic() - self._clock.awake()

    def _next_event(self) -> t.Event:
        patience = LOOK_AROUND_S if self._state.works else IDLE_S
        if self._wake_at is not None:
            patience = min(patience, max(0.0, self._wake_at - self._clock.monotonic()))
        try:
            return self._inbox.get(timeout=patience)
        except queue.Empty:
            return t.Tick()

    def _handle(self, event: t.Event) -> None:
        now = self._clock.monotonic()
        self._state, actions = step(self._state, event, now, self._options.settings, self._chance)
        for action in actions:
            try:
                self._actions.perform(action)
            except Exception as error:  # what a trainer or the disk did to one action must not end the others
                log.error("%s: %s; the worker continues", type(action).__name__, str(error) or type(error).__name__)
                log.debug("the action failed", exc_info=True)

    def _own(self, action: Own) -> None:
        """Execute an action that concerns the worker itself."""
        match action:
            case t.Persist():
                self._save(
                    partial(self._disk.save, action.saved, action.slot), ": a crash now may cost the current job"
                )
            case t.KeepAside():
                self._keep(action)
            case t.RememberAlone():
                self._save(partial(self._disk.save_alone, action.jobs))
            case t.WakeAt():
                self._wake_at = action.at
            case t.Say():
                log.log(logging.WARNING if action.warning else logging.INFO, "%s", action.text)
            case t.KeepAwake():
                self._lookout.keep_awake(action.on)
            case t.EndProcess():
                self._exit = action

    def _new_attempt(self, assignment: t.Assignment) -> TrainerAttempt:
        resume = saved_states.folder_of(self._options.resume, assignment.job_id)
        return TrainerAttempt(
            assignment,
            self._options.places,
            resume,
            self._outbox,
            self._runner,
            self.post,
            fetch=lambda dataset_id, order: self._datasets.provide(
                dataset_id, self._clients[0].about(assignment.database_id).datasets, order
            ),
            doubt=self._datasets.doubt,
            measure_s=measure_s(assignment, self._options.settings),
            transfer=StateTransfer(
                assignment,
                resume,
                self._options.host_id,
                lambda: self._clients[0].about(assignment.database_id).state(assignment.job_id, assignment.claim_id),
                self._turn,
            ),
            variables=lambda: self._part_of(assignment),
            scratch=self._scratch,
        )

    def _part_of(self, assignment: t.Assignment) -> dict[str, str]:
        """Check again that a trainer about to start fits on the host; return the environment variables that limit it to
        its booking.

        Where nothing was booked or the host runs one job at a time, there are no variables. Raises NoRoomError.
        """
        booked, state = t.booking_of(assignment), self._state
        if booked is None:
            return {}
        others = state.held_beside(assignment.claim_id)
        if not others and booked.gpu is None and state.allowed < 2:
            return {}
        with self._looking:  # two that begin at once
            capability = self._capability()
        start_check.check(booked, capability, others)
        if state.allowed < 2:
            return {}
        own = bool(assignment.spec.get("trainer"))
        return start_check.variables(booked, capability, os.environ.get(start_check.VISIBLE), own=own)

    def _save(self, save: Callable[[], None], cost: str = "") -> None:
        try:
            save()
        except OSError as error:
            log.warning("%s cannot be written (%s)%s", self._disk.folder, cause_of(error, self._disk.folder), cost)

    def _keep(self, action: t.KeepAside) -> None:
        """Move a refused bundle to the folder ``set-aside``. If the move fails, only the trainer's unpacked files
        remain, among those of the newest attempts."""
        try:
            place = self._aside.put(action.delivery, action.why, self._clock.now())
        except OSError as error:
            log.error("finished work could not be kept: %s", error)
        else:
            name = action.delivery.assignment.name
            log.warning("%s is kept in %s; `%s` offers it again", name, place, self._options.typed("--deliver", name))

    def _lying_here(self) -> list[SetAsideWork]:
        """Return descriptions of the newest refused bundles stored here, at most :data:`SET_ASIDE_TOLD`, for a
        claim."""
        return [
            SetAsideWork.of(one.delivery.assignment, size=one.delivery.size, why=one.why[:300])
            for one in self._aside.kept()[-SET_ASIDE_TOLD:]
        ]

    def _present(self) -> Mapping[str, object]:
        """Return this host's capability, at most :data:`PRESENT_S` old, and its data sets, for a claim; the thread that
        sends the claim calls this."""
        now = self._clock.monotonic()
        if self._looked is None or now - self._looked[0] >= PRESENT_S:
            self._looked = (now, self._look())
        return {**self._looked[1], "data_sets": self._datasets.told()}

    def _look(self) -> Mapping[str, object]:
        complaint = self._self_test()
        if complaint != self._complaint:
            self._complaint = complaint
            if complaint is None:
                log.info("this host is well again")
            else:
                log.warning("this host gets no work: %s", complaint)
        capability = self._capability()
        return {**capability, "healthy": complaint is None, "unhealthy_because": complaint}


def _new_identity(options: Options) -> int:
    """Give the state folder a new instance id and delete its saved jobs and output. Raises StateFolderError while a
    worker runs there, or if the folder cannot be written."""
    disk = StateFolder(options.state_dir)
    try:
        made = disk.begin_anew()
    except OSError as error:
        raise StateFolderError(f"{disk.folder} cannot be written ({cause_of(error, disk.folder)})") from None
    finally:
        disk.close()
    print(f"{disk.folder} is installation {made[:8]} now; give it a --host-id of its own as well")
    return 0


def doctor(options: Options) -> int:
    """Print this worker's disk use and its self-test's result; return 0, or 1 if the self-test finds a fault."""
    for each in grown(options):
        if each.count:
            print(printable(each.sentence))
    for held in DatasetCache(options.cache_dir, options.cache_bytes).held():
        print(printable(held.sentence))
    complaint = SelfTest(options.places, options.state_dir, SystemClock())()
    print("this host is well" if complaint is None else f"this host gets no work: {printable(complaint)}")
    return 0 if complaint is None else 1


def deliver(options: Options, ref: str) -> int:
    """Send the stored bundle that ``ref`` names to the receiver again. Return 0 if the bundle is accepted, 1 if the
    bundle is refused or cannot be read. Return 2 unless ``ref`` names exactly one stored bundle. Return 75 if the
    receiver is not reached or cannot take the bundle now, as while an operator there must accept it first."""
    aside = SetAside(options.aside)
    found = aside.named(ref)
    if len(found) != 1:
        known = ", ".join(f"{one.folder.name} ({one.delivery.assignment.name})" for one in found or aside.kept())
        complain(f"{PROGRAM}: {_not_one(ref, options.aside, known, several=len(found) > 1)}")
        return 2
    (work,) = found
    tls = None if options.tls_dir is None else Credentials(options.tls_dir).context()
    job = work.delivery.assignment
    try:
        with closing(FleetClient(options.receiver_url, options.host_id, tls=tls)) as client:
            receipt = requests.deliver(client, work.delivery)
    except (ClientError, OSError) as error:
        complain(f"{PROGRAM}: {printable(error)}; the bundle is kept in {work.folder}")
        return 75 if isinstance(error, Unreachable | Unavailable) else 1
    if receipt.status == UNCONFIRMED:
        waits = "the receiver does not know its claim, so that an operator there must accept it"
        complain(f"{PROGRAM}: {job.name} waits: {waits}; the bundle is kept in {work.folder}")
        return 75
    aside.forget(work)
    print(f"{job.name} is completed with the model that was kept here (attempt {receipt.attempt})")
    return 0


def _not_one(ref: str, folder: Path, known: str, *, several: bool) -> str:
    if several:
        return f"{ref!r} may mean several: {known}; name one of these folders"
    return f"nothing of {ref!r} is kept in {folder}; there is {known or 'nothing at all'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon, or the one task that a flag names; return its exit code. The daemon ends with 0 after a signal or
    a drain, 1 if the receiver refuses this session as superseded. The daemon ends with 2 if it cannot start, or if the
    receiver refuses its claims for a reason that repeating would not change."""
    replace_unprintable()
    ignore_strays()
    args = parser().parse_args(argv)
    logs.configure(args.log_level)
    keep_others_out()
    show_devices(args.cuda_devices, os.environ)
    if not args.debuggable:  # before a key is read; the worker's trainers may run beside any of these tasks
        be_readable(False)
    try:
        options = options_of(args)
        if args.new_identity:
            return _new_identity(options)
        if args.doctor:
            return doctor(options)
        if args.deliver is not None:
            return deliver(options, args.deliver)
        own = is_ours(options.places.repo_root)
        worker = TrainerWorker(options, trainer_digests=installed_digests if own else dict)
    except (StateFolderError, CredentialsError, ValueError) as error:
        complain(f"{PROGRAM}: {error}")
        return 2
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: worker.post(t.SignalReceived()))
    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
