"""What a rewrite did to a graph, in words, found by comparing the graphs before and after."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from cpuconv.graph.ir import Graph, Node


@dataclass(frozen=True)
class Note:
    """Nodes that became others.

    Attributes
    ----------
    name : str
        Of the rewrite.
    old : tuple[str, ...]
        Labels of the nodes that are gone.
    new : tuple[str, ...]
        Labels of the nodes in their place; none: they were not needed.
    """

    name: str
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def text(self) -> str:
        """What happened, as a sentence."""
        old, new = ", ".join(self.old), ", ".join(self.new)
        return f"{old} became {new}." if new else f"{old} went: not needed."


def frozen(value: object) -> Hashable:
    """An attribute as something that can be compared and hashed."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return tuple((name, frozen(item)) for name, item in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    return value if isinstance(value, Hashable) else id(value)


def changes(rewrite: str, before: Graph, after: Graph) -> list[Note]:
    """What became of the nodes of `before`: a note for each change, and one for each node that only went.

    A node stays in place if a node of `after` has its first output; it changed if it is another operator, has other
    attributes or reads other constants. Nodes that are gone belong to the changed one that they led to, and so do those
    that are new.
    """
    if before is after:
        return []
    old, new = _by_output(before), _by_output(after)
    changed = [name for name, node in new.items() if name in old and _differ(old[name], before, node, after)]
    lost = [name for name in old if name not in new]
    added = [name for name in new if name not in old]
    olds = _led_to(before, {*lost}, {*changed})
    news = _led_to(after, {*added}, {*changed})
    notes = [
        Note(
            rewrite,
            tuple(old[other].label for other in (*olds.get(name, ()), name)),
            tuple(new[other].label for other in (*news.get(name, ()), name)),
        )
        for name in changed
    ]
    notes += [Note(rewrite, (old[name].label,), ()) for name in olds.get("", ())]
    return [note for note in notes if note.old != note.new]


def _by_output(graph: Graph) -> dict[str, Node]:
    return {next(filter(None, node.outputs)): node for node in graph.nodes}


def _differ(old: Node, before: Graph, new: Node, after: Graph) -> bool:
    if old is new:
        return False
    return (old.op, frozen(old.attributes), _constants(old, before)) != (
        new.op,
        frozen(new.attributes),
        _constants(new, after),
    )


def _constants(node: Node, graph: Graph) -> list[str]:
    """The names of the inputs that are constants, and which inputs there are."""
    return [name if name in graph.constants or not name else "*" for name in node.inputs]


def _led_to(graph: Graph, names: set[str], ends: set[str]) -> dict[str, list[str]]:
    """Values by the first of `ends` that is computed from them by way of `names` alone; "" for those without."""
    reached: dict[str, str] = {}
    for node in reversed(graph.nodes):
        name = next(filter(None, node.outputs))
        if name in names:
            readers = (next(filter(None, user.outputs)) for output in node.outputs for user in graph.users(output))
            reached[name] = next(
                filter(None, (other if other in ends else reached.get(other, "") for other in readers)), ""
            )
    groups: dict[str, list[str]] = {}
    for name, end in reversed(reached.items()):
        groups.setdefault(end, []).append(name)
    return groups
