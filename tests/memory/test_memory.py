"""A server that meets ever new sizes does not grow past the bound on what is remembered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baselib.interpreter import VARIABLE
from support.running.processes import run

LIMIT = 4 << 20
ADJACENT = 12 << 20
SIZES = """
import random, sys
import numpy as np
import cpuconv
from cpuconv.conv import session

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096

cpuconv.set_cache_limit(int(sys.argv[1]))
rng = np.random.default_rng(0)
weights = [rng.standard_normal((16, 16, 1, 1), np.float32) for _ in range(3)]
image = rng.standard_normal((1, 16, 108, 108), np.float32)
sizes = [(height, width) for height in range(8, 108, 2) for width in range(8, 108, 2)]
random.Random(0).shuffle(sizes)
most, before = 0, None
for turn, (height, width) in enumerate(sizes):
    cpuconv.conv2d(image[:, :, :height, :width], weights[turn % 3], threads=1, strategy="heuristic")
    most = max(most, session.current.cache.nbytes)
    before = before or resident()
print(len(sizes), most, resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say what is resident")
def test_thousands_of_sizes_of_conv2d():
    for _ in range(2):  # the first compiles, which leaves memory with the compiler
        done = run("-c", SIZES, str(LIMIT))
    count, remembered, grown = map(int, done.stdout.split())
    assert count == 2_500
    assert LIMIT / 2 < remembered <= LIMIT
    if not os.environ.get(VARIABLE):  # the memory of an emulator is this process's too
        assert grown <= LIMIT + ADJACENT
