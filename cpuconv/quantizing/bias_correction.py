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
    outputs = [layer.node.outputs[0] for layer in plan.layers]
    model = ready(_with_twins(graph, plan, scales, weights), threads, [*outputs, *(_TWIN + name for name in outputs)])
    sums = {layer.node.outputs[0]: np.zeros(layer.outputs) for layer in plan.layers}
    squares = {name: np.zeros(2) for name in outputs}  # sums of squares of differences and of values
    counts = dict.fromkeys(outputs, 0)
    for feed in samples:
        results = model.run(feed)
        for layer in plan.layers:
            name = layer.node.outputs[0]
            exact, wrong = results[name], results[_TWIN + name] - results[name]
            others = tuple(axis for axis in range(exact.ndim) if axis != layer.channels % exact.ndim)
            sums[name] += wrong.sum(others, dtype=np.float64)
            squares[name] += [np.square(each, dtype=np.float64).sum() for each in (wrong, exact)]
            counts[name] += exact.size // len(sums[name])
        step()
    biases, errors = {}, {}
    for layer in plan.layers:
        name = layer.node.outputs[0]
        mean = sums[name] / max(counts[name], 1)
        wrong, whole = squares[name]
        if correct and layer.node.op != "MatMul":
            biases[name] = (_bias(layer) - mean).astype(np.float32)
            wrong -= np.square(mean).sum() * counts[name]
        errors[name] = math.sqrt(max(wrong, 0) / whole) if whole else 0.0
    return LayerEffects(biases, errors)


def _bias(layer: QuantizableLayer) -> np.ndarray:
    return np.zeros(layer.outputs) if layer.bias is None else layer.bias.astype(np.float64)


def _with_twins(graph: Graph, plan: Plan, scales: Mapping[str, Scale], weights: Mapping[str, Weights]) -> Graph:
    """Add a second layer next to each layer of the plan, with the quantised input and weights, dequantised."""
    nodes: list[Node] = []
    constants: dict[str, np.ndarray] = {}
    rounded: dict[str, str] = {}
    for layer in plan.layers:
        node, (name, *_) = layer.node, layer.node.outputs
        x, weight, *rest = node.inputs
        if x not in rounded:
            scale = scales[plan.roots[x]]
            numbers = {f"{_TWIN}{x}.scale": np.asarray(scale.scale), f"{_TWIN}{x}.zero": np.asarray(scale.zero)}
            constants |= numbers
            whole, rounded[x] = f"{_TWIN}{x}.quantized", f"{_TWIN}{x}.dequantized"
            nodes.append(TABLE["QuantizeLinear"].node((x, *numbers), (whole,)))
            nodes.append(TABLE["DequantizeLinear"].node((whole, *numbers), (rounded[x],)))
        twin = f"{_TWIN}{name}.weight"
        constants[twin] = weights[name].dequantized.astype(np.float32)
        nodes.append(replace(node, inputs=trimmed((rounded[x], twin, *rest)), outputs=(_TWIN + name,)))
    return replace(graph, nodes=(*graph.nodes, *nodes), constants={**graph.constants, **constants})
