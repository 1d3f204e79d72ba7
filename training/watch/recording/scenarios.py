"""Scenarios: the phases of a recording, each with the behaviour that runs in it; the phases determine the labels.

A scenario is named after its main behaviour, except for ``idle`` and ``ordinary``. In a malicious-like scenario the
host idles or works harmlessly before and after the malicious behaviour, so that only some phases are malicious. All
times and intensities are drawn from the generator that the caller gives; equal seeds and arguments give equal phases.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from training.watch.recording.behaviours import Behaviour
from training.watch.recording.workloads import BEHAVIOURS

IDLE = "idle"
ORDINARY = "ordinary"
SHORTEST_S = 10.0
ALONE = 0.55  # of all active phases; in the others something harmless runs beside


class Phase(NamedTuple):
    """A part of an episode, from ``start_s`` (seconds since the episode began) until the next phase starts or the
    episode ends.

    During the phase the episode has the label ``name``, and ``behaviour`` (None: nothing) runs at ``intensity`` between
    0 and 1. ``company`` is a harmless behaviour that runs at the same time, and does not change the label.
    """

    start_s: float
    name: str
    behaviour: str | None = None
    intensity: float = 0.0
    seed: int = 0
    company: Phase | None = None

    def all(self) -> tuple[Phase, ...]:
        """Return this phase and its ``company``, without those that run no behaviour."""
        return tuple(p for p in (self, self.company) if p is not None and p.behaviour is not None)


SCENARIOS = {
    IDLE: Behaviour(IDLE, False, "nothing beyond what the host does anyway"),
    **BEHAVIOURS,
    ORDINARY: Behaviour(ORDINARY, False, "a host's everyday mix of light work"),
}


def phase_labels() -> dict[str, str]:
    """Return the class of each phase name, ``benign`` or ``malicious``.

    The classes of the phases that a recording has are written into its ``meta.json``.
    """
    return {n: "malicious" if one.malicious else "benign" for n, one in SCENARIOS.items() if n != ORDINARY}


def draw_phases(
    scenario: str, duration_s: float, rng: random.Random, *, ordinary: tuple[str, ...] = ()
) -> tuple[Phase, ...]:
    """Draw the phases of one episode at random; return them in time order, the first at 0.

    ``ordinary`` names the behaviours of this host's everyday work (default: all benign ones), for the scenario
    ``ordinary`` only. Raises ValueError for an unknown scenario or a duration below ten seconds.
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"There is no scenario {scenario!r}; there are: {', '.join(SCENARIOS)}.")
    if duration_s < SHORTEST_S:
        raise ValueError(
            f"An episode needs at least {SHORTEST_S:.0f} s to hold its phases; {duration_s:g} s is too short."
        )
    if scenario == IDLE:
        return (Phase(start_s=0.0, name=IDLE),)
    if scenario == ORDINARY:
        return _everyday(duration_s, rng, ordinary or _benign())
    if SCENARIOS[scenario].malicious:
        return _attack(scenario, duration_s, rng)
    return _work(scenario, duration_s, rng)


def _benign() -> tuple[str, ...]:
    return tuple(name for name, b in BEHAVIOURS.items() if not b.malicious)


def _active(name: str, start_s: float, rng: random.Random, alone: float) -> Phase:
    """Return a phase with a random intensity, more often a low one; with the probability 1 - ``alone``, a random benign
    behaviour runs at the same time."""
    company = None
    if rng.random() >= alone:
        company = running(rng.choice(_benign()), start_s, rng.uniform(0.05, 0.7), rng)
    return running(name, start_s, 0.05 + 0.95 * rng.random() ** 1.5, rng, company)


def running(name: str, start_s: float, intensity: float, rng: random.Random, company: Phase | None = None) -> Phase:
    seed = rng.getrandbits(31)
    return Phase(start_s=start_s, name=name, behaviour=name, intensity=intensity, seed=seed, company=company)


def _idle(start_s: float) -> Phase:
    return Phase(start_s=start_s, name=IDLE)


def _work(name: str, duration_s: float, rng: random.Random) -> tuple[Phase, ...]:
    """Draw the phases of a benign scenario: idle, the work, in half of the cases a pause and the work again, and in
    most cases idle at the end."""
    begin, end = duration_s * rng.uniform(0.05, 0.15), duration_s * rng.uniform(0.92, 1.0)
    phases = [_idle(0.0), _active(name, begin, rng, ALONE)]
    if rng.random() < 0.5:
        pause = duration_s * rng.uniform(0.4, 0.55)
        phases += [_idle(pause), _active(name, pause + duration_s * 0.08, rng, ALONE)]
    return (*phases, _idle(end)) if end < duration_s * 0.98 else tuple(phases)


def _attack(name: str, duration_s: float, rng: random.Random) -> tuple[Phase, ...]:
    """Draw the phases of a malicious-like scenario: idle, in half of the cases a harmless behaviour, the malicious one,
    a pause, the malicious one again, idle."""
    cover_s, strike_s = duration_s * rng.uniform(0.03, 0.08), duration_s * rng.uniform(0.22, 0.32)
    lull_s, again_s = duration_s * rng.uniform(0.56, 0.62), duration_s * rng.uniform(0.68, 0.72)
    end_s = duration_s * rng.uniform(0.9, 0.97)
    phases = [_idle(0.0)]
    if rng.random() < 0.5:
        phases.append(_active(rng.choice(_benign()), cover_s, rng, ALONE))
    phases += [_active(name, strike_s, rng, ALONE), _idle(lull_s), _active(name, again_s, rng, ALONE), _idle(end_s)]
    return tuple(phases)


def _everyday(duration_s: float, rng: random.Random, behaviours: tuple[str, ...]) -> tuple[Phase, ...]:
    """Draw phases of the given behaviours, one at a time, alternating with idle ones."""
    phases, at = [_idle(0.0)], duration_s * rng.uniform(0.02, 0.1)
    while at < duration_s * 0.95:
        phases.append(_active(rng.choice(behaviours), at, rng, 1.0))
        at += duration_s * rng.uniform(0.1, 0.25)
        phases.append(_idle(min(at, duration_s * 0.99)))
        at += duration_s * rng.uniform(0.03, 0.12)
    return tuple(phases)
