"""Analysis of values that are never negative by their operators; it determines zero padding and zero points."""

from __future__ import annotations

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops import traits_of
from cpuconv.graph.ops.pooling import windows_overlap_input
from cpuconv.graph.ops.traits import Sign
from cpuconv.graph.passes.rewriting import constant, operand, scalar, shape_of


def never_negative(graph: Graph, name: str) -> bool:
    """Whether no element of a value can be negative, by the operators that compute it."""
    asked, known = [name], {name}
    while asked:
        name = asked.pop()
        node, array = graph.producer(name), constant(graph, name)
        if array is not None and (array >= 0).all():
            continue
        if node is None or node.semantics is not None or name != node.outputs[0]:
            return False
        op = traits_of(node)
        if op.sign is Sign.NONNEGATIVE or (node.op == "Clip" and _from_zero(graph, node)):
            continue
        data = node.inputs if op.joins else node.inputs[:1]
        read = [each for each in data if each and op.sign is Sign.KEPT]
        if not read or (node.op == "MaxPool" and not windows_overlap_input(node, shape_of(graph, read[0]))):
            return False
        asked += {*read} - known
        known |= {*read}
    return True


def _from_zero(graph: Graph, clip: Node) -> bool:
    """Whether the bounds of a Clip are known to be non-negative."""
    low, high = (scalar(graph, operand(clip, at)) for at in (1, 2))
    return low is not None and low >= 0 and (not operand(clip, 2) or (high is not None and high >= 0))
