"""Root acts on a state with its user's rights: links that a compromised receiver has made reach nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from fakes import FakeClock
from recovery_builders import PLAN, copied, found, state_in, tree
from systems import make_link

from training.clock import SystemClock
from training.fleet.receiver.security.authority import Authority
from training.fleet.recovery import owner
from training.fleet.recovery.backup import Backup, Restore
from training.fleet.recovery.files import give_to_owner
from training.fleet.recovery.rebuild import rebuild
from training.fleet.service.state import RecoveryError
from training.fleet.store.datasets import DatasetStore
from training.fleet.wire.dataset_listing import Listing, cut
from training.locking import exclusive

USER = 12345
as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root acts in the name of others")


@pytest.fixture(scope="module")
def sound(sound, tmp_path_factory):
    state = copied(sound, tmp_path_factory.mktemp("with-keys") / "state")
    Authority.open(state.tls, FakeClock())
    push(DatasetStore(state.datasets), b"window,value")
    return state


@pytest.fixture
def place():
    """A folder whose way is open to everybody; pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="cis490-owner-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def state(sound, place):
    """Another user's, as a receiver's is."""
    state = copied(sound, place / "state")
    give(state.db.parent)
    return state


@pytest.fixture
def system(place):
    """A folder of root's that stands for /etc."""
    folder = place / "etc"
    (folder / "cron.d").mkdir(parents=True)
    (folder / "shadow").write_text("root:$6$secret\nno newline at the end")
    (folder / "shadow").chmod(0o600)
    (folder / "cron.d" / "job").write_text("@reboot root true\n")
    return folder


@pytest.fixture
def untouched(system):
    """Check that root's files keep their names, bytes and owners."""
    before = tree(system)
    yield
    assert tree(system) == before
    assert sorted(map(str, system.rglob("*"))) == sorted(
        str(system / each) for each in ("cron.d", "cron.d/job", "shadow")
    )
    assert uids(system) == {0}
    assert os.geteuid() == os.getegid() == 0


def push(dataset_store, content):
    listing = Listing((cut("a.csv", [content]),))
    dataset_store.begin(listing.dataset_id, listing.document)
    dataset_store.put(listing.dataset_id, [(listing.files[0].pieces[0], content)])
    dataset_store.publish(listing.dataset_id, "processed", 0.0)


def give(folder, user=USER):
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def uids(folder):
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def lay(link, target, user=USER):
    """A link in the place of what was there."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    make_link(link, target)
    os.chown(link, user, user, follow_symlinks=False)


def anew(state):
    return rebuild(state, PLAN, SystemClock(), force=True)


def back_up(state, folder):
    Backup(folder).make(state, SystemClock())


def restore(folder, state):
    return Restore(folder, state, SystemClock()).run(force=True)


@as_root
@pytest.mark.usefixtures("untouched")
def test_a_rebuild_gives_nothing_away_behind_a_link(state, system):
    lay(state.tls, system)
    lay(state.models / "more", system)
    assert len(anew(state).completed) == 3
    assert uids(state.db.parent) == {USER}


@as_root
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("models", ""),
        ("models/incoming", "cron.d"),
        ("models/index.jsonl", "shadow"),
        ("jobs.db", "shadow"),
        ("jobs.db", "new.db"),
        ("jobs.db.lock", "new.lock"),
        ("tls", ""),
    ],
)
def test_root_writes_nothing_through_a_link(state, system, sound, tmp_path, link, target):
    back_up(sound, tmp_path / "backup")
    lay(state.db.parent / link, system / target)
    for recover in (anew, lambda state: restore(tmp_path / "backup", state)):
        with contextlib.suppress(RecoveryError):  # what the link is in the way of cannot be done
            recover(state)
    assert (system / "shadow").stat().st_nlink == 1


@as_root
@pytest.mark.usefixtures("untouched")
def test_nor_through_one_that_is_laid_meanwhile(state, system):
    def swap(*_):
        lay_as_user(state.models / "incoming", system / "cron.d")
        lay_as_user(state.tls, system)

    with pytest.raises(RecoveryError, match=r"[Pp]ermission|closed to user"):
        rebuild(state, PLAN, SystemClock(), force=True, progress=swap)


def lay_as_user(link, target):
    if not link.is_symlink():
        shutil.rmtree(link)
        make_link(link, target)


@as_root
def test_a_backup_of_root_alone_is_brought_back_as_the_user(sound, place, tmp_path):
    back_up(sound, tmp_path / "backup")
    (tmp_path / "backup").chmod(0o700)
    new = state_in(place / "new")
    new.db.parent.mkdir()
    give(new.db.parent)
    restore(tmp_path / "backup", new)
    assert uids(new.db.parent) == {USER}
    assert found(new, deep=True) == []


@as_root
def test_a_backup_that_is_the_users_own_is_read_with_its_rights(state, system, place):
    folder = place / "backup"
    back_up(state, folder)
    (copy,) = folder.rglob("training_jobs.db")
    give(folder)
    lay(copy, system / "shadow")
    with pytest.raises(RecoveryError, match="closed to user 12345"):
        restore(folder, state)
    assert b"secret" not in b"".join(tree(state.db.parent).values())


@as_root
def test_what_root_left_there_is_no_obstacle(state):
    give(state.db.parent, 0)
    os.chown(state.db.parent, USER, USER)
    assert len(anew(state).completed) == 3
    assert uids(state.db.parent) == {USER}


@as_root
def test_models_on_another_disk_stay_where_they_are(state, place):
    for user in (0, USER):  # whoever has made the link
        disk = place / f"disk-{user}"
        shutil.copytree(state.models, disk)
        give(disk)
        lay(state.models, disk, user)
        assert len(anew(state).completed) == 3
        assert uids(disk) == {USER}
        assert state.models.is_symlink()


@as_root
def test_a_folder_that_its_user_cannot_use_is_named(state, place):
    place.chmod(0o700)
    with pytest.raises(RecoveryError, match=r"state is closed to user 12345, .* and repeat"):
        anew(state)
    assert os.geteuid() == 0


@as_root
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("link", ["", "pieces", "names", "sets"])
def test_data_sets_are_not_brought_back_behind_a_link(state, system, sound, tmp_path, link):
    back_up(sound, tmp_path / "backup")
    lay(state.datasets / link, system)
    with pytest.raises(RecoveryError, match=r"denied|closed to user"):
        restore(tmp_path / "backup", state)


@as_root
def test_data_sets_are_brought_back_as_the_user(state, sound, tmp_path):
    """Out of a backup of root's alone, also a rotten piece of which is put aside."""
    back_up(sound, tmp_path / "backup")
    (tmp_path / "backup").chmod(0o700)
    rotten = next(path for path in (tmp_path / "backup/content").rglob(hashlib.sha256(b"window,value").hexdigest()))
    sound_bytes = rotten.read_bytes()
    rotten.write_bytes(b"rot")
    shutil.rmtree(state.datasets)
    assert "is damaged or gone in the backup" in restore(tmp_path / "backup", state).lost[0]
    rotten.write_bytes(sound_bytes)
    assert restore(tmp_path / "backup", state).datasets == 1
    assert uids(state.db.parent) == {USER}
    assert [each.names for each in DatasetStore(state.datasets).sets()] == [("processed",)]


@as_root
@pytest.mark.usefixtures("untouched")
def test_giving_follows_no_link(state, system):
    lay(state.models / "below", system / "cron.d")
    (state.models / "same").hardlink_to(system / "shadow")
    lay(state.tls, system)
    (state.models / "ours").write_text("root wrote this")
    (state.models / "another's").write_text("a third user's")
    os.chown(state.models / "another's", USER + 1, USER + 1)
    give_to_owner(state.db, state.models, state.tls, state.datasets)
    assert (state.models / "ours").stat().st_uid == USER
    assert (state.models / "another's").stat().st_uid == USER + 1


@as_root
def test_rights_come_back_and_nest():
    def mine():
        return os.geteuid(), os.getegid(), os.getgroups()

    def interrupted():
        with owner.acting_as(owner.User(USER, USER + 1)):
            assert mine() == (USER, USER + 1, [])
            with owner.acting_as(owner.ROOT):
                assert mine()[0] == 0
            assert mine() == (USER, USER + 1, [])
            raise KeyboardInterrupt

    groups = os.getgroups()
    os.setgroups([USER + 2])
    try:
        before = mine()
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert mine() == before == (0, 0, [USER + 2])
    finally:
        os.setgroups(groups)


def test_a_lock_is_not_taken_through_a_link(tmp_path):
    if not hasattr(os, "O_NOFOLLOW"):
        pytest.skip("this system follows every link")
    make_link(tmp_path / "lock", tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"is a link.*remove it"), exclusive(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()
