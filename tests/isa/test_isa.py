"""Which instruction set code is generated for, and what is loaded to find out."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from autotune.interpreter import python
from cpuconv.isa import table
from cpuconv.runtime.target import target


def test_the_set_among_the_features_is_the_one_that_llvm_uses():
    assert table.stated(target()[2]) in (None, table.probed())


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ("+avx,+avx2,+avx512bw,+avx512f,+fma", "avx512"),
        ("+avx,+avx2,-avx512f,+fma", "avx2"),
        ("+fp-armv8,+neon", "neon"),
        ("+avx,-avx2", None),  # the CPU's name must tell
        ("", None),
    ],
)
def test_the_widest_set_counts(features, name):
    found = table.stated(features)
    assert (found and found.name) == name


def test_kernels_on_disk_are_loaded_without_compiling_the_runtime_of_numba(environ):
    code = (
        "import numpy as np, cpuconv\n"
        "from numba.core.runtime import rtsys; from cpuconv.runtime.code.cache import Statistics\n"
        "y = cpuconv.conv2d(np.ones((1, 8, 6, 6), np.float32), np.ones((8, 8, 3, 3), np.float32), threads=1)\n"
        "print(Statistics.compiled, rtsys._init, y.sum())"
    )
    said = [
        subprocess.run(python("-c", code), env=environ, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert said[0][2] == said[1][2] == str(np.float32(8 * 16 * 72))
    assert said[1][:2] == ["0", "False"]
