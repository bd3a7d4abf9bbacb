"""Steps bound: words of argument blocks, and the addresses that are given later."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.isa import current
from cpuconv.kernels.binding.bound_step import BoundStep, bind
from cpuconv.kernels.binding.steps import Operand, Ref, Space
from cpuconv.kernels.copies import reorder_steps
from cpuconv.problem.arrays import address
from cpuconv.runtime import Program
from cpuconv.solvers.shared.base import contiguous
from support.moved import by

SHAPE = 1, 5, 3, 4


def _bound(space: Space, kept: list[Any], **known: int) -> BoundStep:
    x, y = (Operand(Ref(name, 8), contiguous(form, SHAPE)) for name, form in (("x", "NCHW"), ("y", "NHWC")))
    return bind(by(reorder_steps)(current(), space, SHAPE, x, y, 1), kept, known)


def test_words_of_known_addresses_and_of_others():
    none, one = _bound(Space(), []), _bound(Space(), [], x=4096)
    assert none.unresolved == {"x": [0], "y": [1], "workspace": [2]} and one.unresolved == {"y": [1], "workspace": [2]}
    assert [*none.block[:3]] == [8, 8, 0] and [*one.block[:3]] == [4104, 8, 0]
    assert np.array_equal(none.block[3:], one.block[3:]) and none.parts == one.parts


def test_a_row_runs_on_addresses_given_later():
    space = Space()
    kept: list[Any] = []
    x, y = np.arange(62, dtype=np.float32), np.zeros(62, np.float32)
    bound = _bound(space, kept, x=address(x))
    unresolved = {"y": y, "workspace": np.zeros(space.size, np.uint8)}
    for base, array in unresolved.items():
        bound.block[bound.unresolved[base]] += address(array)
    Program([bound.row], 1, kept).run()
    assert np.array_equal(y[2:].reshape(1, 3, 4, 5), x[2:].reshape(SHAPE).transpose(0, 2, 3, 1)) and not y[:2].any()
