"""Convert attention, written as matrix multiplications and Softmax, to one operator, float32 or quantised.

===============================================================  ====================================================
softmax(q k · scale + masks) v; scale and masks may be absent    ScaledDotProductAttention
Where(seen, scores, lowest) instead of scores + mask             the same, with Where(seen, 0, lowest) as mask
zero for weights that are NaN, or for rows without visible keys  the same, with `zero_rows`
v softmax(...)ᵀ, with heads as planes of channels                the same, whose result is transposed
a mask added to a Reshape of scores that splits the first axis   the same, of operands with a split first axis
the same of quantised operands and weights, with scores and      QuantizedAttention
sums with two masks that are quantised as well, or all float32
Transpose of a result                                            `perm` of the node that computes it
===============================================================  ====================================================

QuantizedAttention keeps every rounding of the file. A constant that multiplies or divides q or k is part of the scale;
a factor per row of scores multiplies q. Equal up to rounding for finite values of visible keys; a `lowest` of -65504
and less is taken for less than any score. One query stays as it is: products of a matrix and a vector read keys and
values once, at the speed of memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.base import broadcast_shapes
from cpuconv.graph.ops.matrix import matmul_shape
from cpuconv.graph.passes.pattern import Formula, Found, Free, Maybe, Pattern, Symbol, operator
from cpuconv.graph.passes.rewriting import Maker, Pass, Rewrite, scalar, shape_of, sole_reader
from cpuconv.graph.passes.scaled import INT8_DTYPES, scaled
from cpuconv.kernels.binding.tensor_view import FLOAT32

MatMul, Div, Reshape, Softmax, Transpose = map(operator, ("MatMul", "Div", "Reshape", "Softmax", "Transpose"))
Where, IsNaN, Product, Weights = map(operator, ("Where", "IsNaN", "QuantizedMatMul", "QuantizedSoftmax"))
Quantize, Dequantize = map(operator, ("QuantizeLinear", "DequantizeLinear"))

_MIN_QUERIES = 2
_LOWEST = -65504.0  # lowest number of float16: no score of a visible key is as low
_NAME, _INTEGERS = "ScaledDotProductAttention", "QuantizedAttention"

q, k, v, bias, mask, factors, split, merged = map(Symbol, ("q", "k", "v", "bias", "mask", "factors", "split", "merged"))
seen, hidden, visible = map(Symbol, ("seen", "hidden", "visible"))
factor, divisor, lowest = map(Free, ("factor", "divisor", "lowest"))


def _weights() -> tuple[Pattern, Pattern]:
    """Patterns of the weights of values: without and with a Reshape between scores and mask."""
    products = MatMul(q, k)
    scores = products * factor | Div(products, divisor) | products * factors | products
    apart = Reshape(Reshape(scores + bias, split) + mask, merged) | Reshape(Reshape(scores, split) + mask, merged)
    biased = scores + bias | scores
    joined = Where(seen, biased, lowest) | Where(hidden, lowest, biased) | biased + mask | scores
    weights = Softmax(joined)
    return Where(IsNaN(weights), 0.0, weights) | weights, Softmax(apart)


def _attention(maker: Maker, found: Found) -> bool:
    """Make the node, or return False if shapes, types or the axis of Softmax are not those of attention."""
    graph, names = maker.graph, found.names
    softmax = next(node for node in found.nodes if node.op == "Softmax")
    weights = shape_of(graph, softmax.outputs[0])
    scores = matmul_shape(shape_of(graph, names["q"]), shape_of(graph, names["k"]))
    rank = len(scores)
    if graph.value(softmax.outputs[0]).dtype != FLOAT32 or softmax["axis"] not in (-1, rank - 1):
        return False
    if not found.numbers.get("divisor", 1.0) or found.numbers.get("lowest", _LOWEST) > _LOWEST:
        return False
    if "visible" in names and not _is_visible(graph, names["visible"], names.get("mask", "")):
        return False
    if rank < 2 or weights != scores or scores[-2] < _MIN_QUERIES:  # a mask may enlarge the scores
        return False
    operands = [names[name] for name in "qkv"]
    turned = next((node for node in found.nodes if node.op == "Transpose"), None)
    perm = None
    if turned is not None:
        perm = [*range(rank - 2), rank - 1, rank - 2]
        if [*(turned["perm"] or range(rank)[::-1])] != perm or len(shape_of(graph, operands[2])) != rank:
            return False
        operands[2] = maker.node("Transpose", operands[2], part="values", perm=perm)
    operands[0], q_scale = without_factor(graph, operands[0])
    operands[1], k_scale = without_factor(graph, operands[1])
    scale = found.numbers.get("factor", 1.0) / found.numbers.get("divisor", 1.0) * q_scale * k_scale
    shapes = [shape_of(graph, names[name]) for name in "qkv"]
    if "factors" in names:
        per_row = shape_of(graph, names["factors"])
        if per_row[-1:] != (1,) or broadcast_shapes(shapes[0], per_row) != shapes[0]:
            return False
        operands[0] = maker.node("Mul", operands[0], names["factors"], part="queries")
    if "split" in names:
        if not (apart := _split(maker, found, operands)):
            return False
        y = maker.node(_NAME, *apart, *_masks(maker, found), scale=scale, perm=None, part="split")
        maker.reshape(y, shape_of(graph, maker.output))
        return True
    masks = _masks(maker, found)
    if any(shape_of(graph, names[name])[-1:] != scores[-1:] for name in _MASKS if name in names):
        return False
    guard = "nan" if any(node.op == "IsNaN" for node in found.nodes) else "hidden" if "visible" in names else ""
    maker.node(_NAME, *operands, *masks, scale=scale, perm=perm, zero_rows=guard)
    return True


_MASKS = ("bias", "mask", "seen", "hidden")


def _masks(maker: Maker, found: Found) -> list[str]:
    """The sum of all masks, if there are any."""
    names = found.names
    given = [names[name] for name in ("bias", "mask") if name in names]
    if "lowest" in found.numbers:
        least = -np.inf if found.numbers["lowest"] == -np.inf else np.finfo(np.float32).min
        ends = [maker.constant(np.array(end, np.float32), "end") for end in (0, least)]
        condition, ends = (names["seen"], ends) if "seen" in names else (names["hidden"], ends[::-1])
        given.append(_computed(maker, "Where", condition, *ends))
    return [*itertools.accumulate(given, lambda a, b: _computed(maker, "Add", a, b))][-1:]


def _computed(maker: Maker, op: str, *names: str) -> str:
    """Make a node of a mask, or a constant if its inputs are constants."""
    arrays: list[Any] = [maker.graph.constants.get(name, maker.constants.get(name)) for name in names]
    if all(array is not None for array in arrays):
        return maker.constant(np.asarray(np.add(*arrays) if op == "Add" else np.where(*arrays)), "mask")
    return maker.node(op, *names, part="mask")


def _is_visible(graph: Graph, name: str, mask: str) -> bool:
    """Whether a value says for each query whether a key is visible: ReduceMax(mask, -1) > -inf."""
    array, known = graph.constants.get(name), graph.constants.get(mask)
    if array is not None and known is not None:
        return np.array_equal(array, known.max(-1, keepdims=True) > -np.inf)
    node = graph.producer(name)
    most = None if node is None or node.op != "Greater" else graph.producer(node.inputs[0])
    if node is None or most is None or most.op != "ReduceMax" or scalar(graph, node.inputs[1]) != -np.inf:
        return False
    return most.inputs[0] == mask and scalar(graph, most.inputs[1]) == -1 and bool(most["keepdims"])


def _split(maker: Maker, found: Found, operands: Sequence[str]) -> list[str]:
    """Split the first axis of operands as the mask needs, as in windows of several images; [] if shapes differ."""
    graph, names = maker.graph, found.names
    inner = next(node for node in found.nodes if node.op == "Reshape" and node.inputs[1] == names["split"])
    before, after = shape_of(graph, inner.inputs[0]), shape_of(graph, inner.outputs[0])
    shapes = [shape_of(graph, names[name]) for name in ("bias", "mask") if name in names]
    own = [shape_of(graph, names[name]) for name in "qkv"]
    if len(after) != len(before) + 1 or after[2:] != before[1:] or any(shape[-1:] != after[-1:] for shape in shapes):
        return []
    if any(len(shape) > 3 and shape[-4] != 1 for shape in shapes[:-1]) or broadcast_shapes(after, *shapes) != after:
        return []
    if any(shape[:1] != before[:1] or len(shape) != len(before) for shape in own):
        return []
    return [
        maker.reshape(name, (*after[:2], *shape[1:]), part)
        for name, shape, part in zip(operands, own, ("queries", "keys", "values"), strict=True)
    ]


def _quantised(maker: Maker, found: Found) -> bool:
    """Make QuantizedAttention, or return False if shapes, types, scales or the axis of Softmax do not fit."""
    graph, names = maker.graph, found.names
    last, softmax, *between, first = [node for node in found.nodes if node.op not in ("Reshape", "Add")]
    shape = shape_of(graph, first.outputs[0])
    masks = [names[name] for name in ("bias", "mask") if name in names]
    if min(len(shape_of(graph, names[name])) for name in "qkv") < 2 or softmax["axis"] not in (-1, len(shape) - 1):
        return False
    if any(graph.value(each).dtype != FLOAT32 or shape_of(graph, each)[-1:] != shape[-1:] for each in masks):
        return False
    if "split" not in names and broadcast_shapes(shape, *(shape_of(graph, each) for each in masks)) != shape:
        return False
    operands = [names[name] for name in "qkv"]
    if "split" in names and not (operands := _split(maker, found, operands)):
        return False
    read, stages = [_numbers(softmax, "x")], [_numbers(first, "y")]
    for node in reversed(between):  # DequantizeLinear, then QuantizeLinear
        known = scaled(graph, node, node.op)
        if known is None or not known.one or known.zero.dtype != first["y"]:
            return False
        (stages if node.op == "QuantizeLinear" else read).append((float(known.scale[0]), int(known.zero[0])))
    weights = _numbers(softmax, "y")
    if first["y"] == FLOAT32:
        masks = _masks(maker, found)
        read, stages = (each * (1 + len(masks)) for each in (read, stages))
    if read[1:] + read[:1] != stages or weights != _numbers(last, "a") or softmax["y"] not in INT8_DTYPES:
        return False
    numbers = [_numbers(first, "a"), _numbers(first, "b"), _numbers(last, "b"), weights, _numbers(last, "y"), *stages]
    scales, points = map(list, zip(*numbers, strict=True))
    types = {"score_type": first["y"], "weight_type": softmax["y"], "y": last["y"]}
    made = {"scales": scales, "zero_points": points, **types, "perm": None}
    if "split" in names:
        maker.reshape(maker.node(_INTEGERS, *operands, *masks, part="split", **made), shape_of(graph, maker.output))
        return True
    maker.node(_INTEGERS, *operands, *masks, **made)
    return True


def _numbers(node: Node, name: str) -> tuple[float, int]:
    """Scale and zero point of an operand or result; 1 and 0 of float32."""
    return float(node[f"{name}_scale"] or 1), int(node[f"{name}_zero_point"])


def without_factor(graph: Graph, name: str) -> tuple[str, float]:
    """The value that constant numbers, none of them 0, multiply or divide to `name`, and their product."""
    scale = 1.0
    while (node := graph.producer(name)) is not None and node.op in ("Mul", "Div") and node.semantics is None:
        a, b = node.inputs
        if (number := scalar(graph, b)) and graph.value(a).shape == graph.value(name).shape:
            name, scale = a, scale * (number if node.op == "Mul" else 1 / number)
        elif node.op == "Mul" and (number := scalar(graph, a)) and graph.value(b).shape == graph.value(name).shape:
            name, scale = b, scale * number
        else:
            break
    return name, scale


def _permuted(graph: Graph, node: Node) -> Rewrite | None:
    """Move a Transpose into the attention that it alone reads, also past a Reshape that merges the first two axes."""
    between = graph.producer(node.inputs[0])
    nodes = [node]
    if between is not None and between.op == "Reshape" and between.semantics is None:
        nodes.insert(0, between)
    before = graph.producer(nodes[0].inputs[0])
    if before is None or before.op not in (_NAME, _INTEGERS) or before.semantics is not None:
        return None
    if any(sole_reader(graph, each.inputs[0]) is not each for each in nodes):
        return None
    shape = shape_of(graph, before.outputs[0])
    rank, last = len(shape), len(shape_of(graph, node.inputs[0]))
    perm = [*(node["perm"] or range(last)[::-1])]
    if len(nodes) > 1:
        if last != rank - 1 or shape_of(graph, node.inputs[0])[1:] != shape[2:] or perm[0] != 0:
            return None
        perm = [0, *(axis + 1 for axis in perm)]
    own = before["perm"] or range(rank)
    whole: Any = [own[axis] for axis in perm]
    if before.op == _INTEGERS and whole[-1] != rank - 1:
        return None
    maker = Maker(graph, before, *nodes)
    attributes = {**before.attributes, "perm": None if whole == [*range(rank)] else whole}
    if len(nodes) == 1:
        maker.node(before.op, *before.inputs, **attributes)
    else:
        y = maker.node(before.op, *before.inputs, part="split", **attributes)
        maker.reshape(y, shape_of(graph, node.outputs[0]))
    return maker.done()


def _after(scores: Pattern, added: Pattern, number: int) -> Pattern:
    """Scores that are quantised after a mask is added."""
    numbers = [kind(f"{name}{number}") for name, kind in (("s", Symbol), ("z", Maybe), ("t", Symbol), ("u", Maybe))]
    return Quantize(Dequantize(scores, *numbers[:2]) + added, *numbers[2:])


def _integers() -> Pattern:
    """Pattern of quantised attention."""
    products = Product(q, k)
    biased, plain = _after(products, bias, 0), products + bias | products
    apart = Reshape(_after(Reshape(biased | products, split), mask, 1) | Reshape(plain, split) + mask, merged)
    return Product(Weights(apart | _after(biased, mask, 1) | biased | plain + mask | plain), v)


_joined, _apart = _weights()

run = Pass(
    "attention",
    __doc__,
    (
        Formula(Where(visible, MatMul(_joined, v), 0.0), _attention),
        Formula(MatMul(_joined, v) | MatMul(v, Transpose(_joined)), _attention),
        Formula(MatMul(_apart, v), _attention),
        Formula(_integers(), _quantised),
        {"Transpose": _permuted},
    ),
    needs=("decomposed", "formulas", "quantised"),
)
