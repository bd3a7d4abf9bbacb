"""MatMul of two activations and attention on AMX: rounded to bfloat16, and float32 by products of bfloat16 parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cpuconv
from cpuconv.conv.choice.activation_products import Narrowed, kinds
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.target import PRECISION_BF16
from cpuconv.graph.ops import TABLE
from cpuconv.kernels.attention import step
from cpuconv.kernels.binding.tensor_view import DENSE, STRIDED
from cpuconv.kernels.copies.rounding import BF16_TYPES
from cpuconv.kernels.emit.product import MATRIX, SPLIT, matrix_product_of
from cpuconv.kernels.products import matmul_pairs
from support import graphs, machines
from support.graph import lowered
from support.graph.draws import numbers
from support.graph.lowered import small_work_is_shared as small_work_is_shared

pytestmark = pytest.mark.skipif(matrix_product_of(BF16_TYPES) is None, reason="multiplies bfloat16 on AMX")
BF16, THREE, SIX = (kind.name for kind in (MATRIX[-1], SPLIT[3], SPLIT[6]))
ERRORS = {BF16: (1e-4, 2e-2), THREE: (5e-7, 1e-5), SIX: (0.0, 1.2e-6)}  # of a product: at least, at most
MIXED = SIX, THREE  # products of attention's scores, and of its values
OP = TABLE["ScaledDotProductAttention"]


def relative_error(node, arrays, offer):
    (found,), wanted = lowered.run_offer(node, arrays, offer), [each.astype(np.float64) for each in arrays]
    (expected,) = TABLE[node.op].evaluate(node, wanted, [np.dtype(np.float64)])
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
    "kind, stacks, sizes, right, threads, l2",
    [
        (BF16, ((), ()), (33, 31, 33), DENSE, 1, 1 << 20),
        (THREE, ((2, 1), (3,)), (34, 97, 70), STRIDED, 2, 16 << 10),
        (SIX, ((2,), ()), (31, 64, 15), DENSE, 2, 1 << 20),
    ],
)
def test_matmul(kind, stacks, sizes, right, threads, l2, monkeypatch):
    """Around tiles of 32 rows, segments of 32 and panels of 32 columns; panels at once and one by one; both orders."""
    rng, node = np.random.default_rng(0), TABLE["MatMul"].node(["a", "b"], ["y"])
    here, (rows, depth, columns) = matmul_pairs.machine(), sizes
    monkeypatch.setattr(matmul_pairs, "machine", lambda: replace(here, l2=l2))
    arrays = [numbers(rng, (*stacks[0], rows, depth)), numbers(rng, (*stacks[1], depth, columns))]
    (offer,) = lowered.offers(node, arrays)
    offer = replace(offer, inputs=(DENSE, right), detail=Narrowed((kind,)))
    least, most = ERRORS[kind]
    assert lowered.check(node, arrays, (), threads, right == DENSE, most, [offer]) == 1
    assert relative_error(node, arrays, offer) >= least


def attention(inputs=3, scale=0.3, perm=None, zero_rows=""):
    return OP.node("qkvm"[:inputs], ["y"], scale=scale, perm=perm, zero_rows=zero_rows)


def operands(rows, keys, depth, width, stack=(2,), mask=None):
    rng, shapes = np.random.default_rng(0), [(rows, depth), (depth, keys), (keys, width)]
    return [numbers(rng, (*stack, *shape)) for shape in shapes] + ([] if mask is None else [mask])


def offered(case, arrays, kinds, forms=(DENSE, STRIDED, DENSE)):
    (offer, *_) = lowered.offers(case, arrays)
    return replace(offer, inputs=(*forms, *offer.inputs[3:]), detail=kinds and Narrowed(kinds))


@pytest.mark.parametrize(
    "kinds, sizes, forms, perm, errors",
    [
        (MIXED, (33, 31, 32, 33), (DENSE, STRIDED, DENSE), (0, 2, 1), (5e-7, 1e-5)),
        ((SIX, SIX), (100, 65, 21, 16), (STRIDED, DENSE, STRIDED), None, (0.0, 2e-6)),
    ],
)
def test_attention(kinds, sizes, forms, perm, errors):
    """Blocks of queries that fill no tile, and keys around a segment; rows of NaN are those of float32."""
    rows, keys, *_ = sizes
    mask = numbers(np.random.default_rng(1), (rows, keys))
    mask[3], mask[4, 1:], mask[5, : keys // 2] = -np.inf, -np.inf, -np.inf
    arrays, (least, most) = operands(*sizes, mask=mask), errors
    arrays[0][:, 7], arrays[0][1, 9, 0] = np.nan, np.inf
    for threads, zero_rows in ((1, ""), (2, "hidden")):
        case = attention(4, perm=perm, zero_rows=zero_rows)
        offer = offered(case, arrays, kinds, forms)
        assert lowered.check(case, arrays, (), threads, threads == 2, most, [offer]) == 1
    arrays = operands(*sizes)
    assert relative_error(attention(), arrays, offered(attention(), arrays, kinds)) >= least


@pytest.mark.parametrize("deviation", [1, 8, 100])
def test_errors_of_scores(deviation):
    """Scores of any size err as in float32; three products of values add at most 6e-6."""
    arrays, case = operands(40, 97, 64, 48), attention(scale=deviation / 8)
    mixed, exact, plain = (
        relative_error(case, arrays, offered(case, arrays, kinds)) for kinds in (MIXED, (SIX, SIX), None)
    )
    assert exact <= plain + 1e-6 and mixed <= plain + 6e-6
    assert deviation > 1 or mixed < 1e-5


@pytest.mark.parametrize("kinds, error", [(MIXED, 2**-15), ((SIX, SIX), 2e-6)])
def test_large_scores(kinds, error):
    """Scores of some 1e5 give the value of the largest; equal scores the mean; infinite values their rows.

    Two parts err by 2^-17 of a number, of weights and of values, and the product of the second parts is 2^-16 of all.
    """
    q, k, v = operands(20, 33, 8, 12, ())
    for scale in (1e5, -1e5):
        case = attention(scale=scale)
        (y,) = lowered.run_offer(case, [q, k, v], offered(case, [q, k, v], kinds))
        largest = (q.astype(np.float64) @ k * scale).argmax(-1)
        np.testing.assert_allclose(y, v[largest], rtol=error)
    case, v[3, 5] = attention(), np.inf
    (y,) = lowered.run_offer(case, [0 * q, k, v], offered(case, [q, k, v], kinds))
    np.testing.assert_allclose(y, np.broadcast_to(v.mean(0), y.shape), rtol=0, atol=1e-5)


def test_stored_as_bfloat16():
    """Queries, keys, values and the result."""
    arrays = operands(15, 97, 21, 16)
    made = [
        replace(each, detail=Narrowed((BF16, BF16)))
        for each in lowered.offers(attention(), arrays, precision=PRECISION_BF16)
    ]
    assert len(made) == 4 and lowered.check(attention(), arrays, made=made, tolerance=3e-2) == 4


def test_chosen_by_the_model_and_explained():
    """By accuracy and precision, where products bind; the template of a program serves any number of rows."""
    target = lowered.target()
    exact = replace(target, limits=Limits("exact"))
    for limits, depth, counts in ((target, 16, [0, 3, 6]), (target, 15, [0, 6]), (exact, 16, [0, 6])):
        assert [len(kind.pairs) for kind, _ in kinds(limits, depth)] == counts
    assert [kind.name for kind, _ in kinds(target.at(PRECISION_BF16), 1)][-1] == BF16
    shapes = (6, 1370, 64), (6, 64, 1370), (6, 1370, 64)
    values = lowered.values_of([np.empty(shape, np.float32) for shape in shapes], ())
    with machines.simulating(machines.MACHINES["xeon-amx"]) as here:
        for limits, kind in ((target, THREE), (exact, SIX)):
            (offer,) = OP.offers(attention(), values, replace(limits, isa=here.isa))
            assert offer.detail == Narrowed((SIX, kind))
            (offer,) = TABLE["MatMul"].offers(
                TABLE["MatMul"].node("ab", "y"), values[:2], replace(limits, isa=here.isa)
            )
            assert offer.detail == Narrowed((kind,))


def test_open_sizes(monkeypatch):
    """One program for many numbers of rows and keys, with blocks and panels of any size."""
    monkeypatch.setattr(step, "_WEIGHT_CYCLES", 0.0)
    monkeypatch.setattr("cpuconv.conv.choice.activation_products.charge", lambda error: 0.0)
    text = """g (float[2, n, 32] q, float[2, 32, n] k, float[2, n, 32] v) => (float[2, n, 32] y, float[2, n, n] z) {
        s = MatMul(q, k)
        p = Softmax(s)
        y = MatMul(p, v)
        z = MatMul(v, k)
    }"""
    network = cpuconv.compile(graphs.parse(text), threads=2)
    rng = np.random.default_rng(0)
    for rows in (40, 33, 97, 5, 128):
        q, k, v = (rng.standard_normal((2, *shape), np.float32) for shape in ((rows, 32), (32, rows), (rows, 32)))
        y, z = network.run({"q": q, "k": k, "v": v}).values()
        scores = np.exp((s := q.astype(np.float64) @ k) - s.max(-1, keepdims=True))
        expected = scores / scores.sum(-1, keepdims=True) @ v
        for found, wanted, error in ((y, expected, 1e-4), (z, v.astype(np.float64) @ k, 1e-5)):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=error * np.abs(wanted).max())
    explained = str(network.explain())
    assert "f32, 6 and 3 products of bfloat16" in explained and "f32, 3 products of bfloat16" in explained
