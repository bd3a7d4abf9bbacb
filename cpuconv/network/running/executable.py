"""Executable: a network with given sizes: its kernels, constants and execution contexts; each run uses an arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.conv.choice.target import Target
from cpuconv.errors import CpuconvError
from cpuconv.graph.ir import Value
from cpuconv.graph.stopping import Stop
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.calls.timed import Stopwatch
from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.memory.arenas import Arena, Arenas
from cpuconv.network.ports import OutputArrays
from cpuconv.network.running.arena import Memory
from cpuconv.network.running.context_pool import ContextPool
from cpuconv.network.running.execution_context import ExecutionContext, Segment
from cpuconv.network.selection.layout import NodePlan
from cpuconv.problem.integers import divide


@dataclass(frozen=True)
class CompiledNode:
    """The compiled form of one node.

    Attributes
    ----------
    node_plan : NodePlan
    steps : list[Step]
        Kernel calls; empty if the reference computes the node.
    host : bool
        Whether the reference computes the node.
    inputs, weights, outputs : int
        Sizes of its operands, in bytes; constant inputs count as `weights`.
    shape : tuple of int
        Shape of its first output.
    types : str
        Element types, as formatted by `element_types.types_of`.
    """

    node_plan: NodePlan
    steps: list[Step]
    host: bool
    inputs: int
    weights: int
    outputs: int
    shape: tuple[int, ...]
    types: str = ""


@dataclass(frozen=True, eq=False)
class Executable:
    """A network with fixed sizes, made by `building.build`; immutable except for its contexts.

    Attributes
    ----------
    target : Target
    inputs, outputs : mapping of str to Value
        Shape and dtype of each.
    operations : list[CompiledNode]
        The nodes that run, in order; without views and nodes whose inputs are written directly into their output.
    groups : list[list[int]]
        Indices of nodes that run concurrently, in order.
    segments : list of Segment
        The same as recorded kernel calls, and between them the nodes that references compute.
    memory : Memory
    constants : mapping of str to numpy.ndarray
        Arrays at fixed addresses by base, including packed weights.
    constant_outputs : mapping of str to numpy.ndarray
    raw_bytes : int
        Size of the raw constants that its nodes read, in bytes; these have been released.
    workspace_bytes : int
    own_bytes : int
        Approximate size of data that no other program reads, in bytes, without contexts.
    contexts : ContextPool
    arenas : Arenas
        Memory of runs, shared with other programs.
    """

    target: Target
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    operations: list[CompiledNode]
    groups: list[list[int]]
    segments: list[Segment]
    memory: Memory
    constants: Mapping[str, np.ndarray]
    constant_outputs: Mapping[str, np.ndarray]
    raw_bytes: int
    workspace_bytes: int
    own_bytes: int
    contexts: ContextPool
    arenas: Arenas

    @property
    def constant_bytes(self) -> int:
        """Size of the constants, including packed weights, in bytes."""
        return sum(array.nbytes for array in self.constants.values())

    @property
    def nbytes(self) -> int:
        """Memory that is freed when the network is dropped, in bytes; without arenas; grows with concurrent runs."""
        return self.own_bytes + self.contexts.nbytes

    @lazy
    def run_bytes(self) -> int:
        """Size of the memory of one run, in bytes."""
        return self._workspace_start + self.workspace_bytes + ALIGNMENT

    @lazy
    def _workspace_start(self) -> int:
        """Offset of the workspace, after the values and a margin for vectors that extend beyond them."""
        return divide(self.memory.arena, ALIGNMENT) * ALIGNMENT + ALIGNMENT

    @lazy
    def output_arrays(self) -> OutputArrays:
        """The arrays of its outputs."""
        return OutputArrays(self.outputs)

    def run(self, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, stop: Stop | None = None) -> None:
        """Compute the outputs into the given arrays; several threads may do so concurrently.

        Parameters
        ----------
        arrays, outputs : sequence of numpy.ndarray
            Arrays in the order of the network's inputs and outputs, C-contiguous, of the right shapes and dtypes.
        stop : Stop or None
            May end the run between two kernels.

        Raises
        ------
        SourceError
            A node that a reference computes does not accept its inputs.
        RunStopped
            `stop` ended the run. The contents of the outputs are then undefined.
        """
        context, arena = self.contexts.take(self.context), self.arenas.take(self.run_bytes)
        try:
            if context.start != arena.address or context.looks:
                context.take_place(arena)
            context.point(arrays, outputs)
            context.run(stop)
        except CpuconvError:  # raised between two nodes; after any other exception neither is reused
            self.contexts.give_back(context)
            self.arenas.give_back(arena)
            raise
        self.contexts.give_back(context)
        self.arenas.give_back(arena)
        if self.constant_outputs:
            for name, output in zip(self.outputs, outputs, strict=True):
                if name in self.constant_outputs:
                    output[...] = self.constant_outputs[name]

    def context(self, segments: Sequence[Segment] | None = None, watch: Stopwatch | None = None) -> ExecutionContext:
        """Make a context of the segments, or of other segments of this network; timed by `watch`."""
        segments = self.segments if segments is None else segments
        return ExecutionContext(segments, self._workspace_start, self.constants, watch)

    def context_in_place(
        self, segments: Sequence[Segment] | None = None, watch: Stopwatch | None = None
    ) -> ExecutionContext:
        """Make a context with its own arena."""
        made = self.context(segments, watch)
        made.own = Arena(self.run_bytes)
        made.take_place(made.own)
        return made

    def release(self) -> None:
        """Free idle contexts and arenas."""
        self.contexts.release()
        self.arenas.release()
