"""The doctor names links among what the receiver keeps, and never follows one; it says what grows."""

from __future__ import annotations

import os

import pytest
from recovery_builders import bundle_of, found

from training.clock import SystemClock
from training.fleet.recovery import unlinked
from training.fleet.recovery.doctor import examine
from training.fleet.recovery.unlinked import Unlinked

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links need a right on Windows")


def swapped(path, elsewhere):
    """A link in the place of what was there, to the very same somewhere else."""
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def places(state):
    bundle = bundle_of(state, "done-twice")
    yield from (bundle, bundle.parent, bundle.parent.parent, bundle.parent / "provenance")
    yield next((bundle.parent / "provenance").iterdir())
    yield from (state.models / "index.jsonl", state.models / "database.json")


@pytest.mark.parametrize("number", range(7))
def test_a_link_in_the_store_is_named_and_not_followed(state, number, tmp_path):
    path = list(places(state))[number]
    elsewhere = tmp_path / "elsewhere"
    swapped(path, elsewhere)
    (link,) = (each for each in found(state, deep=True) if each.check == "links")
    assert link.problem == f"{path} is a link to {elsewhere}, which is not followed"
    disk = Unlinked(state.models)
    behind = path / "x" / "y" if elsewhere.is_dir() else path
    if elsewhere.is_dir():
        (elsewhere / "x").mkdir()
        (elsewhere / "x" / "y").touch()
    assert disk.size(behind) is None
    assert disk.names(path) == []
    for look in (lambda: list(disk.read(behind)), lambda: disk.modified_at(behind)):
        with pytest.raises(FileNotFoundError):
            look()


def test_links_among_data_sets_and_keys_are_named(state, tmp_path):
    links = [state.datasets / "pieces" / "ab" / "piece", state.tls / "ca.pem"]
    for path in links:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(tmp_path / "nowhere")
    said = {each.problem.partition(" is a link")[0] for each in found(state) if each.check == "links"}
    assert said == set(map(str, links))


@pytest.mark.parametrize("which", ["db", "models"])
def test_a_whole_folder_may_lie_elsewhere_if_root_or_we_said_so(state, which, tmp_path, monkeypatch):
    swapped(getattr(state, which), tmp_path / "elsewhere")
    assert found(state) == []
    monkeypatch.setattr(unlinked, "strange_root", lambda path: path.is_symlink())
    monkeypatch.setattr("training.fleet.recovery.doctor.strange_root", lambda path: path.is_symlink())
    (finding,) = found(state)
    assert finding.check == "links"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives links away")
def test_a_link_of_another_user_in_the_place_of_the_store_is_not_followed(state, tmp_path):
    swapped(state.models, tmp_path / "elsewhere")
    os.lchown(state.models, 12345, 12345)
    (finding,) = found(state)
    assert finding.check == "links"


def test_it_says_what_grows_and_how_large_it_is(state):
    (state.models / "incoming").mkdir(exist_ok=True)
    (state.models / "incoming" / "x.part").write_bytes(b"1234")
    (state.db.parent / "jobs.db.before-20260101T000000Z").write_bytes(b"123456")
    (state.db.parent / "jobs.db.plan").touch()  # of the receiver, which makes it anew
    (state.models / "elsewhere").symlink_to("/")
    grown = {each.what: each for each in examine(state, SystemClock()).grown}
    assert (grown["uploads on their way"].count, grown["uploads on their way"].bytes) == (1, 4)
    assert (grown["copies of the database"].count, grown["copies of the database"].bytes) == (1, 6)
    bundles = {bundle_of(state, name) for name in ("done", "done-twice", "same-bytes")}
    assert grown["files of models"].bytes is not None
    assert grown["files of models"].bytes > sum(path.stat().st_size for path in bundles)
    assert grown["jobs"].count == 7
    assert grown["lines of output"].count == 7
    assert grown["data sets"].verb == "cis490-jobs dataset remove NAME"
    assert all(each.bound for each in grown.values())
    assert {each["what"] for each in examine(state, SystemClock()).to_dict()["sizes"]} == set(grown)
