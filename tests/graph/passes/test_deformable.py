"""Sampling at learnt positions, as exporters write it, becomes operators with kernels, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

import cpuconv
from cpuconv.graph.passes import PASSES
from support.graph.expressions import feed, graph, op
from support.graph.layers import array, same
from support.graphs import parse

NAME = "MultiScaleDeformableAttention"
RUN = PASSES["deformable"]
HEADS, SIZE, QUERIES, LEVELS = 4, 6, 5, ((4, 7, 9), (2, 3, 4))  # points, height and width of each level
weights = feed(HEADS, 1, QUERIES, 6)


def samples(stacked=False, **stated):
    """Samples of each level, unsqueezed to be stacked or not."""
    made = []
    for points, height, width in LEVELS:
        y = op.GridSample(feed(HEADS, SIZE, height, width), feed(HEADS, QUERIES, points, 2), **stated)
        made.append(op.Unsqueeze(y, [-2]) if stacked else y)
    return made


def summed(joined, keepdims=0):
    return op.ReduceSum(joined * weights, [-1], keepdims=keepdims)


def merged(y, perm=(0, 2, 1), shape=(2, 2 * SIZE, QUERIES)):
    return op.Transpose(op.Reshape(y, [*shape]), perm=[*perm])


CASES = {
    "heads are merged": (merged(summed(op.Concat(*samples(), axis=-1))), True),
    "last axis by number": (merged(summed(op.Concat(*samples(align_corners=1), axis=3))), True),
    "nothing is merged": (summed(op.Concat(*samples(), axis=-1)), True),
    "another order of axes": (merged(summed(op.Concat(*samples(), axis=-1)), (1, 0, 2)), True),
    "nearest": (summed(op.Concat(*samples(mode="nearest"), axis=-1)), False),
    "kept axes": (summed(op.Concat(*samples(), axis=-1), keepdims=1), False),
    "another axis": (op.ReduceSum(op.Concat(*samples(), axis=-1) * weights, [2], keepdims=0), False),
    "weights per channel": (
        op.ReduceSum(op.Concat(*samples(), axis=-1) * array(HEADS, SIZE, QUERIES, 6), [-1], keepdims=0),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attention(name):
    expression, becomes = CASES[name]
    before = graph(expression)
    after = RUN(before)
    assert (NAME in [node.op for node in after.nodes]) == becomes
    same(before, after)


def test_stacked_levels():
    """PyTorch's exporter unsqueezes the samples of each level, concatenates, and flattens them."""
    alike = [op.GridSample(feed(HEADS, SIZE, h, h), feed(HEADS, QUERIES, 3, 2)) for h in (3, 8)]
    stacked = op.Concat(*(op.Unsqueeze(each, [-2]) for each in alike), axis=-2)
    before = graph(merged(summed(op.Reshape(stacked, [HEADS, SIZE, QUERIES, 6]))))
    after = RUN(before)
    assert [node.op for node in after.nodes] == [NAME]
    same(before, after)


def test_open_sizes():
    """A model with levels of open sizes gives the results of its parts, whichever sizes come first."""
    model = parse("""g (float[1,S,4,8] v, float[4,Q,P,2] g0, float[4,1,Q,P] w, int64[4] s) => (y) {
        t = Transpose<perm = [0, 2, 3, 1]>(v)
        x = Reshape(t, s)
        a = GridSample(x, g0)
        c = Concat<axis = -1>(a, a)
        ww = Concat<axis = -1>(w, w)
        m = Mul(c, ww)
        axes = Constant<value_ints = [-1]>()
        r = ReduceSum<keepdims = 0>(m, axes)
        shape = Constant<value_ints = [1, 32, -1]>()
        h = Reshape(r, shape)
        y = Transpose<perm = [0, 2, 1]>(h)
    }""")
    rng = np.random.default_rng(0)
    compiled = cpuconv.compile(model, threads=2, strategy="heuristic")
    plain = cpuconv.compile(model, threads=1, strategy="heuristic", skip_passes=["deformable"])
    for height, width, queries, points in ((5, 6, 7, 4), (1, 1, 1, 1), (12, 9, 40, 3), (5, 6, 7, 4)):
        given = {
            "v": rng.normal(size=(1, height * width, 4, 8)),
            "g0": rng.uniform(-1.2, 1.2, (4, queries, points, 2)),
            "w": rng.normal(size=(4, 1, queries, points)),
        }
        fed = {name: each.astype(np.float32) for name, each in given.items()}
        fed["s"] = np.array([4, 8, height, width])
        (y,), (wanted,) = (each.run(fed).values() for each in (compiled, plain))
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))
