"""The report of a choice of precisions, from what was measured."""

from __future__ import annotations

from cpuconv.conv.choice.target import FULL, HALF
from cpuconv.network.precision.choosing import Chosen, Rounding
from cpuconv.network.precision.trials import Measured
from cpuconv.network.reports.precisions import PrecisionRow, PrecisionTable
from cpuconv.network.selection.decisions import name_of
from cpuconv.network.selection.element_types import types_of
from cpuconv.network.selection.planning import seconds

MIXED = "mixed"


def table_of(name: str, tolerance: float, trials: Measured, chosen: Chosen) -> PrecisionTable:
    """Of what was chosen for a network of that name."""
    kinds = {_kind(rounding, trials): time for rounding, time in chosen.seconds.items()}
    kind = _kind(chosen.rounding, trials)
    return PrecisionTable(name, tolerance, chosen.error, kind, kinds, _rows(trials, chosen))


def _kind(rounding: Rounding, trials: Measured) -> str:
    return FULL if not rounding else HALF if len(rounding) == trials.count else MIXED


def _rows(trials: Measured, chosen: Chosen) -> list[PrecisionRow]:
    """Of all nodes that run."""
    operators, rounding = trials.operators, chosen.rounding
    numbers = {at: number for number, nodes in enumerate(operators.nodes) for at in nodes}
    places = {name_of(node): at for at, node in enumerate(operators.graph.nodes)}
    steps = {number: _step(trials, chosen, number) for number in range(trials.count)}
    plan, rows = trials.plan(rounding), []
    for each in plan.nodes:
        if each.offer is not None and each.offer.view:
            continue
        number = numbers.get(places.get(name_of(each.node), -1), -1)
        more, error = steps.get(number, (None, None))
        rows.append(
            PrecisionRow(
                each.node.origin or next(filter(None, each.node.outputs)),
                each.node.op,
                HALF if number in rounding else FULL,
                types_of(each, plan.graph.value),
                seconds(each.offer),
                chosen.errors[number] if number >= 0 else None,
                more,
                error,
            )
        )
    return rows


def _step(trials: Measured, chosen: Chosen, number: int) -> tuple[float, float]:
    """What the other precision of an operator changes: seconds of a run, and the error of the outputs then."""
    other = chosen.rounding ^ {number}
    square = chosen.error**2 + (1 if number in other else -1) * chosen.errors[number] ** 2
    return trials.modelled(other) - trials.modelled(chosen.rounding), max(square, 0.0) ** 0.5
