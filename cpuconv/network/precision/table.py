"""Report on the selection of precisions, from the measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from cpuconv.conv.choice.target import PRECISION_F32
from cpuconv.elements import S8, U8
from cpuconv.network.precision.choosing import Finalist
from cpuconv.network.precision.trials import Measured
from cpuconv.network.reports.precisions import PrecisionRow
from cpuconv.network.selection.decisions import name_of
from cpuconv.network.selection.element_types import types_of
from cpuconv.network.selection.planning import seconds

INT8 = "int8"
_NAMES = frozenset((U8.name, S8.name))  # names of 8-bit types in the text of types


class Layer(NamedTuple):
    """Measurements of a matrix multiplication or convolution that may run in int8.

    Attributes
    ----------
    error : float or None
        Error of the outputs if only this operator is int8.
    seconds : float or None
        Additional time with int8 instead of floating point, measured separately.
    """

    error: float | None
    seconds: float | None


def rows_of(
    trials: Measured, errors: Mapping[int, float], chosen: Finalist, layers: Mapping[str, Layer]
) -> list[PrecisionRow]:
    """Make the rows of all nodes that run.

    Parameters
    ----------
    trials : Measured
        Measurements of the selected network.
    errors : mapping of int to float
        Errors of its operators that may round.
    chosen : Finalist
    layers : mapping of str to Layer
        Measurements by name in the model.
    """
    operators, rounding = trials.operators, chosen.rounding
    numbers = {at: number for number, nodes in enumerate(operators.nodes) for at in nodes}
    places = {name_of(node): at for at, node in enumerate(operators.graph.nodes)}
    steps = {number: _step(trials, errors[number], chosen, number) for number in range(trials.count)}
    plan, rows = trials.plan(rounding), []
    for each in plan.nodes:
        if each.offer is not None and each.offer.view:
            continue
        number = numbers.get(places.get(name_of(each.node), -1), -1)
        name = each.node.origin or next(filter(None, each.node.outputs))
        types = types_of(each, plan.graph.value)
        floating = operators.precision if number in rounding else PRECISION_F32
        precision = INT8 if _NAMES.intersection(re.findall(r"\w+", types)) else floating
        error: float | None = None
        step: tuple[float | None, float | None] = None, None
        if number in steps:
            error, step = errors[number], steps[number]
        elif name in layers:
            error, step = layers[name].error, _other(layers[name], chosen.error, precision)
        rows.append(PrecisionRow(name, each.node.op, precision, types, seconds(each.offer), error, *step))
    return rows


def _step(trials: Measured, error: float, chosen: Finalist, number: int) -> tuple[float, float]:
    """Effect of an operator's other precision: added seconds of a run, and the resulting error of the outputs."""
    other = chosen.rounding ^ {number}
    more = trials.modelled(other) - trials.modelled(chosen.rounding)
    return more, _added(chosen.error, error, number in other)


def _other(layer: Layer, error: float, precision: str) -> tuple[float | None, float | None]:
    """Effect of switching an operator between int8 and floating point."""
    to_bytes = precision != INT8
    more = None if layer.seconds is None else layer.seconds if to_bytes else -layer.seconds
    return more, None if layer.error is None else _added(error, layer.error, to_bytes)


def _added(error: float, part: float, more: bool) -> float:
    """Add a part to an error, or subtract it: squares add up."""
    return max(error**2 + (1 if more else -1) * part**2, 0.0) ** 0.5
