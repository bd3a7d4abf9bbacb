"""Arrays that go soon share memory, which goes with the last of them."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.memory.large_pages import CHUNK
from cpuconv.memory.mapped_files import owned_copy
from cpuconv.memory.temporary import SMALL, is_temporary, temporary
from cpuconv.problem.arrays import address

FLOAT32 = np.dtype(np.float32)
LARGE = (4, SMALL // 16 + 1)


def test_arrays_lie_apart_on_cache_lines() -> None:
    made = [temporary(shape, np.dtype(dtype)) for shape in (LARGE, (3, SMALL)) for dtype in ("f4", "f8", "u1") * 3]
    for at, each in enumerate(made):
        each.fill(at)
    for at, each in enumerate(made):
        assert (each == at).all() and each.flags.c_contiguous and each.flags.writeable
        assert address(each) % ALIGNMENT == 0 or each.nbytes < SMALL


def test_a_small_array_is_its_own() -> None:
    made = temporary((SMALL // 4 - 1,), FLOAT32)
    assert not is_temporary(made) and owned_copy(made) is made


@pytest.mark.parametrize("view", [lambda each: each, lambda each: each[1:], lambda each: each.T.view(np.int32)])
def test_what_lasts_is_copied(view) -> None:
    made = temporary(LARGE, FLOAT32)
    made.fill(2)
    kept = owned_copy(view(made))
    assert is_temporary(view(made)) and not is_temporary(kept)
    assert kept.base is None and (kept == view(made)).all() and kept.flags.c_contiguous


def test_a_chunk_goes_with_its_last_array() -> None:
    first, second = temporary(LARGE, FLOAT32), temporary(LARGE, FLOAT32)
    assert first.base.base.obj is second.base.base.obj
    chunk = weakref.ref(first.base.base.obj)
    del first
    gc.collect()
    assert chunk() is not None
    second = second[1:, 2:]
    assert chunk() is not None
    del second
    gc.collect()
    assert chunk() is None


def test_an_array_may_be_larger_than_a_chunk() -> None:
    made = temporary((CHUNK // 4 + 1,), FLOAT32)
    assert made.nbytes > CHUNK and temporary(LARGE, FLOAT32).base.base.obj is not made.base.base.obj


def test_threads_share_no_chunk() -> None:
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(temporary, LARGE, FLOAT32).result()
    assert other.base.base.obj is not temporary(LARGE, FLOAT32).base.base.obj
