"""Figures with their targets, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

HEADERS = ("part", "figure", "value", "target", "")


@dataclass(frozen=True)
class Figure:
    """A measured figure with its target.

    Attributes
    ----------
    most : bool
        Whether the target is an upper bound; else it is a lower bound.
    """

    part: str
    name: str
    value: float
    unit: str = ""
    target: float | None = None
    most: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the target is reached, None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.most else self.value >= self.target


def table(figures: Sequence[Figure]) -> str:
    """Return the table of all figures with their targets."""
    return tabulate([_cells(figure) for figure in figures], HEADERS, disable_numparse=True)


def _cells(figure: Figure) -> tuple[str, ...]:
    sign = "≤" if figure.most else "≥"
    target = "" if figure.target is None else f"{sign} {figure.target:g} {figure.unit}".strip()
    met = {True: "met", False: "not met", None: ""}[figure.met]
    value = f"{figure.value:d}" if isinstance(figure.value, int) else f"{figure.value:.4g}"
    return figure.part, figure.name, f"{value} {figure.unit}".strip(), target, met
