"""The tables of models.md, from the operators and rewrites themselves; MkDocs puts them in as it builds the page.

``python docs/models.py`` prints them.
"""

from __future__ import annotations

import inspect
from typing import Any

from cpuconv.graph.ops import FAMILIES, OWN
from cpuconv.graph.passes import NAMES, PASSES


def operators() -> str:
    """A line for each family of operators."""
    lines = ["| | with kernels | rewritten into others, or by NumPy |", "|---|---|---|"]
    for family in FAMILIES:
        known = [op for op in family.OPS if op.name not in OWN]
        if known:
            columns = [", ".join(f"`{op.name}`" for op in known if (op.offers is None) == late) for late in (0, 1)]
            lines.append(f"| {_purpose(family.__doc__)} | {' | '.join(columns)} |")
    return "\n".join(lines)


def rewrites() -> str:
    """A line for each rewrite, in order; those that run twice where they run first."""
    texts = {name: getattr(run, "text", None) or inspect.getmodule(run).__doc__ for name, run in reversed(PASSES)}
    return "\n".join(["| | |", "|---|---|", *(f"| `{name}` | {_purpose(texts[name])} |" for name in NAMES)])


def _purpose(text: str | None) -> str:
    """The first paragraph of a text."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())


TABLES = {"<!-- operators -->": operators, "<!-- rewrites -->": rewrites}


def on_page_markdown(markdown: str, **others: Any) -> str:
    """MkDocs' event: the page with tables in the place of their marks."""
    for mark, table in TABLES.items():
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return markdown


if __name__ == "__main__":
    print("\n\n".join(table() for table in TABLES.values()))
