"""Summary of a network's rewrites, with one line per kind of change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cpuconv.network.notes import Mention, Note


def summary(notes: Iterable[Note]) -> list[tuple[str, str]]:
    """Make a line per kind of change: the rewrite, and the numbers and operators of changed nodes as text."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for note in notes:
        if note.gained:
            end, kinds = f"became {_kinds(note.new)}", Counter([f"({_kinds(note.old)})"])
        elif note.lost:
            end, kinds = f"into {note.new[-1].op}" if note.new else "removed", note.lost
        else:
            end, kinds = "changed", Counter([note.new[-1].op])
        counts.setdefault((note.rewrite, end), Counter()).update(kinds)
    order = list(dict.fromkeys(rewrite for rewrite, _ in counts))
    lines = [(rewrite, f"{_counted(kinds)} {end}") for (rewrite, end), kinds in counts.items()]
    return sorted(lines, key=lambda line: order.index(line[0]))


def _kinds(nodes: Iterable[Mention]) -> str:
    return ", ".join(dict.fromkeys(node.op for node in nodes))


def _counted(kinds: Counter[str]) -> str:
    """Format counts as in ``33 Relu, 16 Add and 2 Clip``."""
    *most, last = (f"{count} {kind}" for kind, count in kinds.most_common())
    return f"{', '.join(most)} and {last}" if most else last
