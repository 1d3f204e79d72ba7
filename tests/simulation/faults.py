"""Faults, as a closed list, with their rates, which every seed draws."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """Every kind is counted when it takes effect, and a run over many seeds in which one never did is refused."""

    # messages
    LOST_REQUEST = "lost request"
    LOST_ANSWER = "lost answer"
    DUPLICATE = "duplicated request"
    DELAY = "delayed message"
    REORDER = "late request"  # arrives after its sender gave up and went on
    STRANGER = "somebody else answers"
    PARTITION = "partition"  # a request that met one
    CUT_UPLOAD = "cut upload"
    STALLED_UPLOAD = "stalled upload"  # its connection wakes up after its successor
    FLIPPED_BIT = "flipped bit"
    # the receiver's machine
    RECEIVER_CRASH = "receiver crash"
    RECEIVER_CRASH_INSIDE = "receiver crash inside a call"
    POWER_CUT = "power cut"
    RECEIVER_SLEEP = "receiver sleep"
    CLOCK_STEP = "clock step"
    STORE_FULL = "store full"
    DATABASE_FULL = "database full"
    STATE_LOST = "saved state lost"  # or damaged, on the receiver's disk
    # the workers' machines
    WORKER_CRASH = "worker crash"
    WORKER_SLEEP = "worker sleep"
    WORKER_STOP = "worker told to stop"
    CLONE = "cloned host id"  # another installation with a living host's id
    COPIED_DISK = "copied disk"  # the same installation twice
    RESTORED_DISK = "restored disk"  # a state folder of some starts ago
    SECOND_WORKER = "second worker"  # started in a folder that one uses already
    # trainers
    HANG = "trainer hangs"
    DEAF = "trainer ignores signals"
    EXIT_1 = "trainer exit 1"
    EXIT_2 = "trainer exit 2"
    EXIT_65 = "trainer exit 65"
    EXIT_75 = "trainer exit 75"
    KILLED = "trainer killed"
    SPAWN_FAILS = "trainer cannot start"
    PACK_FAILS = "nothing to pack"
    OUT_OF_RAM = "trainer out of memory"
    OUT_OF_VRAM = "trainer out of GPU memory"
    # what the fleet heals by itself
    SICK_HOST = "trainer on a sick host"
    COMPLAINT = "failed self-test"
    POISON = "job crashes its host"
    # the operator
    CANCEL = "operator cancels"
    REQUEUE = "operator requeues"
    HOLD = "operator holds"
    UNHOLD = "operator unholds"
    RELOAD = "operator reloads"
    RELEASE = "operator releases"
    PAUSE_HOST = "operator pauses a host"
    DRAIN = "operator drains a host"
    RESUME_HOST = "operator resumes a host"
    # the machines' owners
    OWNER = "owner needs the machine"
    WOKEN = "host is woken"


@dataclass(frozen=True)
class Weather:
    """Rates of the faults. Probabilities are per message or attempt, ``*_per_h`` per machine and hour."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0  # how often a message is slow …
    delay_s: float = 0.0  # … and by how much at most
    late: float = 0.0
    late_s: float = 0.0
    cut: float = 0.0
    stall: float = 0.0
    flip: float = 0.0
    partitions_per_h: float = 0.0
    strangers_per_h: float = 0.0  # how often somebody else sits at the receiver's address for a while
    receiver_crashes_per_h: float = 0.0
    power_cut: float = 0.0  # share of the crashes
    receiver_sleeps_per_h: float = 0.0
    clock_steps_per_h: float = 0.0
    disk_full_per_h: float = 0.0
    worker_crashes_per_h: float = 0.0
    worker_sleeps_per_h: float = 0.0
    worker_stops_per_h: float = 0.0
    operator_per_h: float = 0.0
    hang: float = 0.0
    deaf: float = 0.0
    exits: dict[Fault, float] = field(default_factory=dict)  # per attempt

    @classmethod
    def draw(cls, chance: random.Random, lease_s: float, hours: float) -> Weather:
        """Weather for one seed: each kind absent in some seeds, mild in most, fierce in a few."""

        def rate(most: float) -> float:
            kind = chance.random()
            if kind < 0.15:
                return 0.0
            return most * (chance.random() if kind > 0.6 else 0.3 * chance.random())

        def per_h(most_in_all: float) -> float:
            return rate(most_in_all) / hours

        return cls(
            lost_request=rate(0.25),
            lost_answer=rate(0.25),
            duplicate=rate(0.2),
            delay=rate(0.3),
            delay_s=chance.choice([2.0, 10.0, 0.3 * lease_s, 1.5 * lease_s]),
            late=rate(0.12),
            late_s=chance.choice([lease_s, 3 * lease_s, 20 * lease_s]),
            cut=rate(0.5),
            stall=rate(0.3),
            flip=rate(0.15),
            partitions_per_h=per_h(6),
            receiver_crashes_per_h=per_h(15),
            power_cut=chance.random(),
            receiver_sleeps_per_h=per_h(3),
            clock_steps_per_h=per_h(8),
            disk_full_per_h=per_h(4),
            worker_crashes_per_h=per_h(5),
            worker_sleeps_per_h=per_h(5),
            worker_stops_per_h=per_h(3),
            operator_per_h=per_h(15),
            hang=rate(0.15),
            deaf=rate(0.7),
            exits={
                Fault.EXIT_1: rate(0.2),
                Fault.EXIT_2: rate(0.04),
                Fault.EXIT_65: rate(0.04),
                Fault.EXIT_75: rate(0.15),
                Fault.KILLED: rate(0.1),
                Fault.SPAWN_FAILS: rate(0.08),
                Fault.PACK_FAILS: rate(0.05),
            },
        )
