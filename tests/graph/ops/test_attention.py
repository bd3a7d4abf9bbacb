"""Scaled dot-product attention through its kernel: any sizes, strides, masks and elements."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.choice.target import PRECISION_BF16
from cpuconv.errors import SourceError
from cpuconv.graph import ops
from cpuconv.isa import current
from cpuconv.kernels.attention import int8_step, step
from cpuconv.kernels.binding.tensor_view import DENSE, DENSE_BF16, IN_BF16, STRIDED, STRIDED_BF16
from cpuconv.kernels.emit.product import FMA
from cpuconv.kernels.products.matmul_pairs import bf16_instruction
from support.graph import lowered
from support.graph.draws import numbers
from support.graph.lowered import check, offers, run_offer

LANES = current().lanes
OP, INTEGERS = ops.TABLE["ScaledDotProductAttention"], ops.TABLE["QuantizedAttention"]
SIZES = st.sampled_from((1, 2, 5, LANES - 1, LANES, LANES + 1, 2 * LANES, 3 * LANES + 1, 49, 70))
FORMS = list(itertools.product((DENSE, STRIDED), repeat=3))
PERMS = (None, (0, 2, 1, 3), (0, 1, 3, 2), (2, 0, 3, 1))
BF16_ERROR = 3e-2  # of the largest output, which a rounded operand may change by 2^-8 of its own size


def node(inputs=3, scale=0.3, perm=None, zero_rows=""):
    return OP.node("qkvm"[:inputs], ["y"], scale=scale, perm=perm, zero_rows=zero_rows)


def operands(rng, stack, rows, keys, depth, width, mask=None):
    shapes = [(*stack, rows, depth), (*stack, depth, keys), (*stack, keys, width)]
    return [numbers(rng, shape) for shape in (*shapes, *([] if mask is None else [mask]))]


def checked(case, arrays, forms=FORMS, precision="float32", tolerance=1e-5, threads=1, apart=False):
    """Compare with the reference, each matrix contiguous along its rows or along its columns."""
    made = []
    for offer in offers(case, arrays, threads=threads, precision=precision):
        for each in forms:
            typed = [IN_BF16[form] for form in each] if offer.inputs[0] == STRIDED_BF16 else each
            made.append(replace(offer, inputs=(*typed, *offer.inputs[3:])))
    assert check(case, arrays, made=made, threads=threads, apart=apart, tolerance=tolerance) == len(made)


@given(
    st.lists(st.integers(1, 3), max_size=2),
    *[SIZES] * 4,
    st.booleans(),
    st.sampled_from((1, 2)),
    st.booleans(),
    st.sampled_from(FORMS),
)
@settings(deadline=None, max_examples=80)
def test_sizes(stack, rows, keys, depth, width, masked, threads, apart, forms):
    rng = np.random.default_rng(rows + keys + depth + width)
    mask = (*stack, rows, keys) if masked else None
    arrays = operands(rng, stack, rows, keys, depth, width, mask)
    checked(node(len(arrays)), arrays, [forms], threads=threads, apart=apart)


@pytest.mark.parametrize("perm", PERMS)
@pytest.mark.parametrize("rows, keys, depth, width", [(49, 49, 32, 32), (70, 300, 20, 37), (9, 33, 64, LANES - 1)])
def test_permuted_results(rows, keys, depth, width, perm):
    arrays = operands(np.random.default_rng(0), (2, 3), rows, keys, depth, width)
    checked(node(perm=perm), arrays)


@pytest.mark.parametrize("mask", [(70,), (1, 70), (33, 70), (3, 1, 70), (3, 33, 70), (2, 1, 33, 70), (2, 3, 33, 70)])
def test_masks_are_broadcast(mask):
    checked(node(4), operands(np.random.default_rng(0), (2, 3), 33, 70, 16, 24, mask))


@pytest.mark.parametrize(
    "q, k, v",
    [
        ((2, 3, 33, 16), (3, 16, 40), (40, 24)),  # keys and values that heads or batches share
        ((33, 16), (2, 3, 16, 40), (2, 1, 40, 24)),
        ((2, 1, 3, 33, 16), (2, 4, 1, 16, 40), (2, 4, 1, 40, 24)),  # groups of heads
    ],
)
def test_stacks_are_broadcast(q, k, v):
    rng = np.random.default_rng(0)
    checked(node(), [numbers(rng, shape) for shape in (q, k, v)])


@pytest.mark.skipif(bf16_instruction(current()) is None, reason="no instruction multiplies bfloat16")
@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize(
    "rows, keys, depth, width", [(64, 64, 64, 64), (49, 49, 32, 32), (70, 301, 21, 37), (9, 3 * LANES + 1, 64, 5)]
)
def test_bfloat16(rows, keys, depth, width, masked, monkeypatch):
    """Both contiguous rows and columns are rounded and packed; where neither are, the products stay in float32."""
    monkeypatch.setattr("cpuconv.graph.ops.attention.seconds", lambda target, problem, kinds: float(FMA in kinds))
    arrays = operands(np.random.default_rng(0), (2,), rows, keys, depth, width, (rows, keys) if masked else None)
    for threads in (1, 2):
        for apart in (False, True):
            checked(node(len(arrays)), arrays, FORMS, PRECISION_BF16, BF16_ERROR, threads, apart)
    offered = offers(node(len(arrays)), arrays, precision=PRECISION_BF16)
    assert {each.outputs for each in offered} == {(DENSE,), (DENSE_BF16,)}
    offer, *_ = offered
    assert offer.detail is not None
    float32, bf16 = (run_offer(node(len(arrays)), arrays, each)[0] for each in (replace(offer, detail=None), offer))
    assert not np.array_equal(float32, bf16)


@pytest.mark.parametrize("precision", ("float32", PRECISION_BF16))
def test_blocks_of_queries(precision, monkeypatch):
    """Results do not depend on the number of queries of a block."""
    arrays = operands(np.random.default_rng(0), (2,), 70, 45, 16, 20)
    offer, *_ = offers(node(), arrays, precision=precision)
    found = []
    for rows in (8, 23, 35, 70):
        monkeypatch.setattr(step, "_MAX_ROWS", rows)
        found.append(run_offer(node(), arrays, offer)[0])
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], rtol=0, atol=1e-6 * np.abs(found[0]).max())


def test_results_do_not_depend_on_the_number_of_threads():
    arrays = operands(np.random.default_rng(0), (3,), 70, 65, 20, 50)
    (offer,) = offers(node(), arrays)
    one, two = (run_offer(node(), arrays, offer, threads=threads)[0] for threads in (1, 2))
    assert np.array_equal(one, two)


class TestElements:
    """Rows of scores that softmax must not overflow on, and rows without any key."""

    def both(self, arrays, scale=1.0):
        case = node(len(arrays), scale)
        for forms in FORMS[:1] + FORMS[-1:]:
            checked(case, arrays, [forms])
        (offer,) = offers(case, arrays)
        return run_offer(case, arrays, offer)[0]

    @pytest.mark.parametrize("keys", (1, 7, LANES + 3, 9 * LANES))
    def test_hidden_keys(self, keys):
        arrays = operands(np.random.default_rng(0), (), 9, keys, 8, 12, (9, keys))
        mask = np.zeros((9, keys), np.float32)
        mask[3, :] = -np.inf  # no key at all: NaN, as Softmax has it
        mask[4, : keys - 1] = -np.inf  # one key
        mask[5, 1:] = -np.inf
        arrays[3] = mask
        y = self.both(arrays)
        assert np.isnan(y[3]).all() and np.isfinite(np.delete(y, 3, 0)).all()
        np.testing.assert_allclose(y[4], arrays[2][-1], rtol=1e-6)
        np.testing.assert_allclose(y[5], arrays[2][0], rtol=1e-6)

    @pytest.mark.parametrize("precision", ("float32", PRECISION_BF16))
    @pytest.mark.parametrize("zero_rows", ("", "hidden", "nan"))
    @pytest.mark.parametrize("keys, width", [(1, 5), (LANES + 3, 2 * LANES), (9 * LANES + 1, LANES + 1)])
    def test_zero_rows(self, keys, width, zero_rows, precision):
        """Rows without keys, and rows of NaN and infinite scores, with any order of the output's axes."""
        q, k, v, mask = operands(np.random.default_rng(0), (2,), 9, keys, 8, width, (9, keys))
        mask[3] = -np.inf
        q[:, 5] = np.nan
        mask[6, 0] = np.inf
        for perm in (None, (0, 2, 1), (2, 1, 0)):
            case = node(4, perm=perm, zero_rows=zero_rows)
            checked(case, [q, k, v, mask], FORMS[:1] + FORMS[-1:], precision, 1e-5 if precision == "float32" else 3e-2)
        wrong = {"": [3, 5, 6], "hidden": [5, 6], "nan": []}[zero_rows]
        for offer in offers(node(4, zero_rows=zero_rows), [q, k, v, mask], precision=precision):
            y = run_offer(node(4, zero_rows=zero_rows), [q, k, v, mask], offer)[0].astype(np.float32)
            assert np.isnan(y[:, wrong]).all() and np.isfinite(np.delete(y, wrong, 1)).all()
            assert not y[:, [each for each in (3, 5, 6) if each not in wrong]].any()

    def test_equal_scores_average_the_values(self):
        q, k, v = operands(np.random.default_rng(0), (), 20, 33, 8, 12)
        y = self.both([np.zeros_like(q), k, v])
        np.testing.assert_allclose(y, np.broadcast_to(v.mean(0), y.shape), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("scale", (1e5, -1e5))
    def test_large_scores(self, scale):
        q, k, v = operands(np.random.default_rng(0), (), 20, 33, 8, 12)
        y = self.both([q, k, v], scale=scale)
        largest = (q.astype(np.float64) @ k * scale).argmax(-1)
        np.testing.assert_allclose(y, v[largest], rtol=1e-6)

    def test_nan_and_infinity(self):
        q, k, v = operands(np.random.default_rng(0), (), 20, 33, 8, 12)
        q[2, 3], q[11, 0] = np.nan, np.inf
        y = self.both([q, k, v])
        assert np.isnan(y[[2, 11]]).all() and np.isfinite(np.delete(y, [2, 11], 0)).all()


def test_what_is_not_offered():
    q, k, v = operands(np.random.default_rng(0), (), 20, 33, 8, 12)
    assert not offers(node(), [each.astype(np.float64) for each in (q, k, v)])
    assert not offers(node(), [q[:0], k, v])


def test_shapes_that_do_not_fit():
    q, k, v = operands(np.random.default_rng(0), (), 20, 33, 8, 12)
    for arrays in ([q, k[:-1], v], [q, k, v[:-1]], [q, k, v, np.zeros((20, 1), np.float32)]):
        with pytest.raises(SourceError):
            OP.infer(node(len(arrays)), lowered.values_of(arrays, ()))


class TestIntegers:
    """Quantised attention, in every bit: sizes past a panel and a block of queries, and blocks of all heights."""

    def case(self, stack, rows, keys, depth, width, masks=(), kind=np.uint8, y=np.uint8):
        shapes = [(*stack, rows, depth), (*stack, depth, keys), (*stack, keys, width)]
        rng, ends = np.random.default_rng(0), np.iinfo(kind)
        arrays = [rng.integers(ends.min, ends.max, shape, kind, endpoint=True) for shape in shapes]
        arrays += [rng.normal(0, 5, shape).astype(np.float32) for shape in masks]
        count, zero = 1 + len(masks), (ends.max + ends.min + 1) // 2
        scales = [0.01, 0.01, 0.01, 1 / 255, 0.02 if y == kind else 1.0, *[0.05] * count]
        points = [zero + 3, zero - 9, zero + 5, int(ends.min), zero if y == kind else 0, *[zero] * count]
        types = {"score_type": np.dtype(kind), "weight_type": np.dtype(kind), "y": np.dtype(y)}
        names = ["q", "k", "v", "m", "n"][: len(arrays)]
        return INTEGERS.node(names, ["y"], scales=scales, zero_points=points, **types), arrays

    @pytest.mark.parametrize(
        "sizes, changes",
        [
            (((2,), 70, 197, 64, 33), {}),
            (((2, 3), 49, 49, 32, 32), {"masks": ((1, 3, 49, 49), (2, 1, 49, 49)), "kind": np.int8}),
            (((), 1, 301, 21, 5), {"masks": ((301,),), "y": np.float32}),
        ],
    )
    def test_all_ways(self, sizes, changes):
        case, arrays = self.case(*sizes, **changes)
        (offer,) = offers(case, arrays)
        made = [replace(offer, inputs=(*form, *offer.inputs[3:])) for form in FORMS]
        for threads in (1, 2):
            assert check(case, arrays, made=made, threads=threads, apart=threads > 1) == len(made)

    def test_blocks_of_queries(self, monkeypatch):
        case, arrays = self.case((2,), 70, 45, 16, 20)
        (offer,) = offers(case, arrays)
        for rows in (8, 70):
            monkeypatch.setattr(int8_step, "_MAX_ROWS", rows)
            assert check(case, arrays, made=[offer]) == 1

    def test_equal_to_three_operators(self):
        """The kernels of three operators round as one does; their softmax adds in another order."""
        case, arrays = self.case((3,), 33, 65, 20, 40)
        (offer,) = offers(case, arrays)
        scales, points = case["scales"], case["zero_points"]
        u8 = np.dtype(np.uint8)

        def product(a, b, left, right, y):
            numbers = {"a_scale": scales[left], "a_zero_point": points[left], "b_scale": scales[right]}
            numbers |= {"b_zero_point": points[right], "y": u8, "y_scale": scales[y], "y_zero_point": points[y]}
            each = ops.TABLE["QuantizedMatMul"].node(["a", "b"], ["y"], **numbers)
            return run_offer(each, [a, b], offers(each, [a, b])[0])[0]

        scores = product(*arrays[:2], 0, 1, 5)
        numbers = {"x_scale": scales[5], "x_zero_point": points[5], "y": u8, "y_scale": scales[3], "y_zero_point": 0}
        softmax = ops.TABLE["QuantizedSoftmax"].node(["x"], ["y"], **numbers)
        weights = run_offer(softmax, [scores], offers(softmax, [scores])[0])[0]
        y = product(weights, arrays[2], 3, 2, 4)
        apart = np.abs(run_offer(case, arrays, offer)[0].astype(int) - y)
        assert len(np.unique(y)) > 20 and apart.max() <= 1 and np.count_nonzero(apart) <= 4

    @pytest.mark.parametrize(
        "changed",
        [
            {"scales": [0.1] * 5, "zero_points": [0] * 6},
            {"scales": [0.1] * 5 + [np.nan]},
            {"zero_points": [0, 0, 300, 0, 0, 0]},
            {"weight_type": np.dtype(np.float32)},
            {"perm": (0, 2, 1)},
        ],
    )
    def test_what_is_refused(self, changed):
        case, arrays = self.case((2,), 5, 5, 4, 5)
        with pytest.raises(SourceError):
            INTEGERS.infer(replace(case, attributes={**case.attributes, **changed}), lowered.values_of(arrays, ()))
