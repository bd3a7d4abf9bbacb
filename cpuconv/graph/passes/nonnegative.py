"""Analysis of values that are never negative by their operators; it determines zero padding and zero points."""

from __future__ import annotations

import sys

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.pooling import sees_all
from cpuconv.graph.passes.rewriting import constant, operand, scalar, shape_of

_POSITIVE = frozenset(("Relu", "Sigmoid", "HardSigmoid", "Softplus", "Abs", "Exp", "Sqrt", "Softmax"))
_PASSING = dict.fromkeys(("AveragePool", "Flatten", "GlobalAveragePool", "MaxPool", "ReduceMean", "Reshape"), 1)
_PASSING |= dict.fromkeys(("Slice", "Squeeze", "Transpose", "Unsqueeze"), 1) | {"Add": 2, "Mul": 2}
_PASSING |= dict.fromkeys(("Concat", "Max", "Sum"), sys.maxsize)
"""Number of leading inputs per operator; if none of these is negative, the result is not negative."""


def never_negative(graph: Graph, name: str) -> bool:
    """Whether no element of a value can be negative, by the operators that compute it."""
    asked, known = [name], {name}
    while asked:
        name = asked.pop()
        node, array = graph.producer(name), constant(graph, name)
        if array is not None and (array >= 0).all():
            continue
        if node is None or node.meaning is not None or name != node.outputs[0]:
            return False
        if node.op in _POSITIVE or (node.op == "Clip" and _from_zero(graph, node)):
            continue
        read = [each for each in node.inputs[: _PASSING.get(node.op, 0)] if each]
        if not read or (node.op == "MaxPool" and not sees_all(node, shape_of(graph, read[0]))):
            return False
        asked += {*read} - known
        known |= {*read}
    return True


def _from_zero(graph: Graph, clip: Node) -> bool:
    """Whether the bounds of a Clip are known to be non-negative."""
    low, high = (scalar(graph, operand(clip, at)) for at in (1, 2))
    return low is not None and low >= 0 and (not operand(clip, 2) or (high is not None and high >= 0))
