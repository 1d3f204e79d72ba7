"""The decisions of a seed: the policy, the machines, the jobs, the weather, and how long it lasts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from simulation import memory, moves
from simulation.faults import Weather
from simulation.illness import Illness
from simulation.owners import conditions
from simulation.tidy import is_tidy
from simulation.unlike import calibration, is_unlike
from training.contract import spec_hash
from training.fleet.scheduling.policy import Policy, Scheduling
from training.fleet.scheduling.retention import Rules
from training.fleet.worker.state.events import OnSilence, WorkerSettings

_MODELS = ("gbt", "mlp", "cnn", "gru", "lstm", "transformer")
# From this seed on fleets are slow ones, whose operator gave them leases of half an hour to half a day: what happens
# in their storms takes days. The same number of calls, of faults and of seconds to compute.
SLOW_FROM = 1_000_000
SLOW_PACE = 24.0
WAITS_UP_TO_S = 1200.0  # slow fleets ask now and then instead: a claim waits half a minute at most
# In every thirteenth fleet somebody else answers at the receiver's address now and then, and the operator brings by
# hand what was refused. Only in these, so that all other seeds go on meaning what they meant.
_STRANGE_EVERY, _STRANGE = 13, 8
_SLOTS_FROM, _SLOTS_EVERY, _SLOTS = 50, 3, 2
_REPORTING_EVERY, _REPORTING = 7, 5  # fleets whose trainers leave reports, for the same reason
_CALLS_IN_ALL = 500  # roughly how many heartbeats and claims a storm may cost


@dataclass(frozen=True)
class Machine:
    name: str
    capability: dict[str, Any]
    declared: dict[str, Any]


@dataclass
class Scenario:
    """One seed's world before anything happens."""

    seed: int
    policy: Policy
    settings: WorkerSettings
    machines: list[Machine]
    jobs: list[dict[str, Any]]
    later_jobs: list[dict[str, Any]]  # that reloads bring
    work_s: dict[str, float]  # job id → how long its trainer works
    weather: Weather
    illness: Illness
    stormy_s: float  # faults happen until then
    latency_s: float
    commit_s: float
    timeout_s: float
    polite_s: float
    same_bytes: bool
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)  # the manifest's [hosts]

    @property
    def reporting(self) -> bool:
        return self.seed % _REPORTING_EVERY == _REPORTING

    @property
    def measure_s(self) -> float:
        """Return how often a worker asks whether its trainer computes."""
        return min(60.0, 0.25 * self.policy.stale_after_s)

    @property
    def retention(self) -> Rules:
        return Rules(best=1, keep_models_days=0.0, keep_superseded_days=0.0) if is_tidy(self.seed) else Rules()

    @property
    def strange(self) -> bool:
        return self.seed % _STRANGE_EVERY == _STRANGE

    @property
    def scheduling(self) -> Scheduling:
        """Return the plan's order of grants: every other fleet grants first come, first served."""
        return Scheduling.SOONEST if is_unlike(self.seed) else Scheduling.FIRST_COME

    @property
    def slow(self) -> bool:
        return self.seed >= SLOW_FROM

    @classmethod
    def draw(cls, seed: int) -> Scenario:
        chance = random.Random(f"{seed}/scenario")
        policy = _policy(chance, SLOW_PACE if seed >= SLOW_FROM else 1.0)
        opinion_s = policy.stale_after_s * random.Random(f"{seed}/opinion").choice([0.0, 0.5, 2.0, 10.0])
        policy = replace(policy, second_opinion_s=opinion_s)
        if moves.is_moving(seed):
            policy = replace(policy, state_every_s=moves.every_s(seed, policy.stale_after_s))
        machines = [_machine(chance, number) for number in range(chance.randint(2, 5))]
        for machine in machines:
            machine.capability.update(calibration(seed, machine.name))
            machine.declared.update(_slots(seed, machine.name))
            machine.declared.update(conditions(seed, machine.name, policy.stale_after_s))
            if is_tight(seed):
                machine.capability.update(memory.machine(seed, machine.name))
                machine.declared.update(memory.declared(seed, machine.name))
        settings = _settings(chance, policy)
        stormy_s = _CALLS_IN_ALL / (len(machines) * _calls_per_s(settings, policy))
        known = [_job(chance, machines, number) for number in range(chance.randint(4, 12))]
        later = [_job(chance, machines, 100 + number) for number in range(chance.randint(0, 4))]
        if is_tidy(seed):  # one mode, so that more models are of a kind
            known, later = [_of_one_mode(job) for job in known], [_of_one_mode(job) for job in later]
        if is_tight(seed):
            known, later = ([job | memory.wishes(seed, job["job_id"]) for job in some] for some in (known, later))
        share = stormy_s * len(machines) / (len(known) + len(later))
        work_s = {
            job["job_id"]: share * chance.choice([0.02, 0.1, 0.3, 0.6]) * (0.5 + chance.random())
            for job in known + later
        }
        illness, policy = Illness.draw(
            seed, policy, [machine.capability for machine in machines], work_s, stormy_s / 3600
        )
        return cls(
            seed=seed,
            policy=policy,
            settings=settings,
            machines=machines,
            jobs=known,
            later_jobs=later,
            work_s=work_s,
            weather=replace(
                moves.weather(seed, Weather.draw(chance, policy.stale_after_s, stormy_s / 3600), stormy_s / 3600),
                strangers_per_h=20 * 3600 / stormy_s if seed % _STRANGE_EVERY == _STRANGE else 0.0,
            ),
            illness=illness,
            stormy_s=stormy_s,
            latency_s=chance.choice([0.001, 0.02, 0.3]),
            commit_s=chance.choice([0.0, 0.002, 0.03, 0.5]),
            timeout_s=chance.choice([3.0, 10.0, 30.0, 0.6 * policy.stale_after_s]),
            polite_s=chance.choice([0.1, 2.0, 20.0]),
            same_bytes=chance.random() < 0.4,
            hosts={machine.name: machine.declared for machine in machines if machine.declared},
        )


def has_slots(seed: int) -> bool:
    """Return True when this seed's hosts hold several jobs: few enough that most seeds mean what they meant."""
    return seed >= _SLOTS_FROM and seed % _SLOTS_EVERY == _SLOTS


def is_tight(seed: int) -> bool:
    """Return True when the memory of this seed's machines is held by trainers and others."""
    return memory.is_tight(seed, slots=has_slots(seed))


def _slots(seed: int, machine: str) -> dict[str, Any]:
    """Return what the manifest says of a machine's slots, and of what it keeps for its owner."""
    if not has_slots(seed):
        return {}
    chance = random.Random(f"{seed}/slots/{machine}")
    declared: dict[str, Any] = {"slots": chance.choice([1, 2, 2, 3, "auto", "auto"])}
    if chance.random() < 0.3:
        declared["reserve_ram_gib"] = chance.choice([0.5, 5.0, 8.0])
    if chance.random() < 0.4:
        declared["reserve_cores"] = chance.choice([1, 2])
    return declared


def _of_one_mode(job: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in job.items() if name != "job_id"} | {"mode": "oracle"}
    return {**plain, "job_id": spec_hash(plain)}


def _calls_per_s(settings: WorkerSettings, policy: Policy) -> float:
    """Estimate the calls of a worker: heartbeats while it is busy, claims while it is not."""
    beat_s = min(settings.heartbeat_s, policy.stale_after_s / 3)
    return 0.4 / beat_s + 0.6 / max(settings.wait_s, 0.75 * settings.poll_s)


def _policy(chance: random.Random, pace: float) -> Policy:
    lease_s = pace * chance.choice([60.0, 120.0, 300.0, 600.0, 1200.0])
    backoff_s = chance.choice([0.5, 15.0, 60.0])
    return Policy(
        stale_after_s=lease_s,
        max_attempts=chance.randint(1, 5),
        max_host_losses=chance.choice([1, 3, 20]),
        max_grants=chance.choice([3, 10, 200]),
        prefer_cuda_grace_s=chance.choice([0.0, 30.0, 300.0]),
        host_priority_grace_s=chance.choice([0.0, 5.0, 60.0]),
        retry_elsewhere_grace_s=chance.choice([0.0, 60.0, 300.0]),
        backoff_s=backoff_s,
        backoff_max_s=backoff_s * chance.choice([1, 4, 40]),
        max_readoptions=chance.choice([0, 0, 1, 3]),
        sweep_period_s=chance.choice([0.03, 0.03, 0.1, 0.3]) * lease_s,
    )


def _settings(chance: random.Random, policy: Policy) -> WorkerSettings:
    lease_s = policy.stale_after_s
    return WorkerSettings(
        heartbeat_s=lease_s * chance.choice([0.1, 0.2, 0.33, 2.0]),
        poll_s=lease_s * chance.choice([0.03, 0.1, 0.3]),
        wait_s=min(30.0, lease_s * chance.choice([0.0, 0.05, 0.5])) if lease_s <= WAITS_UP_TO_S else 0.0,
        on_silence=chance.choice([OnSilence.CONTINUE, OnSilence.PAUSE]),
        silence_share=chance.choice([0.5, 0.8, 0.9]),
        grace_s=chance.choice([1.0, 10.0]),
        kill_s=4.0,
        leave_s=chance.choice([5.0, 25.0]),
        beat_lost_s=chance.choice([10.0, 60.0, lease_s]),
        retry_first_s=chance.choice([0.1, 1.0, 10.0]),
        retry_max_s=chance.choice([10.0, 60.0]),
        faults_max=chance.randint(2, 5),
        max_silence_s=lease_s * chance.choice([0.0, 1.0, 6.0]),
    )


def _machine(chance: random.Random, number: int) -> Machine:
    name = ("office-pi", "desktop", "laptop", "old-server", "windows-pc")[number]
    cuda = chance.random() < 0.5
    vram = chance.choice([4.0, 8.0, 24.0])
    capability: dict[str, Any] = {
        "hostname": name,
        "cpu_cores": chance.choice([2, 4, 16]),
        "ram_available_gib": chance.choice([1.0, 8.0, 60.0]),
        "cuda_available": cuda,
        "cuda_devices": [{"name": "gpu", "vram_free_gib": vram}] if cuda else [],
    }
    declared: dict[str, Any] = {}
    if chance.random() < 0.5:
        declared["priority"] = chance.choice([10, 100])
    if chance.random() < 0.3:
        declared["allow_jobs"] = sorted(chance.sample(_MODELS, 3))
    return Machine(name, capability, declared)


def _job(chance: random.Random, machines: list[Machine], number: int) -> dict[str, Any]:
    model = chance.choice(_MODELS)
    job: dict[str, Any] = {
        "name": f"{model}-{number}",
        "model": model,
        "mode": chance.choice(["realistic", "oracle"]),
        "hyper": {"n": number},
        "seed": number,
        "priority": chance.choice([40, 70, 100]),
    }
    if chance.random() < 0.2:
        job["require_cuda"] = True
        job["min_vram_gib"] = chance.choice([2.0, 8.0, 80.0])
    elif chance.random() < 0.3:
        job["prefer_cuda"] = True
    if chance.random() < 0.2:
        job["min_ram_gib"] = chance.choice([4.0, 500.0])
    if chance.random() < 0.3:
        job["allowed_hosts"] = [chance.choice(machines).name]
    job["job_id"] = spec_hash(job)
    return job
