"""The differences between the systems on which the tests run."""

from __future__ import annotations

import os

import pytest


def make_link(path, target):
    """A symbolic link; the test is skipped where none can be made (Windows asks for a privilege)."""
    try:
        path.symlink_to(target)
    except OSError as error:
        pytest.skip(f"no link can be made here: {error}")
    if not path.is_symlink():  # Wine says that it made one
        pytest.skip("no link can be made here")


def open_to_others(path):
    """Return True when others than the owner may read or write it.

    On Windows that is the folder's affair, and not looked at.
    """
    return os.name == "posix" and path.stat().st_mode & 0o077 != 0


def is_wine():
    """Return True when this Windows is Wine, whose C library hands no Ctrl-Break to a program's handler."""
    if os.name != "nt":
        return False
    import ctypes

    return hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")
