"""Bodies of If, Loop and Scan as programs: compiled once per input sizes, and run repeatedly."""

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
from cpuconv.graph.stopping import Stop
from cpuconv.memory.aligned import aligned
from cpuconv.network.control.bodies import Ends, as_inputs
from cpuconv.network.control.flow import Flow
from cpuconv.network.dynamic_suffix import DynamicSuffix
from cpuconv.network.ports import sizes
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.execution_context import ExecutionContext
from cpuconv.network.sizes.specialise import sized


class Program(Protocol):
    """An executable body for inputs of given sizes."""

    @property
    def executable(self) -> Executable:
        """The kernel calls of the program."""

    @property
    def suffix(self) -> DynamicSuffix | None:
        """The dynamic suffix, which runs after the kernels."""


class BodyPrograms(Protocol):
    """The programs of a body."""

    @property
    def nbytes(self) -> int:
        """Size of the cached programs, in bytes."""

    def find(self, shapes: tuple[tuple[int, ...], ...]) -> Program:
        """The program for inputs of these shapes."""

    def remember(self, made: Any) -> None:
        """Cache a program with its current size."""

    def kernels(self) -> frozenset[str]:
        """Names of the kernels that the programs call."""


Part = Callable[[Graph], BodyPrograms]


class Bodies:
    """The bodies of a network's control-flow nodes; each is dropped with its graph.

    Parameters
    ----------
    part : callable
        Returns the programs of a body. Packed weights are shared with the network.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._made: weakref.WeakKeyDictionary[Graph, ProgramBody] = weakref.WeakKeyDictionary()

    @property
    def nbytes(self) -> int:
        """Size of the bodies' programs, in bytes."""
        return sum(each.nbytes for body in list(self._made.values()) for each in body.programs)

    def kernels(self) -> frozenset[str]:
        """Names of the kernels that the bodies' programs call."""
        found = [each.kernels() for body in list(self._made.values()) for each in body.programs]
        return frozenset().union(*found)

    def bound(self, graph: Graph) -> Graph:
        """The graph, with bodies of its control-flow nodes run by programs."""
        if not any(map(is_control, graph.nodes)):
            return graph
        flows = {op: Flow(sized, partial(self._body, op == "Loop")) for op in BODIES}
        nodes = [replace(node, semantics=flows[node.op]) if is_control(node) else node for node in graph.nodes]
        return replace(graph, nodes=tuple(nodes))

    def _body(self, changing: bool, graph: Graph) -> ProgramBody:
        made = self._made.get(graph)
        return self._made.setdefault(graph, ProgramBody(graph, changing, self._part)) if made is None else made


class ProgramBody:
    """A body that is run by programs; several threads may run it concurrently.

    Attributes
    ----------
    ends : Ends
    """

    def __init__(self, graph: Graph, changing: int, part: Part) -> None:
        self.ends, self._part = Ends.of(graph, changing), part
        self._programs: dict[tuple[tuple[int, np.dtype], ...], BodyPrograms] = {}  # by rank and dtype of each input

    @property
    def programs(self) -> list[BodyPrograms]:
        """The programs for each combination of ranks and dtypes of the inputs."""
        return list(self._programs.values())

    def step(self) -> ProgramStep:
        """Runs of the body in one thread."""
        return ProgramStep(self)

    def programs_for(self, inputs: Sequence[np.ndarray]) -> BodyPrograms:
        """The programs for the ranks and dtypes of these inputs."""
        kind = tuple((array.ndim, array.dtype) for array in inputs)
        programs = self._programs.get(kind)
        if programs is None:
            graph = as_inputs(self.ends.graph, [Value((None,) * rank, dtype) for rank, dtype in kind])
            programs = self._programs.setdefault(kind, self._part(graph))
        return programs


class _Side:
    """An execution context of a program, and the arrays whose addresses it has."""

    __slots__ = ("context", "given", "written")

    def __init__(self, context: ExecutionContext | None, inputs: int, outputs: int) -> None:
        self.context = context
        self.given: list[np.ndarray | None] = [None] * inputs
        self.written: list[np.ndarray | None] = [None] * outputs


class ProgramStep:
    """Runs of a body by its programs.

    While shapes stay the same, two contexts alternate. Carried values swap their memory in each run, so each has
    the right addresses every second run. Contexts and the arena are taken once for all runs.
    """

    def __init__(self, body: ProgramBody) -> None:
        self._body = body
        self._made: Program | None = None
        self._turn = 0

    def __enter__(self) -> ProgramStep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or issubclass(kind, CpuconvError):  # after any other error, contexts are not reused
            self._end()

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None], stop: Stop | None
    ) -> list[np.ndarray]:
        """Run the body once, as specified by `Step`."""
        if self._made is None:
            self._begin(inputs)
        if len(self._sides) < 2:
            self._sides.append(_Side(self._context(), len(inputs), len(self._values)))
        side = self._sides[self._turn]
        self._turn = 1 - self._turn
        context, given, written = side.context, side.given, side.written
        for at, array in enumerate(inputs):
            if array is not given[at]:
                if array.shape != self._shapes[at] or array.dtype != self._dtypes[at]:
                    self._end()
                    return self.run(inputs, outputs, stop)
                given[at] = array
                if context is not None:
                    context.place(f"input {at}", array)
        if context is None:
            return self._run_with_tail(inputs, stop)
        for at, output in enumerate(outputs):
            if output is None or output is not written[at]:
                value = self._values[at]
                if output is None or output.shape != value.shape or output.dtype != value.dtype:
                    output = aligned(sizes(value), value.dtype)
                written[at] = output
                context.place(f"output {at}", output)
        context.run(stop)
        made = [array for array in written if array is not None]  # none is None here
        for at, array in self._constants:
            made[at][...] = array
        return made

    def _begin(self, inputs: Sequence[np.ndarray]) -> None:
        """Take the program for these inputs, and an arena."""
        self._programs = self._body.programs_for(inputs)
        self._shapes, self._dtypes = tuple(array.shape for array in inputs), [array.dtype for array in inputs]
        made = self._programs.find(self._shapes)
        executable = made.executable
        self._values, fixed = list(executable.outputs.values()), executable.constant_outputs
        self._constants = [(at, fixed[name]) for at, name in enumerate(executable.outputs) if name in fixed]
        self._sides: list[_Side] = []
        self._turn, self._made = 0, made
        self._arena = None if made.suffix is not None else executable.arenas.take(executable.run_bytes)

    def _context(self) -> ExecutionContext | None:
        """Take one more context; None if the program has a dynamic suffix."""
        if self._made is None or self._arena is None:
            return None
        executable = self._made.executable
        context = executable.contexts.take(executable.context)
        context.take_place(self._arena)
        return context

    def _run_with_tail(self, inputs: Sequence[np.ndarray], stop: Stop | None) -> list[np.ndarray]:
        """Run a program that has a dynamic suffix."""
        graph, made = self._body.ends.graph, self._made
        assert made is not None and made.suffix is not None
        outputs = made.executable.output_arrays.new()
        made.executable.run(inputs, list(outputs.values()), stop=stop)
        known: Mapping[str, np.ndarray] = {**dict(zip(graph.inputs, inputs, strict=True)), **outputs}
        results = made.suffix.finished(known, stop)
        return [results[name] for name in graph.outputs]

    def _end(self) -> None:
        """Return the contexts and the arena."""
        made, self._made = self._made, None
        if made is None:
            return
        for side in self._sides:
            if side.context is not None:
                made.executable.contexts.give_back(side.context)
        if self._arena is not None:
            made.executable.arenas.give_back(self._arena)
        self._programs.remember(made)
