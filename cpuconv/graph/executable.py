"""A network for inputs of certain sizes, ready to run: kernels, constants, and an arena for each caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import layouts
from cpuconv.graph import memory, ops
from cpuconv.graph.abreast import Touched, abreast, sets
from cpuconv.graph.elements import let_go, own
from cpuconv.graph.interpret import run
from cpuconv.graph.ir import Node
from cpuconv.graph.kernels.timed import Stopwatch, now
from cpuconv.graph.layout import Laid, Layout
from cpuconv.graph.limits import check_bytes, nbytes
from cpuconv.graph.lowering import Call, Target
from cpuconv.graph.memory import ARENA, WORKSPACE, constant_place
from cpuconv.graph.packed import Packed
from cpuconv.graph.place import BLOCKED, Place, image_shape
from cpuconv.graph.program import Bound, Recording
from cpuconv.memory.pages import large
from cpuconv.problem.arrays import address
from cpuconv.solvers.shared.base import Ref, Space, Step

_WORK_BYTES = 1 << 14  # of a work's Python objects: its node, offer, steps and lines of `explain`


class _Constants:
    """Arrays that a program needs at fixed addresses."""

    def __init__(self, raw: Mapping[str, np.ndarray], packed: Packed) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.shared: set[str] = set()  # those that other programs may read too
        self._raw, self._packed = raw, packed
        self._names: dict[int, str] = {}

    @property
    def own_bytes(self) -> int:
        """Of those that no other program reads."""
        return sum(array.nbytes for name, array in self.arrays.items() if name not in self.shared)

    def keep(self, array: np.ndarray) -> Ref:
        """The address of a C-contiguous array."""
        return self._placed(own(array))

    def packed(self, name: str, form: Any, make: Callable[[], np.ndarray]) -> Ref:
        """The address of a constant in a packed form."""
        kept = self._placed(self._packed.get(self._raw[name], form, make))
        self.shared.add(kept.name)
        return kept

    def _placed(self, array: np.ndarray) -> Ref:
        name = self._names.get(id(array))
        if name is None:
            name = self._names[id(array)] = f"constant {len(self.arrays)}"
            self.arrays[name] = array
        return Ref(name)

    def room(self, size: int) -> np.ndarray:
        """Memory for a constant in a packed form."""
        return self._packed.pool.take(size)

    def sealed(self) -> None:
        """Let go of what constants were packed from."""
        self._raw = {}


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


@dataclass(frozen=True)
class Span:
    """What a worker did for the work at a place, in seconds from the start of the run."""

    work: int
    worker: int
    start: float
    end: float


@dataclass(frozen=True)
class Watched:
    """A whole run: how long it took, and its spans."""

    seconds: float
    spans: list[Span]


class Executable:
    """A network with fixed sizes.

    Attributes
    ----------
    works : list[Work]
        What runs, in order; views and what is written in place by others do not appear.
    sets : list[list[int]]
        Places of works that run side by side, in order.
    memory : Memory
    raw_bytes : int
        Of the constants that its nodes read, as the graph had them; it lets go of them.
    constant_bytes : int
        Of constants, packed weights among them.
    workspace_bytes : int
    target : Target
    """

    def __init__(self, laid: Layout, target: Target, packed: Packed) -> None:
        self.target = target
        laid, moments = abreast(laid)
        self._graph = laid.graph
        self._inputs = {name: laid.graph.value(name) for name in laid.graph.inputs}
        self._outputs = laid.outputs
        self._output_values = {name: laid.graph.value(value) for name, value in laid.outputs.items()}
        self.memory = memory.plan(laid, target.isa.lanes, moments)
        outputs = sum(nbytes(value) for value in self._output_values.values())
        check_bytes(self.memory.arena + outputs, f"{laid.graph.name}: a run")
        self._constants = _Constants(laid.graph.constants, packed)
        self._forms: dict[tuple[str, str], Place] = {}
        self._hosts: dict[int, _Host] = {}
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
        self._segments = self._record()
        self._check_addresses()
        self.constant_bytes = sum(array.nbytes for array in self._constants.arrays.values())
        self._graph = None  # type: ignore[assignment]  # raw weights are not kept beside packed ones
        self._constants.sealed()
        self._forms.clear()
        self._hosts.clear()
        self._read_by_hosts.clear()
        self._free: list[_Context] = []
        self._contexts: list[None] = []  # one for each that was made; threads may append at once
        self._bytes = self._sizes()

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

    def _record(self) -> list[Recording | _Host]:
        """Runs of kernel calls, with the nodes between them that references compute."""
        segments: list[Recording | _Host] = []
        steps: list[Step] = []
        sizes: list[int] = []  # of sets of steps
        for each in self.sets:
            work = self.works[each[0]]
            if not work.host:
                steps += [step for at in each for step in self.works[at].steps]
                sizes += [len(each)] if len(each) > 1 else [1] * len(work.steps)
                continue
            if steps:
                segments.append(Recording(steps, self.target.threads, sizes))
                steps, sizes = [], []
            segments.append(self._hosts[id(work.laid.node)])
        if steps or not segments:
            segments.append(Recording(steps, self.target.threads, sizes))
        return segments

    def _check_addresses(self) -> None:
        """See that every address has a base that a run knows: any other would be read at a place of no meaning."""
        known = {ARENA, WORKSPACE, *self._constants.arrays}
        known |= {f"input {at}" for at in range(len(self._inputs))}
        known |= {f"output {at}" for at in range(len(self._outputs))}
        for segment in self._segments:
            if isinstance(segment, Recording) and segment.bases - known:
                raise RuntimeError(f"addresses without a base: {', '.join(sorted(segment.bases - known))}")

    def _host(self, node: Node) -> _Host:
        for name in node.inputs:
            if name in self._graph.constants and name not in self._read_by_hosts:
                self._read_by_hosts[name] = own(self._graph.constants[name])
        operands = [
            None if not name else self._read_by_hosts.get(name, self.memory.places.get(name)) for name in node.inputs
        ]
        outputs = [self.memory.places[name] if name else None for name in node.outputs]
        return _Host(node, operands, outputs)

    def _sizes(self) -> tuple[int, int]:
        """Bytes of its own, objects roughly counted, and for each caller at a time."""
        words = sum(segment.nbytes for segment in self._segments if isinstance(segment, Recording))
        arrays = sum(step.nbytes for work in self.works for step in work.steps)
        own = self._constants.own_bytes + arrays + words + _WORK_BYTES * len(self.works)
        return own, self.memory.arena + self.workspace_bytes + words

    @property
    def nbytes(self) -> int:
        """Bytes that are free once it is forgotten: more, the more callers there were at once."""
        own, each = self._bytes
        return own + each * len(self._contexts)

    # --- running --------------------------------------------------------------------------------------------------

    def run(self, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs, into the given arrays; several threads may do so at once.

        Parameters
        ----------
        arrays, outputs : sequence of numpy.ndarray
            In the order of the network's inputs and outputs, C-contiguous, of the right shapes and dtypes.
        """
        try:
            context = self._free.pop()
        except IndexError:
            context = _Context(self, self._segments)
            self._contexts.append(None)
        context.point(arrays, outputs)
        context.run()
        for output, array in self._fixed_outputs(outputs):
            output[...] = array
        context.release()
        self._free.append(context)

    def release(self) -> None:
        """Free the memory of callers that are not running."""
        del self._contexts[: len(self._free)]
        self._free.clear()

    def _fixed_outputs(self, outputs: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Outputs of the network that are constants."""
        if not self._fixed:
            return []
        return [
            (out, self._fixed[name]) for name, out in zip(self._outputs, outputs, strict=True) if name in self._fixed
        ]

    def time_works(
        self, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], runs: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of each work in each run, (runs, works), and of whole runs (runs): both are measured in turns."""
        single: list[Recording | _Host] = [
            self._host_of[id(work)] if work.host else Recording(work.steps, self.target.threads) for work in self.works
        ]
        apart, whole = _Context(self, single), _Context(self, self._segments)
        for context in (apart, whole):
            context.point(arrays, outputs)
            context.run()
        seconds, totals = np.zeros((runs, len(single))), np.zeros(runs)
        for turn in range(runs):
            for at, segment in enumerate(apart.segments):
                start = time.perf_counter()
                segment()
                seconds[turn, at] = time.perf_counter() - start
            start = time.perf_counter()
            whole.run()
            totals[turn] = time.perf_counter() - start
        return seconds, totals

    def watch_run(self, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray], runs: int) -> Watched:
        """Who did what when in a run of `runs`: that of median length, timed as `Stopwatch` does."""
        watch = Stopwatch(self.target.threads)
        context = _Context(self, self._segments, watch)
        context.point(arrays, outputs)
        context.run()
        seen = []
        for _ in range(runs):
            watch.spans()
            begun = now()
            told = context.watched()
            seen.append((now() - begun, begun, told, watch.spans()))
        seconds, begun, told, rows = sorted(seen, key=lambda each: each[0])[runs // 2]
        spans, later, hosts = [], iter(rows), iter(told)
        for at, work in enumerate(self.works):
            done = [next(hosts)] if work.host else [span for _ in work.steps for span in next(later)]
            spans += [Span(at, worker, start - begun, end - begun) for worker, start, end in done]
        return Watched(seconds, spans)

    @property
    def _host_of(self) -> dict[int, _Host]:
        hosts = iter(segment for segment in self._segments if isinstance(segment, _Host))
        return {id(work): next(hosts) for work in self.works if work.host}

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


@dataclass(frozen=True)
class _Host:
    """A node that its reference computes between kernels."""

    node: Node
    inputs: list[Any]  # a constant's array, a place, or None
    outputs: list[Place | None]


class _Context:
    """One caller's arena, and the segments bound to it."""

    def __init__(
        self, executable: Executable, segments: Sequence[Recording | _Host], watch: Stopwatch | None = None
    ) -> None:
        self._arena = large(executable.memory.arena + 64)
        self._workspace = large(executable.workspace_bytes + 64)
        fixed = {name: address(array) for name, array in executable.constants.items()}
        fixed |= {ARENA: address(self._arena), WORKSPACE: address(self._workspace)}
        self._bound = [
            segment.bind(fixed, watch) if isinstance(segment, Recording) else segment for segment in segments
        ]
        self._late: dict[str, np.ndarray] = {}
        self.segments = [  # what runs one after the other
            part.run if isinstance(part, Bound) else _call(part, self._arena, self._late) for part in self._bound
        ]

    def point(self, arrays: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Give the next run its arrays."""
        late = {f"input {at}": array for at, array in enumerate(arrays)}
        late |= {f"output {at}": array for at, array in enumerate(outputs)}
        for part in self._bound:
            if isinstance(part, Bound):
                for base, array in late.items():
                    part.point(base, address(array))
        self._late.update(late)

    def run(self) -> None:
        """Run all segments."""
        for segment in self.segments:
            segment()

    def watched(self) -> list[tuple[int, float, float]]:
        """Run all segments; when those began and ended that references compute, all by worker 0."""
        told = []
        for part, segment in zip(self._bound, self.segments, strict=True):
            start = now()
            segment()
            if isinstance(part, _Host):
                told.append((0, start, now()))
        return told

    def release(self) -> None:
        """Let go of the caller's arrays."""
        self._late.clear()


def _call(host: _Host, arena: np.ndarray, late: Mapping[str, np.ndarray]) -> Callable[[], None]:
    """What runs a node's reference on an arena and the caller's arrays; it holds no context, which holds it."""

    def view(place: Place) -> np.ndarray:
        memory = arena if place.ref.name == ARENA else late[place.ref.name].reshape(-1).view(np.uint8)
        return np.ndarray(place.shape, place.dtype, memory, place.ref.offset, place.strides)

    def call() -> None:
        arrays = [view(item) if isinstance(item, Place) else item for item in host.inputs]
        dtypes = [None if place is None else place.dtype for place in host.outputs]
        for place, result in zip(host.outputs, run(host.node, arrays, dtypes), strict=False):
            if place is not None:
                view(place)[...] = result

    return call
