"""Write the tables of models.md, from the operators and rewrites themselves: ``python docs/models.py``."""

from __future__ import annotations

import inspect
from pathlib import Path

from cpuconv.graph.ops import FAMILIES, OWN
from cpuconv.graph.passes import NAMES, PASSES

PAGE = Path(__file__).with_suffix(".md")


def operators() -> str:
    """Return a table row for each family of operators."""
    lines = ["| | with kernels | rewritten into others, or by NumPy |", "|---|---|---|"]
    for family in FAMILIES:
        known = [op for op in family.OPS if op.name not in OWN]
        if known:
            columns = [", ".join(f"`{op.name}`" for op in known if (op.offers is None) == late) for late in (0, 1)]
            lines.append(f"| {_purpose(family.__doc__)} | {' | '.join(columns)} |")
    return "\n".join(lines)


def rewrites() -> str:
    """Return a table row for each rewrite, in the order of their first runs."""
    texts = {name: getattr(run, "text", None) or inspect.getmodule(run).__doc__ for name, run in reversed(PASSES)}
    return "\n".join(
        ["| rewrite | what it does |", "|---|---|", *(f"| `{name}` | {_purpose(texts[name])} |" for name in NAMES)]
    )


def _purpose(text: str | None) -> str:
    """Return the first paragraph of a text."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())


TABLES = {"operators": operators, "rewrites": rewrites}


def filled(page: str) -> str:
    """Return the page with each table between its marks."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n{table()}\n\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
