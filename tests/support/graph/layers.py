"""Layers as exporters write them, for tests of rewrites, and the check that results stay."""

from __future__ import annotations

import numpy as np

from cpuconv.graph.ir import Graph
from cpuconv.network.interpret import interpret
from support.graph.expressions import Expression, op


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32)


def same(before: Graph, after: Graph, limit: float = 2e-6) -> None:
    """See that outputs are what they were, computed in float64 of random inputs, and that shapes are known."""
    rng = np.random.default_rng(1)
    fed = {name: before.value(name) for name in before.inputs}
    arrays = {name: rng.normal(0, 2, value.shape).astype(value.dtype) for name, value in fed.items()}
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert all(after.value(name).concrete for node in after.nodes for name in (*node.inputs, *node.outputs) if name)
    expected, got = interpret(before, arrays, wide=True), interpret(after, arrays, wide=True)
    for name in before.outputs:
        assert after.value(name) == before.value(name)
        scale = max(1.0, np.abs(expected[name]).max(initial=0))
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=limit * scale)


W = array(7, 6, 3, 3)


def conv(value: Expression, weight: np.ndarray = W, bias: object = None, **attributes: object) -> Expression:
    return op.Conv(value, weight, bias, **{"pads": [1, 1, 1, 1] if weight.shape[2] == 3 else None, **attributes})


def normalized(value: Expression, channels: int, seed: int = 1) -> Expression:
    scale, bias, mean, variance = (array(channels, seed=seed + at) for at in range(4))
    return op.BatchNormalization(value, scale, bias, mean, variance)


def layer(value: Expression, power: bool = True, axes: list[int] | None = None) -> Expression:
    """Mean 0 and variance 1, as exporters write it."""
    apart = value - op.ReduceMean(value, axes or [-1])
    square = apart**2.0 if power else apart * apart
    return apart / op.Sqrt(op.ReduceMean(square, axes or [-1]) + 1e-5)


def hard(value: Expression) -> Expression:
    return op.Clip(value + 3.0, 0.0, 6.0)
