"""Attention as exporters write it becomes one operator, with the same results."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cpuconv.graph.passes import PASSES
from support.graph.expressions import feed, graph, op
from support.graph.layers import array, same

NAME = "ScaledDotProductAttention"
RUN = PASSES["attention"]
SWAP, HEADS = [0, 1, 3, 2], [0, 2, 1, 3]
q, k, v = (feed(2, 3, *sizes) for sizes in ((9, 16), (16, 11), (11, 20)))
keys, columns = feed(2, 3, 11, 16), feed(2, 3, 20, 11)
mask = feed(2, 1, 9, 11)
ROOT = np.float32(0.25)


def weights(scores):
    return op.Softmax(scores, axis=-1)


window = feed(8, 3, 9, 16), feed(8, 3, 16, 9), feed(8, 3, 9, 20)  # four windows of two images


def shifted(hidden, *added, factor=ROOT):
    """Weights of windows, with a mask for each window of an image."""
    scores = (window[0] @ window[1]) * factor
    for each in added:
        scores = scores + each
    return weights(op.Reshape(op.Reshape(scores, [2, 4, 3, 9, 9]) + hidden, [8, 3, 9, 9]))


FOUND = {
    "plain": (weights(q @ k) @ v, 1.0, None),
    "factor": (weights((q @ k) * ROOT) @ v, 0.25, None),
    "factor first": (weights(op.Mul(ROOT, q @ k)) @ v, 0.25, None),
    "divisor": (weights((q @ k) / np.float32(4)) @ v, 0.25, None),
    "scaled queries": (weights((q * ROOT) @ k) @ v, 0.25, None),
    "both scaled": (weights((q * np.float32(0.5)) @ (k * np.float32(0.5))) @ v, 0.25, None),
    "divided queries": (weights((q / np.float32(4)) @ k) @ v, 0.25, None),
    "mask": (weights((q @ k) * ROOT + mask) @ v, 0.25, None),
    "mask first": (weights(mask + (q @ k) * ROOT) @ v, 0.25, None),
    "constant mask": (weights((q @ k) * ROOT + array(9, 11)) @ v, 0.25, None),
    "a factor per head": (weights((q @ k) * array(3, 1, 1)) @ v, 1.0, None),
    "last axis": (op.Softmax(q @ k, axis=3) @ v, 1.0, None),
    "transposed keys": (weights((q @ op.Transpose(keys, perm=SWAP)) * ROOT) @ v, 0.25, None),
    "windows mask": (shifted(array(1, 4, 1, 9, 9)) @ window[2], 0.25, None),
    "windows mask, factor per head": (shifted(array(1, 4, 1, 9, 9), factor=array(3, 1, 1)) @ window[2], 1.0, None),
    "windows mask and bias": (shifted(array(1, 4, 1, 9, 9), array(1, 3, 9, 9)) @ window[2], 0.25, None),
    "windows mask that is fed": (shifted(feed(1, 4, 1, 9, 9), array(3, 9, 9)) @ window[2], 0.25, None),
    "windows mask, heads last": (
        op.Transpose(shifted(array(1, 4, 1, 9, 9), array(1, 3, 9, 9)) @ window[2], perm=HEADS),
        0.25,
        [0, 1, 3, 2, 4],
    ),
    "heads last": (op.Transpose(weights((q @ k) * ROOT) @ v, perm=HEADS), 0.25, HEADS),
    "channels": (columns @ op.Transpose(weights((q @ k) * ROOT), perm=SWAP), 0.25, SWAP),
    "channels, moved": (
        op.Transpose(columns @ op.Transpose(weights(q @ k), perm=SWAP), perm=[0, 3, 1, 2]),
        1.0,
        [0, 2, 1, 3],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_attention(name):
    expression, scale, perm = FOUND[name]
    before = graph(expression)
    after = RUN(before)
    (node,) = (node for node in after.nodes if node.op == NAME)
    assert {node.op for node in after.nodes} <= {NAME, "Transpose", "Reshape", "Mul", "Add"}
    assert math.isclose(node["scale"], scale, rel_tol=1e-6) and node["perm"] == perm
    assert ("mask" in name) == (len(node.inputs) == 4)
    same(before, after)


SEEN = np.random.default_rng(0).uniform(size=(2, 1, 9, 11)) > 0.4
SEEN[0, 0, 3] = False
LOW, NEVER = np.float32(-np.inf), np.float32(np.finfo(np.float32).min)
fed = op.And(op.Greater(feed(2, 1, 9, 11), np.float32(0.5)), SEEN)  # a query has no key


def guarded(weights):
    """Weights as PyTorch's exporter guards them."""
    return op.Where(op.IsNaN(weights), np.float32(0), weights)


def hidden(y, mask, lowest=LOW):
    """A result whose rows without keys are zero."""
    return op.Where(op.Greater(op.ReduceMax(mask, [-1], keepdims=1), lowest), y, np.float32(0))


def shown(seen, lowest=LOW):
    return op.Where(seen, np.float32(0), lowest)


MASK = shown(fed)
WHERE = {
    "seen": (weights(op.Where(fed, q @ k, LOW)) @ v, ""),
    "constant seen": (weights(op.Where(SEEN, q @ k, LOW)) @ v, ""),
    "lowest number": (weights(op.Where(fed, (q @ k) / np.float32(4), NEVER)) @ v, ""),
    "lowest float16": (weights(op.Where(fed, q @ k, np.float32(-65504))) @ v, ""),
    "hidden": (weights(op.Where(op.Not(fed), LOW, (q @ k) * ROOT)) @ v, ""),
    "seen with bias": (weights(op.Where(fed, (q @ k) * ROOT + array(3, 9, 11), LOW)) @ v, ""),
    "two masks": (weights((q @ k) + array(3, 9, 11) + shown(fed)) @ v, ""),
    "guarded": (guarded(weights((q @ k) + shown(fed))) @ v, "nan"),
    "guarded constant": (guarded(weights((q @ k) + np.where(SEEN, 0, LOW).astype(np.float32))) @ v, "nan"),
    "guarded, where": (guarded(weights(op.Where(fed, q @ k, LOW))) @ v, "nan"),
    "guarded, heads last": (op.Transpose(guarded(weights((q @ k) + shown(fed))) @ v, perm=HEADS), "nan"),
    "rows": (hidden(weights((q @ k) + MASK) @ v, MASK), "hidden"),
}


@pytest.mark.parametrize("name", WHERE)
def test_hidden_keys(name):
    """Masks of Where and rows without keys: zero, NaN, or the mean of the values."""
    expression, zero_rows = WHERE[name]
    before = graph(expression)
    after = RUN(before)
    (node,) = (node for node in after.nodes if node.op == NAME)
    assert node["zero_rows"] == zero_rows and not {"Softmax", "IsNaN", "MatMul"} & {each.op for each in after.nodes}
    same(before, after)


def low(x, scale, zero=128, kind=np.uint8):
    """A value that is quantised, as a file has it."""
    numbers = np.float32(scale), np.array(zero, kind)
    return op.DequantizeLinear(op.QuantizeLinear(x, *numbers), *numbers)


def integers(q, k, v, *masks, scores=lambda x: low(x, 0.05), weights=(1 / 255, 0), axis=-1):
    """Attention whose operands, scores and weights are quantised."""
    made = scores(low(q, 0.02, 120) @ low(k, 0.03, 131))
    for mask in masks:
        made = scores(made + mask)
    return low(low(op.Softmax(made, axis=axis), *weights) @ low(v, 0.02, 125), 0.01)


def windows(*added, scores=low):
    """Quantised attention of windows, with a mask for each window of an image."""
    made = scores(low(window[0], 0.02) @ low(window[1], 0.02), 0.05)
    for each in added[1:]:
        made = scores(made + each, 0.06)
    made = op.Reshape(scores(op.Reshape(made, [2, 4, 3, 9, 9]) + added[0], 0.07), [8, 3, 9, 9])
    return low(low(op.Softmax(made, axis=-1), 1 / 255, 0) @ low(window[2], 0.02), 0.01)


INTEGERS = {
    "plain": integers(q, k, v),
    "int8": integers(q, k, v, scores=lambda x: low(x, 0.05, -3, np.int8), weights=(1 / 255, -128, np.int8)),
    "a mask": integers(q, k, v, mask),
    "two masks": integers(q, k, v, array(3, 9, 11), mask),
    "scores in float32": integers(q, k, v, scores=lambda x: x),
    "a mask of scores in float32": integers(q, k, v, mask, scores=lambda x: x),
    "two masks of scores in float32": integers(q, k, v, array(3, 9, 11), mask, scores=lambda x: x),
    "windows of scores in float32": windows(array(1, 4, 1, 9, 9), array(3, 9, 9), scores=lambda x, _: x),
    "windows": windows(array(1, 4, 1, 9, 9)),
    "windows and a bias": windows(array(1, 4, 1, 9, 9), array(3, 9, 9)),
    "heads last": op.Transpose(integers(q, k, v), perm=HEADS),
}


def whole(expression):
    """The graph with integer products."""
    return PASSES["quantised"](graph(expression))


@pytest.mark.parametrize("name", INTEGERS)
def test_quantised(name):
    before = whole(INTEGERS[name])
    after = RUN(before)
    kept = {"QuantizedAttention", "QuantizeLinear", "DequantizeLinear", "Reshape", "Transpose", "Add"}
    assert {each.op for each in after.nodes} <= kept - ({"Transpose"} if name == "heads last" else set())
    assert sum(each.op == "QuantizedAttention" for each in after.nodes) == 1
    same(before, after)


@pytest.mark.parametrize(
    ("expression", "stays"),
    [
        (integers(q, k, v, axis=2), "QuantizedSoftmax"),
        (
            integers(q, k, v, mask, scores=lambda x: low(x, 0.05, 3, np.int8) if "Add" in str(x) else low(x, 0.05)),
            "QuantizedSoftmax",
        ),
        (integers(q, k, v, feed(2, 1, 9, 1)), "QuantizedSoftmax"),
        (op.Transpose(integers(q, k, v), perm=SWAP), "Transpose"),
    ],
)
def test_quantised_that_stays(expression, stays):
    assert stays in {each.op for each in RUN(whole(expression)).nodes}


SCORES, SQUARE = q @ k, window[0] @ window[1]
OF_SQUARE = weights(SQUARE)
KEPT = {
    "a divisor of zero": weights((q @ k) / np.float32(0)) @ v,
    "another axis": op.Softmax(q @ k, axis=2) @ v,
    "scores that are read": (weights(SCORES) @ v, op.Exp(SCORES)),
    "one query": weights(feed(2, 3, 1, 16) @ k) @ v,
    "a factor per key": weights((q @ k) * array(3, 1, 11)) @ v,
    "a bias per window": shifted(array(1, 4, 1, 9, 9), array(8, 3, 9, 9)) @ window[2],
    "a mask per query": weights((q @ k) + feed(2, 1, 9, 1)) @ v,
    "a mask that enlarges": weights((feed(9, 16) @ feed(16, 11)) + mask) @ v,
    "other axes change places": feed(2, 3, 20, 9)
    @ op.Transpose(weights(feed(2, 3, 9, 16) @ feed(2, 3, 16, 3)), perm=[0, 3, 2, 1]),
    "a number that scores may have": weights(op.Where(fed, q @ k, np.float32(-1e4))) @ v,
    "other results in between": op.Exp(weights(q @ k)) @ v,
    "scores as values": OF_SQUARE @ SQUARE,
    "weights as values": OF_SQUARE @ OF_SQUARE,
}


def test_queries_divided_by_zero():
    before = graph(weights((q / np.float32(0)) @ k) @ v)
    assert "Div" in {node.op for node in RUN(before).nodes}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name):
    expressions = KEPT[name] if isinstance(KEPT[name], tuple) else (KEPT[name],)
    before = graph(*expressions)
    after = RUN(before)
    assert NAME not in {node.op for node in after.nodes}
    same(before, after)
