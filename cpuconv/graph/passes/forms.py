"""Convert equivalent operators to one form.

=============================================  ====================================================
Flatten, Squeeze, Unsqueeze                    Reshape
Transpose that moves only axes of size 1       Reshape
a reduction with keepdims=0                    the same with keepdims=1, and Reshape
ReduceMean, ReduceMax of whole planes          GlobalAveragePool, GlobalMaxPool
AveragePool, MaxPool of a whole plane          GlobalAveragePool, GlobalMaxPool
GlobalAveragePool, GlobalMaxPool of volumes    the same of images with as many pixels
Sum of two                                     Add
Max, Mean, Min, Sum of more than eight         several of eight, and Div by the count
=============================================  ====================================================

Equal in every bit, except for the order of a mean's sum and the rounding of its quotient.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.shaping import keeps_order
from cpuconv.graph.passes.rewriting import (
    Maker,
    Pass,
    Rewrite,
    Rule,
    constant,
    instead,
    is_float,
    operand,
    reshaped,
    shape_of,
)
from cpuconv.kernels.elementwise.driver import MAX_OPERANDS

_PLANE_OF = {
    "ReduceMean": "GlobalAveragePool",
    "ReduceMax": "GlobalMaxPool",
    "AveragePool": "GlobalAveragePool",
    "MaxPool": "GlobalMaxPool",
}


def _reshape(graph: Graph, node: Node) -> Rewrite:
    return reshaped(graph, node, node.inputs[0])


def _transpose(graph: Graph, node: Node) -> Rewrite | None:
    return _reshape(graph, node) if keeps_order(node, shape_of(graph, node.inputs[0])) else None


def _reduction(graph: Graph, node: Node) -> Rewrite | None:
    if node["keepdims"]:
        return _plane(graph, node)
    maker = Maker(graph, node)
    kept = maker.node(node.op, *node.inputs, part="kept", **{**node.attributes, "keepdims": 1})
    maker.reshape(kept, shape_of(graph, node.outputs[0]))
    return maker.done()


def _plane(graph: Graph, node: Node) -> Rewrite | None:
    """Convert a reduction of images to one pixel each to global pooling; other reduced axes have size 1."""
    before, after = shape_of(graph, node.inputs[0]), shape_of(graph, node.outputs[0])
    plane = len(before) == 4 and after == (*before[:2], 1, 1) and is_float(graph, node.inputs[0])
    return instead(graph, node, _PLANE_OF[node.op], node.inputs[0]) if plane and node.op in _PLANE_OF else None


def _pool(graph: Graph, node: Node) -> Rewrite | None:
    shape = shape_of(graph, node.inputs[0])
    padded = node["auto_pad"] not in ("NOTSET", "VALID") or (node["auto_pad"] == "NOTSET" and any(node["pads"] or ()))
    whole = tuple(node["kernel_shape"]) == shape[2:] and max(node["dilations"] or [1]) == 1
    return _plane(graph, node) if whole and not padded and not any(node.outputs[1:]) else None


def _global(graph: Graph, node: Node) -> Rewrite | None:
    shape, maker = shape_of(graph, node.inputs[0]), Maker(graph, node)
    if len(shape) < 5:
        return None
    image = maker.reshape(node.inputs[0], (*shape[:2], math.prod(shape[2:-1]), shape[-1]), "image")
    maker.reshape(maker.node(node.op, image, part="pooled"), shape_of(graph, node.outputs[0]))
    return maker.done()


def _several(graph: Graph, node: Node) -> Rewrite | None:
    """Split an operator on more tensors than kernels support: combine the first ones, then that with the next ones."""
    count, names = len(node.inputs), node.inputs
    if count == 2 and node.op == "Sum":
        return instead(graph, node, "Add", *names)
    if count <= MAX_OPERANDS or not is_float(graph, names[0]):
        return None
    maker, (first, *rest) = Maker(graph, node), names
    op, parts = ("Sum" if node.op == "Mean" else node.op), range(0, count - 1, MAX_OPERANDS - 1)
    for at in parts:
        last = at == parts[-1] and node.op != "Mean"
        first = maker.node(op, first, *rest[at : at + MAX_OPERANDS - 1], part="" if last else f"until{at}")
    if node.op == "Mean":
        maker.node("Div", first, maker.constant(np.array(count, graph.value(names[0]).dtype), "count"))
    return maker.done()


_FORMS: dict[str, Rule] = {
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Transpose": _transpose,
    **{
        f"Reduce{name}": _reduction
        for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
    },
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _several),
}


run = Pass("forms", __doc__, (_FORMS,), needs=("attention", "deformable"))


# --- operators without kernels ------------------------------------------------------------------------------------


def _group_normalization(graph: Graph, node: Node) -> Rewrite:
    """Convert to InstanceNormalization with groups as channels, then scale and bias per channel: equal arithmetic."""
    x, *vectors = node.inputs
    shape, dtype = shape_of(graph, x), graph.value(x).dtype
    groups, channels, rank = node["num_groups"], shape[1], len(shape)
    maker = Maker(graph, node)
    grouped = maker.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups), "grouped")
    one, zero = (maker.constant(np.full(groups, number, dtype), part) for number, part in ((1, "one"), (0, "zero")))
    normal = maker.node("InstanceNormalization", grouped, one, zero, part="normal", epsilon=node["epsilon"])
    back = maker.reshape(normal, shape, "back")
    along = [maker.reshape(vector, (channels, *[1] * (rank - 2)), f"vector{at}") for at, vector in enumerate(vectors)]
    scaled = maker.node("Mul", back, along[0], part="scaled")
    maker.node("Add", scaled, along[1])
    return maker.done()


def _terms(graph: Graph, node: Node) -> tuple[list[str], str]:
    """Letters of the operands and of the result of an Einsum; those of an ellipsis are digits, from the last axis."""
    operands, arrow, result = node["equation"].replace(" ", "").partition("->")
    terms = operands.split(",")
    most = ""
    for at, (term, name) in enumerate(zip(terms, node.inputs, strict=True)):
        if "..." in term:
            dots = "".join(map(str, reversed(range(len(shape_of(graph, name)) - len(term) + len("...")))))
            most, terms[at] = max(most, dots, key=len), term.replace("...", dots)
    if not arrow:
        result = "..." + "".join(sorted(each for each in {*operands} - {*",."} if operands.count(each) == 1))
    return terms, result.replace("...", most)


def _sums(graph: Graph, node: Node, term: str, result: str) -> Rewrite | None:
    """Convert an Einsum of one tensor to ReduceSum of the axes that the result lacks, and Transpose."""
    summed = [at for at, letter in enumerate(term) if letter not in result]
    kept, maker = [letter for letter in term if letter in result], Maker(graph, node)
    x = node.inputs[0]
    if summed:
        x = maker.node("ReduceSum", x, maker.constant(np.array(summed), "axes"), part="sums", keepdims=0)
    maker.node("Transpose", x, perm=[kept.index(letter) for letter in result])
    return maker.done()


def _einsum(graph: Graph, node: Node) -> Rewrite | None:
    """Convert an Einsum of two tensors that sums over common axes to MatMul; equal up to the order of sums.

    Operands are transposed to the axis order (axes of all three, axes of one, summed axes). An Einsum of two that sums
    over none becomes Mul, one of a single tensor ReduceSum.
    """
    terms, result = _terms(graph, node)
    if any(len({*each}) < len(each) for each in (*terms, result)) or len(terms) > 2:
        return None
    if len(terms) == 1:
        return _sums(graph, node, terms[0], result)
    shared = [letter for letter in terms[0] if letter in terms[1]]
    batch, inner = [each for each in shared if each in result], [each for each in shared if each not in result]
    rows, columns = ([letter for letter in term if letter not in shared] for term in terms)
    shapes = [shape_of(graph, name) for name in node.inputs]
    sizes = dict(zip("".join(terms), itertools.chain(*shapes), strict=True))
    pairs = zip("".join(terms), itertools.chain(*shapes), strict=True)
    if not {*rows, *columns} <= {*result} or any(sizes[letter] != size for letter, size in pairs):
        return None
    maker = Maker(graph, node)

    def turned(at: int, perm: list[int]) -> str:
        part = f"{('left', 'right')[at]}.turned"
        name = node.inputs[at]
        return name if perm == sorted(perm) else maker.node("Transpose", name, part=part, perm=perm)

    if not inner:
        operands = [
            maker.reshape(
                turned(at, [term.index(letter) for letter in result if letter in term]),
                [sizes[letter] if letter in term else 1 for letter in result],
                ("left", "right")[at],
            )
            for at, term in enumerate(terms)
        ]
        maker.node("Mul", *operands)
        return maker.done()

    def matrices(at: int, *ends: list[str]) -> str:
        """Convert an operand to matrices with the axes of `ends` as rows and columns, after those of `batch`."""
        perm = [terms[at].index(letter) for letter in itertools.chain(batch, *ends)]
        shape = [*(sizes[letter] for letter in batch), *(math.prod(sizes[letter] for letter in end) for end in ends)]
        array, part = constant(graph, node.inputs[at]), ("left", "right")[at]
        if array is not None:
            return maker.constant(np.ascontiguousarray(array.transpose(perm)).reshape(shape), part)
        name = turned(at, perm)
        return name if all(len(end) == 1 for end in ends) else maker.reshape(name, shape, part)

    operands = [matrices(0, rows, inner), matrices(1, inner, columns)]
    order = [*batch, *rows, *columns]
    moved, split = order != [*result], len(rows) != 1 or len(columns) != 1
    y = maker.node("MatMul", *operands, part="product" if moved or split else "")
    if split:
        y = maker.reshape(y, [sizes[letter] for letter in order], "apart" if moved else "")
    if moved:
        maker.node("Transpose", y, perm=[order.index(letter) for letter in result])
    return maker.done()


def _computed_bias(graph: Graph, node: Node) -> Rewrite | None:
    """Add a bias that is not constant behind the convolution."""
    x, w, bias = node.inputs[0], node.inputs[1], operand(node, 2)
    if not bias or bias in graph.constants or operand(node, 3) or node["activation"]:
        return None
    maker, rank = Maker(graph, node), len(shape_of(graph, x))
    sums = maker.node("Conv", x, w, part="sums", **node.attributes)
    along = maker.reshape(bias, (shape_of(graph, bias)[0], *[1] * (rank - 2)), "along")
    maker.node("Add", sums, along)
    return maker.done()


decomposed = Pass(
    "decomposed",
    """Operators without kernels become several with kernels.""",
    ({"Conv": _computed_bias, "Einsum": _einsum, "GroupNormalization": _group_normalization},),
    needs=("formulas",),
)
