"""Remove nodes that change nothing; their readers read the node's input.

Pattern: a node whose output has the shape and dtype of an input and equals it element by element, by the condition of
its operator in `UNCHANGED`. Equal in every bit, except for x + 0, which turns -0 into 0.
"""

from __future__ import annotations

from collections.abc import Callable

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.shaping import keeps_order
from cpuconv.graph.passes.rewriting import Pass, Rewrite, constant, operand, scalar, shape_of

Condition = Callable[[Graph, Node], bool]


def _always(graph: Graph, node: Node) -> bool:
    """True: the operator keeps the order of elements, so that an equal shape means an equal tensor."""
    return True


def _alone(graph: Graph, node: Node) -> bool:
    """Whether there is one input and one output."""
    return len(node.inputs) == 1 and len(node.outputs) == 1


def _forwards(graph: Graph, node: Node) -> bool:
    """Whether all steps are positive."""
    steps = constant(graph, operand(node, 4))
    return steps is None or bool((steps > 0).all())


def _unpadded(graph: Graph, node: Node) -> bool:
    return not graph.constants[node.inputs[1]].any()


def _unscaled(graph: Graph, node: Node) -> bool:
    """Whether sizes or scales of 1 are given, without cropping."""
    scales = constant(graph, operand(node, 2))
    whole = node["coordinate_transformation_mode"] != "tf_crop_and_resize"
    return whole and (scales is None or bool((scales == 1).all()))


def _one_tap(graph: Graph, node: Node) -> bool:
    """Whether the window has one element, without padding."""
    padded = node["auto_pad"] in ("NOTSET", "VALID") and any(node["pads"] or ())
    return max(node["kernel_shape"]) == 1 and not padded and len(node.outputs) == 1


def _open(graph: Graph, node: Node) -> bool:
    """Whether there are no bounds."""
    return not any(node.inputs[1:])


UNCHANGED: dict[str, Condition] = {
    **dict.fromkeys(("Identity", "Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze"), _always),
    **dict.fromkeys(("Expand", "Tile", "GlobalAveragePool", "GlobalMaxPool"), _always),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), _always),
    **dict.fromkeys(("Concat", "Sum", "Mean", "Min", "Max"), _alone),
    "Split": lambda graph, node: len(node.outputs) == 1,
    "Transpose": lambda graph, node: keeps_order(node, shape_of(graph, node.inputs[0])),
    "Slice": _forwards,
    "Pad": _unpadded,
    "Resize": _unscaled,
    **dict.fromkeys(("MaxPool", "AveragePool"), _one_tap),
    "Clip": _open,
}

# Neutral element of each operator, and whether it may be the first operand.
NEUTRAL: dict[str, tuple[float, bool]] = {
    "Add": (0.0, True),
    "Sub": (0.0, False),
    "Mul": (1.0, True),
    "Div": (1.0, False),
    "Pow": (1.0, False),
}


def _rule(graph: Graph, node: Node) -> Rewrite | None:
    """Replace the node's only output by the input that equals it."""
    if any(node.outputs[1:]):
        return None
    found = None
    if node.op in UNCHANGED and node.inputs and UNCHANGED[node.op](graph, node):
        found = node.inputs[0]
    elif node.op in NEUTRAL:
        number, either = NEUTRAL[node.op]
        a, b = node.inputs
        found = a if scalar(graph, b) == number else b if either and scalar(graph, a) == number else None
    if found is None or graph.value(found) != graph.value(node.outputs[0]):
        return None
    return Rewrite([node], equal=[found]) if graph.value(found).concrete or node.op == "Identity" else None


RULES = dict.fromkeys((*UNCHANGED, *NEUTRAL), _rule)
run = Pass("noops", __doc__, (RULES,), early=True)
