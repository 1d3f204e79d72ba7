"""Find the owner of a receiver's state folder, and act with the owner's rights when root runs a command there.

The receiver's user may have made a link in any folder it can write, even one to /etc in place of ``models`` or ``tls``.
Writing with that user's own rights harms no other user, in spite of such links.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from training.frozen import frozen


@frozen
class User:
    """A user whose rights this process can take: user id, group id, and further groups."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


ROOT = User(0, 0)


def owner_of(db: Path) -> User | None:
    """Return the receiver's user, the owner of the database's folder; None on Windows, if we are not root, if root is
    the owner, or without such a folder."""
    if os.name != "posix" or os.geteuid() != 0 or not db.parent.is_dir():
        return None
    folder = db.parent.stat()
    return None if folder.st_uid == 0 else User(folder.st_uid, folder.st_gid)


@contextlib.contextmanager
def acting_as(user: User | None) -> Iterator[None]:
    """Act only with this user's rights, in all threads; without a user, with our own rights."""
    if user is None:
        yield
        return
    before = User(os.geteuid(), os.getegid(), tuple(os.getgroups()))
    try:
        _become(user)
        yield
    finally:
        _become(before)


def _become(user: User) -> None:
    os.seteuid(0)  # the real user is root all the time, and only root may choose
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
