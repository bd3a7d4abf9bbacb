"""Bodies of If, Loop and Scan as programs: compiled once for each size that they meet, and run again and again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from cpuconv.errors import CpuconvError
from cpuconv.graph.control import BODIES, is_control
from cpuconv.graph.ir import Graph, Value
from cpuconv.memory.aligned import aligned
from cpuconv.network.control.bodies import Ends, as_inputs
from cpuconv.network.control.flow import Flow
from cpuconv.network.dynamic_suffix import Tail
from cpuconv.network.ports import arrays_for, sizes
from cpuconv.network.running.executable import Executable
from cpuconv.network.sizes.specialise import sized
from cpuconv.runtime.stopping import Stop


class Program(Protocol):
    """What runs a body for inputs of certain sizes."""

    @property
    def executable(self) -> Executable:
        """Its kernels."""

    @property
    def tail(self) -> Tail | None:
        """What runs behind them."""


class BodyPrograms(Protocol):
    """The programs of a body."""

    @property
    def nbytes(self) -> int:
        """Bytes of those that are kept."""

    def find(self, shapes: tuple[tuple[int, ...], ...]) -> Program:
        """The one for inputs of these shapes."""

    def remember(self, made: Any) -> None:
        """Remember one, as large as it is now."""

    def kernels(self) -> frozenset[str]:
        """Names of the kernels that they call."""


Part = Callable[[Graph], BodyPrograms]


class Bodies:
    """The bodies of a network's nodes; each is forgotten with the graph that it is.

    Parameters
    ----------
    part : callable
        Gives the programs of a body. Packed weights are shared with the network.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._made: weakref.WeakKeyDictionary[Graph, ProgramBody] = weakref.WeakKeyDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes of their programs."""
        return sum(each.nbytes for body in list(self._made.values()) for each in body.programs)

    def kernels(self) -> frozenset[str]:
        """Names of the kernels that their programs call."""
        found = [each.kernels() for body in list(self._made.values()) for each in body.programs]
        return frozenset().union(*found)

    def bound(self, graph: Graph) -> Graph:
        """The graph, bodies of its nodes run by programs."""
        if not any(map(is_control, graph.nodes)):
            return graph
        flows = {op: Flow(sized, partial(self._body, op == "Loop")) for op in BODIES}
        nodes = [replace(node, meaning=flows[node.op]) if is_control(node) else node for node in graph.nodes]
        return replace(graph, nodes=tuple(nodes))

    def _body(self, changing: bool, graph: Graph) -> ProgramBody:
        made = self._made.get(graph)
        return self._made.setdefault(graph, ProgramBody(graph, changing, self._part)) if made is None else made


class ProgramBody:
    """A body that programs run; several threads may run it at once.

    Attributes
    ----------
    ends : Ends
    """

    def __init__(self, graph: Graph, changing: int, part: Part) -> None:
        self.ends, self._part = Ends.of(graph, changing), part
        self._programs: dict[tuple[tuple[int, np.dtype], ...], BodyPrograms] = {}  # by ranks and types of inputs

    @property
    def programs(self) -> list[BodyPrograms]:
        """Those for each rank and type of its inputs."""
        return list(self._programs.values())

    def step(self) -> ProgramStep:
        """Runs of it, in one thread."""
        return ProgramStep(self)

    def programs_for(self, inputs: Sequence[np.ndarray]) -> BodyPrograms:
        """The programs for inputs of such ranks and types."""
        kind = tuple((array.ndim, array.dtype) for array in inputs)
        programs = self._programs.get(kind)
        if programs is None:
            graph = as_inputs(self.ends.graph, [Value((None,) * rank, dtype) for rank, dtype in kind])
            programs = self._programs.setdefault(kind, self._part(graph))
        return programs


class ProgramStep:
    """Runs of a body by one caller of its program, as long as shapes stay; addresses are given anew where they change.

    Memory of a run and a caller are taken once for all runs.
    """

    def __init__(self, body: ProgramBody) -> None:
        self._body = body
        self._given: list[np.ndarray] = []  # what the caller has the addresses of
        self._written: list[np.ndarray] = []

    def __enter__(self) -> ProgramStep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or issubclass(kind, CpuconvError):  # after any other nothing is taken again
            self._end()

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None], stop: Stop | None
    ) -> list[np.ndarray]:
        """As `Step` says."""
        given = self._given
        moved = [at for at, array in enumerate(inputs) if array is not given[at]] if given else range(len(inputs))
        if not given or any(inputs[at].shape != given[at].shape or inputs[at].dtype != given[at].dtype for at in moved):
            self._begin(inputs)
            moved, given = range(len(inputs)), self._given
        if self._made.tail is not None:
            return self._run_with_tail(inputs, stop)
        caller, written = self._caller, self._written
        for at in moved:
            caller.place(self._names[at], inputs[at])
            given[at] = inputs[at]
        for at, (output, shape, dtype, name) in enumerate(zip(outputs, *self._results, strict=True)):
            if output is None or output.shape != shape or output.dtype != dtype:
                output = aligned(shape, dtype)
            if output is not written[at]:
                caller.place(name, output)
                written[at] = output
        caller.run(stop)
        for at, array in self._constants:
            written[at][...] = array
        return [*written]

    def _begin(self, inputs: Sequence[np.ndarray]) -> None:
        """Take the program for these inputs, a caller of it and memory."""
        self._end()
        self._programs = self._body.programs_for(inputs)
        self._made = made = self._programs.find(tuple(array.shape for array in inputs))
        self._given, executable = [*inputs], made.executable
        values = executable.outputs
        self._names = [f"input {at}" for at in range(len(inputs))]
        self._results = (
            [sizes(value) for value in values.values()],
            [value.dtype for value in values.values()],
            [f"output {at}" for at in range(len(values))],
        )
        fixed = executable.constant_outputs
        self._constants = [(at, fixed[name]) for at, name in enumerate(values) if name in fixed]
        self._written = [np.empty(0)] * len(values)  # nothing yet
        if made.tail is None:
            caller, arena = executable.callers.take(executable.caller), executable.arenas.take(executable.run_bytes)
            if caller.start != arena.address or caller.looks:
                caller.take_place(arena)
            self._caller, self._arena = caller, arena

    def _run_with_tail(self, inputs: Sequence[np.ndarray], stop: Stop | None) -> list[np.ndarray]:
        """A run in which sizes are found."""
        graph, made = self._body.ends.graph, self._made
        outputs = arrays_for(made.executable.outputs, {}, inputs)
        made.executable.run(inputs, list(outputs.values()), stop=stop)
        assert made.tail is not None
        known: Mapping[str, np.ndarray] = {**dict(zip(graph.inputs, inputs, strict=True)), **outputs}
        results = made.tail.finished(known, stop)
        return [results[name] for name in graph.outputs]

    def _end(self) -> None:
        """Give back what was taken."""
        if not self._given:
            return
        self._given = []
        made = self._made
        if made.tail is None:
            made.executable.callers.give_back(self._caller)
            made.executable.arenas.give_back(self._arena)
        self._programs.remember(made)
