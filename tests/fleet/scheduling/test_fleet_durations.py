"""Durations are learned: on drawn fleets whose truth is known, and whatever nonsense is told."""

from __future__ import annotations

import copy
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.durations import DrawnWorld
from training.fleet.scheduling.calibrations import MIXED, Calibrations, calibrated, middle
from training.fleet.scheduling.durations import Speeds
from training.fleet.scheduling.predictions import MOST_S, Prediction, remaining
from training.fleet.scheduling.workload import Workload, work_facts

FAMILIES = ["trees", "small-net", "large-net"]
PREDICTIONS = st.builds(Prediction, st.floats(0.01, MOST_S), st.floats(0, 20))
TIMES = st.one_of(st.floats(), st.floats(0, 1e6))
FIELDS = ["epoch", "epochs", "seconds", "eta_s"]
FIGURES = st.one_of(st.floats(0, 1e6), st.integers(-3, 12), st.floats(), st.none(), st.booleans(), st.text(max_size=2))


def work(model="trees", **hyper):
    return Workload.of({"model": model, "mode": "oracle", "hyper": hyper})


class Truth:
    """A fleet as it really is: a time's logarithm is the job's size and the host's speed for its family."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        gauss = self.chance.gauss
        self.machines = [f"host-{n}" for n in range(5)]
        self.family = {model: gauss(math.log(120), 1.0) for model in FAMILIES}
        speed = {on: gauss(0.0, 1.0) for on in self.machines}
        self.speed = {
            (on, model): speed[on] + gauss(0.0, 0.4) - (1.5 if n % 2 == 0 and model != "trees" else 0.0)
            for n, on in enumerate(self.machines)
            for model in FAMILIES
        }

    def job(self):
        """Draw a job and a host; returns also how long it really takes there in the mean."""
        model, epochs, depth = (self.chance.choice(each) for each in (FAMILIES, [5, 10, 40], [3, 6]))
        on = self.chance.choice(self.machines)
        sure = self.family[model] + math.log(epochs / 10) + 0.3 * math.log(depth) + self.speed[on, model]
        return work(model, epochs=epochs, max_depth=depth, seed=self.chance.randrange(99)), on, math.exp(sure)


def errors(seed, sigma, attempts=150):
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
def test_predictions_come_near_the_truth_and_say_how_near(sigma, late):
    runs = [errors(seed, sigma) for seed in range(6)]
    early = statistics.median(error for found, _ in runs for error in found[:10])
    assert statistics.median(error for found, _ in runs for error in found[90:]) < late < early
    assert 0.7 < statistics.mean(within for _, within in runs) < 0.95


@pytest.fixture
def speeds():
    return Speeds()


def test_a_new_host_is_judged_by_what_others_show_and_by_its_own_first_jobs(speeds):
    for host, seconds in (("desk", 100.0), ("desk", 100.0), ("pi", 1000.0), ("pi", 1000.0)):
        speeds.learn(work("trees"), host, seconds)
    for _ in range(2):
        speeds.learn(work("small-net"), "desk", 10.0)
    first = speeds.predict(work("small-net"), "pi")
    assert 30 < first.seconds < 300, "the Pi is slower for one family, so it is for another"
    asked = [work("small-net"), work("trees", depth=9), work("trees"), work("new")]
    assert [speeds.predict(each, "pi").basis for each in asked] == ["elsewhere", "here", "same", "guess"]
    speeds.calibrate(beside(desk=1.0, new=1.0))
    assert speeds.predict(work("trees"), "new").basis == "calibrated"


def beside(**speeds):
    """Hosts of which one measured so many times the speed of another, whatever the work."""
    return Calibrations({host: {MIXED: speed} for host, speed in speeds.items()})


def test_a_calibration_is_a_first_guess_that_attempts_correct():
    speeds = Speeds(calibrations=beside(desk=1.0))
    for _ in range(3):
        speeds.learn(work(), "desk", 100.0)
    blind = speeds.predict(work(), "new")
    speeds.calibrate(beside(desk=1.0, new=10.0))  # wrong by a factor of ten
    assert speeds.predict(work(), "new").seconds < blind.seconds / 5
    for _ in range(4):
        speeds.learn(work(), "new", 100.0)
    assert 80 < speeds.predict(work(), "new").seconds < 125
    speeds.calibrate(beside(desk=1.0, new=0.1))
    assert 80 < speeds.predict(work(), "new").seconds < 125, "what was trained there goes before"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("wrong", [0.1, 10.0])
def test_a_calibration_wrong_by_a_factor_of_ten_is_overcome_in_a_few_attempts(seed, wrong):
    """On drawn fleets."""
    truth = Truth(seed)
    liar = truth.machines[0]
    rates = {on: math.exp(-truth.speed[on, "trees"]) * (wrong if on == liar else 1) for on in truth.machines}
    speeds = Speeds(calibrations=beside(**rates))
    told = []
    for _ in range(200):
        job, on, mean_s = truth.job()
        if on == liar:
            told.append(abs(math.log(speeds.predict(job, on).seconds / mean_s)))
        speeds.learn(job, on, mean_s * truth.chance.lognormvariate(0.0, 0.1))
    assert statistics.median(told[9:]) < 0.2


def test_a_family_goes_by_the_work_that_its_trainer_declares():
    measured = {
        "desk": {"matrices": 1000.0, "steps": 10.0, "branches": 10.0, MIXED: 100.0},
        "pi": {"matrices": 1.0, "steps": 1.0, "branches": 5.0, MIXED: 1.0},
        "old": {MIXED: 10.0},  # its worker measures less
    }
    told = Calibrations(measured, {"trees": "branches", "large-net": "matrices", "new": "a sort of later"})
    slower = {family: math.exp(told.slower("pi", family)) for family in ("trees", "large-net", "unsaid", "new")}
    assert slower == pytest.approx({"trees": 2.0, "large-net": 1000.0, "unsaid": 100.0, "new": 100.0})
    assert told.slower("desk", "trees") == 0.0
    assert math.exp(told.slower("old", "trees")) == pytest.approx(2.0), "as the middle, of two the slower"
    assert Calibrations().slower("desk", "trees") == 0.0
    speeds = Speeds(calibrations=told)
    for family, least in (("trees", 1.9), ("large-net", 900.0)):
        desk, pi = (speeds.predict(work(family), host).seconds for host in ("desk", "pi"))
        assert least < pi / desk < least * 1.2


RATES = st.dictionaries(st.text(max_size=3), st.floats(1e-3, 1e12), max_size=9)


@given(RATES)
def test_hosts_are_compared_with_the_fastest_that_can_be_believed(rates):
    told = Calibrations({host: {MIXED: rate} for host, rate in rates.items()})
    slower = {host: told.slower(host, "any") for host in rates}
    believed = sorted(rates, key=rates.__getitem__)[: (len(rates) + 1) // 2]  # whatever the others claim
    for one in believed:
        for other in believed:
            gap = slower[one] - slower[other]
            assert gap == pytest.approx(math.log(rates[other] / rates[one]), abs=1e-6)
    assert all(0 <= each < math.inf for each in slower.values())


@given(st.one_of(st.none(), st.text(), st.dictionaries(st.sampled_from(["gflops", "steps", "branches"]), FIGURES)))
def test_no_calibration_is_nonsense(told):
    assert all(0 < speed < math.inf for speed in calibrated(told).values())


@pytest.mark.parametrize("seed", range(12))
def test_each_host_is_set_beside_the_middle_of_the_others(seed):
    chance = random.Random(seed)
    measured = {f"host{n}": chance.choice([1.0, 3.0, 10.0]) for n in range(chance.randrange(9))}
    speeds = Speeds(calibrations=beside(**measured))
    for host in [*measured, "no calibration"]:
        for _ in range(chance.randrange(3)):
            speeds.learn(work(), host, 100.0)
    effects = {host: speeds._beside().effects[host][0] for host in measured if speeds.trained(host)}
    others = {host: [mean for other, mean in effects.items() if other != host] for host in effects}
    expected = {host: math.exp(effects[host] - middle(means)) for host, means in others.items() if means}
    assert speeds.slower_than_measured() == pytest.approx(expected)


def test_a_gpu_makes_a_host_faster_and_a_failed_calibration_says_nothing():
    plain = {"gflops": 100.0, "steps": 400.0, "branches": 30.0}
    assert calibrated(plain) == pytest.approx({"matrices": 100, "steps": 400, "branches": 30, MIXED: 200})
    faster = calibrated(plain | {"cuda_gflops": 10_000.0, "cuda_steps": 300.0})
    assert faster == pytest.approx({"matrices": 10_000, "steps": 400, "branches": 30, MIXED: 2000})
    assert calibrated({"failed": "this host's speed could not be measured"}) == {}


def test_live_attempts_tell_of_others_before_they_end_and_are_no_part_of_what_was_learned(speeds):
    before, guess = copy.deepcopy(speeds), speeds.predict(work(), "desk")
    quarter = {"epoch": 5, "epochs": 20, "seconds": 500.0}
    word = speeds.word_of(work(), "desk", 500.0, quarter)
    assert word is not None
    heard = speeds.with_words([word])
    assert 1000 < heard.predict(work(), "desk").seconds < 2200
    assert heard.predict(work(), "laptop").seconds > 4 * guess.seconds, "also on other hosts"
    assert heard.predict(work(), "desk").spread < guess.spread
    assert heard.predict(work(), "desk").basis == "here"
    assert speeds == before
    nonsense = [{"epoch": 9, "epochs": 3}, {"epoch": math.nan, "epochs": 3}, {"epoch": 1, "epochs": 10**9}, None]
    assert not any(speeds.word_of(work(), "desk", 500.0, each) for each in nonsense)
    for _ in range(5):
        speeds.learn(work(), "desk", 100.0)
    assert speeds.word_of(work(), "desk", 500.0, quarter) is None, "it is known better"


def test_of_two_jobs_of_a_family_that_nobody_trained_the_larger_one_takes_longer(speeds):
    small, large = work(epochs=10), work(epochs=40)
    speeds.expect([small, large, large])
    times = [speeds.predict(each, "desk").seconds for each in (small, large)]
    assert times[1] == pytest.approx(4 * times[0])
    speeds.expect([small])
    assert [speeds.predict(each, "desk").seconds for each in (small, large)] == times, "said once"


@pytest.mark.parametrize(("size", "linear"), [("n_estimators", True), ("batch_size", False)])
def test_the_name_of_a_size_says_if_it_tells_how_much_is_done(size, linear):
    speeds = Speeds()
    speeds.learn(work(**{size: 32}), "desk", 100.0)
    assert (speeds.predict(work(**{size: 320}), "desk").seconds > 300) == linear


def test_a_host_that_becomes_ten_times_slower_is_known_again_after_two_jobs(speeds):
    for _ in range(20):
        speeds.learn(work(), "laptop", 60.0)
    for _ in range(2):
        speeds.learn(work(), "laptop", 600.0)
    assert 400 < speeds.predict(work(), "laptop").seconds < 700


def test_one_hiccup_is_forgotten(speeds):
    for _ in range(20):
        speeds.learn(work(), "desk", 60.0)
    speeds.learn(work(), "desk", 60_000.0)
    assert speeds.predict(work(), "desk").seconds < 200
    speeds.learn(work(), "desk", 60.0)
    assert 50 < speeds.predict(work(), "desk").seconds < 75


@pytest.mark.parametrize("factor", [2.0, 3.0, 10.0, 0.1])
def test_after_a_surprise_nothing_is_sure_of_its_family_there_until_it_comes_again(factor):
    """The next attempt may be as before or as the surprise: eight of ten ranges hold both."""
    speeds, desk, large = Speeds(), "desk", work(epochs=40)
    for _ in range(10):
        speeds.learn(work(), desk, 100.0)
        speeds.learn(large, desk, 400.0)
        speeds.learn(work("small-net"), desk, 100.0)
        speeds.learn(work(), "laptop", 100.0)
    elsewhere = [speeds.predict(work("small-net"), desk).spread, speeds.predict(work(), "laptop").spread]

    speeds.learn(work(), desk, 100.0 * factor)

    for job, seconds in ((work(), 100.0), (large, 400.0)):
        told = speeds.predict(job, desk)
        assert told.at(0.05) <= seconds * min(1.0, factor)
        assert told.at(0.95) >= seconds * max(1.0, factor)
    assert [speeds.predict(work("small-net"), desk).spread, speeds.predict(work(), "laptop").spread] == pytest.approx(
        elsewhere, rel=0.1
    )
    speeds.learn(work(), desk, 100.0 * factor)
    again, other = speeds.predict(work(), desk), speeds.predict(large, desk)
    assert again.at(0.1) <= 100.0 * factor <= again.at(0.9)
    assert again.spread < min(0.15, other.spread), "of the larger ones nothing was seen since"


@given(st.lists(st.floats(0.05, 50), min_size=6, max_size=12, unique=True), st.floats(5, 500))
def test_a_setting_that_multiplies_the_time_is_a_size_whatever_its_name(factors, base_s):
    """Also below one, where settings are rounded away and are of one kind."""
    if max(factors) / min(factors) < 4:
        return
    speeds = Speeds()
    for factor in factors:
        speeds.learn(work(load=factor), "desk", base_s * factor)
    for factor in (min(factors) * 1.3, max(factors) / 1.3):
        assert abs(math.log(speeds.predict(work(load=factor), "desk").seconds / (base_s * factor))) < 0.7


def sized(size):
    return work("net", size=size)


def test_speed_is_not_taken_for_size(speeds):
    """Two small jobs on a slow host and two larger ones on a host that is a hundred times as fast."""
    for host, size, seconds in (("slow", 0.15, 1.98), ("slow", 0.33, 4.17), ("fast", 0.5, 0.11), ("fast", 1.1, 0.19)):
        speeds.learn(sized(size), host, seconds)
    fast, slow = ({n: speeds.predict(sized(n), host).seconds for n in (1.1, 18)} for host in ("fast", "slow"))
    power = math.log(fast[18] / fast[1.1]) / math.log(18 / 1.1)
    assert 0.72 < power < 0.95
    assert 50 < slow[18] / fast[18] < 120
    assert 0.5 < fast[18] / (0.19 * (18 / 1.1) ** 0.82) < 2.0


@given(st.floats(1, 1e3), st.floats(-3, 3), st.floats(0, 0.3), st.integers(0, 99))
def test_a_job_that_was_just_done_is_predicted_as_it_was(overhead_s, faster, noise, seed):
    """Whatever the world: overheads, families that suit hosts 1,000-fold, calibrations that say they are alike."""
    chance, speeds = random.Random(seed), Speeds(calibrations=beside(desk=1.0, pi=1.0))
    hosts, slower = ["desk", "pi"], {"desk": 1.0, "pi": 10.0**faster}
    for _ in range(12):
        size, on = chance.uniform(0.4, 18), chance.choice(hosts)
        took_s = (overhead_s + size**1.2 * slower[on]) * chance.lognormvariate(0, noise)
        speeds.learn(sized(size), on, took_s)
        told = speeds.predict(sized(size), on)
        assert told.seconds == pytest.approx(took_s, rel=0.4)
        assert told.at(0.02) <= took_s <= told.at(0.98)


@settings(max_examples=30)
@given(st.sampled_from([0.0, 2.0]), st.sampled_from([0.05, 0.3]), st.booleans(), st.integers(0, 99))
def test_in_worlds_that_obey_no_model_predictions_come_near_and_most_lie_in_their_range(
    overhead_s, noise, declared, seed
):
    world, speeds = DrawnWorld(random.Random(seed), overhead_s, noise), Speeds()
    if declared:
        speeds.calibrate(Calibrations(*world.measured("well")))
    errors, within = [], 0
    for n in range(60):
        job, host = world.job(), world.chance.randrange(5)
        took_s = world.seconds(job, host) * world.chance.lognormvariate(0.0, noise)
        told = speeds.predict(Workload.of(job), str(host))
        speeds.learn(Workload.of(job), str(host), took_s)
        if n >= 30:
            errors.append(abs(math.log(told.seconds / took_s)))
            within += told.at(0.05) <= took_s <= told.at(0.95)
    assert statistics.median(errors) < math.log(1.7)
    assert within >= 20


def test_one_attempt_far_off_is_believed_of_its_settings_and_not_of_its_host():
    speeds, desk = Speeds(), "desk"
    for _ in range(5):
        speeds.learn(work(load=1), desk, 60.0)
    speeds.learn(work(load=2), desk, 6000.0)
    assert speeds.predict(work(load=2), desk).seconds == pytest.approx(6000, rel=0.15)
    assert speeds.predict(work(load=1), desk).seconds == pytest.approx(60, rel=0.15)


def test_only_attempts_with_the_very_same_settings_are_such_jobs():
    speeds, desk = Speeds(), "desk"
    speeds.learn(work(load=0.9), desk, 820.0)
    told = [speeds.predict(work(load=load), desk) for load in (0.9, 0.2)]
    assert [(each.seen, each.basis) for each in told] == [(1, "same"), (0, "here")]


def test_a_new_host_that_is_far_slower_is_so_for_every_family(speeds):
    """One attempt must not be taken for a hiccup where nothing was known."""
    for host in ("desk", "laptop"):
        for family in ("trees", "small-net"):
            speeds.learn(work(family), host, 60.0)
    assert speeds.predict(work("small-net"), "pi").seconds < 100
    speeds.learn(work("trees"), "pi", 60_000.0)
    assert speeds.predict(work("trees"), "pi").seconds > 40_000
    assert speeds.predict(work("small-net"), "pi").seconds > 3000


def test_a_new_family_is_unsure_everywhere_and_a_new_host_only_there(speeds):
    """Else a forecast lets the error of a family cancel out between its hosts."""
    for family in FAMILIES:
        for host in ("desk", "laptop", "pi"):
            speeds.learn(work(family), host, 60.0)
    new_family, new_host = speeds.predict(work("new"), "desk"), speeds.predict(work("trees"), "new")
    assert new_family.everywhere > 0.9 * new_family.spread
    assert new_host.everywhere < 0.5 * new_host.spread


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_the_mean_is_that_of_all_the_times_that_it_may_take(spread):
    told = Prediction(100.0, spread)
    assert told.mean == pytest.approx(statistics.fmean(told.at((n + 0.5) / 500) for n in range(500)), rel=0.01)


def test_a_size_is_rounded_to_the_nearest_that_makes_a_kind():
    for epochs in range(1, 200):
        rounded = work_facts({"hyper": {"epochs": epochs}})["hyper"]["epochs"]
        assert abs(math.log(rounded / epochs)) < math.log(1.25) / 2 + 0.005


def test_a_word_from_a_time_to_come_counts_as_of_now():
    """A trainer's clock may run ahead of what its host tells."""
    told, word = Prediction(100.0, 0.5), {"epoch": 2, "epochs": 8}
    assert remaining(told, 50.0, word | {"seconds": 90.0}) == remaining(told, 50.0, word | {"seconds": 50.0})


def test_seeds_are_no_size_and_kinds_are_equal_without_them():
    one, other = work(epochs=5, seed=1), work(epochs=5, seed=2)
    assert one == other
    assert [name for name, _ in work(epochs=5, depth=0, lr=-1, flag=True).sizes] == ["epochs"]
    assert work(epochs=5).kind != work(epochs=6).kind


sizes = st.floats(1e-300, 1e300)


@given(
    st.lists(
        st.tuples(st.sampled_from(FAMILIES), st.sampled_from("ab"), sizes, st.floats(allow_nan=True)), max_size=30
    ),
    sizes,
)
def test_no_nonsense_makes_an_estimate_nonsense(told, size):
    speeds = Speeds()
    for model, host, of_size, seconds in told:
        speeds.learn(work(model, n=of_size), host, seconds)
    for model in FAMILIES:
        found = speeds.predict(work(model, n=size), "a")
        assert 0.01 <= found.seconds <= 30 * 86_400
        assert 0 < found.spread < 20
        assert math.hypot(found.own, found.everywhere) <= found.spread * 1.001
        assert found.at(0.1) <= found.seconds <= found.at(0.9)


@given(st.floats(1, 1e5), st.floats(0.02, 1), st.lists(st.floats(0, 1e6), min_size=2, max_size=2))
def test_what_is_left_is_never_negative_and_grows_once_the_prediction_is_outrun(seconds, spread, elapsed):
    told = Prediction(seconds, spread)
    for each in elapsed:
        assert 0 <= told.left(each) < math.inf
        assert told.left(each) <= told.left(each, 0.9) < math.inf
    late, later = (told.at(0.9) * (2 + each) for each in sorted(elapsed))
    assert told.left(late) <= told.left(later) * (1 + 1e-9)


def test_a_running_attempt_corrects_its_prediction():
    told = Prediction(100.0, 0.5)
    early, late = told.corrected(0.1, 300.0), told.corrected(0.9, 300.0)
    assert 100 < early.seconds < late.seconds
    assert 280 < late.seconds < 305
    assert late.spread < early.spread < told.spread


PROGRESS = st.dictionaries(st.sampled_from(FIELDS), FIGURES)


@given(PREDICTIONS, TIMES, st.one_of(st.none(), PROGRESS))
def test_no_progress_makes_what_remains_nonsense(told, elapsed_s, progress):
    left, late = remaining(told, elapsed_s, progress)
    assert 0 <= left <= late <= MOST_S


@given(
    st.floats(10, 1e4),
    st.floats(0.05, 1),
    st.integers(1, 9),
    st.floats(1, 1e4),
    st.one_of(st.none(), st.floats(0, 1e9)),
)
def test_no_word_of_an_attempt_is_believed_without_limit(seconds, spread, epoch, elapsed_s, eta_s):
    """An ETA of years, too, counts for no more than that each epoch to come takes as long as all before."""
    told = Prediction(seconds, spread)
    left, _ = remaining(told, elapsed_s, {"epoch": epoch, "epochs": 10, "eta_s": eta_s})
    assert left <= max(told.left(elapsed_s), elapsed_s * (10 - epoch)) * 1.5 + 1e-6


@pytest.mark.parametrize(
    "progress",
    [
        {"epoch": 9, "epochs": 3, "eta_s": 5.0},
        {"epoch": -1, "epochs": 3, "eta_s": 5.0},
        {"epoch": math.nan, "epochs": 3},
        {"epoch": True, "epochs": 1},
        {"epoch": 3, "eta_s": 5.0},
        {"eta_s": math.inf},
        {"eta_s": -7},
        {"event": "data", "windows": 9},
        {},
        None,
    ],
)
def test_a_word_without_sense_changes_nothing(progress):
    told = Prediction(100.0, 0.2)
    assert remaining(told, 50.0, progress) == (told.left(50.0), told.left(50.0, 0.9))


def epochs_of(epoch_s, epochs, begins_s=5.0):
    """Return the progress objects of an attempt by the second in which they come, as our trainers print them."""
    return {
        int(begins_s + n * epoch_s): {
            "epoch": n,
            "epochs": epochs,
            "seconds": begins_s + n * epoch_s,
            "eta_s": (epochs - n) * epoch_s,
        }
        for n in range(1, epochs + 1)
    }


@given(st.floats(20, 600), st.integers(3, 30), st.floats(0.2, 5))
def test_its_epochs_tell_when_an_attempt_ends_long_before_it_does(epoch_s, epochs, factor):
    """However wrong the prediction, from half of its epochs on it is known to two fifths."""
    ends_s = 5.0 + epoch_s * epochs
    told = Prediction(ends_s * factor, 0.3)
    for at_s, progress in epochs_of(epoch_s, epochs).items():
        if 2 * progress["epoch"] >= epochs:
            left, late = remaining(told, float(at_s), progress)
            assert abs(at_s + left - ends_s) < ends_s * 0.4
            assert at_s + late > ends_s * 0.9


def test_an_attempt_that_was_resumed_tells_what_is_left_by_its_own_clock():
    """It says epoch 82 of 100 after twenty seconds; its two epochs took ten seconds each."""
    resumed = {"epoch": 82, "epochs": 100, "seconds": 20.0, "eta_s": 180.0}
    left, late = remaining(Prediction(1000.0, 0.1), 20.0, resumed)
    assert 150 < left < 300
    assert late < 700


def test_between_two_epochs_the_time_left_goes_down_until_the_next_is_overdue():
    told = Prediction(10 * 200.0, 0.5)
    nine = {"epoch": 9, "epochs": 10, "seconds": 1800.0, "eta_s": 200.0}
    lefts = [remaining(told, 1800.0 + silent_s, nine)[0] for silent_s in (0, 100, 180, 2_000, 20_000)]
    assert lefts[0] > lefts[1] > lefts[2] < lefts[3] < lefts[4]
    assert 150 < lefts[0] < 230
    assert lefts[4] > 5_000, "a job that does not end is expected to go on"
    stuck = {"epoch": 2, "epochs": 10, "seconds": 400.0, "eta_s": 1600.0}
    assert remaining(Prediction(3000.0, 2.0), 2000.0, stuck)[0] > 1400, (
        "the epochs to come are not over because this one is long"
    )


def test_after_its_last_epoch_an_attempt_is_nearly_over():
    told = Prediction(1000.0, 0.2)
    assert remaining(told, 300.0, {"event": "evaluate"})[0] < 100
    assert remaining(told, 300.0, {"event": "done"})[0] < 20
