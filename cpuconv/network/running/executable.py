"""A network for inputs of certain sizes, ready to run: kernels, constants, and an arena for each caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import layouts
from cpuconv.errors import CpuconvError
from cpuconv.graph import ops
from cpuconv.graph.ir import Node
from cpuconv.graph.limits import check_bytes, nbytes
from cpuconv.graph.lowering import Call, Target
from cpuconv.graph.mapped_constants import let_go, own
from cpuconv.graph.stopping import Stop
from cpuconv.kernels.binding.place import BLOCKED, Place, image_shape
from cpuconv.kernels.binding.steps import Ref, Space, Step
from cpuconv.kernels.calls.timed import Stopwatch
from cpuconv.network.running.arena import ARENA, WORKSPACE, constant_place, plan_memory
from cpuconv.network.running.caller import Caller, Host, Segment
from cpuconv.network.running.callers import Callers
from cpuconv.network.running.constants import FixedConstants
from cpuconv.network.running.packed import Packed
from cpuconv.network.running.recording import Recording
from cpuconv.network.running.schedule import Touched, scheduled, sets
from cpuconv.network.selection.layout import Laid, Layout

_WORK_BYTES = 1 << 14  # of a work's Python objects: its node, offer, steps and lines of `explain`


@dataclass(frozen=True)
class Work:
    """What one node does when the network runs.

    Attributes
    ----------
    laid : Laid
    steps : list[Step]
        Kernel calls; none if the reference computes the node.
    host : bool
        Whether it does.
    inputs, weights, outputs : int
        Bytes of its operands, those that are constant as `weights`.
    shape : tuple of int
        Of its first output.
    """

    laid: Laid
    steps: list[Step]
    host: bool
    inputs: int
    weights: int
    outputs: int
    shape: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """By the model; 0 where a reference computes the node."""
        return 0.0 if self.laid.offer is None else self.laid.offer.seconds


class Executable:
    """A network with fixed sizes.

    Attributes
    ----------
    works : list[Work]
        What runs, in order; views and what is written in place by others do not appear.
    sets : list[list[int]]
        Places of works that run side by side, in order.
    segments : list of Segment
        The same as recorded kernel calls, with the nodes between them that references compute.
    memory : Memory
    raw_bytes : int
        Of the constants that its nodes read, as the graph had them; it lets go of them.
    callers : Callers
    constant_bytes : int
        Of constants, packed weights among them.
    workspace_bytes : int
    target : Target
    """

    def __init__(self, laid: Layout, target: Target, packed: Packed) -> None:
        self.target = target
        laid, moments = scheduled(laid)
        self._graph = laid.graph
        self._inputs = {name: laid.graph.value(name) for name in laid.graph.inputs}
        self._outputs = laid.outputs
        self._output_values = {name: laid.graph.value(value) for name, value in laid.outputs.items()}
        self.memory = plan_memory(laid, target.isa.lanes, moments)
        outputs = sum(nbytes(value) for value in self._output_values.values())
        check_bytes(self.memory.arena + outputs, f"{laid.graph.name}: a run")
        self._constants = FixedConstants(laid.graph.constants, packed)
        self._forms: dict[tuple[str, str], Place] = {}
        self._hosts: dict[int, Host] = {}
        self._read_by_hosts: dict[str, np.ndarray] = {}  # constants, of this program's own
        self.workspace_bytes = 0
        self._space = Space()  # of the nodes of a moment
        self.raw_bytes = sum(laid.graph.constants[name].nbytes for name in self._last_reads(laid))
        self._fixed = {
            name: own(laid.graph.constants[value])
            for name, value in laid.outputs.items()
            if value in laid.graph.constants
        }
        self.works, self.sets = self._works(laid, moments)
        self.segments = self._record()
        self._check_addresses()
        self.constant_bytes = sum(array.nbytes for array in self._constants.arrays.values())
        self._graph = None  # type: ignore[assignment]  # raw weights are not kept beside packed ones
        self._constants.seal()
        self._forms.clear()
        self._hosts.clear()
        self._read_by_hosts.clear()
        self._own_bytes, each = self._sizes()
        self.callers = Callers(each, target.idle_bytes)

    # --- building -------------------------------------------------------------------------------------------------

    def _last_reads(self, laid: Layout) -> dict[str, int]:
        """The constants that nodes read, with the place of the last node that does."""
        constants = laid.graph.constants
        return {name: at for at, each in enumerate(laid.nodes) for name in each.node.inputs if name in constants}

    def _works(self, laid: Layout, moments: Sequence[int]) -> tuple[list[Work], list[list[int]]]:
        """What runs, in order, and which of it side by side. A constant goes when its last reader has packed it: those
        of a network fill memory."""
        ending: dict[int, list[str]] = {}
        for name, at in self._last_reads(laid).items():
            ending.setdefault(at, []).append(name)
        works: list[Work] = []
        touched: list[Touched] = []
        for at, each in enumerate(laid.nodes):
            if at and moments[at] != moments[at - 1]:
                self._space = Space()
            for work in self._work(each):
                works.append(work)
                touched.append(self._touched(moments[at], work))
            let_go(laid.graph.constants[name] for name in each.node.inputs if name in laid.graph.constants)
            for name in ending.get(at, ()):
                laid.graph.forget(name)
        return works, sets(touched)

    def _touched(self, moment: int, work: Work) -> Touched:
        node, places = work.laid.node, self.memory.places
        read, written = ([places[name] for name in names if name in places] for names in (node.inputs, node.outputs))
        return Touched(moment, work.steps, read, written)

    def _work(self, laid: Laid) -> list[Work]:
        node = laid.node
        if laid.offer is None:
            self._hosts[id(node)] = self._host(node)
        if laid.offer is not None and laid.offer.view:
            return []
        steps = [] if laid.offer is None else self._lowered(laid)
        if laid.offer is not None and not steps:  # written in place by others
            return []
        constants, places = self._graph.constants, self.memory.places
        read = [name for name in dict.fromkeys(node.inputs) if name]
        return [
            Work(
                laid,
                steps,
                laid.offer is None,
                sum(places[name].size for name in read if name not in constants),
                sum(constants[name].nbytes for name in read if name in constants),
                sum(places[name].size for name in node.outputs if name),
                places[next(filter(None, node.outputs))].shape,
            )
        ]

    def _lowered(self, laid: Laid) -> list[Step]:
        node = laid.node
        assert laid.offer is not None
        inputs = [self._operand(name, laid.reads(at)) if name else None for at, name in enumerate(node.inputs)]
        outputs = [self.memory.places[name] for name in node.outputs if name]
        lower = ops.TABLE[node.op].lower
        assert lower is not None
        steps = lower(Call(node, inputs, outputs, laid.offer, self.target, self._space, self._constants))
        self.workspace_bytes = max(self.workspace_bytes, self._space.size)
        return steps

    def _operand(self, name: str, lies: str) -> Place:
        """Where an input of a node lies; constants are put into the form that the node reads, once."""
        array = self._graph.constants.get(name)
        if array is None:
            return self.memory.places[name]
        if not lies:  # its elements are read here and now
            return Place.plain(Ref("none"), array.shape, array.dtype, array)
        place = self._forms.get((name, lies))
        if place is None:
            lanes = self.target.isa.lanes
            ref = self._constants.packed(name, ("operand", lies), lambda: _lying(array, lies, lanes))
            place = self._forms[name, lies] = constant_place(ref, array, lies, lanes)
        return place

    def _record(self) -> list[Segment]:
        """Runs of kernel calls, with the nodes between them that references compute."""
        segments: list[Segment] = []
        steps: list[Step] = []
        sizes: list[int] = []  # of sets of steps
        seconds: list[float] = []  # of each
        for each in self.sets:
            work = self.works[each[0]]
            if not work.host:
                steps += [step for at in each for step in self.works[at].steps]
                rows = [len(each)] if len(each) > 1 else [1] * len(work.steps)
                sizes += rows
                seconds += [sum(self.works[at].seconds for at in each) / len(rows)] * len(rows)
                continue
            if steps:
                segments.append(Recording(steps, self.target.threads, sizes, seconds))
                steps, sizes, seconds = [], [], []
            segments.append(self._hosts[id(work.laid.node)])
        if steps or not segments:
            segments.append(Recording(steps, self.target.threads, sizes, seconds))
        return segments

    def _check_addresses(self) -> None:
        """See that every address has a base that a run knows: any other would be read at a place of no meaning."""
        known = {ARENA, WORKSPACE, *self._constants.arrays}
        known |= {f"input {at}" for at in range(len(self._inputs))}
        known |= {f"output {at}" for at in range(len(self._outputs))}
        for segment in self.segments:
            if isinstance(segment, Recording) and segment.bases - known:
                raise RuntimeError(f"addresses without a base: {', '.join(sorted(segment.bases - known))}")

    def _host(self, node: Node) -> Host:
        for name in node.inputs:
            if name in self._graph.constants and name not in self._read_by_hosts:
                self._read_by_hosts[name] = own(self._graph.constants[name])
        operands = [
            None if not name else self._read_by_hosts.get(name, self.memory.places.get(name)) for name in node.inputs
        ]
        outputs = [self.memory.places[name] if name else None for name in node.outputs]
        return Host(node, operands, outputs)

    def _sizes(self) -> tuple[int, int]:
        """Bytes of its own, objects roughly counted, and for each caller at a time."""
        words = sum(segment.nbytes for segment in self.segments if isinstance(segment, Recording))
        arrays = sum(step.nbytes for work in self.works for step in work.steps)
        own = self._constants.own_bytes + arrays + words + _WORK_BYTES * len(self.works)
        return own, self.memory.arena + self.workspace_bytes + words

    @property
    def nbytes(self) -> int:
        """Bytes that are free once it is forgotten: more, the more callers there were at once."""
        return self._own_bytes + self.callers.nbytes

    # --- running --------------------------------------------------------------------------------------------------

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
        caller = self.callers.take(self.caller)
        try:
            caller.point(arrays, outputs)
            caller.run(stop)
        except CpuconvError:  # between two nodes; after any other exception it is not taken again
            self.callers.give_back(caller)
            raise
        self.callers.give_back(caller)
        for output, array in self._fixed_outputs(outputs):
            output[...] = array

    def caller(self, segments: Sequence[Segment] | None = None, watch: Stopwatch | None = None) -> Caller:
        """Memory for one more caller, bound to the segments, or to others of this network; timed by `watch`."""
        segments = self.segments if segments is None else segments
        return Caller(segments, self.memory.arena, self.workspace_bytes, self._constants.arrays, watch)

    def _fixed_outputs(self, outputs: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Outputs of the network that are constants."""
        if not self._fixed:
            return []
        return [
            (out, self._fixed[name]) for name, out in zip(self._outputs, outputs, strict=True) if name in self._fixed
        ]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Shape and dtype of each input, as `Value`."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Shape and dtype of each output, as `Value`."""
        return self._output_values

    @property
    def constants(self) -> Mapping[str, np.ndarray]:
        """Arrays at fixed addresses, by base."""
        return self._constants.arrays


def _lying(array: np.ndarray, lies: str, lanes: int) -> np.ndarray:
    """A constant as a node reads it."""
    if lies == BLOCKED:
        return layouts.from_nchw(array.reshape(image_shape(array.shape)), layouts.blocked(lanes))
    return np.ascontiguousarray(array)
