"""Which nodes may store their tensors channels last: those next to a Transpose that moves the channels.

A network of convolutions alone is fastest in channel blocks. Where a Transpose turns planes into rows of channels, or
rows into planes, a convolution that reads and writes pixels as rows saves copies on both sides.
"""

from __future__ import annotations

from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.ops.elementwise_forms import FORMS
from cpuconv.graph.ops.shaping import channels_moved


def channels_last_nodes(graph: Graph) -> frozenset[int]:
    """Ids of the nodes that read or write a value which Transposes, Reshapes and elementwise operators connect to rows.

    A tensor (N, C, H, W) or (N, C, W) is rows of channels after a Transpose to (N, H, W, C) or (N, W, C).
    """
    near = {name for node in graph.nodes if _moves_channels(graph, node) for name in (*node.inputs, *node.outputs)}
    passing = [node for node in graph.nodes if node.semantics is None and (node.op in FORMS or node.op == "Reshape")]
    size = -1
    while len(near) > size:
        size = len(near)
        for node in passing:
            names = {name for name in (*node.inputs, *node.outputs) if _is_image(graph, name)}
            if not near.isdisjoint(names):
                near |= names
    return frozenset(id(node) for node in graph.nodes if not near.isdisjoint((*node.inputs, *node.outputs)))


def _is_image(graph: Graph, name: str) -> bool:
    return bool(name) and name not in graph.constants and len(graph.value(name).shape or ()) in (3, 4)


def _moves_channels(graph: Graph, node: Node) -> bool:
    """Whether a node is a Transpose from or to rows of channels."""
    if node.op != "Transpose" or node.semantics is not None or not _is_image(graph, node.inputs[0]):
        return False
    return bool(channels_moved(node, len(graph.value(node.inputs[0]).shape or ())))
