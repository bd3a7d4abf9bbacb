"""Products whose results are divided by norms of their rows, and so must be accurate in each row.

Strassen's algorithm and Winograd's add terms of other rows and subtract them again. Their errors are small next to the
largest output, but a row that should be zero is not. Its division by max(norm, 1e-12), as in the cosine attention of
Swin V2, whose padding tokens are zero, would give a row of norm 1.

Two forms are not recognised: norms by Einsum, and squares within a fused elementwise expression.
"""

from __future__ import annotations

from dataclasses import replace

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import traits_of
from cpuconv.graph.ops.traits import Movement

_NORMS = frozenset({"ReduceL1", "ReduceL2", "ReduceSumSquare", "LpNormalization"})
_PARTS = frozenset({"Split", "Slice", "Gather", "Concat", "Pad", "Expand"})
_SCALES = frozenset({"Add", "Mul", "Sub", "Div", "Neg", "Cast", "Identity"})  # may scale a value by constants


def target_of(graph: Graph, node: Node, target: Target) -> Target:
    """The target for a node: with its precision, and exact if norms of its result are taken."""
    target = target.of(node.sources)
    if not (traits_of(node).product and _reaches_norm(graph, node)):
        return target
    return replace(target, limits=replace(target.limits, accuracy="exact"))


def _reaches_norm(graph: Graph, node: Node) -> bool:
    """Whether a norm is taken of a node's result, or of parts of it, possibly after scaling by constants."""
    ahead, seen = [*node.outputs], set(node.outputs)
    while ahead:
        name = ahead.pop()
        for user in graph.users(name):
            if user.op in _NORMS or _is_square(graph, user):
                return True
            scales = user.op in _SCALES and all(other in graph.constants for other in user.inputs if other != name)
            if scales or user.op in _PARTS or traits_of(user).movement is not Movement.NONE:
                ahead += {*user.outputs} - seen
                seen.update(user.outputs)
    return False


def _is_square(graph: Graph, node: Node) -> bool:
    """Whether a node squares its input for a sum of squares."""
    if node.op not in ("Mul", "Pow") or len(node.inputs) != 2:
        return False
    exponent = graph.constants.get(node.inputs[1]) if node.op == "Pow" else None
    squares = node.inputs[0] == node.inputs[1] if node.op == "Mul" else exponent is not None and exponent.tolist() == 2
    return squares and any(user.op == "ReduceSum" for user in graph.users(node.outputs[0]))
