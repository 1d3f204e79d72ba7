"""Programs that tests run and that the project itself does not need."""

import os
import shutil

import pytest


def installed(name, package, path=None):
    """Return where a program lies. Without it the test is skipped, or fails where the variable ``CI`` is set."""
    found = shutil.which(name, path=path)
    if found is None:
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end(f"{name} is not installed (Debian: apt-get install {package})")
    return found
