"""Trainers that work for a while and then end well, badly, late, or never."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulation.faults import Fault, Weather
from simulation.tidy import is_tidy, quality
from simulation.unlike import progress
from simulation.world import Timer, World
from training.fleet.process.ended import Ended
from training.fleet.worker.state.events import Assignment

if TYPE_CHECKING:
    from simulation.moves import Course

SIGKILL = 9
_ENDINGS: dict[Fault | None, Ended] = {
    None: Ended(code=0),
    Fault.EXIT_1: Ended(code=1),
    Fault.EXIT_2: Ended(code=2),
    Fault.EXIT_65: Ended(code=65),
    Fault.EXIT_75: Ended(code=75),
    Fault.KILLED: Ended(signal=SIGKILL),
    Fault.PACK_FAILS: Ended(code=0),
    Fault.OUT_OF_RAM: Ended(signal=SIGKILL, oom_kills=1),
    Fault.OUT_OF_VRAM: Ended(code=1),
}
_LAST_LINE = {Fault.OUT_OF_VRAM: "torch.OutOfMemoryError: CUDA out of memory."}


@dataclass(frozen=True)
class Fate:
    """The fate of one run of a trainer."""

    work_s: float  # of running, not of waiting or sleeping
    ending: Fault | None  # None: it ends well
    hangs: bool
    deaf: bool
    lines: int  # how often it prints on its way …
    burst: int  # … and how many lines then

    @classmethod
    def draw(cls, chance: random.Random, weather: Weather, work_s: float, *, calm: bool) -> Fate:
        ending = None
        number = chance.random()
        for fault, probability in weather.exits.items():
            number -= probability
            if number < 0:
                ending = fault
                break
        early = ending not in (None, Fault.PACK_FAILS)
        return cls(
            work_s=work_s * (chance.random() if early else 0.8 + 0.4 * chance.random()),
            ending=ending,
            hangs=not calm and chance.random() < weather.hang,
            deaf=not calm and chance.random() < weather.deaf,
            lines=chance.randrange(8),
            burst=chance.choice([1] * 14 + [130]),
        )

    def along(self, course: Course) -> Fate:
        """Return this fate for a run that goes by steps, and does what is left of them."""
        whole_s = course.whole_s
        well = self.ending in (None, Fault.PACK_FAILS)
        work_s = whole_s if well else min(self.work_s, whole_s)
        return replace(self, work_s=work_s, lines=course.lines_in(work_s), burst=1)


class Trainer:
    """One process, with what it has done so far."""

    def __init__(
        self,
        world: World,
        assignment: Assignment,
        fate: Fate,
        *,
        printed: Callable[[list[str]], None],
        ended: Callable[[Ended, bool], None],
        moved: Callable[[Trainer], None],
        course: Course | None = None,
        stepped: Callable[[], None] = lambda: None,
        stopped: Callable[[float], None] = lambda _work_s: None,
    ) -> None:
        """``course``, where it goes by steps and saves states: ``stepped`` at the end of each, ``stopped`` when it ends
        early after so many seconds of work. ``printed`` and ``ended`` (with whether somebody had asked for it) are told
        at once, by the trainer's own files; ``moved`` whenever it starts to run or ceases to.
        """
        self.assignment = assignment
        self.asked = False  # to end
        self.fate = fate
        self.over = False
        self._world = world
        self._printed, self._ended, self._moved = printed, ended, moved
        self._course, self._stepped, self._stopped = course, stepped, stopped
        self._done_s = 0.0
        self._since = 0.0
        self._lines = 0
        self.paused = self.frozen = False
        self.running = False
        self._timer: Timer | None = None

    def start(self) -> None:
        self._update()

    def pause(self) -> None:
        self.paused = True
        self._update()

    def resume(self) -> None:
        self.paused = False
        self._update()

    def freeze(self) -> None:
        """The machine sleeps."""
        self.frozen = True
        self._update()

    def thaw(self) -> None:
        self.frozen = False
        self._update()

    @property
    def cpu_s(self) -> float:
        """Return what it has computed; nothing once it hangs."""
        done_s = self._done_s + (self._world.now - self._since if self.running else 0.0)
        return min(done_s, self.fate.work_s)

    @property
    def hung(self) -> bool:
        """It did all it will ever do, and does not end."""
        return self.fate.hangs and not self.over and self.cpu_s >= self.fate.work_s

    def stop(self, within_s: float) -> None:
        """Ask politely: a trainer that listens saves its state and exits 75."""
        self.asked = True
        if self.fate.deaf:
            self._world.fault(Fault.DEAF, "trainer", self.assignment.job_id[:8])
            return

        def leave() -> None:
            if not self.over:
                self._stopped(self.cpu_s)
            self.end(Ended(code=75))

        self._timer_for(within_s, leave)

    def kill(self) -> None:
        self.asked = True
        self._timer_for(0.05, lambda: self.end(Ended(signal=SIGKILL)))

    def vanish(self) -> None:
        """Its worker was killed, and the launcher with the group at once."""
        self.over = True
        self._update()

    def end(self, ended: Ended) -> None:
        if not self.over:
            self.over = True
            self._update()
            self._ended(ended, self.asked)

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _timer_for(self, delay_s: float, thunk: Callable[[], None]) -> None:
        def ring() -> None:
            if self.frozen:
                self._timer_for(1.0, thunk)
            else:
                thunk()

        self._world.after(delay_s, ring)

    def _update(self) -> None:
        running = not (self.over or self.paused or self.frozen)
        if running == self.running:
            return
        if self.running:
            self._done_s += self._world.now - self._since
            if self._timer is not None:
                self._timer.cancel()
        self.running, self._since = running, self._world.now
        if running:
            self._plan_next()
        self._moved(self)

    def _plan_next(self) -> None:
        """The next line, or the end."""
        fate = self.fate
        if self._course is None:
            at = fate.work_s * (self._lines + 1) / (fate.lines + 1)
        else:
            at = self._course.at(self._lines + 1) if self._lines < fate.lines else fate.work_s
        self._timer = self._world.after(max(0.0, at - self._done_s), self._reached)

    def _line(self, told: dict[str, object], epoch: int) -> str:
        fate, claim_id = self.fate, self.assignment.claim_id
        tale = progress(self._world.seed, claim_id, epoch, fate.lines * fate.burst, self._done_s)
        return json.dumps({**told, "epoch": epoch, "loss": epoch / 2, **tale})

    def _reached(self) -> None:
        self._done_s += self._world.now - self._since
        self._since = self._world.now
        if self._lines < self.fate.lines:
            claim, burst = self.assignment.claim_id[:8], self.fate.burst
            first = self._lines * burst if self._course is None else self._course.done + 1
            self._lines += 1
            self._stepped()
            self._plan_next()
            told: dict[str, object] = {"event": "epoch", "of": claim}
            if is_tidy(self._world.seed):
                told["metric"] = quality(self.assignment.job_id)
            self._printed([self._line(told, n) for n in range(first, first + burst)])
        elif self.fate.hangs:
            self._world.fault(Fault.HANG, "trainer", self.assignment.job_id[:8])
        else:
            if self.fate.ending not in (None, Fault.PACK_FAILS):
                self._world.fault(self.fate.ending, "trainer", self.assignment.job_id[:8])
            if self.fate.ending is Fault.EXIT_75:
                self._stopped(self.fate.work_s)
            if self.fate.ending in _LAST_LINE:
                self._printed([_LAST_LINE[self.fate.ending]])
            self.end(_ENDINGS[self.fate.ending])
