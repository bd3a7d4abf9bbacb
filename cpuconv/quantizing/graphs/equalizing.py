"""Cross-layer equalisation: two layers with a Relu between them get the same weight range per channel.

Relu(s a) = s Relu(a) for s > 0. Dividing channel i of the first layer by s_i and multiplying it by s_i in the second
therefore leaves the network's results equal, up to rounding. Let r and q be the largest weights that write and read
channel i. Then s_i = sqrt(r_i / q_i) makes both sqrt(r_i q_i).
Source: Nagel et al., "Data-free quantization through weight equalization and bias correction" (2019), section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph
from cpuconv.graph.passes.rewriting import operand, sole_reader
from cpuconv.quantizing.graphs.quantizable import QuantizableLayer, layers_of

_ITERATIONS = 20  # iterations over all pairs
_CONVERGED = 1e-3  # convergence: maximum difference of factors from 1
_MAX_FACTOR = 1e3  # maximum factor: nearly zero weights are not scaled up


class _Pair(NamedTuple):
    first: QuantizableLayer
    second: QuantizableLayer


def equalized(graph: Graph) -> Graph:
    """Equalise weights; results are equal up to rounding. Returns `graph` itself if there is nothing to equalise."""
    pairs = list(_pairs(graph))
    if not pairs:
        return graph
    arrays: dict[str, np.ndarray] = {}
    for _ in range(_ITERATIONS):
        change = max(_equalize_pair(graph, pair, arrays) for pair in pairs)
        if change < _CONVERGED:
            break
    known = graph.constants
    rounded = {name: _frozen(array.astype(known[name].dtype)) for name, array in arrays.items()}
    return replace(graph, constants={**known, **rounded})


def _pairs(graph: Graph) -> Iterator[_Pair]:
    """Pairs of layers with only a Relu between them, whose weights no other node reads."""
    layers = {id(layer.node): layer for layer in layers_of(graph)}
    for layer in layers.values():
        relu = sole_reader(graph, layer.node.outputs[0])
        second = relu and relu.op == "Relu" and sole_reader(graph, relu.outputs[0])
        found = layers.get(id(second)) if second else None
        if found is None or relu is None or found.node.inputs[0] != relu.outputs[0]:
            continue
        if found.node.op == "Conv" and found.node["group"] > 1 and found.weight.shape[1] > 1:
            continue
        own = [name for each in (layer, found) for name in each.node.inputs[1:] if name]
        alone = all(len(graph.users(name)) == 1 and not graph.is_output(name) for name in own)
        if alone and len(own) == len(set(own)) and layer.node.op != "MatMul":
            yield _Pair(layer, found)


def _equalize_pair(graph: Graph, pair: _Pair, arrays: dict[str, np.ndarray]) -> float:
    """Equalise one pair in float64; return the maximum difference of the factors from 1."""
    for layer in pair:
        for name in layer.node.inputs[1:]:
            arrays.setdefault(name, graph.constants[name].astype(np.float64, order="C"))
    first, second = (arrays[layer.node.inputs[1]] for layer in pair)
    given = _rows(first, pair.first.axis)
    read = _by_input(second, pair.second)
    gives, reads = (np.abs(part).reshape(len(part), -1).max(1, initial=0) for part in (given, read))
    if len(gives) != len(reads):
        return 0.0
    usable = (gives > 0) & (reads > 0)
    factor = np.ones(len(gives))
    factor[usable] = np.clip(np.sqrt(gives[usable] / reads[usable]), 1 / _MAX_FACTOR, _MAX_FACTOR)
    given /= factor.reshape(-1, *[1] * (given.ndim - 1))
    read *= factor.reshape(-1, *[1] * (read.ndim - 1))
    bias = operand(pair.first.node, 2)
    if bias:
        arrays[bias] = arrays[bias] / factor
    return float(np.abs(factor - 1).max(initial=0))


def _rows(array: np.ndarray, axis: int) -> np.ndarray:
    """View weights with output channels first."""
    return np.moveaxis(array, axis, 0)


def _by_input(array: np.ndarray, layer: QuantizableLayer) -> np.ndarray:
    """View weights with input channels first: (C, …)."""
    if layer.node.op != "Conv":
        return np.moveaxis(array, 1 - layer.axis, 0)
    groups: int = layer.node["group"]
    if groups == 1:
        return array.swapaxes(0, 1)
    return array.reshape(groups, len(array) // groups, *array.shape[1:])  # depthwise: one input channel per group


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
