"""Arrays that lie in files: as those in memory, and no page of them is held."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.scratch import WorkingMemory, blocks, release


@given(rows=st.integers(1, 40), width=st.integers(1, 5), part=st.integers(1, 400), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_an_array_in_a_file_is_as_one_in_memory(tmp_path_factory, rows, width, part, seed):
    rng = np.random.default_rng(seed)
    values, keep = rng.random((rows, width)), rng.random(rows) < 0.5
    room = WorkingMemory(part_bytes=part, folder=tmp_path_factory.getbasetemp())
    for order in ("C", "F"):
        array = room.empty(values.shape, values.dtype, order)
        assert isinstance(array, np.memmap) == (values.nbytes > part)
        array[:] = values
        release(array)
        assert np.array_equal(np.concatenate([block for _, block in blocks(array, part)]), values)
        assert all(len(block) == 1 or block.nbytes <= part for _, block in blocks(array, part))
        assert np.array_equal(room.taken(array, keep), values[keep])


def test_nothing_lies_in_the_folder_and_a_full_disk_is_an_error(tmp_path):
    array = WorkingMemory(part_bytes=1, folder=tmp_path).empty((100,), np.float64)
    array[:] = 1
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError):
        WorkingMemory(part_bytes=1, folder=tmp_path).empty((1 << 57,), np.float64)
