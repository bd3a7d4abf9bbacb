"""Strategies of cases for operators that NumPy computes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from support.graph.draws import FLAG, GENERATORS, SHAPES, SIZES, numbers
from support.graphs import Case


@st.composite
def matrices(draw):
    batch, size = draw(st.lists(SIZES, max_size=2)), draw(SIZES)
    return Case([numbers(draw(GENERATORS), (*batch, size, size))])


@st.composite
def repeated(draw):
    """Few values, many times; ONNX's evaluator has no other order than the ascending one."""
    x = draw(GENERATORS).integers(0, 3, draw(SHAPES)).astype(draw(st.sampled_from((np.float32, np.int64, np.int8))))
    axis = draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1)))
    return Case([x], {} if axis is None else {"axis": axis}, draw(st.integers(1, 4)))


@st.composite
def transforms(draw):
    count, sizes = draw(SIZES), [draw(st.integers(2, 6)) for _ in range(draw(st.integers(2, 3)))]
    theta = numbers(draw(GENERATORS), (count, len(sizes), len(sizes) + 1))
    return Case([theta, np.array([count, 1, *sizes])], {"align_corners": draw(FLAG)})
