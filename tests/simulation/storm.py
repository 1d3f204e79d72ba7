"""Faults of machines and people: when they strike, and how what they broke is started again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulation import strangers
from simulation.coordinator import STATES
from simulation.faults import Fault
from simulation.host import Host, StateDirectory
from simulation.moves import is_moving
from simulation.network import Broken, Outcome, Request
from simulation.owners import is_owned

if TYPE_CHECKING:
    from simulation.run import Simulation

DAY_S = 86_400.0
_ORDERS = {"cancel": Fault.CANCEL, "requeue": Fault.REQUEUE, "hold": Fault.HOLD, "unhold": Fault.UNHOLD}


class Storm:
    """Strikes at random until the weather turns, then mends everything."""

    def __init__(self, simulation: Simulation) -> None:
        self.calm = False
        self._simulation, self._all = simulation, simulation.witness.all
        self._world = world = simulation.world
        self._scenario = scenario = simulation.scenario
        self._network, self._receiver, self._hosts = simulation.network, simulation.receiver, simulation.hosts
        self._chance = world.chance("storm")
        self._later_jobs = list(scenario.later_jobs)
        self._files = [list(scenario.jobs)]  # every plan that there was
        self._plan_chance = world.chance("plan")
        self._hold_chance = world.chance("holds")
        self._order_chance = world.chance("orders")
        self._second_chance = world.chance("second workers")
        for host in self._hosts:
            host.after_end = self._host_ended

    # ── when ────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        weather = self._scenario.weather
        machines = len(self._hosts)
        self._strike(weather.partitions_per_h * machines, self._partition)
        self._strike(weather.strangers_per_h, self._replace_receiver)
        self._strike(weather.receiver_crashes_per_h, self._crash_receiver)
        self._strike(weather.receiver_sleeps_per_h, self._sleep_receiver)
        self._strike(weather.clock_steps_per_h, self._step_clock)
        self._strike(weather.disk_full_per_h, self._fill_disk)
        if is_moving(self._scenario.seed):
            self._strike(weather.disk_full_per_h, self._lose_state, self._world.chance("lost states"))
        self._strike(weather.worker_crashes_per_h * machines, self._crash_worker)
        self._strike(weather.worker_sleeps_per_h * machines, self._sleep_worker)
        self._strike(weather.worker_stops_per_h * machines, self._stop_worker)
        self._strike(weather.operator_per_h, self._operate)
        self._strike(weather.operator_per_h, self._hold, self._hold_chance)
        if is_owned(self._scenario.seed):
            self._strike(weather.operator_per_h, self._order_host, self._order_chance)
        illness = self._scenario.illness
        self._strike(illness.sick_per_h, self._sicken)
        self._strike(illness.complaints_per_h, self._complain)
        if self._scenario.strange:
            self._world.after(5.0, self._bring_by_hand)
        if self._chance.random() < 0.3:
            self._world.after(self._chance.random() * self._scenario.stormy_s, self._clone)
        if self._chance.random() < 0.3:
            self._world.after(self._chance.random() * self._scenario.stormy_s, self._restore_worker)
        for _ in range(self._plan_chance.randint(0, 3)):
            moment = self._plan_chance.random() * self._scenario.stormy_s
            self._world.after(moment, self._edit_and_undo)
        for _ in range(4):
            moment = self._second_chance.random() * self._scenario.stormy_s
            self._world.after(moment, self._start_another)
        self._world.at(self._scenario.stormy_s, self.end)

    def _strike(self, per_h: float, blow: Callable[[], None], chance: random.Random | None = None) -> None:
        if per_h <= 0:
            return
        drawn = chance or self._chance

        def next_one() -> None:
            self._world.after(drawn.expovariate(per_h / 3600), happen)

        def happen() -> None:
            if not self.calm:
                blow()
                next_one()

        next_one()

    def end(self) -> None:
        """The weather turns: nothing new breaks, and what is broken is mended."""
        self.calm = True
        self._world.say("world", "calm begins")
        self._network.heal()
        self._receiver.disk.full = self._receiver.database.full = False
        self._receiver.fuse.put_out()
        self._receiver.wake_up()
        if not self._receiver.up:
            self._receiver.start()
        for host in self._hosts:
            host.calm = True
            host.fuse.put_out()
            host.sick = None
            host.capability = _well(host)
        self._world.after(60.0, self._look_for_what_hangs)
        self._world.after(30.0, self._release_all)

    def _release_all(self) -> None:
        """Somebody looks at the hosts that get no jobs, and at the jobs that are held, now and then."""
        if self._receiver.up:
            for row in self._receiver.database.all("quarantines"):
                self._release(row["host"])
            for row in self._receiver.database.all("host_orders"):
                self._send(Fault.RESUME_HOST, f"/v1/workers/{row['host']}/resume")
            for row in self._receiver.database.all("jobs_that_matter"):
                if row["held_at"] is not None:
                    self._order("unhold", row["job_id"])
        self._world.after(30.0, self._release_all)

    def _release(self, host: str) -> None:
        self._send(Fault.RELEASE, f"/v1/workers/{host}/release")

    def _look_for_what_hangs(self) -> None:
        """Somebody looks at last."""
        for host in self._hosts:
            for trainer in host.trainers.values():
                if trainer.fate.hangs:
                    what = self._chance.choice(["cancel", "requeue"])
                    self._order(what, trainer.assignment.job_id)

    def _lasts(self, most_s: float) -> float:
        """Something that begins now, and is over soon after the weather turns."""
        left_s = max(1.0, self._scenario.stormy_s - self._world.now)
        return 1.0 + self._chance.random() * min(most_s, left_s)

    # ── messages and the receiver ───────────────────────────────────────────────────────────

    def _partition(self) -> None:
        machine = self._chance.choice(self._hosts).machine
        self._network.cut_off(machine, self._lasts(3 * self._scenario.policy.stale_after_s))

    def _replace_receiver(self) -> None:
        what, stranger = strangers.drawn(self._chance)
        seconds = self._lasts(self._scenario.policy.stale_after_s)
        self._network.replaced(seconds, what, stranger)

    def _crash_receiver(self) -> None:
        """Now, or inside one of its next calls."""
        receiver = self._receiver
        if not receiver.up or receiver.asleep:
            return
        if self._chance.random() < 0.7:
            receiver.fuse.light(self._chance.randint(1, 150))
        else:
            self._world.fault(Fault.RECEIVER_CRASH, "receiver")
            self.receiver_crashed()

    def receiver_crashed(self) -> None:
        power = not self.calm and self._chance.random() < self._scenario.weather.power_cut
        if power:
            self._world.fault(Fault.POWER_CUT, "receiver")
        self._receiver.crash(power=power)
        self._world.after(self._lasts(2 * self._scenario.policy.stale_after_s), self._start_receiver)

    def _start_receiver(self) -> None:
        if not self._receiver.up:
            self._receiver.start()

    def _sleep_receiver(self) -> None:
        if self._receiver.up and not self._receiver.asleep:
            naps = [120.0, 3 * self._scenario.policy.stale_after_s]
            if self._scenario.slow:  # the other storms are over within hours
                naps.append(3 * DAY_S)
            seconds = self._lasts(self._chance.choice(naps))
            self._world.fault(Fault.RECEIVER_SLEEP, "receiver", f"{seconds:.0f} s")
            # Before it wakes up: what waited for that may look at once who was silent.
            self._world.after(seconds, lambda: self._all.slept(seconds))
            self._receiver.sleep(seconds)

    def _step_clock(self) -> None:
        step_s = self._chance.choice([-DAY_S, DAY_S, -60.0, 60.0, 3 * self._scenario.policy.stale_after_s])
        self._world.fault(Fault.CLOCK_STEP, "receiver", f"{step_s:+.0f} s")
        self._receiver.clock.step_s += step_s
        self._all.stepped(step_s)

    def _fill_disk(self) -> None:
        receiver = self._receiver
        if receiver.disk.full:
            return
        receiver.disk.full = True
        self._world.fault(Fault.STORE_FULL, "receiver")
        if self._chance.random() < 0.5:
            receiver.database.full = True
            self._world.fault(Fault.DATABASE_FULL, "receiver")

        def freed() -> None:
            receiver.disk.full = receiver.database.full = False

        self._world.after(self._lasts(self._scenario.policy.stale_after_s), freed)

    def _lose_state(self) -> None:
        """A chunk of a saved state rots or vanishes from the receiver's disk."""
        chance, disk = self._world.chance("lost states"), self._receiver.disk
        folders = [STATES / "pieces" / name for name in disk.names(STATES / "pieces")]
        chunks = [folder / name for folder in folders for name in disk.names(folder)]
        if not chunks or self._receiver.fuse.burns:
            return
        chunk = chance.choice(chunks)
        rots = chance.random() < 0.5
        self._world.fault(Fault.STATE_LOST, "receiver", f"{'damaged' if rots else 'gone'}: {chunk.name[:8]}")
        if rots and disk.size(chunk):
            disk.rot(chunk)
        else:
            disk.unlink(chunk)
        self._all.lost_state()

    # ── the workers ─────────────────────────────────────────────────────────────────────────

    def _host_ended(self, host: Host) -> None:
        """Its service manager, or its owner, starts it again."""
        most = 30.0 if self.calm else self._chance.choice([10.0, 2 * self._scenario.policy.stale_after_s])
        self._world.after(1.0 + self._chance.random() * most, lambda: self._start_host(host))

    def _start_host(self, host: Host) -> None:
        if host.up or host.gone:
            return
        if host.asleep:
            self._world.after(60.0, lambda: self._start_host(host))
        else:
            host.start()

    def _crash_worker(self) -> None:
        host = self._chance.choice(self._hosts)
        if not host.up or host.asleep:
            return
        if self._chance.random() < 0.6:
            host.fuse.light(self._chance.randint(1, 25))
        else:
            self._world.fault(Fault.WORKER_CRASH, host.machine)
            host.crash()

    def _sleep_worker(self) -> None:
        host = self._chance.choice(self._hosts)
        if not host.asleep:
            lease_s = self._scenario.policy.stale_after_s
            seconds = self._lasts(self._chance.choice([120.0, 1.5 * lease_s, 20 * lease_s, 3 * DAY_S]))
            self._world.fault(Fault.WORKER_SLEEP, host.machine, f"{seconds:.0f} s")
            host.sleep(seconds)

    def _stop_worker(self) -> None:
        host = self._chance.choice(self._hosts)
        if host.up:
            self._world.fault(Fault.WORKER_STOP, host.machine)
            host.tell_to_stop()

    def _restore_worker(self) -> None:
        """A machine crashes, and begins again with a state folder of some starts ago."""
        host = self._chance.choice(self._hosts)
        if host.up and not host.asleep:
            host.crash()
            back = self._chance.randint(1, 3)
            host.directory.sessions = max(0, host.directory.sessions - back)
            self._world.fault(Fault.RESTORED_DISK, host.machine)

    def _start_another(self) -> None:
        """Somebody starts a worker in folders of a running one, and finds that it does not start."""
        chance = self._second_chance
        running = [host for host in self._hosts if host.up and host.disk is not None]
        if not running:
            return
        host = chance.choice(running)
        self._all.second(host, host.disk.start_another(chance))
        self._world.fault(Fault.SECOND_WORKER, host.machine)

    def _sicken(self) -> None:
        """From now on everything dies here at once."""
        host = self._chance.choice(self._hosts)
        if host.sick is None:
            host.sick = self._chance.choice([Fault.EXIT_1, Fault.EXIT_1, Fault.SPAWN_FAILS])
            self._world.say(host.machine, f"falls sick: {host.sick}")

            def heal() -> None:
                host.sick = None

            self._world.after(self._lasts(self._scenario.stormy_s), heal)

    def _complain(self) -> None:
        """The host's own test fails for a while."""
        host = self._chance.choice(self._hosts)
        self._world.fault(Fault.COMPLAINT, host.machine)
        host.capability = {**_well(host), "healthy": False, "unhealthy_because": "no room"}

        def mended() -> None:
            host.capability = _well(host)

        self._world.after(self._lasts(3 * self._scenario.policy.stale_after_s), mended)

    def _clone(self) -> None:
        """A second machine with a living host's id: installed anew, or from a copy of its disk."""
        model = self._chance.choice(self._hosts)
        if not model.up:
            return
        directory = model.directory
        # Of a machine with two workers there are no copies here.
        copied = self._chance.random() < 0.5 and model.disk is None
        if copied:
            twin = replace(directory, saved=dict(directory.saved))
            self._world.copied.add(model.name)
            self._world.fault(Fault.COPIED_DISK, model.machine)
        else:
            twin = StateDirectory(instance_id=f"{self._chance.getrandbits(64):016x}")
            self._world.fault(Fault.CLONE, model.machine)
        clone = self._simulation.clone(model, twin)
        clone.after_end = self._host_ended
        self._hosts.append(clone)
        clone.start()

        def remove() -> None:
            self._world.say(clone.machine, "is taken off the network by its owner")
            clone.gone = True
            self._all.gone(clone)
            clone.crash()
            self._hosts.remove(clone)

        if copied or self._chance.random() < 0.5:
            self._world.after(self._lasts(self._scenario.stormy_s), remove)

    # ── the operator ────────────────────────────────────────────────────────────────────────

    def _operate(self) -> None:
        what = self._chance.choice(["cancel", "requeue", "reload", "release"])
        if what == "release":
            self._release(self._chance.choice(self._hosts).name)
            return
        if what == "reload":
            self._edit_manifest()
            if self._plan_chance.random() < 0.5:
                pause_s = self._plan_chance.random() * self._scenario.policy.stale_after_s
                self._world.after(pause_s, self._cancel_removed)
            return
        known = [job["job_id"] for job in self._receiver.jobs]
        if self._chance.random() < 0.7:
            known = self._simulation.at_risk() or known
        self._order(what, self._chance.choice(known))

    def _hold(self) -> None:
        """Hold a job for a while, or until the weather turns; a hold may hit what is held, and so may its end."""
        chance = self._hold_chance
        known = [job["job_id"] for job in self._receiver.jobs]
        if chance.random() < 0.7:
            known = self._simulation.at_risk() or known
        job_id = chance.choice(known)
        self._order("hold", job_id)
        if chance.random() < 0.8:
            pause_s = 3 * chance.random() * self._scenario.policy.stale_after_s
            self._world.after(pause_s, lambda: self._order("unhold", job_id))

    def _order_host(self) -> None:
        """Pause or drain a host for a while, or until the weather turns; an order may hit a host that is under one."""
        chance = self._order_chance
        host = chance.choice(self._hosts).name
        fault, order = chance.choice(
            [(Fault.PAUSE_HOST, "pause"), (Fault.DRAIN, "drain"), (Fault.DRAIN, "drain?now=true")]
        )
        self._send(fault, f"/v1/workers/{host}/{order}")
        if chance.random() < 0.8:
            later_s = 2 * chance.random() * self._scenario.policy.stale_after_s
            self._world.after(later_s, lambda: self._send(Fault.RESUME_HOST, f"/v1/workers/{host}/resume"))

    def _order(self, what: str, job_id: str) -> None:
        self._send(_ORDERS[what], f"/v1/job/{job_id}/{what}")

    def _send(self, fault: Fault, path: str) -> None:
        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, Broken):
                if self.calm:  # people try again
                    self._world.after(5.0, lambda: self._send(fault, path))
                return
            self._world.fault(fault, "operator", f"{path.removeprefix('/v1/')} → {outcome.status}")

        self._network.send(Request("POST", path, b"", {}, "operator"), 30.0, heard)

    def _bring_by_hand(self) -> None:
        """Look on the machines for finished work that was refused, and offer it again; now and then requeue its job."""
        for host in self._hosts:
            for delivery, body in list(host.directory.aside.values()):
                if host.up and not host.asleep:
                    host.deliver(delivery, body)
                if not self.calm and self._chance.random() < 0.2:
                    self._order("requeue", delivery.assignment.job_id)
        if not self.calm:
            self._world.after(self._lasts(30.0), self._bring_by_hand)

    def _edit_manifest(self) -> None:
        """Bring a job, take one away, or change what one asks for."""
        jobs: list[dict[str, Any]] = [dict(job) for job in self._receiver.jobs]
        if self._later_jobs:
            jobs.append(self._later_jobs.pop())
        if len(jobs) > 2 and self._chance.random() < 0.3:
            jobs.pop(self._chance.randrange(len(jobs)))
        changed = self._chance.choice(jobs)
        changed["priority"] = self._chance.choice([10, 40, 100])
        if self._chance.random() < 0.3:
            changed.pop("min_ram_gib", None)
        self._edit_names(jobs)
        self._edit_what_is_recorded(jobs)
        if self._plan_chance.random() < 0.3:  # it was a mistake
            jobs = [dict(job) for job in self._plan_chance.choice(self._files)]
        self._take(jobs)

    def _edit_names(self, jobs: list[dict[str, Any]]) -> None:
        """Swap two, or take the name of a job that left; no two may be alike in the end."""
        chance = self._plan_chance
        if len(jobs) > 1 and chance.random() < 0.5:
            one, other = chance.sample(jobs, 2)
            one["name"], other["name"] = other["name"], one["name"]
        ever = {job["name"]: None for file in self._files for job in file}
        free = [name for name in ever if name not in {job["name"] for job in jobs}]
        if free and chance.random() < 0.5:
            chance.choice(jobs)["name"] = chance.choice(free)
        seen: set[str] = set()
        for job in jobs:
            while job["name"] in seen:
                job["name"] += "-again"
            seen.add(job["name"])

    def _edit_what_is_recorded(self, jobs: list[dict[str, Any]]) -> None:
        """Change what says nothing of who may train a job, and everything of what it was trained with."""
        for job in jobs:
            if self._plan_chance.random() < 0.7:
                job["n_resamples"] = self._plan_chance.randint(1, 1000)
            if self._plan_chance.random() < 0.1:
                host = self._plan_chance.choice(self._hosts).name
                job["denied_hosts"] = self._plan_chance.choice([[], [host]])

    def _edit_and_undo(self) -> None:
        """Take jobs away, cancel them as the reload's answer says, and find that it was a mistake."""
        chance, before = self._plan_chance, self._receiver.jobs
        if self.calm or len(before) < 3:
            return
        jobs = [dict(job) for job in chance.sample(before, len(before) - chance.randint(1, 2))]
        self._edit_what_is_recorded(jobs)
        stopped = chance.choice([job["job_id"] for job in before])

        def undo() -> None:
            if chance.random() < 0.6:
                self._take(before)

        self._take(jobs)
        lease_s = self._scenario.policy.stale_after_s
        self._world.after(0.2 * lease_s, lambda: self._order("cancel", stopped))
        self._world.after(0.3 * lease_s, self._cancel_removed)
        self._world.after(0.3 * lease_s + chance.random() * lease_s, undo)

    def _take(self, jobs: list[dict[str, Any]]) -> None:
        self._files.append(jobs)
        self._receiver.jobs = jobs
        self._send(Fault.RELOAD, "/v1/manifest/reload")

    def _cancel_removed(self) -> None:
        """``cancel --removed``: whatever was in a plan and is in this one no more."""
        planned = {job["job_id"] for job in self._receiver.jobs}
        for job_id in {job["job_id"]: None for file in self._files for job in file}:
            if job_id not in planned and not self.calm:
                self._send(Fault.CANCEL, f"/v1/job/{job_id}/cancel?removed=true")


def _well(host: Host) -> dict[str, Any]:
    """Return what the machine can do when nothing is wrong with it."""
    return {key: value for key, value in host.capability.items() if "healthy" not in key}
