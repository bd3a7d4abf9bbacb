"""Arrays against memory that nobody may touch: elements stay, and a touch ends a process, which says in which case."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

from baselib.interpreter import python
from support.guarded import CAN, EDGES, END, START, named, pages, place, room
from support.strided import VIEWS

STRAY = """
import ctypes, faulthandler, sys
import numpy as np
from support.guarded import named, place
faulthandler.enable()
edge, at, writes = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
array = place(np.ones(1000, np.uint8), edge)
where = array.ctypes.data + at
call = (lambda: ctypes.memset(where, 0, 1)) if writes else (lambda: ctypes.string_at(where, 1))
named("a case (of its own)", call)
print("ended")
"""


def stray(environ: dict[str, str], edge: str, at: int, writes: bool) -> subprocess.CompletedProcess[str]:
    """A process that touches the byte `at` of an array of 1000 at that edge."""
    command = python("-c", STRAY, edge, str(at), str(writes))
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not CAN, reason="memory cannot be guarded")
@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(("edge", "at"), [(END, 1000), (START, -1)])
def test_a_touch_of_what_lies_beyond_ends_the_process(environ, edge, at, writes):
    done = stray(environ, edge, at, writes)
    assert done.stdout == "" and "a case (of its own)" in done.stderr
    assert done.returncode != 0
    if sys.platform == "linux" and len(python()) == 1:  # an emulator may end in another way
        assert done.returncode == -signal.SIGSEGV
    for inside in (0, 999):
        assert stray(environ, edge, inside, writes).stdout == "ended\n"


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("view", VIEWS)
def test_elements_and_strides_stay(view, edge):
    array = VIEWS[view](np.arange(240, dtype=np.float32).reshape(2, 3, 8, 5))
    placed = place(array, edge)
    np.testing.assert_array_equal(placed, array)
    assert placed.strides == array.strides and placed.flags.writeable == array.flags.writeable
    assert not np.shares_memory(placed, array)


@pytest.mark.parametrize("edge", EDGES)
def test_what_is_left_of_the_pages_is_filled(edge):
    placed = place(np.zeros((3, 5), np.float32), edge, 7)
    own = pages(placed)
    assert own.nbytes % 4096 == 0 and (own != 7).sum() == placed.size
    first = own.size - placed.size if edge == END else 0
    assert placed.ctypes.data == own.ctypes.data + 4 * first


def test_nothing_and_much():
    for size in (0, 1, 4095, 4096, 100_000):
        for edge in EDGES:
            assert room(size, edge).shape == (size,)
    assert place(np.zeros((0, 3), np.float32), END).shape == (0, 3)
    assert named("what it gives", lambda: 7) == 7
