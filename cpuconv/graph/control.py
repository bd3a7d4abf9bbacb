"""Representation of If, Loop and Scan: bodies are graph attributes, and captured outer values are inputs of the node.

==== ============================== ============================== ================================
op   inputs of the node             inputs of a body               outputs of a body
==== ============================== ============================== ================================
If   condition, captured            captured                       those of the node
Loop trip count, condition,         iteration, condition,          condition, carried, scan outputs
     carried, captured              carried, captured
Scan [lengths,] carried, scanned,   carried, scanned, captured     carried, scan outputs
     captured
==== ============================== ============================== ================================

Captured values are values of outer graphs that a body reads; all bodies of a node have the same ones. Constant captured
values become constants of the bodies (`holding`), so that their packed form is shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.stopping import Stop

BODIES: dict[str, tuple[str, ...]] = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
"""Graph attributes of each operator."""
_NUMBERS = {"If": (), "Loop": ("carried",), "Scan": ("carried", "scanned", "batched")}
_LISTS = {"Scan": ("input_axes", "output_axes", "input_directions", "output_directions")}


class Control:
    """Semantics of a control-flow node that is not yet compiled; `cpuconv.network.control` replaces it."""

    def infer(self, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
        """Return unknown values: nothing is inferred for the outputs."""
        return [Value()] * len(node.outputs)

    def evaluate(
        self,
        node: Node,
        arrays: Sequence[np.ndarray | None],
        dtypes: Sequence[np.dtype | None],
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """Refuse to run."""
        raise RuntimeError(f"{node.label} is not ready to run")


def is_control(node: Node) -> bool:
    """Whether a node is an If, a Loop or a Scan."""
    return isinstance(node.semantics, Control)


def bodies(node: Node) -> list[Graph]:
    """Bodies of a control-flow node; empty for other nodes, even with graph attributes."""
    return [node[name] for name in BODIES[node.op]] if is_control(node) else []


def leading(node: Node) -> int:
    """Number of inputs of a node before those that are passed to its bodies."""
    return 1 if node.op == "If" else 2 if node.op == "Loop" else node["batched"]


def captured_at(node: Node) -> int:
    """Position of the first captured input of a node."""
    scanned = node["scanned"] if node.op == "Scan" else 0
    return leading(node) + scanned + (0 if node.op == "If" else node["carried"])


def formal(node: Node) -> int:
    """Number of inputs of a body before the captured ones."""
    return captured_at(node) - (leading(node) if node.op != "Loop" else 0)


def check(node: Node) -> Node:
    """Check that bodies, inputs and outputs of a node fit together, and return the node.

    Raises
    ------
    SourceError
        They do not.
    """
    names = {*BODIES[node.op], *_NUMBERS[node.op], *_LISTS.get(node.op, ())}
    if node.attributes.keys() != names or not all(isinstance(node[name], Graph) for name in BODIES[node.op]):
        raise SourceError(f"{node.label} must have the attributes {', '.join(sorted(names))}.")
    for name in _NUMBERS[node.op]:
        if type(node[name]) is not int or node[name] < 0:
            raise SourceError(f"{node.label}: {name!r} must be a number from 0 on, not {node[name]!r}.")
    for name in _LISTS.get(node.op, ()):
        if not isinstance(node[name], (list, tuple)) or any(type(item) is not int for item in node[name]):
            raise SourceError(f"{node.label}: {name!r} must be a list of integers, not {node[name]!r}.")
    own = captured_at(node)
    given, outputs = len(node.inputs) - own, len(node.outputs)
    carried = 0 if node.op == "If" else node["carried"]
    for graph in bodies(node):
        if len(graph.inputs) != formal(node) + given or given < 0:
            raise SourceError(
                f"{node.label} gives its body {formal(node)} values, where the body has"
                f" {len(graph.inputs) - max(0, given)} inputs."
            )
        made = len(graph.outputs) - (node.op == "Loop")  # without the condition
        what = "branch" if node.op == "If" else "body"
        if made < outputs:
            raise SourceError(f"{node.label} has {outputs} outputs where its {what} has {max(made, 0)}.")
        if made < carried:
            raise SourceError(f"{node.label} carries {carried} values where its body gives {max(made, 0)}.")
        if node.op == "Scan":
            _check_scan(node, len(graph.outputs) - node["carried"])
    needed = node.inputs[leading(node) :] if node.op != "If" else node.inputs
    if not all(needed) or (node.op == "If" and not node.inputs):
        raise SourceError(f"{node.label} must not leave out values that its body reads.")
    return node


def _check_scan(node: Node, outputs: int) -> None:
    """Check that axes and directions are stated for each scanned input and output."""
    for kind, count in (("input", node["scanned"]), ("output", outputs)):
        axes, directions = node[f"{kind}_axes"], node[f"{kind}_directions"]
        if len(axes) != count or len(directions) != count or not {*directions} <= {0, 1}:
            raise SourceError(
                f"{node.label} must have an axis and a direction, 0 or 1, for each of its {count} scan {kind}s, not"
                f" {list(axes)} and {list(directions)}."
            )


def renamed(node: Node, graph: Graph) -> dict[str, str]:
    """Map the captured inputs of a body to their names in the outer graph."""
    return dict(zip(graph.inputs[formal(node) :], node.inputs[captured_at(node) :], strict=True))


def holding(node: Node, known: Mapping[str, np.ndarray]) -> Node:
    """Replace captured values that are known by constants of the bodies; `known` has the outer names."""
    own, skipped = captured_at(node), formal(node)
    places = [at for at, name in enumerate(node.inputs[own:]) if name in known]
    if not places:
        return node
    changed: dict[str, Graph] = {}
    for name in BODIES[node.op]:
        graph: Graph = node[name]
        arrays = {graph.inputs[skipped + at]: known[node.inputs[own + at]] for at in places}
        inputs = tuple(each for each in graph.inputs if each not in arrays)
        changed[name] = replace(graph, inputs=inputs, constants={**graph.constants, **arrays})
    kept = tuple(name for at, name in enumerate(node.inputs) if at < own or at - own not in places)
    return replace(node, inputs=kept, attributes={**node.attributes, **changed})


def summary(node: Node) -> str:
    """Operators of a node's bodies, as text for reports."""
    parts = [(name.removesuffix("_branch"), _operators(node[name])) for name in BODIES[node.op]]
    return "; ".join(f"{name}: {text}" for name, text in parts)


def _operators(graph: Graph) -> str:
    counts = Counter(node.op for node in graph.nodes)
    return ", ".join(op if count == 1 else f"{count} {op}" for op, count in counts.items()) or "nothing"
