"""The artifact store without power and on a disk that fails, at every operation of an upload's whole life."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections import Counter

from conformance.memory_fs import MemoryFs, PowerCut
from test_fleet_store import Life, nth

from training.fleet.store.errors import StoreError


def power_cuts(seed: int, states: int) -> Counter[str]:
    """Cut the power at every operation of a life, ``states`` times each; half of them in the life after a crash."""
    chance = random.Random(f"{seed}/store")
    counts: Counter[str] = Counter(lives=1)
    for n in nth():
        for _ in range(states):
            fs, life = MemoryFs(), Life()
            if chance.random() < 0.5:
                fs.fail_at = chance.choice(list(nth()))
                fs.failure = chance.choice([PowerCut(), OSError(errno.EIO, "I/O")])
                with contextlib.suppress(PowerCut, StoreError):
                    Life().run(fs)
            fs.fail_at, fs.failure = n, PowerCut()
            with contextlib.suppress(PowerCut):
                life.run(fs)
            life.check(fs.after_power_cut(chance))
            counts["states"] += 1
    return counts


def failures() -> Counter[str]:
    """Every operation fails, once and for ever, as on a broken and on a full disk."""
    counts: Counter[str] = Counter()
    for error in (errno.EIO, errno.ENOSPC):
        for for_ever in (False, True):
            for n in nth():
                fs, life = MemoryFs(), Life()
                fs.fail_at, fs.for_ever, fs.failure = (n, for_ever, OSError(error, os.strerror(error)))
                with contextlib.suppress(StoreError):
                    life.run(fs)
                fs.heal()
                life.check(fs)
                counts["failures"] += 1
    return counts
