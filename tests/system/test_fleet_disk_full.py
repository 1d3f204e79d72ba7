"""Small real disks that fill up while a job is delivered; nobody has to be started again."""

from __future__ import annotations

import sys

import pytest
from torture.disk_full import DISKS, namespace, scenario

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="mounts small disks in a namespace"),
    pytest.mark.timeout(600),
]


@pytest.mark.half
@pytest.mark.parametrize("disk", DISKS)
def test_it_goes_on_when_there_is_space_again(disk):
    if namespace() is None:
        pytest.skip("this machine allows no mount namespace")
    assert scenario(disk, "worker.before.Upload")["filled"] == 1
