"""Products with constant weights, run as convolutions over rows: all shapes of rows and epilogues."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.graph.ops import TABLE
from cpuconv.isa import current
from support.graph import lowered
from support.graph.draws import ACTIVATIONS, GENERATORS, numbers
from support.running.sharing import small_work_is_shared

LANES = current().lanes
SIZES = st.sampled_from((1, 3, LANES - 1, LANES, LANES + 1, 4 * LANES + 5))
ROWS = st.sampled_from(((), (1,), (2,), (5,), (1, 1), (3, 7), (1, 4), (3, 2, 5), (1, 1, 1), (17,)))
CONSTANT = (1, 2)


@st.composite
def cases(draw):
    """Operands; weights in either order in memory."""
    rng, rows, k, n = draw(GENERATORS), draw(ROWS), draw(SIZES), draw(SIZES)
    w = numbers(rng, (k, n)) / np.float32(np.sqrt(k))
    w = np.asfortranarray(w) if draw(st.booleans()) else w
    bias, residual = (numbers(rng, shape) if draw(st.booleans()) else None for shape in ((n,), (*rows, n)))
    return [numbers(rng, (*rows, k)), w, bias, residual], draw(ACTIVATIONS)


@settings(max_examples=60)
@given(cases(), st.sampled_from((1, 2)), st.booleans())
def test_rows(case, threads, apart):
    arrays, activation = case
    names = ["" if array is None else name for array, name in zip(arrays, "xwbr", strict=True)]
    node = TABLE["Linear"].node(names, ["y"], activation=activation)
    with small_work_is_shared():
        assert lowered.check(node, arrays, CONSTANT, threads, apart) == 1


def test_nothing_is_offered_without_constant_weights():
    rng = np.random.default_rng(0)
    x, w = numbers(rng, (2, 4)), numbers(rng, (4, 3))
    node = TABLE["Linear"].node(["x", "w"], ["y"])
    assert not lowered.offers(node, [x, w])
    assert not lowered.offers(node, [x[:0], w], (1,))
    assert not lowered.offers(node, [x.astype(np.float64), w.astype(np.float64)], (1,))
