"""`precision="auto"`: the fastest plan whose measured error is within a tolerance, and the report of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Graph
from cpuconv.network.definition import Definition
from cpuconv.network.precision.choosing import choose
from cpuconv.network.precision.errors import Metric, relative_rms
from cpuconv.network.precision.table import table_of
from cpuconv.network.precision.trials import Listener, Measured
from cpuconv.network.reports.precisions import PrecisionTable
from cpuconv.network.saved.program import Settings
from cpuconv.network.sizes.prepared import Rewriting


def chosen_for(
    graph: Graph,
    target: Target,
    shapes: Mapping[str, Sequence[int]],
    options: Rewriting,
    samples: Sequence[Mapping[str, Any]],
    tolerance: float,
    metric: Metric = relative_rms,
    listener: Listener | None = None,
) -> tuple[Target, PrecisionTable]:
    """The target with the precisions of all nodes, and what was measured.

    Parameters
    ----------
    graph, target, shapes, options
        As for `compiling.compiled`; precisions of the target are left out of account.
    samples : sequence of mapping of str to array
        Feeds of the network, one at least; layouts and times are those of the first one's sizes.
    tolerance : float
        Most error of any sample, above 0.
    metric : callable
    listener : callable or None

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A sample does not fit the network, or the metric gives no number.
    """
    definition = Definition(graph, shapes, Settings.of(target, options), None, None)
    trials = Measured(definition, target, samples, metric, listener or (lambda what, done, total: None))
    chosen = choose(trials, tolerance)
    return trials.operators.target(chosen.rounding), table_of(graph.name, tolerance, trials, chosen)
