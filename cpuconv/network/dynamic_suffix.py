"""The dynamic suffix: nodes that `sizes.cutting` cut off run after the program, by references or as a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops.indexing import leading
from cpuconv.graph.stopping import Stop
from cpuconv.network.interpret import Timed, interpret
from cpuconv.network.reports.explain import Explanation, late_rows
from cpuconv.network.sizes.cutting import Stages

if TYPE_CHECKING:
    from cpuconv.network.reports.profile import Profile


class Network(Protocol):
    """The interface of a network that a suffix uses."""

    @property
    def nbytes(self) -> int:
        """Size of its programs, in bytes."""

    @property
    def has_run(self) -> bool:
        """Whether it can be explained."""

    def run(self, feed: Mapping[str, np.ndarray], *, stop: Stop | None) -> dict[str, np.ndarray]:
        """Run the network and return its outputs."""

    def profile(self, feed: Mapping[str, np.ndarray], runs: int) -> Profile:
        """Time its operators."""

    def explain(self) -> Explanation:
        """Explain its layouts and algorithms."""


class DynamicSuffix:
    """The part of a network that runs after a program.

    Parameters
    ----------
    parts : Stages
    outputs : sequence of str
        Names of the outputs of the whole network, in order.
    ready : callable
        Compiles the native part of the suffix to a network, when its first inputs are known.
    is_shared : bool
        Whether other suffixes use the same network.
    """

    def __init__(
        self, parts: Stages, outputs: Sequence[str], ready: Callable[[Graph], Network], *, is_shared: bool = False
    ) -> None:
        self._first, self._rest, self._outputs, self._ready = parts.first, parts.rest, outputs, ready
        self._is_shared = is_shared
        self._model: Network | None = None
        self._cuts = parts.first.nodes if all(node.op == "Leading" for node in parts.first.nodes) else ()

    @property
    def nbytes(self) -> int:
        """Size of the programs of the suffix, in bytes; 0 if they are shared with other suffixes."""
        return 0 if self._model is None or self._is_shared else self._model.nbytes

    def finished(self, arrays: Mapping[str, np.ndarray], stop: Stop | None = None) -> dict[str, np.ndarray]:
        """All outputs of the network, from its inputs and the program's outputs; `stop` may end the run."""
        found = self._found(arrays, stop=stop)
        if self._rest is not None:
            found |= self._native(found).run({name: found[name] for name in self._rest.inputs}, stop=stop)
        mine = {*self._first.outputs, *(self._rest.outputs if self._rest else ())}
        return {name: np.array(found[name], order="C") if name in mine else found[name] for name in self._outputs}

    def profiles(self, arrays: Mapping[str, np.ndarray], runs: int) -> list[Profile]:
        """Time the nodes that references compute, and those that kernels compute afterwards."""
        from cpuconv.network.reports.profile import of_references

        rows: dict[int, tuple[Node, list[tuple[float, int]]]] = {id(node): (node, []) for node in self._first.nodes}
        for _ in range(runs):
            found = self._found(arrays, lambda node, *figures: rows[id(node)][1].append(figures))
        made = [of_references(list(rows.values()))]
        if self._rest is not None:
            made.append(self._native(found).profile({name: found[name] for name in self._rest.inputs}, runs))
        return made

    def explained(self, head: Explanation) -> Explanation:
        """The explanation of the program, extended by the nodes of the suffix."""
        rows = late_rows(self._first.nodes)
        if self._rest is not None:
            known = self._model is not None and self._model.has_run
            rows += self._model.explain().operators if self._model and known else late_rows(self._rest.nodes, "")
        return replace(head, operators=[*head.operators, *rows])

    def _found(
        self, arrays: Mapping[str, np.ndarray], timed: Timed | None = None, stop: Stop | None = None
    ) -> dict[str, np.ndarray]:
        if self._cuts and timed is None:  # a result and its size from a kernel: what `interpret` checks holds
            return {
                **arrays,
                **{node.outputs[0]: leading(node, [arrays[x] for x in node.inputs]) for node in self._cuts},
            }
        given = {name: arrays[name] for name in self._first.inputs}
        results = interpret(self._first, given, timed=timed, stop=stop)
        return {**arrays, **results}

    def _native(self, arrays: Mapping[str, np.ndarray]) -> Network:
        """The model of the native part; ranks and dtypes of its inputs are known once it runs for the first time."""
        if self._model is None:
            assert self._rest is not None
            open_ = {name: arrays[name] for name in self._rest.inputs if not self._rest.value(name).concrete}
            values = {name: Value((None,) * array.ndim, array.dtype) for name, array in open_.items()}
            self._model = self._ready(replace(self._rest, values={**self._rest.values, **values}))
        return self._model
