"""Bundles: equal files, equal bytes; and nothing packed that is not what the checkpoint promised."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from systems import make_link

from training.contract import filled_in, outputs
from training.fleet.cli.models import allowed_names
from training.fleet.cli.models import unpack as fetched
from training.fleet.wire import bundles
from training.fleet.worker import bundle
from training.fleet.worker.bundle import BLOCK_BYTES, BundleError, bundle_name, pack


def leave(folder, weights=b"weights", *, report=True, **named):
    """Write what a good trainer leaves, with ``named`` changing what the checkpoint says of its sidecar."""
    folder.mkdir(parents=True, exist_ok=True)
    sidecar = {"file": "mlp_oracle.pt", "bytes": len(weights), "sha256": _sha(weights)} | named
    (folder / "mlp_oracle.pt").write_bytes(weights)
    (folder / "mlp_oracle.ckpt.json").write_text(json.dumps({"model": "mlp", "sidecar": sidecar}))
    (folder / "mlp_oracle_timing.json").write_text('{"train_s": 12.5}')
    (folder / "mlp_oracle.state").write_bytes(b"resumable")
    if report:
        (folder / "mlp_oracle_train.json").write_text('{"metrics": {}}')


def _sha(data):
    return hashlib.sha256(data).hexdigest()


def pack_mlp(folder, target):
    return pack(folder, folder, target, model="mlp", mode="oracle")


def unpack(path):
    raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        return {info.name: archive.extractfile(info).read() for info in archive.getmembers()}


SIDECARS = [
    b"[]",
    b"{}",
    b"no JSON",
    json.dumps({"sidecar": {"file": "a.pt", "bytes": 1, "sha256": _sha(b"a")}}).encode(),
    json.dumps({"sidecar": {"file": "gone", "bytes": 1, "sha256": ""}}).encode(),
    json.dumps({"sidecar": 7}).encode(),
]
NAMES = ["a.pt", "b", "x.ckpt.json", "y.ckpt.json", "n" * 100, "n" * 101, "-x", "{model}", "gbt"]


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([b"a", b"\0" * 3_000_000, *SIDECARS]), min_size=1),
    st.integers(0, 2),
)
@settings(max_examples=60)
def test_what_is_packed_can_be_fetched(tmp_path_factory, files, short_of):
    folder = tmp_path_factory.mktemp("out")
    spec = {"model": "gbt", "mode": "oracle", "trainer": {"outputs": [*files]}}
    for name, content in files.items():
        (folder / filled_in(name, "gbt", "oracle")).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundles, "MEMBERS_MAX", 4)
        patch.setattr(bundles, "UNPACKED_BYTES_MAX", 7_000_000)
        patch.setattr(bundles, "CHECKPOINT_BYTES_MAX", 1_000_000)
        patch.setattr(bundles, "ARTIFACT_BYTES_MAX", [2**34, 1_000, 100][short_of])
        try:
            packed = pack(folder, folder, folder / "b.tar", model="gbt", mode="oracle", outputs=outputs(spec))
        except BundleError as error:
            refused = str(error)
        else:
            refused = ""
            found = fetched(packed.path, folder / "there", allowed_names(spec))
    if refused:
        assert refused.isprintable()
        assert not (folder / "b.tar").exists()
        return
    assert {each.name: each.sha256 for each in found} == {
        filled_in(name, "gbt", "oracle"): _sha(content) for name, content in files.items()
    }


def test_bundle_holds_checkpoint_sidecar_and_report_and_nothing_else(tmp_path):
    leave(tmp_path)
    packed = pack_mlp(tmp_path, tmp_path / bundle_name("mlp", "oracle", "ab12"))
    assert packed.path.name == "mlp_oracle-ab12.tar.zst"
    assert list(unpack(packed.path)) == ["mlp_oracle.ckpt.json", "mlp_oracle.pt", "mlp_oracle_train.json"]
    assert packed.sha256 == _sha(packed.path.read_bytes())
    assert packed.size == packed.path.stat().st_size


def test_report_is_optional_and_pretraining_has_its_own(tmp_path):
    leave(tmp_path, report=False)
    assert len(unpack(pack_mlp(tmp_path, tmp_path / "b").path)) == 2
    for name in ("transformer_ssl_realistic.pt", "transformer_ssl_realistic_pretrain.json"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "transformer_ssl_realistic.ckpt.json").write_text("{}")
    packed = pack(tmp_path, tmp_path, tmp_path / "c", model="transformer_ssl", mode="realistic")
    assert "transformer_ssl_realistic_pretrain.json" in unpack(packed.path)


def test_a_file_that_is_cut_while_it_is_packed_makes_no_bundle(tmp_path, monkeypatch):
    leave(tmp_path)
    real = os.fstat

    def grown(handle):
        found = real(handle)
        return os.stat_result((*found[:6], found.st_size + 1, *found[7:10]))

    (tmp_path / "mlp_oracle.ckpt.json").write_text("{}")
    monkeypatch.setattr("training.fleet.worker.bundle.os.fstat", grown)
    with pytest.raises(BundleError, match="became shorter while it was packed"):
        pack_mlp(tmp_path, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_checkpoint_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    leave(tmp_path)
    monkeypatch.setattr("training.fleet.worker.bundle.bundles.CHECKPOINT_BYTES_MAX", 1)
    with pytest.raises(BundleError, match="too large for a checkpoint"):
        pack_mlp(tmp_path, tmp_path / "b")


def test_boosted_trees_have_a_json_sidecar_by_convention(tmp_path):
    (tmp_path / "gbt_oracle.ckpt.json").write_text("{}")
    (tmp_path / "gbt_oracle.xgb.json").write_text("{}")
    packed = pack(tmp_path, tmp_path, tmp_path / "b", model="gbt", mode="oracle")
    assert list(unpack(packed.path)) == ["gbt_oracle.ckpt.json", "gbt_oracle.xgb.json"]


def test_where_and_when_leave_no_trace(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    leave(first)
    leave(second)
    for number, path in enumerate(sorted(second.iterdir())):
        os.utime(path, (1e9 + number, 1e9))
        path.chmod(0o600)
    one, other = pack_mlp(first, tmp_path / "one"), pack_mlp(second, tmp_path / "other")
    assert one.path.read_bytes() == other.path.read_bytes()


@settings(max_examples=40)
@given(st.binary(min_size=1, max_size=3000), st.integers(1, 700))
@example(bytes(range(256)), 3 * BLOCK_BYTES // 256 + 1)
def test_any_weights_come_back(tmp_path_factory, seed, times):
    folder = tmp_path_factory.mktemp("weights")
    weights = seed * times
    leave(folder, weights)
    packed = pack_mlp(folder, folder / "b")
    assert unpack(packed.path)["mlp_oracle.pt"] == weights
    assert len(zstandard.ZstdDecompressor().stream_reader(packed.path.read_bytes()).read()) % 10240 == 0
    assert pack_mlp(folder, folder / "c").sha256 == packed.sha256


def test_an_empty_output_is_none(tmp_path):
    leave(tmp_path / "out", b"")
    with pytest.raises(BundleError, match=r"exited with 0 but left mlp_oracle\.pt empty"):
        pack_mlp(tmp_path / "out", tmp_path / "b.tar.zst")
    (tmp_path / "out" / "model.bin").touch()
    folder, own = tmp_path / "out", ["model.bin", "mlp_oracle.ckpt.json"]
    with pytest.raises(BundleError, match=r"left model\.bin empty"):
        pack(folder, folder, tmp_path / "b", model="own", mode="oracle", outputs=own)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"sha256": "0" * 64}, "is not the file its checkpoint was written with"),
        ({"bytes": 8}, "does not have the size"),
        ({"file": "absent.pt"}, "left no absent.pt"),
        ({"file": "../mlp_oracle.pt"}, "another file of its own folder"),
        ({"file": "mlp_oracle.ckpt.json"}, "another file of its own folder"),
        ({"bytes": None}, "does not name its sidecar"),
        ({"bytes": float("inf")}, "does not name its sidecar"),
        ({"file": "a\0.pt"}, "left no a"),
        ({"file": "caf\udce9\ud800.pt"}, "left no caf"),
    ],
)
def test_broken_promises_are_named_and_leave_nothing(tmp_path, named, words):
    leave(tmp_path / "out", **named)
    with pytest.raises(BundleError, match=words):
        pack_mlp(tmp_path / "out", tmp_path / "b.tar.zst")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_checkpoint_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "mlp_oracle.ckpt.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"mlp_oracle\.ckpt\.json"):
        pack_mlp(tmp_path, tmp_path / "b")


def test_missing_checkpoint_and_links_are_refused(tmp_path):
    with pytest.raises(BundleError, match=r"left no mlp_oracle\.ckpt\.json"):
        pack_mlp(tmp_path, tmp_path / "b")
    leave(tmp_path)
    (tmp_path / "mlp_oracle.pt").unlink()
    make_link(tmp_path / "mlp_oracle.pt", Path("/etc/passwd"))
    with pytest.raises(BundleError, match="not a regular file"):
        pack_mlp(tmp_path, tmp_path / "b")
    (tmp_path / "mlp_oracle.ckpt.json").unlink()
    make_link(tmp_path / "mlp_oracle.ckpt.json", tmp_path / "mlp_oracle_train.json")
    with pytest.raises(BundleError, match=r"ckpt\.json is not a regular file"):
        pack_mlp(tmp_path, tmp_path / "b")


@pytest.mark.parametrize(("output", "words"), [("../secret", "without folders"), ("no name", "is no name")])
def test_what_cannot_be_taken_is_refused_before_a_byte_is_packed(tmp_path, monkeypatch, output, words):
    (tmp_path / "no name").write_bytes(b"x")
    monkeypatch.setattr(bundle._Writer, "add", lambda *_: pytest.fail("it packs"))
    with pytest.raises(BundleError, match=words):
        pack(tmp_path, tmp_path, tmp_path / "b", model="own", mode="oracle", outputs=[output])


def test_full_disk_leaves_no_half_bundle(tmp_path, monkeypatch):
    leave(tmp_path / "out")

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        pack_mlp(tmp_path / "out", tmp_path / "b.tar.zst")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_checkpoint_of_ones_own_trainer_goes_with_its_own_sidecar(tmp_path):
    leave(tmp_path, sha256=_sha(b"of another training"))
    own = ["mlp_oracle.ckpt.json", "mlp_oracle.pt"]
    with pytest.raises(BundleError, match="was not written with the sidecar in its folder"):
        pack(tmp_path, tmp_path, tmp_path / "b", model="own", mode="oracle", outputs=own)
    assert not (tmp_path / "b").exists()
