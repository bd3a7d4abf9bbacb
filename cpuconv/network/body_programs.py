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
from cpuconv.graph.stopping import Stop
from cpuconv.memory.aligned import aligned
from cpuconv.network.control.bodies import Ends, as_inputs
from cpuconv.network.control.flow import Flow
from cpuconv.network.dynamic_suffix import Tail
from cpuconv.network.ports import arrays_for, sizes
from cpuconv.network.running.caller import Caller
from cpuconv.network.running.executable import Executable
from cpuconv.network.sizes.specialise import sized


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


class _Side:
    """A caller of a program, and the arrays that it has the addresses of."""

    __slots__ = ("caller", "given", "written")

    def __init__(self, caller: Caller | None, inputs: int, outputs: int) -> None:
        self.caller = caller
        self.given: list[np.ndarray | None] = [None] * inputs
        self.written: list[np.ndarray | None] = [None] * outputs


class ProgramStep:
    """Runs of a body by its programs.

    As long as shapes stay, two callers take turns: carried values trade memory, so that each of them has the right
    addresses every other time. Callers and the memory of a run are taken once for all runs.
    """

    def __init__(self, body: ProgramBody) -> None:
        self._body = body
        self._made: Program | None = None
        self._turn = 0

    def __enter__(self) -> ProgramStep:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or issubclass(kind, CpuconvError):  # after any other nothing is taken again
            self._end()

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None], stop: Stop | None
    ) -> list[np.ndarray]:
        """As `Step` says."""
        if self._made is None:
            self._begin(inputs)
        if len(self._sides) < 2:
            self._sides.append(_Side(self._caller(), len(inputs), len(self._values)))
        side = self._sides[self._turn]
        self._turn = 1 - self._turn
        caller, given, written = side.caller, side.given, side.written
        for at, array in enumerate(inputs):
            if array is not given[at]:
                if array.shape != self._shapes[at] or array.dtype != self._dtypes[at]:
                    self._end()
                    return self.run(inputs, outputs, stop)
                given[at] = array
                if caller is not None:
                    caller.place(f"input {at}", array)
        if caller is None:
            return self._run_with_tail(inputs, stop)
        for at, output in enumerate(outputs):
            if output is None or output is not written[at]:
                value = self._values[at]
                if output is None or output.shape != value.shape or output.dtype != value.dtype:
                    output = aligned(sizes(value), value.dtype)
                written[at] = output
                caller.place(f"output {at}", output)
        caller.run(stop)
        made = [array for array in written if array is not None]  # all of them by now
        for at, array in self._constants:
            made[at][...] = array
        return made

    def _begin(self, inputs: Sequence[np.ndarray]) -> None:
        """Take the program for these inputs, callers of it and memory."""
        self._programs = self._body.programs_for(inputs)
        self._shapes, self._dtypes = tuple(array.shape for array in inputs), [array.dtype for array in inputs]
        made = self._programs.find(self._shapes)
        executable = made.executable
        self._values, fixed = list(executable.outputs.values()), executable.constant_outputs
        self._constants = [(at, fixed[name]) for at, name in enumerate(executable.outputs) if name in fixed]
        self._sides: list[_Side] = []
        self._turn, self._made = 0, made
        self._arena = None if made.tail is not None else executable.arenas.take(executable.run_bytes)

    def _caller(self) -> Caller | None:
        """One more caller; None where sizes are found in the run."""
        if self._made is None or self._arena is None:
            return None
        executable = self._made.executable
        caller = executable.callers.take(executable.caller)
        caller.take_place(self._arena)
        return caller

    def _run_with_tail(self, inputs: Sequence[np.ndarray], stop: Stop | None) -> list[np.ndarray]:
        """A run in which sizes are found."""
        graph, made = self._body.ends.graph, self._made
        assert made is not None and made.tail is not None
        outputs = arrays_for(made.executable.outputs, {}, inputs)
        made.executable.run(inputs, list(outputs.values()), stop=stop)
        known: Mapping[str, np.ndarray] = {**dict(zip(graph.inputs, inputs, strict=True)), **outputs}
        results = made.tail.finished(known, stop)
        return [results[name] for name in graph.outputs]

    def _end(self) -> None:
        """Give back what was taken."""
        made, self._made = self._made, None
        if made is None:
            return
        for side in self._sides:
            if side.caller is not None:
                made.executable.callers.give_back(side.caller)
        if self._arena is not None:
            made.executable.arenas.give_back(self._arena)
        self._programs.remember(made)
