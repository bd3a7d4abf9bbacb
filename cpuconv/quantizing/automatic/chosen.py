"""`precision="auto"`: the fastest of float32, bfloat16, int8 and mixtures, within a tolerance of measured error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cpuconv.conv.choice.target import PRECISION_F32, Target, narrow_precision
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph
from cpuconv.network.definition import Definition
from cpuconv.network.precision.automatic import Entrant, fastest, float_network, int8_network
from cpuconv.network.precision.errors import Metric, relative_rms
from cpuconv.network.precision.table import INT8, Layer
from cpuconv.network.precision.trials import Listener, Measured
from cpuconv.network.reports.precisions import PrecisionTable
from cpuconv.network.saved.program import Settings
from cpuconv.network.sizes.prepared import Rewriting
from cpuconv.quantizing.automatic.int8_candidate import int8_candidate
from cpuconv.runtime.float_environment import default_environment


class Automatic(NamedTuple):
    """Result of the selection.

    Attributes
    ----------
    graph : Graph
        The network itself, or its int8 version.
    target : Target
        Target with the precisions of all nodes.
    table : PrecisionTable
    """

    graph: Graph
    target: Target
    table: PrecisionTable


@default_environment()
def chosen_for(
    graph: Graph,
    target: Target,
    shapes: Mapping[str, Sequence[int]],
    options: Rewriting,
    samples: Sequence[Mapping[str, Any]],
    tolerance: float,
    metric: Metric = relative_rms,
    listener: Listener | None = None,
) -> Automatic:
    """Select the fastest plan within the tolerance; return it with the measurements.

    Parameters
    ----------
    graph, target, shapes, options
        As for `compiling.compiled`; the target's precisions are ignored.
    samples : sequence of mapping of str to array
        Feeds of the network, at least one. Layouts and times are for the sizes of the first.
    tolerance : float
        Maximum error of any sample, above 0.
    metric : callable
    listener : callable or None

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A sample does not fit the network, or the metric does not return a number.
    """
    tell = listener or (lambda what, done, total: None)

    def definition(of: Graph) -> Definition:
        return Definition(of, shapes, Settings.of(target, options), None, None)

    floats = Measured(definition(graph), target, samples, metric, tell, tolerance=tolerance)
    entrants = [Entrant.of(float_network(), floats, tolerance)]
    rounds = any(len(each.rounding) == floats.count > 0 for each in entrants[0].finalists.found)
    left_out: dict[str, str] = {}
    made = None
    precision = narrow_precision() if rounds else PRECISION_F32
    try:
        made = int8_candidate(graph, floats.feeds, floats.right, target.threads, tolerance, metric, tell, precision)
        known = floats, made.error
        of_bytes = Measured(definition(made.graph), target, floats.feeds, metric, tell, *known, tolerance=tolerance)
        entrants.append(Entrant.of(int8_network(), of_bytes, tolerance))
        if not entrants[-1].finalists.found:
            left_out[INT8] = f"its error is {of_bytes.error(frozenset()):.2g}"
    except SourceError as error:
        left_out[INT8] = str(error)
    tell("timing", 0, 0)
    best = fastest(entrants)
    layers: Mapping[str, Layer] = {}
    if made is not None and best.entrant is not entrants[0]:
        graph, layers = made.graph, made.layers()
    return Automatic(graph, best.target, best.table(graph.name, tolerance, layers, left_out))
