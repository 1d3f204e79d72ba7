"""Durations are learned: on drawn fleets whose truth is known, and whatever nonsense is told."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.fleet.scheduling.durations import Basis, Machine, Prediction, Speeds, Workload

FAMILIES = ["trees", "small-net", "large-net"]


def work(model: str = "trees", **hyper: float) -> Workload:
    return Workload.of({"model": model, "mode": "oracle", "hyper": hyper})


class Truth:
    """A fleet as it really is: a time's logarithm is the job's size and the host's speed for its family."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        gauss = self.chance.gauss
        self.machines = [Machine(f"host-{n}", cuda=n % 2 == 0) for n in range(5)]
        self.family = {model: gauss(math.log(120), 1.0) for model in FAMILIES}
        speed = {on.name: gauss(0.0, 1.0) for on in self.machines}
        self.speed = {
            (on.name, model): speed[on.name] + gauss(0.0, 0.4) - (1.5 if on.cuda and model != "trees" else 0.0)
            for on in self.machines
            for model in FAMILIES
        }

    def job(self) -> tuple[Workload, Machine, float]:
        """Draw a job and a host; returns also how long it really takes there in the mean."""
        model, epochs, depth = (self.chance.choice(each) for each in (FAMILIES, [5, 10, 40], [3, 6]))
        on = self.chance.choice(self.machines)
        sure = self.family[model] + math.log(epochs / 10) + 0.3 * math.log(depth) + self.speed[on.name, model]
        return work(model, epochs=epochs, max_depth=depth, seed=self.chance.randrange(99)), on, math.exp(sure)


def errors(seed: int, sigma: float, attempts: int = 150) -> tuple[list[float], float]:
    """Learn from attempts; return each one's error (factor) as predicted before it, and the share within 80 %."""
    truth, speeds = Truth(seed), Speeds()
    found, within, counted = [], 0, 0
    for n in range(attempts):
        job, on, mean_s = truth.job()
        took = mean_s * truth.chance.lognormvariate(0.0, sigma)
        told = speeds.predict(job, on)
        found.append(abs(math.log(told.seconds / mean_s)))
        if n >= 30:
            counted += 1
            within += told.at(0.1) <= took <= told.at(0.9)
        speeds.learn(job, on, took)
    return found, within / counted


@pytest.mark.parametrize(("sigma", "late"), [(0.1, 0.12), (0.3, 0.25)])
def test_predictions_come_near_the_truth_and_say_how_near(sigma: float, late: float) -> None:
    runs = [errors(seed, sigma) for seed in range(12)]
    early = statistics.median(error for found, _ in runs for error in found[:10])
    after = statistics.median(error for found, _ in runs for error in found[90:])
    assert after < late < early
    assert 0.7 < statistics.mean(within for _, within in runs) < 0.95


def test_a_new_host_is_judged_by_what_others_show_and_by_its_own_first_jobs() -> None:
    speeds = Speeds()
    for host, seconds in (("desk", 100.0), ("desk", 100.0), ("pi", 1000.0), ("pi", 1000.0)):
        speeds.learn(work("trees"), Machine(host), seconds)
    for _ in range(2):
        speeds.learn(work("small-net"), Machine("desk"), 10.0)
    first = speeds.predict(work("small-net"), Machine("pi"))
    assert 30 < first.seconds < 300, "the Pi is slower for one family, so it is for another"
    assert speeds.basis(work("small-net"), Machine("pi")) is Basis.ELSEWHERE
    assert speeds.basis(work("trees", depth=9), Machine("pi")) is Basis.HERE
    assert speeds.basis(work("trees"), Machine("pi")) is Basis.SAME
    assert speeds.basis(work("new"), Machine("pi")) is Basis.GUESS


def test_a_calibration_is_a_first_guess_that_attempts_correct() -> None:
    speeds = Speeds()
    for _ in range(3):
        speeds.learn(work(), Machine("desk"), 100.0)
    blind = speeds.predict(work(), Machine("new"))
    speeds.calibrated("new", faster=10.0)  # wrong by a factor of ten
    assert speeds.predict(work(), Machine("new")).seconds < blind.seconds / 5
    for _ in range(4):
        speeds.learn(work(), Machine("new"), 100.0)
    assert 80 < speeds.predict(work(), Machine("new")).seconds < 125
    speeds.calibrated("new", faster=10.0)
    assert 80 < speeds.predict(work(), Machine("new")).seconds < 125, "what was trained there goes before"


def test_a_host_that_becomes_ten_times_slower_is_known_again_after_two_jobs() -> None:
    speeds = Speeds()
    for _ in range(20):
        speeds.learn(work(), Machine("laptop"), 60.0)
    for _ in range(2):
        speeds.learn(work(), Machine("laptop"), 600.0)
    assert 400 < speeds.predict(work(), Machine("laptop")).seconds < 700


def test_one_hiccup_is_forgotten() -> None:
    speeds = Speeds()
    for _ in range(20):
        speeds.learn(work(), Machine("desk"), 60.0)
    speeds.learn(work(), Machine("desk"), 60_000.0)
    assert speeds.predict(work(), Machine("desk")).seconds < 200
    speeds.learn(work(), Machine("desk"), 60.0)
    assert 50 < speeds.predict(work(), Machine("desk")).seconds < 75


def test_seeds_are_no_size_and_kinds_are_equal_without_them() -> None:
    one, other = work(epochs=5, seed=1), work(epochs=5, seed=2)
    assert one == other
    assert [name for name, _ in work(epochs=5, depth=0, lr=-1, flag=True).sizes] == ["epochs"]
    assert work(epochs=5).kind != work(epochs=6).kind


@given(st.lists(st.tuples(st.sampled_from(FAMILIES), st.sampled_from("ab"), st.floats(allow_nan=True)), max_size=30))
def test_no_nonsense_makes_an_estimate_nonsense(told: list[tuple[str, str, float]]) -> None:
    speeds = Speeds()
    for model, host, seconds in told:
        speeds.learn(work(model), Machine(host), seconds)
    for model in FAMILIES:
        found = speeds.predict(work(model), Machine("a"))
        assert 0.01 <= found.seconds <= 30 * 86_400
        assert 0 < found.spread < 20
        assert found.at(0.1) <= found.seconds <= found.at(0.9)


@given(st.floats(1, 1e5), st.floats(0.02, 1), st.lists(st.floats(0, 1e6), min_size=2, max_size=2))
def test_what_is_left_is_never_negative_and_grows_once_the_prediction_is_outrun(
    seconds: float, spread: float, elapsed: list[float]
) -> None:
    told = Prediction(seconds, spread)
    for each in elapsed:
        assert 0 <= told.left(each) < math.inf
    late, later = (told.at(0.9) * (2 + each) for each in sorted(elapsed))
    assert told.left(late) <= told.left(later) * (1 + 1e-9)


@pytest.mark.parametrize("nonsense", [(math.nan, 0.5), (10.0, 3.0), (10.0, -1.0), (-5.0, 0.5), (10.0, 0.0)])
def test_a_running_attempt_corrects_its_prediction_unless_it_talks_nonsense(nonsense: tuple[float, float]) -> None:
    told = Prediction(100.0, 0.5)
    assert told.corrected(*nonsense) == told
    early, late = told.corrected(30.0, 0.1), told.corrected(270.0, 0.9)
    assert 100 < early.seconds < late.seconds
    assert 280 < late.seconds < 305
    assert late.spread < early.spread < told.spread


def test_learning_is_a_fold_in_order() -> None:
    """The same attempts in the same order teach the same: a restart knows what was known before."""
    truth = Truth(3)
    attempts = [truth.job() for _ in range(40)]

    def taught(part: Callable[[int], bool]) -> Speeds:
        speeds = Speeds()
        for n, each in enumerate(attempts):
            if part(n):
                speeds.learn(*each)
        return speeds

    assert taught(lambda _: True) == taught(lambda _: True)
    assert taught(lambda _: True) != taught(lambda n: n != 7)
