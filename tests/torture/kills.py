"""``kill -9`` at named places: a receiver and three workers that die and come back while jobs flow, and a verdict."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from process_fleet import until
from processes import nap

from torture.fleet import Fleet, dies
from torture.points import LAUNCHER, NAMES, RECEIVER, TRAINER, WORKER
from torture.verdict import all_told, judge, nothing_left
from training.fleet.client.answers import ClientError

HOSTS = ("one", "two", "three")
UNFINISHED = 2  # jobs that shall always be there to be claimed
GIVE_UP_S = 120.0  # a place that is not passed within this (a busy machine takes long) is tried again, and not counted
LEASE_S = 4.0  # real hosts are given up for lost in this test too
CHATTER = 3000  # lines: far more than the last messages of an attempt carry
BEHAVIOURS = ("well", "well", "well", "well", "fail-once", "bad-data", "linger")


@dataclass
class Victim:
    """One process and the place at which it will die."""

    process: subprocess.Popen[bytes]
    place: str = ""
    since: float = field(default_factory=time.monotonic)
    leaving: bool = False  # it was asked to
    held_until: float | None = None  # suspended since a moment


class Killing:
    """Kills until every place of ``places`` has been died at, then lets everything finish and judges."""

    def __init__(self, fleet: Fleet, places: list[str], seed: int) -> None:
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.todo = {
            "receiver": deque(place for place in places if place in RECEIVER),
            "worker": deque(place for place in places if place in WORKER),
            "trainer": deque(place for place in places if place in TRAINER),
            "launcher": deque(place for place in places if place in LAUNCHER),
        }
        self.died: Counter[str] = Counter()
        self.missed = 0
        self.victims: dict[str, Victim] = {}
        self.next_stir = self.next_feed = 0.0

    def run(self) -> Counter[str]:
        self._receiver()
        for host in HOSTS:
            self._worker(host)
        while any(self.todo.values()) or any(victim.place for victim in self.victims.values()):
            self._bury()
            with contextlib.suppress(ClientError):
                self._feed()
                self._stir()
            self._kill_launcher()
            nap(0.03)
        self._finish()
        return Counter({f"at {place}": count for place, count in self.died.items()}) + Counter(
            kills=self.died.total(), missed=self.missed, jobs=len(self.fleet.jobs)
        )

    # ── who dies ────────────────────────────────────────────────────────────────────────────

    def _receiver(self) -> None:
        place = self.todo["receiver"].popleft() if self.todo["receiver"] else ""
        if place == "database.schema":
            self._fresh_database_dies()
            place = ""
        start = self.fleet.start_receiver(self._armed(place), wait=False)
        self.victims["receiver"] = Victim(start, place)
        if self.fleet.url:
            return
        # The first start finds a free port; later ones take the same.
        start.kill()
        start.wait()
        if place:
            self.todo["receiver"].appendleft(place)
        self.victims["receiver"] = Victim(self.fleet.start_receiver())

    def _fresh_database_dies(self) -> None:
        """Killed while its tables are made, in a folder that has none yet."""
        with Fleet() as other:
            process = other.start_receiver(f"database.schema:{self.chance.randint(1, 12)}", wait=False)
            dies(process, "database.schema")
            other.start_receiver()
            assert other.counts()["pending"] == 0
        self.died["database.schema"] += 1

    def _worker(self, host: str) -> None:
        place = self.todo["worker"].popleft() if self.todo["worker"] else ""
        self.victims[host] = Victim(self.fleet.start_worker(host, self._armed(place)), place)

    def _armed(self, place: str) -> str:
        often = place.split(".")[0] in ("writer", "receiver", "worker", "store", "client")
        return f"{place}:{self.chance.randint(1, 4 if often else 2)}" if place else ""

    def _bury(self) -> None:
        """Count who has died, and start them again for the next place."""
        for name, victim in list(self.victims.items()):
            over = victim.process.poll()
            if victim.held_until is not None and time.monotonic() > victim.held_until:
                victim.held_until = None
                victim.process.send_signal(signal.SIGCONT)
            late = victim.place and time.monotonic() - victim.since > GIVE_UP_S
            idle = not victim.place and self._wanted(name)
            if over is None and not late and not idle:
                continue
            if over is None:
                victim.process.kill()  # counted as what it is: a kill at no place in particular
                victim.process.wait()
                self.died["anywhere"] += 1
                if late:
                    self.missed += 1
                    self.todo["receiver" if name == "receiver" else "worker"].append(victim.place)
            elif over == -signal.SIGKILL and victim.place:
                self.died[victim.place] += 1
            elif over in (0, -signal.SIGTERM) and victim.leaving:
                if victim.place:
                    self.todo["worker"].append(victim.place)
            else:
                raise AssertionError(
                    f"{name} ended with {over}, to die at {victim.place or 'no place'}: {self.fleet.log(name)[-1500:]}"
                )
            if name == "receiver":
                self._receiver()
            else:
                self._worker(name)

    def _wanted(self, name: str) -> bool:
        return bool(self.todo["receiver" if name == "receiver" else "worker"])

    def _kill_launcher(self) -> None:
        if not self.todo["launcher"]:
            return
        place = self.todo["launcher"][0]
        for host in HOSTS:
            for pid in self.fleet.launchers_of(self.victims[host].process):
                busy = bool(_children(pid))
                if busy == (place == "launcher.training"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.died[place] += 1
                        self.todo["launcher"].popleft()
                    return

    # ── what keeps them busy ────────────────────────────────────────────────────────────────

    def _feed(self) -> None:
        if time.monotonic() < self.next_feed:
            return
        self.next_feed = time.monotonic() + 0.2
        missing = UNFINISHED - self.fleet.counts()["pending"]
        if missing <= 0:
            return
        for _ in range(missing):
            hyper = {"behave": self.chance.choice(BEHAVIOURS), "go": str(self.fleet.folder / "go")}
            if self.todo["trainer"]:
                hyper = {"behave": "well", "die": self.todo["trainer"].popleft()}
                self.died[hyper["die"]] += 1  # it dies the first time it is tried, on every host
            if any("SendOutput" in victim.place for victim in self.victims.values()):
                hyper["chatter"] = str(CHATTER)
            hyper["bytes"] = str(self.chance.choice((20_000, 1_500_000)))
            self.fleet.add(reload=False, **hyper)
        self.fleet.client.reload()

    def _stir(self) -> None:
        """Now and then the operator cancels or requeues; workers are stopped politely, or held beyond their lease."""
        if time.monotonic() < self.next_stir:
            return
        self.next_stir = time.monotonic() + 0.5
        wanted = {victim.place.rpartition(".")[2] for victim in self.victims.values()}
        what = self.chance.choice(("cancel", "requeue", "go", "stop", "hold"))
        what = next((act for act in ("cancel", "requeue") if act in wanted), what)
        if what in ("cancel", "requeue"):
            pending = self.fleet.client.jobs(status="pending" if what == "cancel" else None)["jobs"]
            if pending:
                job = self.chance.choice(pending)["name"]
                getattr(self.fleet.client, what)(job)
        if what == "go":
            (self.fleet.folder / "go").touch()
            nap(0.2)
            (self.fleet.folder / "go").unlink()
        victim = self.victims[self.chance.choice(HOSTS)]
        if victim.process.poll() is not None:
            return
        if what == "stop" and "hand_back" in wanted:
            victim.leaving = True
            victim.process.terminate()
        if what == "hold" and "sweep" in wanted and victim.held_until is None:
            victim.held_until = time.monotonic() + LEASE_S + 1.0
            victim.process.send_signal(signal.SIGSTOP)

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def _finish(self) -> None:
        (self.fleet.folder / "go").touch()
        for victim in self.victims.values():
            if victim.held_until is not None:
                victim.process.send_signal(signal.SIGCONT)
        for host in HOSTS:
            if self.victims[host].leaving:
                self.victims[host].process.wait(60)
                self._worker(host)
        until(lambda: self.fleet.counts() is not None, "the receiver answers")
        self.fleet.all_over(120.0)
        all_told(self.fleet)
        for host in HOSTS:
            process = self.victims[host].process
            process.send_signal(signal.SIGCONT)
            process.terminate()
            code = process.wait(60)
            # One that was started a moment ago has not yet learned to leave politely.
            told = code in (0, -signal.SIGTERM)
            assert told, f"{host} left with {code}: {self.fleet.log(host)[-1500:]}"
        self.fleet.receiver.terminate()
        code = self.fleet.receiver.wait(60)
        assert code == 0, f"the receiver left with {code}: {self.fleet.log('receiver')[-1500:]}"
        nothing_left(self.fleet)
        judge(self.fleet)


def _children(pid: int) -> list[str]:
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/task/{pid}/children").open() as file:
        return file.read().split()
    return []


def kill_everywhere(seed: int, names: Sequence[str] = NAMES) -> Counter[str]:
    """Kill once at each place; how often at which."""
    places = list(names)
    random.Random(seed).shuffle(places)
    with Fleet(policy={"stale_after_s": LEASE_S}) as fleet:
        return Killing(fleet, places, seed).run()
