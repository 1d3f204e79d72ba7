"""The promises about trainers: what runs where, and at whose expense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.witness import Checker, Observation
from sim.world import World

from training.fleet.worker_types import OnSilence, Settings

if TYPE_CHECKING:
    from sim.host import Host
    from sim.trainer import Trainer

SLACK_S = 5.0  # until a worker that wakes up has looked at its lease


class OneTrainerAtATime(Checker):
    """With ``on_silence = "pause"`` no trainer runs whose claim was swept: two copies never run at once.

    Without it, the time for which two ran is counted and shown. What the operator took away, and what a copy of the
    same installation took over, is known to its worker only at its next heartbeat, and is not promised.
    """

    def __init__(self, world: World, settings: Settings) -> None:
        super().__init__(world)
        self._pausing = settings.on_silence is OnSilence.PAUSE
        self._running: dict[str, list[Trainer]] = {}  # job → its running trainers
        self._swept: set[str] = set()
        self._double_since: dict[str, float] = {}

    def moved(self, host: Host, trainer: Trainer) -> None:
        job_id = trainer.assignment.job_id
        running = self._running.setdefault(job_id, [])
        if trainer.running:
            running.append(trainer)
            self._look_soon(trainer)
        elif trainer in running:
            running.remove(trainer)
        if len(running) > 1:
            self._double_since.setdefault(job_id, self.world.now)
        elif job_id in self._double_since:
            self.world.tally["trained twice (s)"] += int(
                self.world.now - self._double_since.pop(job_id)
            )

    def see(self, seen: Observation) -> None:
        if seen.call.name == "tick":
            for claim in sorted(seen.before.live.keys() - seen.after.live.keys()):
                self._swept.add(claim)
                for trainers in self._running.values():
                    for trainer in trainers:
                        if trainer.assignment.claim_id == claim:
                            self._look_soon(trainer)
        for claim in seen.after.live.keys() & self._swept:
            self._swept.discard(claim)  # readopted

    def _look_soon(self, trainer: Trainer) -> None:
        if not self._pausing:
            return
        claim = trainer.assignment.claim_id

        def look() -> None:
            runs = trainer.running and claim in self._swept
            self.demand(not runs, f"the trainer of the swept claim {claim[:8]} runs")

        if claim in self._swept or trainer.running:
            self.world.after(SLACK_S, look)
