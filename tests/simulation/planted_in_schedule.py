"""Planted bugs: the decision by time, and how long a host waits for a better one."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.queue.choose import Chooser, _Asking
from training.fleet.queue.kinds import kind
from training.fleet.queue.schedule_cache import Ahead
from training.fleet.scheduling.schedule import Schedule
from training.fleet.scheduling.schedule_state import Rolling
from training.fleet.service.claims import Claims

SCHEDULE_BUGS = (
    # ── how long a host waits ───────────────────────────────────────────────────────────────
    Mutant(
        "a host is declined for ever",
        Rolling.decide,
        "opens = max(before.until, before.since + verdict.here_s)",
        "opens = now + 1e9",
        seed=21,
    ),
    Mutant(
        "the wait begins again at each ask",
        Rolling.decide,
        "if before is None or",
        "if True or",
        seed=1,
    ),
    Mutant(
        "who is declined is not told when to ask again",
        _Asking._declined,
        "max(RETRY_S, again_s), told",
        "None, told",
        seed=21,
    ),
    Mutant(
        "who is declined is to ask again at once",
        _Asking._declined,
        "max(RETRY_S, again_s), told",
        "0.0, told",
        seed=21,
    ),
    Mutant(
        "an end lies before its beginning",
        Schedule.decide,
        "begin_s + share.each_s - at_s, here_s, open_s",
        "-begin_s - share.each_s, here_s, open_s",
        seed=21,
    ),
    # ── for whom ────────────────────────────────────────────────────────────────────────────
    Mutant(
        "the schedule keeps a host that is gone or taken out",
        _Asking.by_time,
        "self._fleet.alive, self._policy)",
        "[each for each in self._fleet.known or () if each.name != self._host.name], self._policy)",
        seed=None,
    ),
    Mutant(
        "a host that is taken out stays in the schedule",
        Claims._give,
        "self._fleet.fleet(but=host.name, out=out)",
        "self._fleet.fleet(but=host.name)",
        seed=None,
    ),
    Mutant(
        "the schedule looks at no fit",
        Ahead.make,
        "if rules.fits(of.job_class.needs, host) is None",
        "if True",
        seed=21,
    ),
    Mutant(
        "the schedule is never made anew",
        Ahead.renew,
        "self.is_due(policy)",
        "self._made is None",
        seed=None,
    ),
    Mutant(
        "an estimate that is no number gets through",
        kind,
        "{host: each.mean for host, each in told.items()}",
        "{host: float('nan') if host == max(told) else each.mean for host, each in told.items()}",
        seed=5,
    ),
    # ── which job ───────────────────────────────────────────────────────────────────────────
    Mutant(
        "a lower priority goes first",
        Schedule.decide,
        "(-self.kinds[s.kind].priority, s.begin_s, s.kind)",
        "(self.kinds[s.kind].priority, s.begin_s, s.kind)",
        seed=3,
    ),
    Mutant(
        "a kind stands for all priorities of its class",
        _Asking._head_of_kind,
        "below=priority + 1, least=priority",
        "below=priority",
        seed=None,
    ),
    Mutant(
        "taken without looking at fit",
        _Asking._head_of_kind,
        "misfit = rules.fits(needs, self._host)",
        "misfit = None",
        seed=21,
        also=Mutant("", Ahead.make, "if rules.fits(of.job_class.needs, host) is None", "if True"),
    ),
    Mutant(
        "a plan of first come is decided by time",
        Chooser.choose,
        "if first_come or not fleet.alive",
        "if not fleet.alive",
        seed=2,
    ),
)
