"""The processed folder: whole, its two modes apart, and any foreign or damaged part refused by name."""

import json
import os
import shutil
import signal

import msgspec
import numpy as np
import polars as pl
import pytest

from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER, VALIDATION_FILE
from training.data import dataset, features
from training.data.dataset import Labelling, Sampling, WindowSet, load_processed, load_validation, write_processed
from training.data.errors import DataError, SchemaMismatch
from training.data.rows import Rows
from training.data.schema import ChannelSpec, read_schema, require_same
from training.files import LocalFs

N, T = 20, 16
INDEX = f"{TENSORS_FOLDER}/index.parquet"
BOTH, LAB = ("oracle", "realistic"), ("oracle",)


def specs(*modes):
    return [ChannelSpec(name=f"c{i}", unit="1", kind="gauge", modes=m) for i, m in enumerate(modes)]


def window_set(channels=3, seed=0, **changes):
    rng = np.random.default_rng(seed)
    fields = {
        "X": rng.normal(size=(N, channels, T)).astype(np.float32),
        "episode": np.array([f"e{n // 5}" for n in range(N)]),
        "host": np.array([f"h{n // 10}" for n in range(N)]),
        "t_start": 100.0 + np.arange(N),
        "t_end": 104.0 + np.arange(N),
        "label": np.array(["benign", "malicious"])[np.arange(N) % 2],
    }
    fields |= changes
    return WindowSet(X=fields.pop("X"), rows=Rows.of(**fields))


def write(out, windows=None, channels=None, *, names=("benign", "malicious"), reference=None, **changes):
    options = {"sample_hz": 4.0, "window_s": 4.0, "stride_s": 2.0, "normaliser": {"type": "none"}}
    rows = [
        {"episode_id": "e0", "ok": True, "baseline": False, "reasons": []},
        {"episode_id": "e9", "ok": False, "baseline": None, "reasons": ["It is broken."]},
    ]
    return write_processed(
        out,
        windows or window_set(),
        Sampling(channels=channels or specs(LAB, BOTH, BOTH), **(options | changes)),
        Labelling(target="malicious", names=names),
        validation_rows=rows,
        reference=reference,
    )


def load(out, mode="oracle", **changes):
    return load_processed(out / FEATURES_FILE, out / TENSORS_FOLDER, out / SCHEMA_FILE, mode, **changes)


def test_what_is_written_is_loaded(tmp_path):
    windows = window_set()
    schema = write(tmp_path, windows)
    data = load(tmp_path)
    # Realistic channels first, so that their windows are a view of the map.
    assert data.channel_names == ("c1", "c2", "c0")
    np.testing.assert_array_equal(data.tensors, windows.X[:, [1, 2, 0]])
    assert data.features.dtype == np.float32
    assert data.features.shape == (N, len(schema.features))
    assert data.y.tolist() == [0, 1] * (N // 2)
    assert data.label_map == {"benign": 0, "malicious": 1}
    assert data.rows.window_id[6] == "e1-0001"
    np.testing.assert_array_equal(data.rows.host, windows.rows.host)
    np.testing.assert_array_equal(data.rows.t_end, windows.rows.t_end)
    with pytest.raises(ValueError, match="read-only"):
        data.tensors[0, 0, 0] = 1


def test_realistic_is_a_strict_part_of_oracle(tmp_path):
    schema = write(tmp_path)
    realistic, oracle = load(tmp_path, "realistic"), load(tmp_path, "oracle")
    assert realistic.channel_names == ("c1", "c2")
    assert set(realistic.feature_names) < set(oracle.feature_names)
    assert not any("c0" in name for name in realistic.feature_names)
    places = [oracle.feature_names.index(n) for n in realistic.feature_names]
    np.testing.assert_array_equal(realistic.features, oracle.features[:, places])
    assert np.shares_memory(realistic.tensors, realistic.tensors.base)
    assert len({realistic.schema_hash, oracle.schema_hash, schema.hash()}) == 3
    assert realistic.data_digest == oracle.data_digest


def test_the_schema_file_is_its_own_hash(tmp_path):
    schema = write(tmp_path)
    assert read_schema(tmp_path / SCHEMA_FILE).hash() == schema.hash()
    manifest = json.loads((tmp_path / TENSORS_FOLDER / "manifest.json").read_bytes())
    assert manifest["schema_hash"] == schema.hash()
    assert manifest["mode_hashes"]["oracle"] == load(tmp_path).schema_hash


@pytest.mark.parametrize("part", ["X", "host", "label", "t_start", "episode"])
def test_the_digest_changes_with_every_part_of_the_data(tmp_path, part):
    write(tmp_path / "a")
    first = window_set()
    other = getattr(first if part == "X" else first.rows, part).copy()
    other[3] = {"X": 9.0, "host": "hx", "label": "benign", "t_start": 1.0, "episode": "ex"}[part]
    write(tmp_path / "b", window_set(**{part: other}))
    assert load(tmp_path / "a").data_digest != load(tmp_path / "b").data_digest


def overwrite(name, change):
    def damage(out):
        path = out / name
        path.write_bytes(change(path.read_bytes()))

    return damage


def rewritten(name, change):
    return lambda out: change(pl.read_parquet(out / name)).write_parquet(out / name)


def remove(name):
    return lambda out: (out / name).unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (overwrite(f"{TENSORS_FOLDER}/tensors.npy", lambda b: b[:-4] + b"\0\0\0\1"), "damaged"),
        (overwrite(f"{TENSORS_FOLDER}/tensors.npy", lambda b: b[:200]), "cannot be read"),
        (overwrite(f"{TENSORS_FOLDER}/manifest.json", lambda b: b[:99]), "not a tensor manifest"),
        (overwrite(FEATURES_FILE, lambda b: b[:99]), "cannot be read"),
        (overwrite(SCHEMA_FILE, lambda b: b"[]"), "not a feature schema"),
        (rewritten(FEATURES_FILE, pl.DataFrame.reverse), "different windows"),
        (rewritten(FEATURES_FILE, lambda rows: rows.with_columns(pl.last() + 1)), "does not belong"),
        (rewritten(FEATURES_FILE, lambda rows: rows.with_columns(pl.last() * 0 + np.inf)), "infinite value or text"),
        (rewritten(FEATURES_FILE, lambda rows: rows[:, :-1]), "columns"),
        (rewritten(INDEX, lambda rows: rows.with_columns(label=pl.lit("benign"))), "not the index"),
        (remove(f"{TENSORS_FOLDER}/manifest.json"), "build or ingest"),
        (remove(INDEX), "cannot be read"),
        (remove(SCHEMA_FILE), "cannot be read"),
        (remove(FEATURES_FILE), "cannot be read"),
    ],
)
def test_foreign_and_damaged_parts_are_refused(tmp_path, damage, says):
    write(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=says) as refusal:
        load(tmp_path)
    assert "\n" not in str(refusal.value)


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("step", ["extract_blocks", "metadata", "write_features", "_put_in_place"])
def test_a_write_that_ends_before_its_last_step_leaves_what_was_there(tmp_path, monkeypatch, step):
    write(tmp_path)
    before = content(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(dataset, step, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises((KeyboardInterrupt, pl.exceptions.PolarsError)):
            write(tmp_path, window_set(seed=1))
    assert content(tmp_path) == before
    left = tmp_path / dataset.NEW_FOLDER / "half.npy"  # by a writer that was killed
    left.parent.mkdir()
    left.write_bytes(b"half")
    write(tmp_path, window_set(seed=1))
    assert not left.parent.exists()
    assert content(tmp_path) != before
    write(tmp_path)
    assert content(tmp_path) == before


@pytest.mark.half
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a kill at a place is made by a fork")
@pytest.mark.parametrize("references", [True, False])
def test_a_writer_that_is_killed_leaves_what_was_there_or_the_whole_new_data_set(tmp_path, monkeypatch, references):
    """At each of its steps, from the first file that is synced to the last folder."""
    out = tmp_path / "out"
    more = window_set(seed=2, label=np.array([dataset.REFERENCE] * N))
    write(out, reference=None if references else more)
    old = load(out)
    with monkeypatch.context() as patch:
        patch.setattr(dataset, "_put_in_place", lambda new, _: shutil.copytree(new, tmp_path / "new"))
        write(out, window_set(seed=1), reference=more if references else None)
    write(tmp_path / "plain")
    seen, steps = set(), 0
    while True:
        place = tmp_path / str(steps)
        shutil.copytree(out, place)
        shutil.copytree(tmp_path / "new", place / dataset.NEW_FOLDER)
        if ended(place, steps):
            break
        before = (place / TENSORS_FOLDER / "manifest.json").read_bytes()
        found, validation = load(place), load_validation(place / VALIDATION_FILE)
        assert validation.digest == found.validation_digest
        seen.add(found.data_digest)
        assert not (place / dataset.WHOLE_FOLDER).exists()
        assert len(seen) == 2 or (place / TENSORS_FOLDER / "manifest.json").read_bytes() == before
        if steps % 5 == 0:
            write(place)
            assert content(place).keys() == content(tmp_path / "plain").keys()
        steps += 1
    assert len(seen) == 2
    assert old.data_digest in seen
    assert steps > 12


def ended(place, steps):
    """Let a process put a data set in place that is killed at its step of this number; tell whether it ended before."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    left = [steps]

    def counted(step):
        def stepped(*args):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return step(*args)

        return stepped

    for name in ("sync_file", "sync_folder", "replace", "unlink"):
        setattr(LocalFs, name, counted(getattr(LocalFs, name)))
    shutil.rmtree = counted(shutil.rmtree)
    try:
        dataset._put_in_place(place / dataset.NEW_FOLDER, place)
    finally:
        os._exit(0)


def test_a_data_set_that_cannot_be_put_in_place_is_one_sentence(tmp_path, monkeypatch):
    write(tmp_path)
    (tmp_path / dataset.WHOLE_FOLDER / TENSORS_FOLDER).mkdir(parents=True)
    (tmp_path / dataset.WHOLE_FOLDER / SCHEMA_FILE).write_bytes(b"{}")

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalFs, "replace", denied)
    with pytest.raises(DataError, match=r"whose writer was killed .* with an account that may write there"):
        load(tmp_path)


@pytest.mark.parametrize("values", [1, 3 * T * 7, 3 * T * N])
def test_features_that_are_written_in_parts_are_those_written_at_once(tmp_path, monkeypatch, values):
    write(tmp_path / "once")
    monkeypatch.setattr(features, "BLOCK_VALUES", values)
    write(tmp_path / "parts")
    assert content(tmp_path / "parts") == content(tmp_path / "once")


@pytest.mark.parametrize(
    ("windows", "channels", "changes", "says"),
    [
        ({}, specs(BOTH, BOTH, BOTH)[:2] + specs(BOTH)[:1], {}, "twice"),
        ({"X": np.full((N, 3, T), np.inf, dtype=np.float32)}, None, {}, "finite"),
    ],
)
def test_unfit_windows_are_refused(tmp_path, windows, channels, changes, says):
    write(tmp_path)
    with pytest.raises(DataError, match=says):
        write(tmp_path, window_set(**windows), channels, **changes)
    assert len(load(tmp_path)) == N, "what is refused leaves what was there"


def test_modes_that_see_nothing_or_do_not_exist(tmp_path):
    write(tmp_path, channels=specs(LAB, LAB, LAB))
    with pytest.raises(DataError, match="no channel that the mode realistic"):
        load(tmp_path, "realistic")
    with pytest.raises(DataError, match="no mode 'godlike'"):
        load(tmp_path, "godlike")


@pytest.mark.parametrize(
    ("channels", "changes", "where"),
    [
        (specs(BOTH, BOTH, BOTH)[::-1], {}, r"channels\[0\]\.name"),
        ([ChannelSpec(name="c0", unit="B", kind="gauge", modes=BOTH), *specs(BOTH, BOTH, BOTH)[1:]], {}, "unit"),
        (None, {"window_s": 5.0}, "window_s"),
        (None, {"normaliser": {"type": "other"}}, r"normaliser\.type"),
    ],
)
def test_another_schema_is_refused_at_its_first_difference(tmp_path, channels, changes, where):
    usual = write(tmp_path / "a", channels=specs(BOTH, BOTH, BOTH))
    other = write(tmp_path / "b", channels=channels or specs(BOTH, BOTH, BOTH), **changes)
    with pytest.raises(SchemaMismatch, match=where):
        require_same(usual, other)
    with pytest.raises(SchemaMismatch, match=where):
        load_processed(None, tmp_path / "b" / TENSORS_FOLDER, tmp_path / "a" / SCHEMA_FILE, "oracle")


def test_a_rate_that_was_kept_to_six_digits_is_the_same_rate(tmp_path):
    usual = msgspec.structs.replace(write(tmp_path), sample_hz=0.00333333, window_s=2400.0024, stride_s=1200.0012)
    exact = msgspec.structs.replace(usual, sample_hz=1 / 300, window_s=2400.0, stride_s=1200.0)
    require_same(usual, exact)
    with pytest.raises(SchemaMismatch, match="sample_hz"):
        require_same(usual, msgspec.structs.replace(exact, sample_hz=1 / 301))


def test_channels_and_classes_that_are_lacking_are_named_with_the_way_out(tmp_path):
    usual = write(tmp_path / "a", channels=specs(BOTH, BOTH, BOTH))
    fewer = msgspec.structs.replace(usual, channels=usual.channels[:2])
    with pytest.raises(SchemaMismatch, match=f"lack the channels {usual.channels[2].name}\\."):
        require_same(usual, fewer)
    is_benign = msgspec.structs.replace(usual, label_map={"benign": 0})
    with pytest.raises(SchemaMismatch, match="ingested with --labels benign,malicious"):
        require_same(usual, is_benign)


def test_validation_is_summed_up(tmp_path):
    write(tmp_path)
    found = load_validation(tmp_path / VALIDATION_FILE)
    assert (found.episodes, found.references) == (2, 0)
    assert found.quarantined == {"e9": ("It is broken.",)}
    (tmp_path / VALIDATION_FILE).write_bytes(b"")
    with pytest.raises(DataError, match="cannot be read"):
        load_validation(tmp_path / VALIDATION_FILE)


@pytest.mark.half
@pytest.mark.parametrize(
    "odd", [pl.lit("x"), pl.lit(None), pl.lit(float("nan")), pl.lit(7), pl.lit([1]), "some are missing"], ids=str
)
@pytest.mark.parametrize("file", [INDEX, f"{TENSORS_FOLDER}/baseline.parquet", FEATURES_FILE, VALIDATION_FILE])
def test_a_column_of_another_type_is_bad_data(tmp_path, file, odd):
    """Or it makes no difference, as in columns that nobody reads; it is never a mistake of the program."""
    write(tmp_path, reference=window_set(label=np.full(N, "baseline")))
    whole = pl.read_parquet(tmp_path / file)
    before = load(tmp_path)
    refused = 0
    for name in whole.columns:
        some = pl.when(pl.int_range(pl.len()) % 2 == 1).then(pl.col(name))
        column = some if isinstance(odd, str) else odd
        whole.with_columns(column.alias(name)).write_parquet(tmp_path / file)
        try:
            after, _ = load(tmp_path), load_validation(tmp_path / VALIDATION_FILE)
        except DataError:
            refused += 1
        else:
            np.testing.assert_array_equal(after.features, before.features)
            assert after.rows.host.tolist() == before.rows.host.tolist()
    assert refused >= 2
