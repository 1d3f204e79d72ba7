"""The recorder: honest labels, even sampling, nothing left running; and the behaviours it records."""

import itertools
import json
import random

import numpy as np
import psutil
import pytest
import telemetry_builders as made
from hypothesis import given
from hypothesis import strategies as st

from examples import record_sample
from examples.record_sample import BOXES, REFERENCE_TAKES, takes
from training.data.channels import View
from training.data.episode import read
from training.data.validate import judge
from training.watch.recording import record as recording
from training.watch.recording.behaviours import BEHAVIOURS, Context, fill_scratch
from training.watch.recording.loopback import open_far_end
from training.watch.recording.record import RecordingOrder, record
from training.watch.recording.scenarios import SCENARIOS, Phase, draw_phases, phase_labels
from training.watch.recording.stage import RecordError, Stage
from training.watch.recording.workloads import Pacer, run

# ------------------------------------------------------------------------------------------- scenarios


@given(st.sampled_from(sorted(SCENARIOS)), st.floats(10, 600), st.integers())
def test_plans_are_in_order_repeatable_and_know_their_labels(scenario, duration_s, seed):
    phases = draw_phases(scenario, duration_s, random.Random(seed))
    assert phases == draw_phases(scenario, duration_s, random.Random(seed))
    starts = [p.start_s for p in phases]
    assert starts[0] == 0.0
    assert starts == sorted(starts)
    assert starts[-1] < duration_s
    labels = phase_labels()
    kinds = {labels[p.name] for p in phases}
    assert ("malicious" in kinds) == SCENARIOS[scenario].malicious
    for phase in phases:
        assert (phase.behaviour is None) == (phase.name == "idle")
        assert 0 <= phase.intensity <= 1


def test_malicious_like_scenarios_are_benign_for_a_good_part():
    for name in (s.name for s in SCENARIOS.values() if s.malicious):
        shares = []
        for seed in range(40):
            phases = draw_phases(name, 100.0, random.Random(seed))
            ends = [*(p.start_s for p in phases[1:]), 100.0]
            shares.append(sum(e - p.start_s for p, e in zip(phases, ends, strict=True) if p.name == name))
        assert 35 < np.mean(shares) < 75


@pytest.mark.parametrize(("scenario", "duration_s"), [("nonsense", 60), ("idle", 5)])
def test_plans_that_make_no_sense(scenario, duration_s):
    with pytest.raises(ValueError, match=r"no scenario|too short"):
        draw_phases(scenario, duration_s, random.Random(0))


def test_the_sample_has_every_behaviour_on_every_host_in_an_order_of_its_own():
    plans = {box.name: takes(box, seed=1, short=False) for box in BOXES}
    assert len(plans) >= 3
    for plan_ in plans.values():
        assert {name for name, _ in plan_} == set(SCENARIOS)
        assert sum(reference for _, reference in plan_) == REFERENCE_TAKES
        assert all(reference == (name == "ordinary") for name, reference in plan_)
    assert len({tuple(p) for p in plans.values()}) == len(plans)
    assert sum(not b for p in plans.values() for _, b in p) >= 120


# ------------------------------------------------------------------------------------------ behaviours


@pytest.mark.parametrize("name", sorted(BEHAVIOURS))
def test_every_behaviour_works_and_stays_in_its_scratch(name, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _s: None)
    monkeypatch.chdir(tmp_path)
    rng = random.Random(name)
    fill_scratch(tmp_path / "scratch", rng, 200_000)
    context = Context(scratch=tmp_path / "scratch", rng=rng, intensity=0.2, far=open_far_end())
    steps = BEHAVIOURS[name].steps(context)
    for _ in itertools.islice(steps, 12):
        pass
    steps.close()
    assert [p.name for p in tmp_path.iterdir()] == ["scratch"]


def test_equal_seeds_fill_equal_scratches(tmp_path):
    for name in ("a", "b"):
        fill_scratch(tmp_path / name, random.Random(5), 300_000)
    contents = [
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*.dat")} for n in ("a", "b")
    ]
    assert contents[0] == contents[1]
    assert sum(map(len, contents[0].values())) == 300_000


@given(st.floats(0.05, 0.95), st.integers())
def test_the_pacer_keeps_its_share(duty, seed):
    clock = made.TickingClock()
    pacer = Pacer(duty, random.Random(seed), clock)
    slept = 0.0
    for _ in range(600):
        clock.at += 0.02
        pause = pacer.pause()
        assert 0 <= pause <= 1
        slept += pause
        clock.at += pause
        pacer.resume()
    assert 12.0 / (12.0 + slept) == pytest.approx(duty, rel=0.25)


def test_a_run_ends_on_time(tmp_path, monkeypatch):
    clock = made.TickingClock(look_s=0.01)
    monkeypatch.setattr("time.sleep", clock.sleep)
    fill_scratch(tmp_path, random.Random(0), 100_000)
    context = Context(scratch=tmp_path, rng=random.Random(0), intensity=0.5, far=open_far_end())
    begun = clock.at
    run("numeric", context, clock, 3.0)
    assert clock.at - begun >= 3.0


# -------------------------------------------------------------------------------------------- recorder


class Counting:
    """A collector that counts how often it was asked; every third answer lacks a channel."""

    view = View.MACHINE

    def __init__(self):
        self.asked = 0

    def sample(self):
        self.asked += 1
        lost = self.asked % 3 == 0
        return {"cpu_user": 100.0 + self.asked, "memory_used": None if lost else 5.0, "cpu_steal": None}


def order(*phases, duration_s=10.0, hz=4.0, **changes):
    fields = {"scenario": "numeric", "host": "h", "reference": False, "seed": 1, "background": ()}
    return RecordingOrder(phases=phases, duration_s=duration_s, hz=hz, **(fields | changes))


def taped(tmp_path, order, collector, clock=None, stage=None, **more):
    """Record by a clock of our own."""
    clock = clock or made.TickingClock(look_s=0.001)
    stage = stage or Stage(tmp_path / "scratch")
    return record(order, collector, stage, tmp_path / "out", clock=clock, sleep=clock.sleep, **more)


def idle(start_s):
    return Phase(start_s=start_s, name="idle")


def active(start_s, name="numeric"):
    return Phase(start_s=start_s, name=name, behaviour=name, intensity=0.1, seed=3)


@pytest.fixture(autouse=True)
def small_scratch(monkeypatch):
    monkeypatch.setattr(recording, "SCRATCH_BYTES", 50_000)


def test_an_episode_is_recorded_with_real_processes_and_none_is_left(tmp_path):
    stage, seen = Stage(tmp_path / "scratch"), []
    phases = order(idle(0.0), active(2.0), idle(4.0), active(6.0, "beacon"), background=(active(0.0),))
    folder = taped(tmp_path, phases, Counting(), stage=stage, progress=lambda *_: seen.append(stage.roots()))
    found = read(folder)
    assert folder.name == found.meta.episode_id
    assert found.label_phase == ("idle", "numeric", "idle", "beacon")
    np.testing.assert_allclose(found.label_t, [0, 2, 4, 6], atol=0.3)
    assert found.meta.phases == {"idle": "benign", "numeric": "benign", "beacon": "malicious"}
    names = [c.name for c in found.meta.channels]
    assert {"cpu_user", "memory_used", "tree_rss"} <= set(names)
    assert "cpu_steal" not in names, "what was never measured is not declared"
    counter = found.values[:, names.index("cpu_user")]
    assert counter[0] == 0, "uptime is no business of a detector"
    np.testing.assert_array_equal(np.diff(counter), 1)
    assert np.isnan(found.values[2, names.index("memory_used")])
    assert (np.diff(found.t) > 0.2).all()
    rss = found.values[:, names.index("tree_rss")]
    assert rss[found.t < 2].max() == 0
    assert rss[(found.t > 2.1) & (found.t < 4)].min() > 0
    pids = {pid for roots in seen for pid in roots}
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_recording_passes_its_own_validator(tmp_path):
    class Steady(Counting):
        def sample(self):
            return {"cpu_user": super().sample()["cpu_user"], "memory_used": 1.0 * self.asked}

    folder = taped(tmp_path, order(idle(0.0), active(5.0), hz=8.0), Steady())
    verdict = judge(read(folder), folder.name)
    assert verdict.ok, verdict.reasons


def test_a_behaviour_that_dies_spoils_the_episode(tmp_path, monkeypatch):
    stage, start = Stage(tmp_path / "scratch"), Stage.start

    def start_broken(self, phase, scratch):
        running = start(self, Phase(start_s=0, name="x", behaviour="no_such", intensity=0, seed=0), scratch)
        running.process.wait()
        return running

    monkeypatch.setattr(Stage, "start", start_broken)
    with pytest.raises(RecordError, match=r"no_such ended early \(exit 2\): .*invalid choice"):
        taped(tmp_path, order(active(0.0)), Counting(), stage=stage)
    assert not (tmp_path / "out").exists()
    assert stage.roots() == []


def test_late_ticks_are_skipped_not_caught_up(tmp_path):
    clock = made.TickingClock(look_s=0.001)

    class Stalling(Counting):
        def sample(self):
            if self.asked == 8:
                clock.at += 3.0
            return super().sample()

    steps = np.diff(read(taped(tmp_path, order(idle(0.0)), Stalling(), clock)).t)
    assert steps.max() > 2.9
    assert np.sort(steps)[0] > 0.15, "no two samples at once after the stall"


def test_scenarios_are_listed_and_bad_wishes_refused(tmp_path, capsys):
    assert recording.main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in SCENARIOS)
    out = ["--out", str(tmp_path), "--scenario", "idle"]
    assert recording.main([*out, "--hz", "0.1"]) == 2
    assert recording.main([*out, "--duration-s", "2"]) == 2
    assert "too short" in capsys.readouterr().err
    assert recording.main(["--host", "../x", "--out", str(tmp_path)]) == 2
    assert "'../x' cannot be a host's name" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        recording.main(["--scenario", "nonsense"])
    assert stop.value.code == 2


def test_the_command_line_records_and_packs(tmp_path, capsys, monkeypatch):
    clock = made.TickingClock(look_s=0.001)
    monkeypatch.setattr(recording, "SystemClock", lambda: clock)
    monkeypatch.setattr(recording, "record", lambda *a, **k: record(*a, **(k | {"sleep": clock.sleep})))
    arguments = ["--host", "me", "--duration-s", "10", "--out", str(tmp_path)]
    assert recording.main([*arguments, "--pack", "--baseline", "--json", "--view", "machine"]) == 0
    path = json.loads(capsys.readouterr().out)["episode"]
    assert path.endswith(".tar.zst")
    found = read(tmp_path / path)
    assert found.meta.baseline
    assert found.meta.scenario == "idle", "a reference is of the host's own work: nothing is started"
    assert found.meta.host == "me"
    assert [p.name for p in tmp_path.iterdir()] == [found.meta.episode_id + ".tar.zst"]


def test_a_plain_user_is_told_what_to_do_instead(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000, raising=False)
    assert record_sample.main(["--out", str(tmp_path / "sample")]) == 1
    assert "cis490 record" in capsys.readouterr().err
    assert not (tmp_path / "sample").exists()


def test_a_container_that_cannot_be_made_is_one_sentence(monkeypatch, tmp_path):
    limits = record_sample.ContainerLimits(cpu_cores=0.5, memory_bytes=1 << 28, disk_read_bps=1, disk_write_bps=1)
    monkeypatch.setattr(record_sample, "mounts", lambda: ({}, None))
    with pytest.raises(record_sample.CgroupError, match="needs Linux"):
        record_sample.create_container("x", limits, "254:0")
    monkeypatch.setattr(record_sample, "mounts", lambda: ({}, tmp_path / "no" / "such"))
    with pytest.raises(record_sample.CgroupError, match="run as root"):
        record_sample.create_container("x", limits, "254:0")
