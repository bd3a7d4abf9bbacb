"""Quantised matrix multiplications: MatMul of two activations, biases after int8 layers, and int8 results.

An Add of one number per channel after an int8 layer becomes its bias. If the model rounds to int8 between the two, the
result is rounded once instead of twice. It differs by at most one unit if the intermediate scale is fine enough, and is
clamped per channel like the intermediate values.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpuconv.conv.choice.layout_candidates import solvable
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops.convolution import problem_of, quantization
from cpuconv.graph.ops.quantised import rows_of
from cpuconv.graph.passes.rewriting import Maker, Rewrite, constant, operand, per_channel, shape_of, sole_reader
from cpuconv.graph.passes.scaled import INT8_DTYPES, Scaled, dequantised, stored
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.kernels.products.matmul_int8 import MOST

_WITH_WEIGHTS = ("QuantizedConv", "QuantizedLinear")
_FINE = 1.9  # maximum intermediate scale relative to the result's: rounding once differs by at most one unit


def has_float32_result(node: Node | None) -> bool:
    """Whether a quantised layer or MatMul has a float32 result."""
    return node is not None and node.op in (*_WITH_WEIGHTS, "QuantizedMatMul") and node["y"] == FLOAT32


def has_solver(maker: Maker) -> bool:
    """Whether a solver supports the last new node, a QuantizedConv or QuantizedLinear."""
    node = maker.new[-1]
    arrays = {name: Value.of(array) for name, array in maker.constants.items()}
    values = [(arrays.get(name) or maker.graph.value(name)) if name else None for name in node.inputs]
    problem = problem_of(node, values) if node.op == "QuantizedConv" else rows_of(node, values)
    return problem is not None and solvable(problem)


def convert_matmul(graph: Graph, node: Node, a: Scaled, b: Scaled) -> Rewrite | None:
    """Convert MatMul of two dequantised activations to QuantizedMatMul."""
    if not (a.one and b.one) or {a.zero.dtype, b.zero.dtype} - {*INT8_DTYPES}:
        return None
    with np.errstate(all="ignore"):
        unit = float((a.scale * b.scale)[0])
    if a.name in graph.constants or shape_of(graph, a.name)[-1] > MOST or not 0 < unit < np.inf:
        return None
    maker = Maker(graph, node)
    maker.node("QuantizedMatMul", a.name, b.name, **a.attributes("a"), **b.attributes("b"), y=FLOAT32)
    return maker.done()


def fuse_quantize(node: Node, source: Node, y: Scaled) -> Rewrite | None:
    """Fuse QuantizeLinear into a QuantizedMatMul."""
    with np.errstate(over="ignore"):
        factor = np.float32(source["a_scale"]) * np.float32(source["b_scale"]) / y.scale
    if not np.isfinite(factor).all():
        return None
    return Rewrite(
        [source, node], [replace(source, outputs=node.outputs, attributes={**source.attributes, **stored(y)})]
    )


def fuse_bias(graph: Graph, node: Node) -> Rewrite | None:
    """Fuse an Add of one number per channel into an int8 layer as its bias."""
    for own, other in (node.inputs, node.inputs[::-1]):
        source, array = graph.producer(own), constant(graph, other)
        if source is None or array is None or not has_float32_result(source) or not _takes_bias(graph, source, own):
            continue
        each = per_channel(array, shape_of(graph, own), _channels(source, shape_of(graph, own)))
        if each is not None and np.isfinite(each).all():
            maker = Maker(graph, source, node)
            inputs = (*source.inputs[:2], maker.constant(each.astype(np.float32), "bias"))
            maker.new = [replace(source, inputs=inputs, outputs=node.outputs)]
            return maker.done()
    return None


def fuse_rounded_bias(graph: Graph, node: Node, source: Node, y: Scaled) -> Rewrite | None:
    """Fuse bias and QuantizeLinear into an int8 layer if the model rounds to int8 between them; clamp per channel."""
    for own, other in (source.inputs, source.inputs[::-1]):
        x, array, between = dequantised(graph, own), constant(graph, other), graph.producer(own)
        layer = None if x is None else graph.producer(x.name)
        if x is None or array is None or layer is None or between is None or not _takes_bias(graph, layer, x.name):
            continue
        each = per_channel(array, shape_of(graph, own), _channels(layer, shape_of(graph, own)))
        if each is None or sole_reader(graph, own) is None or layer["y"] not in INT8_DTYPES or not x.one:
            continue
        if not np.isfinite(each).all() or x.scale[0] > _FINE * y.scale[0]:
            continue
        ends = np.array([np.iinfo(layer["y"]).min, np.iinfo(layer["y"]).max], np.float32)[:, None]
        with np.errstate(over="ignore"):
            known = np.rint(((ends - x.zero) * x.scale + each) / y.scale) + y.zero
        limits = np.clip(known, np.iinfo(y.zero.dtype).min, np.iinfo(y.zero.dtype).max).astype(int)
        maker = Maker(graph, layer, between, source, node)
        inputs = (*layer.inputs[:2], maker.constant(each.astype(np.float32), "bias"))
        given = {**layer.attributes, **stored(y), "y_least": limits[0], "y_most": limits[1]}
        maker.new = [replace(layer, inputs=inputs, outputs=node.outputs, attributes=given)]
        return maker.done() if np.isfinite(quantization(maker.new[0]).ratio()).all() else None
    return None


def _takes_bias(graph: Graph, node: Node, y: str) -> bool:
    """Whether a node is a layer with weights, without bias, residual and activation, and with a single reader."""
    if node.op not in _WITH_WEIGHTS or sole_reader(graph, y) is None:
        return False
    return not (operand(node, 2) or operand(node, 3) or node["activation"])


def _channels(layer: Node, shape: tuple[int, ...]) -> int:
    """Channel axis of a layer's result."""
    return 1 if layer.op == "QuantizedConv" else len(shape) - 1
