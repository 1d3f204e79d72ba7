"""From episodes to the data set: what goes in, what is kept out, and the same bytes every time."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import telemetry_builders as made
from hypothesis import given, settings
from hypothesis import strategies as st

from training import locking
from training.contract import SCHEMA_FILE, VALIDATION_FILE, Exit
from training.data import build as building
from training.data import cut, ingest, normalise
from training.data import extract as extracting
from training.data.alone import LOCK, alone
from training.data.assemble import BuildOptions
from training.data.dataset import load_validation
from training.data.episode import pack
from training.data.schema import ChannelSpec, read_schema


def test_a_fleets_recordings_become_labelled_windows(tmp_path, built):
    made.write_fleet(tmp_path / "in")
    code, summary, _ = built()
    assert code == 0
    assert summary["quarantined"] == {}
    assert summary["hosts_without_baseline"] == []
    assert summary["channels"] == {"realistic": 3, "oracle": 4}
    data = built.load()
    assert set(data.rows.episode) == {made.IDS[n] for n in (0, 1, 2, 4, 5, 6)}, "references are no windows"
    # 20 s at 8 Hz, windows of 4 s each 2 s, a new label at 10 s. The last sample is taken at 19.875 s: none at 16.
    one = data.rows.episode == made.IDS[0]
    offsets = (data.rows.t_start[one] - 1000.0).round(6).tolist()
    assert offsets == [0, 2, 4, 6, 10, 12, 14]
    assert data.y[one].tolist() == [0, 0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(data.rows.t_end - data.rows.t_start, 4.0)
    assert data.tensors.shape[1:] == (4, 32)
    assert load_validation(tmp_path / "out" / VALIDATION_FILE).references == 2


def test_the_target_phase_has_a_class_a_phase(tmp_path, built):
    made.write_fleet(tmp_path / "in")
    _, summary, _ = built("--target", "phase")
    assert list(summary["labels"]) == ["beacon", "idle"]
    assert built.load().label_map == {"beacon": 0, "idle": 1}


@pytest.mark.parametrize("program", [building, ingest])
def test_a_folder_into_which_another_process_writes_is_left_alone(tmp_path, capsys, program):
    source, out = tmp_path / "in", tmp_path / "out"
    made.write_fleet(source, episodes=1)
    if program is ingest:
        source = tmp_path / "windows.npz"
        X = np.random.default_rng(1).normal(size=(8, 2, 16))
        np.savez(source, X=X, y=np.arange(8) % 2, channels=["a", "b"])
    with alone(out):
        assert program.main([str(source), "--out-dir", str(out)]) == 75
        assert [path.name for path in out.iterdir()] == [".lock"]
    said = capsys.readouterr().err
    assert f"is being written into {out} (process {os.getpid()}, since 20" in said
    assert not out.exists()  # it was made for nothing
    assert program.main([str(source), "--out-dir", str(out)]) == 0, capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="Windows removes no file that somebody has open")
def test_a_lock_that_was_removed_meanwhile_is_nobodys(tmp_path, monkeypatch):
    """A lock file that was opened before its holder removed it would be a file that nobody else can find."""
    lock, taken, locked = tmp_path / LOCK, [], locking._lock

    def just_before(handle):
        if not taken:
            lock.unlink()
        taken.append(handle)
        locked(handle)

    monkeypatch.setattr(locking, "_lock", just_before)
    with locking.exclusive(lock):
        assert len(taken) == 2
        assert lock.exists()
        with pytest.raises(locking.LockedError), locking.exclusive(lock):
            pass


@pytest.mark.skipif(os.name == "nt", reason="Windows removes no file that somebody has open")
def test_a_folder_made_for_nothing_goes_while_its_lock_is_held(tmp_path, monkeypatch):
    out, held, unlink = tmp_path / "out", [], Path.unlink

    def removing(path):
        with pytest.raises(locking.LockedError), locking.exclusive(path):
            pass
        held.append(path)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", removing)
    with alone(out):
        pass
    assert (held, out.exists()) == ([out / LOCK], False)


def test_the_same_bytes_from_memory_from_files_from_archives_and_from_two_processes(tmp_path, monkeypatch, built):
    made.write_fleet(tmp_path / "in", episodes=1)
    built(out="a")
    first = made.outputs(tmp_path / "a")
    built(out="a")
    assert made.outputs(tmp_path / "a") == first
    (tmp_path / "packed").mkdir()
    for folder in (tmp_path / "in").iterdir():
        pack(folder, tmp_path / "packed" / f"{folder.name}.tar.zst")
    monkeypatch.setattr(cut, "POOL_MIN", 1)
    monkeypatch.setattr(building, "POOL_MIN", 1)
    options = building.assemble.BuildOptions(jobs=2)
    building.build(tmp_path / "packed", tmp_path / "b", options)
    assert made.outputs(tmp_path / "b") == first
    assert len(first) == 10


def test_only_what_changed_is_read_again(tmp_path, monkeypatch, built):
    made.write_fleet(tmp_path / "in", hosts=("h0",))
    built()
    read, extract = [], extracting.extract

    def watched(path, *rest):
        read.append(path.name)
        return extract(path, *rest)

    monkeypatch.setattr(extracting, "extract", watched)
    built("--window-s", "2")
    assert read == [], "the windows changed, the recordings did not"
    made.write_episode(tmp_path / "in", number=1, seed=9)
    made.write_episode(tmp_path / "in", number=8, seed=8)
    built()
    assert sorted(read) == [made.IDS[1], made.IDS[8]]
    memory = next((tmp_path / "out" / building.dataset.MEMORY_FOLDER).iterdir())
    memory.write_bytes(b"torn")
    assert built()[0] == 0


def test_bad_episodes_are_quarantined_and_the_rest_is_built(tmp_path, built):
    made.write_fleet(tmp_path / "in", hosts=("h0",))
    bad = made.write_episode(tmp_path / "in", number=20)
    (bad / "telemetry.parquet").write_bytes(b"nothing")
    made.write_episode(tmp_path / "in", number=21, labels=[])
    slow_t, slow_values = made.signal(hz=2.0)
    made.write_episode(tmp_path / "in", number=22, sample_hz=2.0, t=slow_t, values=slow_values)
    code, summary, _ = built()
    assert code == 0
    assert {k: v[0][:22] for k, v in summary["quarantined"].items()} == {
        made.IDS[20]: "It cannot be read: a P",
        made.IDS[21]: "It has no labels.",
        made.IDS[22]: "It was sampled at 2 Hz",
    }
    table = pl.read_parquet(tmp_path / "out" / VALIDATION_FILE)
    rows = {r["episode_id"]: r for r in table.iter_rows(named=True)}
    assert rows[made.IDS[0]]["windows"] == 7
    assert rows[made.IDS[20]]["ok"] is False
    assert rows[made.IDS[20]]["host"] is None
    assert rows[made.IDS[21]]["windows"] == 0


@pytest.mark.parametrize("packed", [True, False])
def test_an_episode_that_may_not_be_read_ends_the_build_and_is_not_remembered_as_bad(tmp_path, packed, built):
    """Unlike a damaged one: as soon as it can be read it is a recording like others."""
    made.write_fleet(tmp_path / "in", hosts=("h0",))
    whole = made.write_episode(tmp_path / "elsewhere", number=20)
    if packed:
        link, target = tmp_path / "in" / f"{made.IDS[20]}.tar.zst", tmp_path / "unplugged.tar.zst"
        link.symlink_to(target)
    else:
        link, target = whole / "telemetry.parquet", tmp_path / "telemetry.parquet"
        link.replace(target)
        link.mkdir()
        whole.rename(tmp_path / "in" / whole.name)
        link = tmp_path / "in" / whole.name / link.name
    code, _, said = built()
    assert code == Exit.BAD_DATA
    assert said.startswith(f"build: {link} cannot be read (")
    assert said.endswith(
        "make it readable for this user, or move the episode elsewhere; "
        "one that is left out unseen would change what is learnt.\n"
    )
    assert not (tmp_path / "out" / VALIDATION_FILE).exists()
    if packed:
        pack(whole, target)
    else:
        link.rmdir()
        target.replace(link)
    code, summary, _ = built()
    assert (code, summary["quarantined"]) == (0, {})
    assert (built.load().rows.episode == made.IDS[20]).sum() == 7


def test_faster_recordings_are_brought_to_the_common_rate(tmp_path, built):
    made.write_fleet(tmp_path / "in", hosts=("h0",))
    made.write_episode(tmp_path / "in", number=9, sample_hz=16.0)
    _, summary, _ = built()
    assert summary["quarantined"] == {}
    data = built.load()
    assert (data.rows.episode == made.IDS[9]).sum() == 7
    assert data.tensors.shape[2] == 32


def write_lacking(root, lacking, **changes):
    """An episode of a host without some channels."""
    keep = [place for place, channel in enumerate(made.CHANNELS) if channel[0] not in lacking]
    t, values = made.signal(seed=changes["number"])
    channels = made.channel_infos([made.CHANNELS[place] for place in keep])
    made.write_episode(root, channels=channels, t=t, values=values[:, keep], **changes)


def three_hosts():
    """The form of each of six episodes: a reference and a recording of three hosts."""
    for number in range(6):
        about = {"number": number, "host": f"h{number % 3}", "baseline": number < 3}
        yield about | (made.IDLE if number < 3 else {})


FEWER = BuildOptions(stride_s=4.0)


@pytest.fixture(scope="module")
def whole_hosts(tmp_path_factory):
    """The data set of hosts that lack nothing."""
    folder = tmp_path_factory.mktemp("whole")
    for about in three_hosts():
        made.write_episode(folder / "in", **about)
    return building.build(folder / "in", folder / "out", FEWER), folder / "out"


@settings(max_examples=8, deadline=None)
@given(lacking=st.lists(st.sets(st.sampled_from([c[0] for c in made.CHANNELS]), max_size=3), min_size=3, max_size=3))
def test_what_a_host_lacks_is_absent_there_and_changes_nothing_else(tmp_path_factory, whole_hosts, lacking):
    tmp_path = tmp_path_factory.mktemp("hosts")
    for about in three_hosts():
        write_lacking(tmp_path / "some", lacking[about["number"] % 3], **about)
    whole, folder = whole_hosts
    schema = read_schema(folder / SCHEMA_FILE)
    some = building.build(tmp_path / "some", tmp_path / "b", replace(FEWER, like=schema))
    assert whole.quarantined == some.quarantined == {}
    assert whole.schema_hash == some.schema_hash
    one, other = made.load(folder), made.load(tmp_path / "b")
    for place, name in enumerate(one.channel_names):
        gone = np.array([name in lacking[int(host[1:])] for host in one.rows.host])
        assert np.isnan(other.tensors[gone, place]).all()
        assert (other.tensors[~gone, place] == one.tensors[~gone, place]).all()
    union = building.build(tmp_path / "some", tmp_path / "c", FEWER)
    everywhere = set.intersection(*lacking)
    assert read_schema(tmp_path / "c" / SCHEMA_FILE).optional == tuple(sorted(set.union(*lacking) - everywhere))
    assert union.windows == whole.windows


def test_a_channel_that_means_something_else_in_the_other_view_is_absent_there(tmp_path, built):
    channels = made.channel_infos([*made.CHANNELS[:3], ("forks", "1", "counter", ["oracle", "realistic"])])

    def record(folder, number, view):
        t, values = made.signal(seed=number)
        values[:, 3] = np.cumsum(values[:, 3])
        about = {"host": f"h{number}", "view": view, "channels": channels}
        made.write_episode(tmp_path / folder, number=number, t=t, values=values, **about)

    for number in range(6):
        record("in", number, "machine" if number == 4 else "container")
    code, summary, _ = built()
    assert (code, summary["quarantined"]) == (0, {})
    said = "forks in the view container means something else than on h4: absent there."
    assert said in summary["understood"]["notes"]
    schema = read_schema(tmp_path / "out" / SCHEMA_FILE)
    assert (schema.views, schema.optional) == ({"forks": "container"}, ("forks",))
    data = built.load()
    gone = np.isnan(data.tensors[:, data.channel_names.index("forks"), 0])
    assert (gone == (data.rows.host == "h4")).all()
    # The schema keeps which of the two it is, wherever new recordings come from.
    record("new", 9, "machine")
    code, _, said = built("--like", tmp_path / "out", source="new", out="b")
    assert code == 0, said
    new = built.load("b")
    assert np.isnan(new.tensors).all(axis=(0, 2)).tolist() == [name == "forks" for name in new.channel_names]
    assert read_schema(tmp_path / "b" / SCHEMA_FILE).hash() == schema.hash()


def test_a_recording_of_other_things_altogether_is_not_one_of_the_schemas(tmp_path, built):
    made.write_fleet(tmp_path / "old", references=False)
    built(source="old", out="a")
    channels = made.channel_infos([(f"my_{name}", *rest) for name, *rest in made.CHANNELS])
    made.write_episode(tmp_path / "new", number=9, channels=channels)
    said = built.refused("--like", tmp_path / "a", source="new", out="b")
    assert "none of the channels of the schema" in said


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, built):
    made.write_fleet(tmp_path / "in")
    (tmp_path / "taken").write_text("a file")
    code, _, err = built(out="taken/out")
    assert code == Exit.NO_ACCESS
    assert err.startswith("build: ")
    assert "choose another --out-dir" in err
    assert "Traceback" not in err


def test_what_cannot_be_built_is_said_in_one_sentence(tmp_path, built):
    assert "no folder" in built.refused(source="nowhere")
    made.write_episode(tmp_path / "in", labels=[])
    assert "It has no labels." in built.refused()
    made.write_episode(tmp_path / "in", labels=[(0.0, "idle")])
    assert "long enough" in built.refused("--window-s", "60")
    assert "a stride of 0.01 s one; lengthen" in built.refused("--stride-s", "0.01")
    assert "cannot be read" in built.refused("--like", tmp_path / "none.json")


def test_a_good_reference_hides_no_reason(tmp_path, built):
    """Beside a reference, recordings of which none can be used were said to be too short."""
    made.write_episode(tmp_path / "in", number=1, baseline=True, duration_s=30.0, **made.IDLE)
    assert "All 1 episodes are references" in built.refused()
    made.write_episode(tmp_path / "in", number=0, labels=[])
    said = built.refused()
    assert "None of the 1 episodes that are no references can be used; the first, " in said
    assert "It has no labels." in said


@pytest.mark.parametrize(
    "wrong", [["--window-s", "-1"], ["--jobs", "0"], ["--target", "mood"], ["--window", "4"], ["--stride-s", "nan"]]
)
def test_wrong_arguments_exit_2(tmp_path, wrong, capsys):
    with pytest.raises(SystemExit) as stop:
        building.main([str(tmp_path), *wrong])
    assert stop.value.code == Exit.BAD_ARGUMENTS
    assert "usage" in capsys.readouterr().err


def test_new_recordings_are_built_like_an_existing_schema(tmp_path, built):
    made.write_fleet(tmp_path / "old")
    built("--window-s", "3", source="old", out="a")
    like = ("--like", tmp_path / "a" / SCHEMA_FILE)
    made.write_fleet(tmp_path / "new", hosts=("h7",), episodes=1)
    code, _, _ = built(*like, source="new", out="b")
    assert code == 0
    assert built.load("a").schema_hash == built.load("b").schema_hash
    made.write_fleet(tmp_path / "bare", hosts=("h8",), episodes=2, references=False)
    assert "record some" in built.refused(*like, source="bare", out="c")


def test_hosts_are_measured_against_their_own_reference(tmp_path, built):
    """One host is a hundred times busier than the other, all day: normalised, they look alike."""
    number = 0
    for host, scale in (("calm", 1.0), ("busy", 100.0)):
        for reference in (True, False, False):
            duration = 30.0 if reference else 20.0
            t, values = made.signal(duration, seed=number, strength=0.0)
            about = {"host": host, "baseline": reference, "duration_s": duration, **(made.IDLE if reference else {})}
            made.write_episode(tmp_path / "in", number=number, t=t, values=values * scale, **about)
            number += 1
    built()
    data = built.load()
    level = {host: data.tensors[data.rows.host == host].mean(axis=(0, 2)) for host in ("calm", "busy")}
    np.testing.assert_allclose(level["calm"], level["busy"], atol=0.35)
    told = json.loads((tmp_path / "out" / building.dataset.REFERENCES_FILE).read_bytes())
    assert told["hosts"]["busy"]["seconds"] > 25
    assert told["hosts"]["busy"]["resting"][1] > told["hosts"]["calm"]["resting"][1] + 3


@pytest.mark.parametrize(("ordered", "has"), [(20.0, True), (15.0, False)])
def test_the_shortest_reference_that_can_be_recorded_is_one(tmp_path, ordered, has, built):
    """One of the 20 s that the recorder allows lacked an eighth of a second, and its host counted as without."""
    t, values = made.signal(ordered, seed=9)
    made.write_episode(tmp_path / "in", number=0)
    made.write_episode(tmp_path / "in", number=1, baseline=True, duration_s=ordered, t=t, values=values, **made.IDLE)
    _, found, _ = built()
    assert found["hosts_without_baseline"] == ([] if has else ["h0"])


def test_a_host_without_a_reference_is_said_to_have_none(tmp_path, capsys, built):
    made.write_fleet(tmp_path / "in", hosts=("h0",))
    made.write_episode(tmp_path / "in", number=30, host="stranger")
    _, summary, _ = built()
    assert summary["hosts_without_baseline"] == ["stranger"]
    building.main([str(tmp_path / "in"), "--out-dir", str(tmp_path / "out"), "--jobs", "1"])
    assert "without a reference of their own: stranger" in capsys.readouterr().out


def test_no_reference_at_all_leaves_values_compressed_only(tmp_path, built):
    made.write_fleet(tmp_path / "in", references=False)
    _, summary, _ = built()
    assert summary["hosts_without_baseline"] == ["h0", "h1"]
    assert built.load().schema.normaliser["type"] == "none"


def test_normalising_constant_and_extreme_channels_stays_finite():
    specs = [
        ChannelSpec(name=f"c{i}", unit="B/s", kind="counter", modes=("oracle",), transform="symlog", scale=1.0)
        for i in range(3)
    ]
    rows = np.zeros((400, 3), dtype=np.float32)
    rows[:, 1] = np.finfo(np.float32).max
    compressed = normalise.compress(rows, specs)
    references = normalise.measure({"h": normalise.Recorded.of([compressed])}, specs, 8.0)
    for values in (compressed, normalise.compress(-rows + 5, specs)):
        result = normalise.apply(values, "h", references)
        assert np.isfinite(result).all()
        assert np.abs(result).max() <= normalise.CLIP
    assert references.without(["h", "g"]) == ["g"]
    short = normalise.Recorded.of([compressed[:5]])
    assert normalise.measure({"h": short}, specs, 8.0).fleet is None, "too short to know a day by"


def test_a_build_and_an_ingest_into_one_folder_say_so_and_leave_nothing_of_each_other(tmp_path, capsys, built):
    out = tmp_path / "out"
    made.write_fleet(tmp_path / "in")
    assert built()[2] == ""
    (out / building.dataset.MEMORY_FOLDER / "mine.txt").write_text("not the build's")
    X = np.random.default_rng(0).normal(size=(8, 2, 16))
    np.savez(tmp_path / "windows.npz", X=X, y=np.arange(8) % 2)
    bring = [str(tmp_path / "windows.npz"), "--out-dir", str(out), "--json"]
    assert ingest.main(bring) == 0
    said = capsys.readouterr().err
    assert f"{out} held a data set that training.data.build had made: it was replaced" in said
    assert not (out / building.dataset.REFERENCES_FILE).exists()
    assert [p.name for p in (out / building.dataset.MEMORY_FOLDER).iterdir()] == ["mine.txt"]
    (out / building.dataset.MEMORY_FOLDER / "mine.txt").unlink()
    assert ingest.main(bring) == 0
    assert "replaced" not in capsys.readouterr().err
    assert not (out / building.dataset.MEMORY_FOLDER).exists()
    assert "brought in by training.data.ingest: it was replaced" in built()[2]


def test_a_refused_ingest_leaves_the_build_as_it_was(tmp_path, built):
    made.write_fleet(tmp_path / "in")
    built()
    before = made.outputs(tmp_path / "out")
    X = np.random.default_rng(0).normal(size=(8, 2, 16))
    np.savez(tmp_path / "windows.npz", X=np.concatenate([X, X]), y=np.arange(16) % 2)
    assert ingest.main([str(tmp_path / "windows.npz"), "--out-dir", str(tmp_path / "out")]) == 65
    assert made.outputs(tmp_path / "out") == before
