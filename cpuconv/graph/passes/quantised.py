"""Convert convolutions and matrix multiplications between DequantizeLinear and QuantizeLinear to integer operators.

Patterns, with constant scales and zero points:

- Conv, MatMul or Gemm of DequantizeLinear(x) and DequantizeLinear(w), if a solver supports these types. ConvTranspose
  and 3-D Conv become such a Conv, followed by an Add of a constant.
- MatMul of two activations, both from DequantizeLinear.
- QuantizeLinear of the results of these, which then store integers.
- QuantizeLinear of data movement or of a maximum, which then applies to integers. Data movement after DequantizeLinear
  is moved before it.
- QuantizeLinear of window means and of linear Resize, which then average integers.
- Split of dequantised values, and means of planes.
- Softmax, LayerNormalization and ReduceMean, which compute in float32, with integer inputs or outputs.
- QuantizeLinear of DequantizeLinear with the same scale, which is removed.

Equal except for one unit at ties: sums are exact, and rounded once. For integer results, a float32 bias is rounded to
the unit of the sums, as in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cpuconv.elements import OF_DTYPE
from cpuconv.errors import ArgumentError
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import names_of, traits_of
from cpuconv.graph.ops.base import Op
from cpuconv.graph.ops.convolution import ATTRIBUTES, quantization
from cpuconv.graph.ops.pooling import windows_overlap_input
from cpuconv.graph.ops.resizing import of_planes
from cpuconv.graph.ops.traits import Int8, Movement
from cpuconv.graph.passes import transposed, volumes
from cpuconv.graph.passes.int8_layers import (
    convert_matmul,
    fuse_bias,
    fuse_quantize,
    fuse_rounded_bias,
    has_float32_result,
    has_solver,
)
from cpuconv.graph.passes.rewriting import (
    Maker,
    Pass,
    Rewrite,
    constant,
    operand,
    per_channel,
    shape_of,
    sole_reader,
)
from cpuconv.graph.passes.scaled import INT8_DTYPES, Scaled, dequantised, dequantised_int8, scaled, stored
from cpuconv.kernels.binding.tensor_view import FLOAT32
from cpuconv.kernels.elementwise.expression import Operand, apply
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.requested_types import signed


def _made(
    graph: Graph, node: Node, x: Scaled, w: Scaled, array: np.ndarray | None, added: np.ndarray | None
) -> Rewrite | None:
    """Replace a node by an integer convolution or matrix multiplication; weights (K, C), (K, C, S) or (K, C, R, S)."""
    dtype = graph.value(x.name).dtype
    if array is None or not x.one or {dtype, array.dtype} - {*INT8_DTYPES} or array.ndim > 4:
        return None
    with np.errstate(all="ignore"):
        units = x.scale * w.scale
    if not (np.isfinite(units) & (units > 0)).all():
        return None
    try:
        scales = {**x.attributes("x"), "w_scale": w.scale}
        points = Quantization(
            x_scale=1.0, w_scale=1.0, w_zero_point=w.zero.tolist() if w.zero.size > 1 else int(w.zero[0])
        )
        wide = array if array.ndim == 4 else array.reshape(*array.shape[:2], 1, -1)
        weight = signed(wide, OF_DTYPE[array.dtype], points).reshape(array.shape)
    except ArgumentError:
        return None
    maker = Maker(graph, node)
    kind, shared, residual = "QuantizedLinear", {}, ""
    if node.op == "Conv":
        kind, shared, residual = "QuantizedConv", {name: node[name] for name in ATTRIBUTES}, operand(node, 3)
    known = "" if added is None else maker.constant(np.ascontiguousarray(added), "bias")
    weight = weight if node.op == "Conv" else np.ascontiguousarray(weight.T)
    operands = x.name, maker.constant(weight, "weight"), known, residual
    maker.node(kind, *operands, **shared, **scales, y=FLOAT32)
    return maker.done() if has_solver(maker) else None


def _conv(graph: Graph, node: Node) -> Rewrite | None:
    x, w = (dequantised(graph, name) for name in node.inputs[:2])
    if x is None or w is None or _axis(w) not in (None, 0) or node["activation"]:
        return None
    array = constant(graph, w.name)
    if array is not None and array.ndim == 5 and x.one and x.zero.dtype in INT8_DTYPES:
        return volumes.rule(graph, node, (x, w))
    return _with_bias(graph, node, x, w, array)


def _transposed(graph: Graph, node: Node) -> Rewrite | None:
    given = all(dequantised(graph, name) is not None for name in node.inputs[:2])
    return transposed.rule(graph, node) if given else None


def _matmul(graph: Graph, node: Node) -> Rewrite | None:
    """Convert MatMul with a constant matrix, or Gemm, whose matrix may be transposed and which may have a bias."""
    x, w = (dequantised(graph, name) for name in node.inputs[:2])
    array = None if w is None else constant(graph, w.name)
    if x is not None and w is not None and node.op == "MatMul" and array is None:
        return convert_matmul(graph, node, x, w)
    if x is None or w is None or array is None or array.ndim != 2 or len(shape_of(graph, x.name)) < 2:
        return None
    numbers = {name: node.attributes.get(name, 1) for name in ("alpha", "beta")}
    if node.attributes.get("transA") or set(numbers.values()) != {1}:
        return None
    turned = bool(node.attributes.get("transB"))
    if _axis(w) not in ((None, 0) if turned else (None, 1, -1)):
        return None
    return _with_bias(graph, node, x, w, array if turned else array.T)


def _axis(w: Scaled) -> int | None:
    """Axis of scales or zero points; None if there is one for all."""
    return None if w.one else w.axis


def _with_bias(graph: Graph, node: Node, x: Scaled, w: Scaled, array: np.ndarray | None) -> Rewrite | None:
    bias = operand(node, 2)
    given, added = dequantised(graph, bias), constant(graph, bias)
    if given is not None and (whole := constant(graph, given.name)) is not None and not given.zero.any():
        exact = np.allclose(given.scale, x.scale * w.scale, rtol=1e-6, atol=0)
        added = whole if exact else whole.astype(np.float32) * given.scale
    if bias and (added is None or array is None):
        return None
    if added is not None and node.op == "Gemm":
        each = per_channel(added, shape_of(graph, node.outputs[0]), 1)
        if each is None:
            return None
        added = each.astype(added.dtype)
    return _made(graph, node, x, w, array, added)


def _quantize(graph: Graph, node: Node) -> Rewrite | None:
    y, source = scaled(graph, node, "QuantizeLinear"), graph.producer(node.inputs[0])
    if y is None or source is None or source.semantics is not None or not y.one or y.zero.dtype not in INT8_DTYPES:
        return None
    if source.op == "DequantizeLinear":
        x = dequantised(graph, node.inputs[0])
        same = x is not None and x.one and x.same(y)
        return Rewrite([node], [Node("Identity", (x.name,), node.outputs)]) if same and x is not None else None
    if sole_reader(graph, node.inputs[0]) is None:
        return None
    if has_float32_result(source) and source.op != "QuantizedMatMul":
        return _ending(graph, node, source, y)
    if source.op == "Add":
        return fuse_rounded_bias(graph, node, source, y)
    if source.op == "QuantizedMatMul" and source["y"] == FLOAT32:
        return fuse_quantize(node, source, y)
    if source.op in _MEANS and (made := _int8_mean(graph, node, source, y)) is not None:
        return made
    if source.op.removeprefix("Quantized") in _ROWWISE and source.attributes.get("y", FLOAT32) == FLOAT32:
        return _fuse_rowwise_quantize(node, source, y)
    nearest = source.op == "Resize" and source["mode"] == "nearest"
    moves = nearest or source.op == "Pad" or traits_of(source).int8 is Int8.MOVED
    return _moved(graph, node, source, y) if moves and len(source.outputs) == 1 else None


def _ready(graph: Graph, name: str) -> bool:
    """Whether quantisation of a value can avoid float32."""
    if dequantised(graph, name) is not None:
        return True
    source = graph.producer(name)
    if source is None or sole_reader(graph, name) is None:
        return False
    op = traits_of(source)
    moves = op.int8 is Int8.MOVED and not op.joins and len(source.outputs) == 1
    return has_float32_result(source) or (moves and _ready(graph, source.inputs[0]))


def _ending(graph: Graph, node: Node, source: Node, y: Scaled) -> Rewrite | None:
    """Fuse QuantizeLinear into a convolution."""
    added, inputs, ending = operand(source, 3), source.inputs, stored(y)
    if added:
        other = dequantised(graph, added)
        if other is None or not other.one or graph.value(other.name).dtype != y.zero.dtype:
            return None
        ending |= other.attributes("residual")
        inputs = (*inputs[:3], other.name)
    made = replace(source, inputs=inputs, outputs=node.outputs, attributes={**source.attributes, **ending})
    ratio = quantization(made).ratio()
    return Rewrite([source, node], [made]) if np.isfinite(ratio).all() else None


def _int8_mean(graph: Graph, node: Node, source: Node, y: Scaled) -> Rewrite | None:
    """Average integers instead of float32."""
    x = dequantised(graph, source.inputs[0])
    if x is None or not x.one or x.zero.dtype != y.zero.dtype or not _MEANS[source.op](graph, source):
        return None
    maker = Maker(graph, source, node, origin=source.origin)
    scales = {**x.attributes("x"), **stored(y)}
    maker.node(f"Quantized{source.op}", x.name, *source.inputs[1:], **source.attributes, **scales)
    return maker.done()


def _by_windows(graph: Graph, node: Node) -> bool:
    """Whether a kernel supports the window means; means of whole planes are converted later."""
    shape = shape_of(graph, node.inputs[0])
    return tuple(node["kernel_shape"]) != shape[2:] and windows_overlap_input(node, shape)


_MEANS: dict[str, Callable[[Graph, Node], bool]] = {
    "AveragePool": _by_windows,
    "Resize": lambda graph, node: of_planes(node, graph.operands(node)),
}


def _moved(graph: Graph, node: Node, source: Node, y: Scaled) -> Rewrite | None:
    """Move integers instead of float32."""
    many = len(source.inputs) if traits_of(source).joins else 1
    if not all(_ready(graph, name) for name in source.inputs[:many]):
        return None
    maker = Maker(graph, source, node, origin=source.origin)
    rest = node.inputs[1:]
    others = list(source.inputs[many:])
    if source.op == "Pad" and source["mode"] == "constant":
        number = constant(graph, operand(source, 2)) if operand(source, 2) else np.zeros(())
        if number is None or number.size != 1:
            return None
        ends, whole = np.iinfo(y.zero.dtype), np.rint(number / y.scale) + y.zero
        others[1:2] = [maker.constant(np.clip(whole, ends.min, ends.max).reshape(()).astype(y.zero.dtype), "value")]
    parts = [maker.node("QuantizeLinear", name, *rest, part="q", **node.attributes) for name in source.inputs[:many]]
    maker.node(source.op, *parts, *others, **source.attributes)
    return maker.done()


def _mean(graph: Graph, node: Node) -> Rewrite | None:
    """Convert the mean of dequantised values to the mean of integers."""
    x, shape = dequantised_int8(graph, node.inputs[0]), shape_of(graph, node.inputs[0])
    if x is None or len(shape) not in (3, 4) or 0 in shape:
        return None
    maker = Maker(graph, node)
    tree = apply("mul", apply("sub", Operand(0), float(x.zero[0])), float(x.scale[0]))
    maker.node("Elementwise", maker.node("QuantizedMean", x.name, part="mean"), expression=tree)
    return maker.done()


def _rowwise(graph: Graph, node: Node) -> Rewrite | None:
    """Let an operator along rows read integers."""
    x = dequantised_int8(graph, node.inputs[0])
    if x is None or any(node.outputs[1:]):
        return None
    maker = Maker(graph, node)
    attributes = {"y": FLOAT32, "y_scale": 1.0, **node.attributes, **x.attributes("x")}
    maker.node(f"Quantized{node.op.removeprefix('Quantized')}", x.name, *node.inputs[1:], **attributes)
    return maker.done()


def _fuse_rowwise_quantize(node: Node, source: Node, y: Scaled) -> Rewrite | None:
    """Let an operator along rows store integers."""
    if any(source.outputs[1:]):
        return None
    attributes = {"x_scale": 1.0, "x_zero_point": 0, **source.attributes, **stored(y)}
    op = f"Quantized{source.op.removeprefix('Quantized')}"
    return Rewrite([source, node], [replace(source, op=op, outputs=node.outputs, attributes=attributes)])


def _split(graph: Graph, node: Node) -> Rewrite | None:
    """Split integers instead of float32."""
    x = dequantised(graph, node.inputs[0])
    if x is None or not x.one:
        return None
    source, maker = graph.producer(node.inputs[0]), Maker(graph, node)
    assert source is not None
    names = [maker.named(f"part{at}") for at in range(len(node.outputs))]
    maker.new = [replace(node, inputs=(x.name, *node.inputs[1:]), outputs=tuple(names))]
    maker.new += [
        replace(source, inputs=(name, *source.inputs[1:]), outputs=(output,))
        for name, output in zip(names, node.outputs, strict=True)
    ]
    return maker.done()


def _is_view_of_all(op: Op) -> bool:
    """Whether an operator is a view of all elements; `noops` removes Identity."""
    return op.view is not None and op.movement >= Movement.ALL and op.name != "Identity"


def _move_before_dequantize(graph: Graph, node: Node) -> Rewrite | None:
    """Move data before dequantisation: integers take less memory, and later layers can read them."""
    x, source, reader = (
        dequantised(graph, node.inputs[0]),
        graph.producer(node.inputs[0]),
        graph.users(node.outputs[0]),
    )
    if x is None or source is None or any(each.op == "QuantizeLinear" for each in reader):
        return None
    maker, weights = Maker(graph, node), constant(graph, x.name)
    if x.one:
        axis, moved = x.axis, maker.node(node.op, x.name, *node.inputs[1:], part="moved", **node.attributes)
    elif node.op == "Transpose" and weights is not None and (perm := node["perm"]):
        axis, moved = perm.index(x.axis % len(perm)), maker.constant(weights.transpose(perm), "weight")
    else:
        return None
    maker.node("DequantizeLinear", moved, *source.inputs[1:], **{**source.attributes, "axis": axis})
    return maker.done()


_RULES = {
    "Add": fuse_bias,
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "GlobalAveragePool": _mean,
    "Split": _split,
    "QuantizeLinear": _quantize,
}
_RULES |= dict.fromkeys(names_of(_is_view_of_all), _move_before_dequantize)
_ROWWISE = ("LayerNormalization", "ReduceMean", "Softmax")
_RULES |= dict.fromkeys(("MatMul", "Gemm"), _matmul)
_RULES |= dict.fromkeys((*_ROWWISE, *(f"Quantized{op}" for op in _ROWWISE)), _rowwise)
run = Pass("quantised", __doc__, (_RULES,), needs=("halves", "noops", "signs"), undoes=("noops",), early=True)
