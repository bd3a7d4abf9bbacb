"""Random numbers, different in every run.

Source: ONNX operators of these names. Without a seed, numbers come from the system's entropy. With a seed, the first
draw of a node is that of NumPy's `RandomState` of the seed, as in ONNX's evaluator. The n-th draw is that of the seed
and n. It does not depend on other nodes, and threads do not share generators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.functions.casting import wide
from cpuconv.functions.draws import Draws
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops.base import REQUIRED, Arrays, Inputs, Op, given, is_float

_BOOL = np.dtype(bool)
_USUAL_RATIO = 0.5  # default ratio of Dropout


def restarted(graph: Graph) -> Graph:
    """Reset the draws of all seeds in a graph."""
    nodes = tuple(map(_restarted, graph.nodes))
    same = all(new is old for new, old in zip(nodes, graph.nodes, strict=True))
    return graph if same else replace(graph, nodes=nodes)


def _restarted(node: Node) -> Node:
    fresh = {
        name: _without_draws(value) for name, value in node.attributes.items() if isinstance(value, (Draws, Graph))
    }
    changed = any(fresh[name] is not node[name] for name in fresh)
    return replace(node, attributes={**node.attributes, **fresh}) if changed else node


def _without_draws(value: Draws | Graph) -> Draws | Graph:
    return Draws(value.seed) if isinstance(value, Draws) else restarted(value)


def _generator(node: Node) -> np.random.Generator | np.random.RandomState:
    seed: Draws | None = node["seed"]
    return np.random.default_rng() if seed is None else seed.generator()


def _stated(node: Node, otherwise: np.dtype) -> np.dtype:
    """Type of the output: the node's, else `otherwise`."""
    return node["dtype"] if isinstance(node["dtype"], np.dtype) else otherwise


def _floats(node: Node, shape: Sequence[Any], otherwise: np.dtype) -> list[Value]:
    dtype = _stated(node, otherwise)
    if not is_float(dtype):
        raise ValueError(f"random numbers must be floating-point, not {dtype}: state a 'dtype'")
    return [Value(tuple(shape), dtype)]


def _infer_shape(node: Node, inputs: Inputs) -> list[Value]:
    if not all(isinstance(size, int) and size >= 0 for size in node["shape"]):
        raise ValueError(f"the shape is {node['shape']}")
    return _floats(node, node["shape"], np.dtype(np.float32))


def _infer_like(node: Node, inputs: Inputs) -> list[Value]:
    return _floats(node, inputs[0].shape, inputs[0].dtype)


def _shape(node: Node, arrays: Arrays) -> tuple[int, ...]:
    return tuple(node["shape"]) if "shape" in node.attributes else arrays[0].shape


def normal(node: Node, arrays: Arrays) -> np.ndarray:
    """Draw normally distributed numbers."""
    return node["mean"] + node["scale"] * _generator(node).standard_normal(_shape(node, arrays))


def uniform(node: Node, arrays: Arrays) -> np.ndarray:
    """Draw uniformly distributed numbers between `low` and `high`."""
    return node["low"] + (node["high"] - node["low"]) * _generator(node).random(_shape(node, arrays))


def _infer_bernoulli(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(inputs[0].shape, _stated(node, inputs[0].dtype))]


def bernoulli(node: Node, arrays: Arrays) -> np.ndarray:
    """Draw 1 with the probability in the input, else 0."""
    return _generator(node).random(arrays[0].shape) < arrays[0]


def _infer_multinomial(node: Node, inputs: Inputs) -> list[Value]:
    rows, classes = inputs[0].shape
    if classes < 1 or node["sample_size"] < 0:
        raise ValueError(f"{node['sample_size']} samples of {classes} classes")
    return [Value((rows, node["sample_size"]), _stated(node, np.dtype(np.int32)))]


def multinomial(node: Node, arrays: Arrays) -> np.ndarray:
    """Draw classes by unnormalised log-probabilities per row."""
    (x,) = arrays
    picks = _generator(node).random((len(x), node["sample_size"]))
    sums = np.cumsum(np.exp(x - x.max(axis=1, keepdims=True)), axis=1)
    rows = [np.searchsorted(row, pick * row[-1], side="right") for row, pick in zip(sums, picks, strict=True)]
    last = (sums < sums[:, -1:]).sum(axis=1, keepdims=True)  # the last class with a probability above 0
    return np.minimum(np.array(rows, np.int64).reshape(picks.shape), last)


def _infer_dropout(node: Node, inputs: Inputs) -> list[Value]:
    return [Value(inputs[0].shape, inputs[0].dtype), Value(inputs[0].shape, _BOOL)]


def dropout(node: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """In training, zero a share of the elements and scale the others to keep the mean; also return the mask."""
    x, ratio, training = arrays[0], given(arrays, 1), given(arrays, 2)
    share = _USUAL_RATIO if ratio is None else float(wide(ratio).reshape(()))
    if training is None or not training.any() or not share:
        return x, np.ones(x.shape, bool)
    if not 0 <= share <= 1:
        raise ValueError(f"the ratio is {share}")
    kept = _generator(node).random(x.shape) >= share
    return np.where(kept, wide(x), 0) / (1 - share or 1), kept


def _drawing(name: str, infer: Any, reference: Any, attributes: Mapping[str, object], **rest: Any) -> Op:
    return Op(name, infer, reference, {**attributes, "seed": None}, **rest)


_NORMAL, _UNIFORM = {"mean": 0.0, "scale": 1.0}, {"low": 0.0, "high": 1.0}
_SHAPE = {"shape": REQUIRED, "dtype": 1}

OPS = (
    _drawing("RandomNormal", _infer_shape, normal, {**_NORMAL, **_SHAPE}),
    _drawing("RandomNormalLike", _infer_like, normal, {**_NORMAL, "dtype": None}, widened=False),
    _drawing("RandomUniform", _infer_shape, uniform, {**_UNIFORM, **_SHAPE}),
    _drawing("RandomUniformLike", _infer_like, uniform, {**_UNIFORM, "dtype": None}, widened=False),
    _drawing("Bernoulli", _infer_bernoulli, bernoulli, {"dtype": None}),
    _drawing("Multinomial", _infer_multinomial, multinomial, {"dtype": 6, "sample_size": 1}),
    _drawing("Dropout", _infer_dropout, dropout, {}, mixed=True),
)
