"""A network for inputs of certain sizes, ready to run: kernels, constants, callers; a run takes an arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autotune.data_classes import dataclass
from autotune.locks import lazy
from cpuconv.conv.choice.target import Target
from cpuconv.errors import CpuconvError
from cpuconv.graph.ir import Value
from cpuconv.graph.stopping import Stop
from cpuconv.kernels.binding.steps import Step
from cpuconv.kernels.calls.timed import Stopwatch
from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.memory.arenas import Arena, Arenas
from cpuconv.network.running.arena import Memory
from cpuconv.network.running.caller import Caller, Segment
from cpuconv.network.running.callers import Callers
from cpuconv.network.selection.layout import NodePlan
from cpuconv.problem.integers import divide


@dataclass(frozen=True)
class CompiledNode:
    """What one node does when the network runs.

    Attributes
    ----------
    node_plan : NodePlan
    steps : list[Step]
        Kernel calls; none if the reference computes the node.
    host : bool
        Whether it does.
    inputs, weights, outputs : int
        Bytes of its operands, those that are constant as `weights`.
    shape : tuple of int
        Of its first output.
    types : str
        Of elements, as `element_types.types_of` writes them.
    """

    node_plan: NodePlan
    steps: list[Step]
    host: bool
    inputs: int
    weights: int
    outputs: int
    shape: tuple[int, ...]
    types: str = ""

    @property
    def seconds(self) -> float:
        """By the model; 0 where a reference computes the node."""
        return 0.0 if self.node_plan.offer is None else self.node_plan.offer.seconds


@dataclass(frozen=True, eq=False)
class Executable:
    """A network with fixed sizes, as `building.build` makes it; nothing but its callers changes.

    Attributes
    ----------
    target : Target
    inputs, outputs : mapping of str to Value
        Shape and dtype of each.
    works : list[CompiledNode]
        What runs, in order; views and what is written in place by others do not appear.
    sets : list[list[int]]
        Places of works that run side by side, in order.
    segments : list of Segment
        The same as recorded kernel calls, with the nodes between them that references compute.
    memory : Memory
    constants : mapping of str to numpy.ndarray
        Arrays at fixed addresses, by base; packed weights among them.
    constant_outputs : mapping of str to numpy.ndarray
    raw_bytes : int
        Of the constants that its nodes read, as the graph had them; it lets go of them.
    workspace_bytes : int
    own_bytes : int
        Bytes that no other program reads, objects roughly counted and callers left out.
    callers : Callers
    arenas : Arenas
        Memory for runs, of other programs too.
    """

    target: Target
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    works: list[CompiledNode]
    sets: list[list[int]]
    segments: list[Segment]
    memory: Memory
    constants: Mapping[str, np.ndarray]
    constant_outputs: Mapping[str, np.ndarray]
    raw_bytes: int
    workspace_bytes: int
    own_bytes: int
    callers: Callers
    arenas: Arenas

    @property
    def constant_bytes(self) -> int:
        """Of constants, packed weights among them."""
        return sum(array.nbytes for array in self.constants.values())

    @property
    def nbytes(self) -> int:
        """Bytes that are free once it is forgotten: more, the more callers there were at once; arenas are others'."""
        return self.own_bytes + self.callers.nbytes

    @lazy
    def run_bytes(self) -> int:
        """Of the memory of one run."""
        return self._workspace_start + self.workspace_bytes + ALIGNMENT

    @lazy
    def _workspace_start(self) -> int:
        """Where the workspace lies, behind the values and room for vectors that reach beyond them."""
        return divide(self.memory.arena, ALIGNMENT) * ALIGNMENT + ALIGNMENT

    def run(self, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, stop: Stop | None = None) -> None:
        """Compute the outputs, into the given arrays; several threads may do so at once.

        Parameters
        ----------
        arrays, outputs : sequence of numpy.ndarray
            In the order of the network's inputs and outputs, C-contiguous, of the right shapes and dtypes.
        stop : Stop or None
            What may end the run between two kernels.

        Raises
        ------
        SourceError
            A node that a reference computes cannot take what it is given.
        RunStopped
            `stop` said so. What the outputs hold then is of no meaning.
        """
        caller, arena = self.callers.take(self.caller), self.arenas.take(self.run_bytes)
        try:
            if caller.start != arena.address or caller.looks:
                caller.take_place(arena)
            caller.point(arrays, outputs)
            caller.run(stop)
        except CpuconvError:  # between two nodes; after any other exception neither is taken again
            self.callers.give_back(caller)
            self.arenas.give_back(arena)
            raise
        self.callers.give_back(caller)
        self.arenas.give_back(arena)
        if self.constant_outputs:
            for name, output in zip(self.outputs, outputs, strict=True):
                if name in self.constant_outputs:
                    output[...] = self.constant_outputs[name]

    def caller(self, segments: Sequence[Segment] | None = None, watch: Stopwatch | None = None) -> Caller:
        """One more caller of the segments, or of others of this network; timed by `watch`."""
        segments = self.segments if segments is None else segments
        return Caller(segments, self._workspace_start, self.constants, watch)

    def caller_in_place(self, segments: Sequence[Segment] | None = None, watch: Stopwatch | None = None) -> Caller:
        """The same with memory of its own."""
        made = self.caller(segments, watch)
        made.own = Arena(self.run_bytes)
        made.take_place(made.own)
        return made

    def release(self) -> None:
        """Free what the next runs would take over."""
        self.callers.release()
        self.arenas.release()
