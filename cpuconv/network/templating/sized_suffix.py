"""Dynamic suffix for all sizes of a template: its symbolic sizes are replaced, instead of cutting the graph again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from cpuconv.graph.ir import Graph, Value
from cpuconv.memory.mapped_files import owned_copy
from cpuconv.network.dynamic_suffix import DynamicSuffix, Network
from cpuconv.network.sizes.cutting import Stages, stages
from cpuconv.network.sizes.graph_templates import SizedGraph
from cpuconv.symbolic.filled import Number, held
from cpuconv.symbolic.sizes import is_symbolic


class SizedSuffix:
    """A dynamic suffix as a function of sizes.

    The native part is one network for all sizes, unless its nodes read sizes.

    Parameters
    ----------
    outputs : sequence of str
        Names of the outputs of the whole network, in order.
    part : callable
        Compiles a graph to a network.
    suffix : Graph
        The nodes of the suffix, with symbolic sizes.

    Attributes
    ----------
    sizes : list of Size
        The symbolic sizes whose numbers `suffix` takes.
    """

    def __init__(self, outputs: Sequence[str], part: Callable[[Graph], Network], suffix: Graph) -> None:
        self._outputs, self._part = tuple(outputs), part
        cut = stages(replace(suffix, constants={name: owned_copy(array) for name, array in suffix.constants.items()}))
        self._first = SizedGraph(cut.first)
        self._rest = None if cut.rest is None else SizedGraph(cut.rest)
        self._network: Network | None = None
        self.sizes = held(self._filled)

    @property
    def nbytes(self) -> int:
        """Size of the network that all sizes share, in bytes."""
        return 0 if self._network is None else self._network.nbytes

    def suffix(self, numbers: Iterator[Any]) -> DynamicSuffix:
        """The dynamic suffix of the program for these numbers."""
        shared = self._rest is not None and not self._rest.computes_sizes
        ready = self._shared if shared else self._part
        return DynamicSuffix(self._filled(lambda size: next(numbers)), self._outputs, ready, is_shared=shared)

    def _filled(self, number: Number) -> Stages:
        first = self._first.filled(number)
        return Stages(first, None if self._rest is None else self._rest.filled(number))

    def _shared(self, graph: Graph) -> Network:
        """The network for all sizes, compiled at first use; `graph` has the ranks and dtypes of its inputs."""
        if self._network is None:
            assert self._rest is not None
            stated = self._rest.graph
            known = {name: stated.value(name) for name in graph.inputs if stated.value(name).shape is not None}
            opened = {name: _open(value) for name, value in known.items()}
            self._network = self._part(replace(stated, values={**graph.values, **opened}))
        return self._network


def _open(value: Value) -> Value:
    """A value whose symbolic sizes are open."""
    return replace(value, shape=tuple(None if is_symbolic(size) else size for size in value.shape or ()))
