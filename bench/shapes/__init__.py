"""Lines of the benchmark: problems with labels and families, read from files of benchdnn strings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading import sources
from cpuconv.problem.types import ALL_F32, Types

CANONICAL = Path(__file__).with_name("canonical.txt")

# First match wins.
FAMILIES: tuple[tuple[str, Callable[[ConvProblem], bool]], ...] = (
    ("depthwise", lambda p: p.groups > 1 and p.cg == p.kg == 1),
    ("grouped", lambda p: p.groups > 1),
    ("first layer", lambda p: p.c <= 4),
    ("dilated", lambda p: p.dilation != (1, 1)),
    ("1x1 strided", lambda p: (p.r, p.s) == (1, 1) and p.stride != (1, 1)),
    ("1x1", lambda p: (p.r, p.s) == (1, 1)),
    ("strided", lambda p: p.stride != (1, 1)),
    ("3x3 s1", lambda p: (p.r, p.s) == (3, 3)),
    ("1x7, 7x1", lambda p: 1 in (p.r, p.s)),
    ("5x5 and up", lambda p: True),
)


def family(problem: ConvProblem) -> str:
    """Return the name of the family in which a problem is reported."""
    return next(name for name, belongs in FAMILIES if belongs(problem))


@dataclass(frozen=True)
class Line:
    """One line of a benchmark; its problem is a ConvProblem, or a NetworkProblem when networks are compared."""

    problem: Any
    label: str
    family: str


def load(
    path: str | Path = CANONICAL, pattern: str = "", batch: int | None = None, types: Types = ALL_F32
) -> list[Line]:
    """Load the lines of a file of benchdnn strings whose label or problem string matches a regular expression.

    `batch` replaces the batch of every line, `types` its types, unless all are float32.

    Raises
    ------
    ValueError
        If a line has an activation or a residual, which peers do not compute.
    """
    lines = []
    for problem, label, _, _ in sources.load(str(path)):
        if problem.activation is not None or problem.residual:
            raise ValueError(f"Argument 'path' must name lines of plain convolutions, not {problem.key}.")
        if batch is not None:
            problem = replace(problem, n=batch)
        if types != ALL_F32:
            problem = replace(problem, types=types)
        line = Line(problem, label or problem.key.split()[0], family(problem))
        if re.search(pattern, line.label) or re.search(pattern, problem.key):
            lines.append(line)
    return lines


def at_random(count: int, seed: int, pattern: str = "", types: Types = ALL_F32) -> list[Line]:
    """Draw `count` plain convolutions at random; return those whose problem string matches a regular expression."""
    from bench.shapes.drawn import draw  # imported here: it needs the instruction set

    plain: dict[str, Any] = {
        "in_layout": "NCHW",
        "out_layout": "NCHW",
        "activation": None,
        "residual": False,
        "types": types,
    }
    problems = (replace(problem, **plain) for problem in draw(count, seed))
    lines = (Line(problem, problem.shape_key, family(problem)) for problem in problems)
    return [line for line in lines if re.search(pattern, line.problem.key)]
