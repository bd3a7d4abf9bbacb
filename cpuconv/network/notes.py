"""Notes on rewrites: the effect of a rewrite in words, from the graphs before and after."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from baselib.data_classes import dataclass
from cpuconv.graph.ir import Graph, Node


class Mention(NamedTuple):
    """A reference to a node by its operator and its name in the model."""

    op: str
    name: str

    @classmethod
    def of(cls, node: Node) -> Mention:
        """Make the reference to a node."""
        return cls(node.op, node.origin or output(node))

    def __str__(self) -> str:
        return f"{self.op} {self.name!r}"


@dataclass(frozen=True)
class Note:
    """A replacement of nodes by others.

    Attributes
    ----------
    rewrite : str
    old : tuple[Mention, ...]
        The removed nodes.
    new : tuple[Mention, ...]
        The nodes that replace them; empty if they were not needed.
    """

    rewrite: str
    old: tuple[Mention, ...]
    new: tuple[Mention, ...]

    @property
    def text(self) -> str:
        """The replacement as a sentence."""
        old, new = ", ".join(map(str, self.old)), ", ".join(map(str, self.new))
        return f"{old} became {new}." if new else f"{old} went: not needed."

    @property
    def lost(self) -> Counter[str]:
        """Operators that occur less often now, with the difference."""
        return Counter(node.op for node in self.old) - Counter(node.op for node in self.new)

    @property
    def gained(self) -> Counter[str]:
        """Operators that occur more often now, with the difference."""
        return Counter(node.op for node in self.new) - Counter(node.op for node in self.old)


def note(notes: list[Note], rewrite: str, before: Graph, after: Graph) -> None:
    """Append the changes from `before` to `after` to notes."""
    notes += changes(rewrite, before, after)


def changes(rewrite: str, before: Graph, after: Graph) -> list[Note]:
    """List the changes from `before` to `after`: a note per change, and one per node that was only removed.

    A node stays if a node of `after` has its first output. It changed if its operator or attributes differ, or it reads
    other constants. Removed and new nodes are assigned to the changed node that is computed from them.
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
    """The first output of a node that is used."""
    return next(filter(None, node.outputs))


def _by_output(graph: Graph) -> dict[str, Node]:
    return {output(node): node for node in graph.nodes}


def _differ(old: Node, before: Graph, new: Node, after: Graph) -> bool:
    if old is new:
        return False
    from cpuconv.graph.passes.equal import frozen  # deferred: saved notes need no rewrites

    return (old.op, frozen(old.attributes), _constants(old, before)) != (
        new.op,
        frozen(new.attributes),
        _constants(new, after),
    )


def _constants(node: Node, graph: Graph) -> list[str]:
    """The inputs of a node: names of constants, "" where omitted, "*" for others."""
    return [name if name in graph.constants or not name else "*" for name in node.inputs]


def _led_to(graph: Graph, names: set[str], ends: set[str]) -> dict[str, list[str]]:
    """Group values by the first of `ends` that is computed from them through `names` only; "" if there is none."""
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
