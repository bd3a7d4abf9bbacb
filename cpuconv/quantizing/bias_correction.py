"""Bias correction: compensates the mean error per channel that rounding causes.

The outputs of an int8 layer differ from float32 outputs for the same input. The mean of this error over samples and
pixels is not 0 in every channel; the bias subtracts it. Each layer is measured alone, all in one run of the network,
so that the error of another layer is not compensated twice.
Source: Nagel et al., "Data-free quantization through weight equalization and bias correction" (2019), section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cpuconv.graph.ir import Graph, Node, trimmed
from cpuconv.graph.ops import TABLE
from cpuconv.quantizing.data.samples import Feed
from cpuconv.quantizing.graphs.attention import QuantizableAttention
from cpuconv.quantizing.graphs.building import Names, quantized_attention
from cpuconv.quantizing.graphs.plan import Plan
from cpuconv.quantizing.graphs.quantizable import QuantizableLayer
from cpuconv.quantizing.observing import Step, ready
from cpuconv.quantizing.scales import Scale, Weights

_TWIN = "quantized:"  # prefix of the outputs of int8 layers


class LayerEffects(NamedTuple):
    """Effect of int8 on each layer alone, by the name of its output.

    Attributes
    ----------
    biases : dict of str to numpy.ndarray
        Corrected biases, one float32 per channel, of layers that may have a bias.
    errors : dict of str to float
        Relative RMS error of the output after correction.
    """

    biases: dict[str, np.ndarray]
    errors: dict[str, float]


def measure_layers(
    graph: Graph,
    plan: Plan,
    scales: Mapping[str, Scale],
    weights: Mapping[str, Weights],
    samples: Iterable[Feed],
    threads: int,
    step: Step,
    correct: bool,
) -> LayerEffects:
    """Measure the error of each layer of the plan in int8; with `correct`, also correct the biases."""
    layers = {layer.node.outputs[0]: layer for layer in plan.layers}
    model = ready(_with_twins(graph, plan, scales, weights), threads, [*layers, *(_TWIN + name for name in layers)])
    weighted = {name: each for name, each in layers.items() if isinstance(each, QuantizableLayer) and each.has_bias}
    correctable = weighted if correct else {}
    sums = {name: np.zeros(layer.outputs) for name, layer in correctable.items()}
    squares = {name: np.zeros(2) for name in layers}  # sums of squares of differences and of values
    counts = dict.fromkeys(correctable, 0)
    for feed in samples:
        results = model.run(feed)
        for name in layers:
            exact, wrong = results[name], results[_TWIN + name] - results[name]
            squares[name] += [np.square(each, dtype=np.float64).sum() for each in (wrong, exact)]
            if name in correctable:
                channels = correctable[name].channels % exact.ndim
                sums[name] += wrong.sum(tuple(axis for axis in range(exact.ndim) if axis != channels), dtype=np.float64)
                counts[name] += exact.size // len(sums[name])
        step()
    biases = {}
    for name, layer in correctable.items():
        mean = sums[name] / max(counts[name], 1)
        biases[name] = (_bias(layer) - mean).astype(np.float32)
        squares[name][0] -= np.square(mean).sum() * counts[name]
    errors = {name: math.sqrt(max(wrong, 0) / whole) if whole else 0.0 for name, (wrong, whole) in squares.items()}
    return LayerEffects(biases, errors)


def _bias(layer: QuantizableLayer) -> np.ndarray:
    return np.zeros(layer.outputs) if layer.bias is None else layer.bias.astype(np.float64)


def _with_twins(graph: Graph, plan: Plan, scales: Mapping[str, Scale], weights: Mapping[str, Weights]) -> Graph:
    """Add a second layer next to each layer of the plan, with the quantised input and weights, dequantised."""
    names, nodes = Names(graph), list[Node]()
    rounded: dict[str, str] = {}
    given: dict[str, tuple[str, Scale]] = {}
    for layer in plan.layers:
        for x in layer.inputs:
            if x not in rounded:
                scale = scales[plan.roots[x]]
                numbers = names.numbers(scale, x)
                whole, rounded[x] = names.fresh(f"{x}.quantized"), names.fresh(f"{x}.dequantized")
                given[x] = whole, scale
                nodes.append(TABLE["QuantizeLinear"].node((x, *numbers), (whole,)))
                nodes.append(TABLE["DequantizeLinear"].node((whole, *numbers), (rounded[x],)))
        if isinstance(layer, QuantizableAttention):
            twins = {name: _TWIN + name for each in layer.written for name in each.outputs}
            nodes += [each.reads(twins).writes(twins) for each in quantized_attention(names, layer, given, scales)]
            continue
        node, (name, *_) = layer.node, layer.node.outputs
        x, weight, *rest = node.inputs
        twin = names.constant(weights[name].dequantized.astype(np.float32), f"{_TWIN}{name}.weight")
        nodes.append(replace(node, inputs=trimmed((rounded[x], twin, *rest)), outputs=(_TWIN + name,)))
    return replace(graph, nodes=(*graph.nodes, *nodes), constants={**graph.constants, **names.constants})
