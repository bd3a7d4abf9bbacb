"""Constants of vectors are kept by what they are: no two that differ in a bit are taken for one another."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from llvmlite import ir

from cpuconv.isa.vector import Vector


def emitter(lanes: int) -> Vector:
    return Vector(ir.IRBuilder(), lanes)


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_floats(lanes: int) -> None:
    values = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, np.float32(0.1), 0.1 + 1e-7]
    for _ in range(2):  # the second time they are there
        texts = [str(emitter(lanes).constant(value)) for value in values]
        assert len(set(texts)) == len(values)
        assert all(len(re.findall(r"float +0x", text)) == lanes for text in texts)
    assert str(emitter(lanes).constant(1)) == texts[2]


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_integers_and_lanes(lanes: int) -> None:
    assert {str(emitter(lanes).int_constant(value).type) for value in (3, -3)} == {
        "i32" if lanes == 1 else f"<{lanes} x i32>"
    }
    for one, other in itertools.combinations((0, 1, -1, 7), 2):
        assert str(emitter(lanes).int_constant(one)) != str(emitter(lanes).int_constant(other))
