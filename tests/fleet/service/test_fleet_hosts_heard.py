"""A registry that has run for a while knows the same of its hosts as a new one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from training.fleet.service.hosts import HostRegistry, KnownHost, Plan

LEASE_S, WEEK_S = 10.0, 40.0
NAMES = ("desk", "lap", "pi", "pi2", "never")
PLANS = (Plan(), Plan(hosts={"never": {"cuda": False}, "Pi": {"priority": 2}}), Plan(hosts={"lap": {"priority": -1}}))


def looked_up(registry, waiting, now, out, to):
    """Ask a registry that remembers nothing of before."""
    fresh = HostRegistry(list(registry.known.values()), registry.plan)
    fresh.datasets = registry.datasets
    for name in waiting:
        fresh.wait_begins(name)
    return fresh.fleet(heard_since=now - LEASE_S, known_since=now - WEEK_S, without=out, to=to)


@given(st.integers(0, 2**32))
def test_whatever_happened_a_registry_tells_of_the_hosts_that_a_new_one_would_tell_of(seed):
    chance, now = random.Random(seed), 1000.0
    registry = HostRegistry([], Plan())
    waiting = []
    for _ in range(chance.randint(20, 80)):
        name = chance.choice(NAMES[:4])
        match chance.randrange(8):
            case 0 | 1:
                capability = {"cpu_cores": chance.randint(1, 3), "cuda_available": chance.random() < 0.3}
                registry.put(KnownHost(name, capability, now, now))
            case 2:
                registry.heard(name, now)
            case 3:
                registry.forget(name)
            case 4:
                registry.shift(step_s := chance.choice([-20.0, -4.0, 4.0, 8.0]), now + step_s)
                now += step_s
            case 5:
                registry.plan = chance.choice(PLANS)
            case 6:
                registry.datasets = chance.choice([None, frozenset(), frozenset({"a"})])
            case _ if waiting and chance.random() < 0.4:
                registry.wait_ends(waiting.pop())
            case _:
                waiting.append(name)
                registry.wait_begins(name)
        now += chance.choice([0.0, 0.0, 1.0, 1.0, 5.0, 15.0, -3.0])
        out = frozenset(chance.sample(NAMES, chance.choice([0, 0, 1])))
        to = chance.choice([None, *registry.known])
        told = registry.fleet(heard_since=now - LEASE_S, known_since=now - WEEK_S, without=out, to=to)
        expected = looked_up(registry, waiting, now, out, to)
        assert set(told.alive) == set(expected.alive)
        assert set(told.waiting) == set(expected.waiting)
        assert set(told.known or ()) == set(expected.known or ())
        assert len(told.alive) == len(expected.alive)
