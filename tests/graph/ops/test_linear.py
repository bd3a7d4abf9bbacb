"""Products with constant weights, run as convolutions over rows: all shapes of rows and epilogues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.elements import BF16, F16, F32, from_bfloat16, round_to, to_bfloat16, to_float32
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.matrix import Streamed
from cpuconv.isa import current
from cpuconv.isa.features import rounds_to_half
from cpuconv.kernels.binding.tensor_view import DENSE, DENSE_BF16
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
    least = 1e-30
    if activation == (
        "gelu",
    ):  # of its input, the error of whose factor is absolute (tests/kernels/test_activations.py)
        plain = TABLE["Linear"].node(names, ["y"], activation=None)
        (sums,) = TABLE["Linear"].evaluate(plain, arrays, [np.dtype(np.float64)])
        least = float(np.abs(sums).max(initial=least))
    with small_work_is_shared():
        assert lowered.check(node, arrays, CONSTANT, threads, apart, least=least) == 1


def test_nothing_is_offered_without_constant_weights():
    rng = np.random.default_rng(0)
    x, w = numbers(rng, (2, 4)), numbers(rng, (4, 3))
    node = TABLE["Linear"].node(["x", "w"], ["y"])
    assert not lowered.offers(node, [x, w])
    assert not lowered.offers(node, [x[:0], w], (1,))
    assert not lowered.offers(node, [x.astype(np.float64), w.astype(np.float64)], (1,))


@settings(max_examples=20, deadline=None)
@given(cases(), st.sampled_from((1, 2)), st.booleans())
def test_rows_of_bfloat16(case, threads, apart):
    """Of numbers that bfloat16 holds: products are exact, and sums of float32 go out as they are."""
    arrays, activation = case
    arrays = [array if array is None else from_bfloat16(to_bfloat16(array)).reshape(array.shape) for array in arrays]
    names = ["" if array is None else name for array, name in zip(arrays, "xwbr", strict=True)]
    node = TABLE["Linear"].node(names, ["y"], activation=activation)
    made = lowered.offers(node, arrays, CONSTANT, threads, precision="bfloat16")
    narrow = [each for each in made if DENSE_BF16 in each.inputs]
    with small_work_is_shared():
        assert lowered.check(node, arrays, CONSTANT, threads, apart, 1e-4, narrow) == len(narrow)


def test_bfloat16_is_offered_for_several_rows():
    rng = np.random.default_rng(0)
    node = TABLE["Linear"].node(["x", "w"], ["y"])
    for rows in (1, 40):
        arrays = [numbers(rng, (rows, 8 * LANES)), numbers(rng, (8 * LANES, 8 * LANES))]
        forms = [(made.inputs[0], *made.outputs) for made in lowered.offers(node, arrays, (1,), precision="bfloat16")]
        assert forms == [(DENSE, DENSE), (DENSE_BF16, DENSE), (DENSE_BF16, DENSE_BF16)][: 3 if rows > 1 else 1]
        assert len(lowered.offers(node, arrays, (1,))) == 1


@pytest.mark.parametrize("element", (F16, BF16), ids=str)
def test_a_row_meets_weights_of_16_bits_where_these_hold_them(element):
    """Results have the bits of weights of float32, which one weight that only float32 holds calls for."""
    rng, node = np.random.default_rng(0), TABLE["Linear"].node(["x", "w"], ["y"])
    x, w = numbers(rng, (1, 3 * LANES + 1)), numbers(rng, (3 * LANES + 1, 2 * LANES + 3))
    w = to_float32(round_to(w * (1 if element == F16 else 2.0**20), element), element)
    kept = element if element == BF16 or rounds_to_half() else F32
    other = w.copy()
    other[0, -1] = 1 / 3
    results = []
    for weights, w_element in ((w, kept), (other, F32)):
        (made,) = lowered.offers(node, [x, weights], (1,))
        assert made.detail == Streamed(w_element)
        values = lowered.values_of([x, weights], (1,))
        assert TABLE["Linear"].restored(node, values, lowered.target(), made.detail.recorded(), True) == made
        results += lowered.run_offer(node, [x, weights], made, (1,))
    np.testing.assert_array_equal(results[0][..., :-1], results[1][..., :-1])
