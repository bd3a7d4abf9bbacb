"""What a rewrite did to a graph, in words, found by comparing the graphs before and after."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from autotune.data_classes import dataclass
from cpuconv.graph.ir import Graph, Node


class Mention(NamedTuple):
    """A node by its operator and by what the model calls it."""

    op: str
    name: str

    @classmethod
    def of(cls, node: Node) -> Mention:
        """A mention of a node."""
        return cls(node.op, node.origin or output(node))

    def __str__(self) -> str:
        return f"{self.op} {self.name!r}"


@dataclass(frozen=True)
class Note:
    """Nodes that became others.

    Attributes
    ----------
    rewrite : str
    old : tuple[Mention, ...]
        The nodes that are gone.
    new : tuple[Mention, ...]
        The nodes in their place; none: they were not needed.
    """

    rewrite: str
    old: tuple[Mention, ...]
    new: tuple[Mention, ...]

    @property
    def text(self) -> str:
        """What happened, as a sentence."""
        old, new = ", ".join(map(str, self.old)), ", ".join(map(str, self.new))
        return f"{old} became {new}." if new else f"{old} went: not needed."

    @property
    def lost(self) -> Counter[str]:
        """Operators that there are fewer of now."""
        return Counter(node.op for node in self.old) - Counter(node.op for node in self.new)

    @property
    def gained(self) -> Counter[str]:
        """Operators that there were fewer of before."""
        return Counter(node.op for node in self.new) - Counter(node.op for node in self.old)


def note(notes: list[Note], rewrite: str, before: Graph, after: Graph) -> None:
    """Add what became of the nodes of `before` to notes."""
    notes += changes(rewrite, before, after)


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
            tuple(Mention.of(old[other]) for other in (*olds.get(name, ()), name)),
            tuple(Mention.of(new[other]) for other in (*news.get(name, ()), name)),
        )
        for name in changed
    ]
    notes += [Note(rewrite, (Mention.of(old[name]),), ()) for name in olds.get("", ())]
    return [note for note in notes if note.old != note.new]


def output(node: Node) -> str:
    """The first output that is asked for."""
    return next(filter(None, node.outputs))


def _by_output(graph: Graph) -> dict[str, Node]:
    return {output(node): node for node in graph.nodes}


def _differ(old: Node, before: Graph, new: Node, after: Graph) -> bool:
    if old is new:
        return False
    from cpuconv.graph.passes.equal import frozen  # notes that were saved need no rewrites

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
        name = output(node)
        if name in names:
            readers = (output(user) for value in node.outputs for user in graph.users(value))
            reached[name] = next(
                filter(None, (other if other in ends else reached.get(other, "") for other in readers)), ""
            )
    groups: dict[str, list[str]] = {}
    for name, end in reversed(reached.items()):
        groups.setdefault(end, []).append(name)
    return groups
