"""Networks with inputs whose elements decide sizes or branches: one model for each of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv import api
from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.graph.ir import Graph, Node
from cpuconv.graph.model import Model, Port
from cpuconv.graph.ops import TABLE
from cpuconv.memory.locks import Lock

_SHAPES_ONLY = frozenset({"Shape", "Size"})  # operators that do not read the elements of their input
_KEPT = 8  # models of one network


def steering(graph: Graph) -> tuple[str, ...]:
    """The inputs whose elements sizes, or the branches of an If, may depend on."""
    found: set[str] = set()
    left = [node.inputs[at] for node in graph.nodes for at in _deciding(node) if at < len(node.inputs)]
    while left:
        name = left.pop()
        if name and name not in found:
            found.add(name)
            producer = graph.producer(name)
            if producer is not None and producer.op not in _SHAPES_ONLY:
                left += producer.inputs
    return tuple(name for name in graph.inputs if name in found)


def _deciding(node: Node) -> tuple[int, ...]:
    """Positions of the inputs whose elements decide what a node is."""
    if node.meaning is None:
        return TABLE[node.op].parameters
    return (0,) if node.op == "If" else ()


def ready(graph: Graph, **options: Any) -> Model | Steered:
    """A graph made ready to run; options as those of `cpuconv.compile`."""
    return Steered(graph, options) if steering(graph) else api.compile(graph, **options)


class Steered:
    """A network with steering inputs.

    Attributes
    ----------
    inputs, outputs : tuple of Port
    """

    def __init__(self, graph: Graph, options: Mapping[str, Any]) -> None:
        self._graph, self._options, self._steering = graph, options, steering(graph)
        self.inputs, self.outputs = _ports(graph, graph.inputs), _ports(graph, graph.outputs)
        self._models: dict[tuple[tuple[bytes, tuple[int, ...]], ...], Model] = {}
        self._making = Lock()

    def run(self, feed: Mapping[str, Any], out: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Run the network; arguments and errors as of `cpuconv.Model.run`."""
        given = {name: self._steers(name, feed) for name in self._steering}
        return self._model(given).run({name: array for name, array in feed.items() if name not in given}, out)

    def _model(self, given: Mapping[str, np.ndarray]) -> Model:
        """The model for these elements; those of the values met last are kept."""
        key = tuple((array.tobytes(), array.shape) for array in given.values())
        with self._making:
            model = self._models.pop(key, None)
            if model is None:
                inputs = tuple(name for name in self._graph.inputs if name not in given)
                constants = {**self._graph.constants, **given}
                model = api.compile(replace(self._graph, inputs=inputs, constants=constants), **self._options)
            self._models[key] = model
            if len(self._models) > _KEPT:
                del self._models[next(iter(self._models))]
        return model

    def _steers(self, name: str, feed: Mapping[str, Any]) -> np.ndarray:
        """A copy of the array for a steering input."""
        if name not in feed:
            raise ArgumentError(must("feed", f"arrays for {', '.join(self._graph.inputs)}", f"without {name!r}"))
        array, value = np.array(feed[name], order="C"), self._graph.value(name)
        if array.dtype != value.dtype:
            raise ArgumentTypeError(must(f"feed[{name!r}]", f"of dtype {value.dtype}", array.dtype))
        if not value.fits(array.shape):
            raise ArgumentError(must(f"feed[{name!r}]", f"of a shape that fits {value}", array.shape))
        array.flags.writeable = False
        return array


def _ports(graph: Graph, names: Sequence[str]) -> tuple[Port, ...]:
    return tuple(Port(name, graph.value(name).shape, graph.value(name).dtype) for name in names)
