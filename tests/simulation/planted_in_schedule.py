"""Planted bugs: the decision by time, what was promised to hosts that wait, and its rows."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.queue.ahead import Ahead, _may_take
from training.fleet.queue.choose import Chooser, _Asking
from training.fleet.queue.declines import Declines
from training.fleet.queue.kinds import kind
from training.fleet.scheduling.rolling import Rolling
from training.fleet.scheduling.schedule import Schedule
from training.fleet.service.service import Service

SCHEDULE_BUGS = (
    # ── how long a host waits ───────────────────────────────────────────────────────────────
    Mutant(
        "a host is declined for ever",
        Schedule.decide,
        "times = (begin_s - at_s, end_s - at_s, here_s, open_s - at_s)",
        "times = (begin_s - at_s, end_s - at_s, here_s, NEVER)",
        seed=21,
    ),
    Mutant(
        "what was promised is promised anew at each ask",
        Rolling.decide,
        "before = self.promises.get((host, verdict.kind))",
        "before = None",
        seed=1,
    ),
    Mutant(
        "what was promised is not kept",
        Rolling.decide,
        "if told.open_at <= now and kind not in without:",
        "if False:",
        seed=1,
    ),
    Mutant("a start forgets what was promised", Ahead._promised, "self.declines.open().items()", "()", seed=55),
    Mutant(
        "who is declined is not told when to ask again",
        _Asking._declined,
        "max(0.0, min([*opens, *(wait_s for wait_s, _ in self._waits)]))",
        "None",
        seed=21,
    ),
    Mutant(
        "who is declined is to ask again when all is over",
        _Asking._declined,
        "max(0.0, min([*opens, *(wait_s for wait_s, _ in self._waits)]))",
        "max(opens) + verdict.end_s + 1.0",
        seed=21,
    ),
    Mutant("an end lies before its beginning", Schedule.decide, "end_s - at_s, here_s,", "-end_s, here_s,", seed=21),
    # ── for whom ────────────────────────────────────────────────────────────────────────────
    Mutant(
        "the schedule keeps a host that is gone or taken out",
        Ahead.current,
        "(host, *fleet.alive)",
        "(host, *(each for each in fleet.known or () if each.name != host.name))",
        seed=59,
    ),
    Mutant(
        "a host that is taken out stays in the schedule",
        Service._give,
        "self.fleet(but=host.name, out=out)",
        "self.fleet(but=host.name)",
        seed=7,
    ),
    Mutant(
        "the schedule looks at no fit",
        _may_take,
        "if rules.fits(needs, host) is not None:",
        "if False:",
        seed=21,
    ),
    Mutant(
        "the schedule is never made anew",
        Ahead.renew,
        "if now - self._made_at >= pause_s:",
        "if self._made_for is None:",
        seed=5,
    ),
    Mutant(
        "an estimate that is no number gets through",
        kind,
        "{host: each.mean for host, each in told.items()}",
        "{host: float('nan') if host == max(told) else each.mean for host, each in told.items()}",
        seed=21,
    ),
    # ── which job ───────────────────────────────────────────────────────────────────────────
    Mutant(
        "a lower priority goes first",
        Schedule._first_of,
        "(-self.kinds[share.kind].priority, share.begin_s, share.kind)\n",
        "(self.kinds[share.kind].priority, share.begin_s, share.kind)\n",
        seed=91,
    ),
    Mutant(
        "a kind stands for all priorities of its class",
        _Asking._head_of_kind,
        "below=priority + 1, least=priority",
        "below=priority",
        seed=1,
    ),
    Mutant(
        "taken without looking at fit",
        _Asking._head_of_kind,
        "misfit = rules.fits(needs, self._host)",
        "misfit = None",
        seed=21,
        also=Mutant("", _may_take, "if rules.fits(needs, host) is not None:", "if False:"),
    ),
    Mutant(
        "a plan of first come is decided by time",
        Chooser.choose,
        "if first_come or not fleet.alive",
        "if not fleet.alive",
        seed=2,
    ),
    # ── rows ────────────────────────────────────────────────────────────────────────────────
    Mutant("who got a job still waits", Chooser.choose, "if not isinstance(chosen, NoJob):", "if False:", seed=1),
    Mutant(
        "a row outlives the grant",
        Declines.end,
        'self._db.run("end_declines_of", host=host, now=self._clock.now())',
        "pass",
        seed=1,
    ),
    Mutant(
        "no row is written", _Asking._declined, "declines.note(self._host.name, verdict.kind, told)", "pass", seed=21
    ),
    Mutant(
        "another host's row is kept",
        Declines.note,
        'row is not None and row["by_host"] == told.by',
        "row is not None",
        seed=1,
    ),
)
