"""Write the generated tables of models.md and CONTRIBUTING.md from the code: ``python docs/tables.py``."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from cpuconv.graph.ops import FAMILIES, OWN
from cpuconv.graph.passes import NAMES, PASSES
from cpuconv.solvers.shared.solver import Solver

ROOT = Path(__file__).parents[1]


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
    rows = (f"| `{name}` | {_purpose(PASSES[name].text)} |" for name in NAMES)
    return "\n".join(["| rewrite | what it does |", "|---|---|", *rows])


def solver() -> str:
    """Return a table row for each field of a solver's record, as its docstring describes it."""
    attributes = inspect.cleandoc(Solver.__doc__ or "").partition("----------\n")[2]
    found = re.findall(r"^(\w+) : (.*)\n((?:    .*\n?)+)", attributes, re.MULTILINE)
    assert [name for name, _, _ in found] == [field.name for field in dataclasses.fields(Solver)]
    lines = [f"| `{name}` | `{kind}` | {' '.join(text.split())} |" for name, kind, text in found]
    return "\n".join(["| field | type | content |", "|---|---|---|", *lines])


def _purpose(text: str | None) -> str:
    """Return the first paragraph of a text."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())


PAGES = {
    ROOT / "docs" / "models.md": {"operators": operators, "rewrites": rewrites},
    ROOT / "CONTRIBUTING.md": {"solver": solver},
}


def filled(path: Path) -> str:
    """Return the page of that path with each table between its marks."""
    page = path.read_text(encoding="utf-8")
    for name, table in PAGES[path].items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n{table()}\n\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(filled(path), encoding="utf-8")
