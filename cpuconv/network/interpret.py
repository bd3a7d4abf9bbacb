"""Run a graph by the NumPy references of its operators, slowly and simply. Tests compare kernel results with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError, must
from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops.base import is_float
from cpuconv.graph.stopping import Stop, check
from cpuconv.network.folding import check_results, check_values
from cpuconv.runtime.float_environment import default_environment

Timed = Callable[[Node, float, int], None]  # called with an executed node, its seconds, and the bytes of its operands


def interpret(
    graph: Graph,
    feed: Mapping[str, np.ndarray],
    *,
    wide: bool = False,
    timed: Timed | None = None,
    stop: Stop | None = None,
) -> dict[str, np.ndarray]:
    """Compute the outputs of a specialised graph.

    Parameters
    ----------
    graph : Graph
        The result of `specialise`.
    feed : Mapping[str, np.ndarray]
        An array for each input of the graph, of its shape and dtype.
    wide : bool
        Compute in float64 from the first operator to the last, instead of rounding every value to its dtype.
    timed : Timed or None
        Called with the time of each node.
    stop : Stop or None
        May end the run between two nodes.

    Returns
    -------
    dict[str, np.ndarray]
        Arrays by output name; floats are float64 if `wide`.

    Raises
    ------
    ArgumentError
        An input is missing, unknown or of another shape.
    ArgumentTypeError
        An input is of another dtype.
    RunStopped
        `stop` ended the run.
    """
    if feed.keys() != set(graph.inputs):
        raise ArgumentError(must("feed", f"arrays for {', '.join(graph.inputs) or 'nothing'}", ", ".join(feed) or "{}"))
    arrays = dict(graph.constants)
    for name in graph.inputs:
        value = graph.value(name)
        if feed[name].dtype != value.dtype:
            raise ArgumentTypeError(must(f"feed[{name!r}]", f"an array of {value.dtype}", feed[name].dtype))
        if feed[name].shape != value.shape:
            raise ArgumentError(must(f"feed[{name!r}]", f"of shape {value.shape}", feed[name].shape))
        arrays[name] = feed[name]
    left = {name: len(graph.users(name)) for name in graph.values}
    for node in graph.nodes:
        values, given = [graph.value(name) for name in node.outputs], [arrays.get(name) for name in node.inputs]
        if any(name and value.shape is None for name, value in zip(node.outputs, values, strict=True)):
            values = _found(node, given, wide)
        check(stop)
        start = time.perf_counter()
        results = run(node, given, [value.dtype for value in values], wide, stop)
        check_results(node, [value.shape for value in values], results)
        if timed is not None:
            seconds = time.perf_counter() - start
            timed(node, seconds, sum(getattr(array, "nbytes", 0) for array in (*given, *results)))
        arrays.update(zip(node.outputs, results, strict=False))
        for name in dict.fromkeys(node.inputs):
            left[name] = left.get(name, 0) - 1
            if not left[name] and not graph.is_output(name):
                del arrays[name]
    for name in graph.outputs:
        if isinstance(arrays[name], list):
            raise SourceError(f"The output {name!r} must be a tensor; it is a sequence of {len(arrays[name])}.")
    return {name: arrays[name] for name in graph.outputs}


def _found(node: Node, arrays: Sequence[np.ndarray | None], wide: bool) -> list[Value]:
    """The outputs of a node whose shapes depend on elements, which are known at this point.

    With `wide`, and for an operator that the table does not have, the reference determines the dtypes.
    """
    if wide or node.semantics is not None:
        return [Value()] * len(node.outputs)
    if any(isinstance(array, list) for array in arrays):
        raise SourceError(f"{node.label} must be given tensors, not a sequence of them.")
    values = ops.semantics(node).infer(node, [None if array is None else Value.of(array) for array in arrays])
    check_values(node, values)
    return values


@default_environment()
def run(
    node: Node,
    arrays: Sequence[np.ndarray | None],
    dtypes: Sequence[np.dtype | None],
    wide: bool = False,
    stop: Stop | None = None,
) -> list[np.ndarray]:
    """Compute the outputs of one node, of `dtypes`; with `wide`, floats are float64. `stop` may end the run."""
    if wide:
        dtypes = [np.dtype(np.float64) if dtype is not None and is_float(dtype) else dtype for dtype in dtypes]
    return ops.semantics(node).evaluate(node, arrays, dtypes, stop)
