"""A build that is killed goes on, one in which episodes come and go does their part only, and parts do not show."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import telemetry_builders as made
from hypothesis import given
from hypothesis import strategies as st

from training.data import build as building
from training.data import cut as cutting
from training.data.alone import LOCK
from training.data.dataset import MEMORY_FOLDER, NEW_FOLDER
from training.data.doubts import cross_episode_checks
from training.data.windows import Grid, placed_rows

FEATURES = Path("features_window_v1.parquet")


def build(recorded, out, **options):
    return building.build(recorded, out, building.assemble.BuildOptions(**options))


def count_of(monkeypatch, module, name):
    """Watch a function of a module: a list with an entry for each call."""
    calls, function = [], getattr(module, name)

    def watched(*args):
        calls.append(args)
        return function(*args)

    monkeypatch.setattr(module, name, watched)
    return calls


def test_a_killed_build_leaves_the_old_data_set_and_goes_on(tmp_path, monkeypatch):
    """What a kill leaves is what lies on the disk at that moment: it is copied."""
    recorded, out = tmp_path / "in", tmp_path / "out"
    made.write_fleet(recorded, hosts=("h0",))
    build(recorded, out)
    old = made.outputs(out)
    made.write_episode(recorded, number=8, seed=8)
    build(recorded, tmp_path / "whole", window_s=3.0)
    new = made.outputs(tmp_path / "whole")
    left = []

    def leave(module, name):
        function = getattr(module, name)

        def leaving(*args, **more):
            result = function(*args, **more)
            left.append(tmp_path / f"killed-{len(left)}")
            shutil.copytree(out, left[-1])
            return result

        monkeypatch.setattr(module, name, leaving)

    with monkeypatch.context():
        for module, name in (
            (building, "remembered"),
            (cutting, "cut"),
            (building, "find_kin"),
            (building.dataset, "write_beside"),
        ):
            leave(module, name)
        build(recorded, out, window_s=3.0)
        monkeypatch.undo()
    assert made.outputs(out) == new
    assert len(left) == 1 + 5 + 2, "one was read, a reference and four others cut, the rest is once"
    computed = count_of(monkeypatch, cutting.features, "extract")
    for number, folder in enumerate(left):
        left_over = (NEW_FOLDER, building.SCRATCH)
        there = {p: b for p, b in made.outputs(folder).items() if not p.parts[0].startswith(left_over)}
        assert there == old
        computed.clear()
        build(recorded, folder, window_s=3.0)
        assert made.outputs(folder) == new
        assert len(computed) == max(0, 4 - max(0, number - 1)), "what was computed is not computed again"


def test_an_error_in_the_middle_is_told_as_it_is(tmp_path, monkeypatch):
    made.write_fleet(tmp_path / "in", episodes=1)
    monkeypatch.setattr(cutting, "cut", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "in", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name not in (MEMORY_FOLDER, LOCK)] == []


def test_an_episode_that_comes_or_goes_costs_its_own_part(tmp_path, monkeypatch):
    recorded, out = tmp_path / "in", tmp_path / "out"
    made.write_fleet(recorded, hosts=("h0",))
    build(recorded, out)
    first, remembered = made.outputs(out), set((out / MEMORY_FOLDER).iterdir())
    computed = count_of(monkeypatch, cutting.features, "extract")
    made.write_episode(recorded, number=8, seed=8)
    build(recorded, out)
    assert len(computed) == 1
    assert made.outputs(out) != first
    shutil.rmtree(recorded / made.IDS[8])
    build(recorded, out)
    assert (len(computed), made.outputs(out)) == (1, first)
    assert set((out / MEMORY_FOLDER).iterdir()) == remembered, "what is gone is forgotten"


def test_a_reference_that_comes_changes_what_its_host_is_measured_by(tmp_path):
    """What was remembered of the host's episodes is of another measure, and the features are those of a fresh build."""
    recorded, out = tmp_path / "in", tmp_path / "out"
    made.write_fleet(recorded, hosts=("h0",))
    build(recorded, out)
    before = made.outputs(out)
    made.write_episode(recorded, number=8, seed=8, baseline=True, duration_s=30.0, started_at=9000.0, **made.IDLE)
    build(recorded, out)
    build(recorded, tmp_path / "fresh")
    after = made.outputs(out)
    assert after == made.outputs(tmp_path / "fresh")
    assert after[FEATURES] != before[FEATURES]


def test_features_that_were_damaged_are_computed_again(tmp_path):
    made.write_fleet(tmp_path / "in", episodes=1)
    build(tmp_path / "in", tmp_path / "out")
    first = made.outputs(tmp_path / "out")
    for path in (tmp_path / "out" / MEMORY_FOLDER).iterdir():
        path.write_bytes(path.read_bytes()[:-300])
    build(tmp_path / "in", tmp_path / "out")
    assert made.outputs(tmp_path / "out") == first


def test_the_size_of_a_block_changes_nothing(tmp_path, monkeypatch):
    made.write_fleet(tmp_path / "in", hosts=("h0",))
    build(tmp_path / "in", tmp_path / "whole")
    monkeypatch.setattr(cutting, "BLOCK_WINDOWS", 3)
    build(tmp_path / "in", tmp_path / "parts")
    assert made.outputs(tmp_path / "parts") == made.outputs(tmp_path / "whole")


@given(st.data())
def test_windows_lie_where_one_class_covers_them(data):
    rows, window, stride = data.draw(st.integers(0, 30)), data.draw(st.integers(4, 9)), data.draw(st.integers(1, 5))
    holes = np.array(data.draw(st.lists(st.sampled_from([False] * 9 + [True]), min_size=rows, max_size=rows)), bool)
    edges = sorted(data.draw(st.sets(st.integers(0, 64), min_size=2, max_size=6)))
    names = [data.draw(st.sampled_from(["a", "b", None])) for _ in edges[1:]]
    spans = [(a / 16, b / 16, name) for a, b, name in zip(edges, edges[1:], names, strict=False)]
    grid = Grid(0.03, 8.0, np.empty((rows, 0), dtype=np.float32), holes)
    wanted = []
    for row in range(0, rows - window + 1, stride):
        start, stop = 0.03 + row / 8, 0.03 + row / 8 + window / 8
        fit = [n for n, (a, b, name) in enumerate(spans) if name and a <= start + 1 / 16 and stop <= b + 1 / 16]
        if fit and not holes[row : row + window].any():
            wanted.append((row, fit[0]))
    found, of = placed_rows(grid, spans, window, stride)
    assert list(zip(found.tolist(), of.tolist(), strict=True)) == wanted


@given(st.lists(st.lists(st.integers(0, 30), unique=True, max_size=6), max_size=6), st.integers(1, 9))
def test_entries_of_several_sketches_are_found_in_parts(sketches, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_episode_checks, "SORTED", size)
        found = cross_episode_checks._in_several([np.array(one, dtype="<u8") for one in sketches])
    every = [entry for one in sketches for entry in one]
    assert found.tolist() == sorted({entry for entry in every if every.count(entry) > 1})
