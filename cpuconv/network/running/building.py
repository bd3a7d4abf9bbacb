"""Lower a layout plan to an executable: memory places, packed constants, kernel calls, a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

import layouts
from cpuconv.conv.choice.target import Target
from cpuconv.elements import OF_DTYPE, round_to
from cpuconv.graph import ops
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Lower, Offer
from cpuconv.graph.ops.base import OPERAND_ERRORS, operand_error
from cpuconv.kernels.binding.failure import FAILURE
from cpuconv.kernels.binding.steps import Ref, Space, Step
from cpuconv.kernels.binding.tensor_view import (
    BLOCKED,
    CHANNELS_LAST,
    TensorView,
    image_shape,
    stored_as,
    unrounded,
)
from cpuconv.memory.arenas import Arenas
from cpuconv.memory.free_memory import check_bytes
from cpuconv.memory.mapped_files import backing, owned_copy, release_pages
from cpuconv.network.running.arena import ARENA, WORKSPACE, constant_place, plan_memory
from cpuconv.network.running.constants import FixedConstants
from cpuconv.network.running.context_pool import ContextPool
from cpuconv.network.running.executable import CompiledNode, Executable
from cpuconv.network.running.execution_context import Host, Segment
from cpuconv.network.running.packed import Packed
from cpuconv.network.running.recording import Recording, context_bytes
from cpuconv.network.running.schedule import Touched, concurrent_groups, scheduled
from cpuconv.network.selection.element_types import types_of
from cpuconv.network.selection.layout import NetworkPlan, NodePlan
from cpuconv.symbolic.sizes import greatest, now

_OPERATION_BYTES = 1 << 14  # approximate size of a node's Python objects: node, offer, steps, lines of `explain`


def build(network_plan: NetworkPlan, target: Target, packed: Packed, arenas: Arenas | None = None) -> Executable:
    """Lower a planned network to an executable: assign memory, pack constants, bind kernels, record the program.

    Parameters
    ----------
    network_plan : NetworkPlan
        The constants that nodes read are removed from its graph, as raw and packed constants together would need twice
        the memory.
    target : Target
    packed : Packed
        Packed constants, shared with other programs.
    arenas : Arenas or None
        Memory of runs, shared with other programs; None: new arenas.
    """
    return Builder(network_plan, target, packed).executable(Arenas(target.idle_bytes) if arenas is None else arenas)


class Calls(NamedTuple):
    """Kernel calls, sizes of the groups that run concurrently, and modelled seconds of each group."""

    steps: list[Step]
    groups: list[int]
    seconds: list[float]


class Builder:
    """The state while a network is built; dropped afterwards.

    Attributes
    ----------
    inputs, outputs, operations, groups, memory, constant_outputs, raw_bytes, workspace_bytes
        As those of `Executable`; nothing is compiled yet.
    """

    def __init__(self, network_plan: NetworkPlan, target: Target, packed: Packed) -> None:
        network_plan, stages = scheduled(network_plan)
        graph = network_plan.graph
        self._value = graph.value
        self._target, self._raw = target, graph.constants
        self.inputs = {name: graph.value(name) for name in graph.inputs}
        self.outputs = {name: graph.value(value) for name, value in network_plan.outputs.items()}
        self.memory = plan_memory(network_plan, stages)
        outputs = sum(value.nbytes for value in self.outputs.values())
        check_bytes(now(self.memory.arena + outputs), f"{graph.name}: a run")
        self._constants = FixedConstants(self._raw, packed)
        self._forms: dict[tuple[str, str], TensorView] = {}
        self._hosts: dict[int, Host] = {}
        self._read_by_hosts: dict[str, np.ndarray] = {}  # constants for references, owned by this program
        self.workspace_bytes = 0
        self._space = Space()  # workspace of the nodes of one stage
        self.constant_outputs = {
            name: owned_copy(self._raw[value]) for name, value in network_plan.outputs.items() if value in self._raw
        }
        last_reads = {
            name: at for at, each in enumerate(network_plan.nodes) for name in each.node.inputs if name in self._raw
        }
        self.raw_bytes = sum(self._raw[name].nbytes for name in last_reads)
        self._lent = {name for name in last_reads if backing(self._raw[name]) is not None}
        self.operations, self.groups = self._lowered_operations(network_plan, stages, last_reads)

    def executable(self, arenas: Arenas) -> Executable:
        """Compile and record the network."""
        threads = self._target.threads
        segments: list[Segment] = [
            part if isinstance(part, Host) else Recording.of(part.steps, threads, part.groups, part.seconds)
            for part in self.parts()
        ]
        self._check_addresses(segments)
        words = sum(segment.nbytes for segment in segments if isinstance(segment, Recording))
        arrays = sum(step.nbytes for operation in self.operations for step in operation.steps)
        return Executable(
            target=self._target,
            inputs=self.inputs,
            outputs=self.outputs,
            operations=self.operations,
            groups=self.groups,
            segments=segments,
            memory=self.memory,
            constants=self._constants.arrays,
            constant_outputs=self.constant_outputs,
            raw_bytes=self.raw_bytes,
            workspace_bytes=self.workspace_bytes,
            own_bytes=self._constants.own_bytes + arrays + words + _OPERATION_BYTES * len(self.operations),
            contexts=ContextPool(context_bytes(segments), self._target.idle_bytes),
            arenas=arenas,
        )

    def _lowered_operations(
        self, network_plan: NetworkPlan, stages: Sequence[int], last_reads: Mapping[str, int]
    ) -> tuple[list[CompiledNode], list[list[int]]]:
        """Lower all nodes in order; return them, and the groups of operations that run concurrently.

        A constant is released after its last reader has packed it, to limit memory.
        """
        ending: dict[int, list[str]] = {}
        for name, at in last_reads.items():
            ending.setdefault(at, []).append(name)
        operations: list[CompiledNode] = []
        touched: list[Touched] = []
        for at, each in enumerate(network_plan.nodes):
            if at and stages[at] != stages[at - 1]:
                self._space = Space()
            operation = self._operation(each)
            if operation is not None:
                operations.append(operation)
                touched.append(self._touched(stages[at], operation))
            if self._lent:
                release_pages(self._raw[name] for name in each.node.inputs if name in self._lent)
            for name in ending.get(at, ()):
                network_plan.graph.release_constant(name)
        return operations, concurrent_groups(touched)

    def _touched(self, stage: int, operation: CompiledNode) -> Touched:
        node, places = operation.node_plan.node, self.memory.buffers
        read, written = ([places[name] for name in names if name in places] for names in (node.inputs, node.outputs))
        return Touched(stage, operation.steps, read, written)

    def _operation(self, node_plan: NodePlan) -> CompiledNode | None:
        """Lower a node; None for a view, and for a node whose inputs were written directly into its output."""
        node, offer = node_plan.node, node_plan.offer
        if offer is None:
            self._hosts[id(node)] = self._host(node)
        steps = [] if offer is None or offer.view else self._lowered(node_plan, offer)
        if offer is not None and not steps:
            return None
        raw, places = self._raw, self.memory.places
        read = [name for name in dict.fromkeys(node.inputs) if name]
        return CompiledNode(
            node_plan,
            steps,
            offer is None,
            sum(places[name].size for name in read if name not in raw),
            sum(raw[name].nbytes for name in read if name in raw),
            sum(places[name].size for name in node.outputs if name),
            places[next(filter(None, node.outputs))].shape,
            types_of(node_plan, self._value),
        )

    def _lowered(self, node_plan: NodePlan, offer: Offer) -> list[Step]:
        node = node_plan.node
        inputs = [self._operand(name, node_plan.reads(at)) if name else None for at, name in enumerate(node.inputs)]
        outputs = [self.memory.places[name] for name in node.outputs if name]
        op = ops.TABLE[node.op]
        assert op.lower is not None
        read = _values(inputs, offer.inputs)
        op.check(node, read, _values(self._written(node), offer.outputs))
        call = Call(node, inputs, outputs, offer, self._target.of(node.sources), self._space, self._constants)
        try:
            steps = self._steps(op.lower, call)
        except OPERAND_ERRORS as error:
            raise operand_error(node, read, error) from error
        self.workspace_bytes = greatest(self.workspace_bytes, self._space.size)
        return steps

    def _steps(self, lower: Lower, call: Call) -> list[Step]:
        """Lower a node to kernel calls."""
        return lower(call)

    def _written(self, node: Node) -> list[TensorView | None]:
        """The places of a node's outputs; None for unused ones."""
        return [self.memory.places[name] if name else None for name in node.outputs]

    def _operand(self, name: str, form: str) -> TensorView:
        """The place of a node's input; constants are converted once to the form that the node reads."""
        array = self._raw.get(name)
        if array is None:
            return self.memory.places[name]
        if not form:  # the elements are read at compile time
            return TensorView.plain(Ref("none"), array.shape, array.dtype, array)
        place = self._forms.get((name, form))
        if place is None:
            target = self._target
            ref = self._constants.packed(name, ("operand", form), lambda: _in_form(array, form, target))
            place = self._forms[name, form] = constant_place(ref, array, form, target)
        return place

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """The constants, as in `Executable`."""
        return self._constants.arrays

    def parts(self) -> list[Calls | Host]:
        """Consecutive kernel calls, and between them the nodes that references compute."""
        parts: list[Calls | Host] = []
        calls = Calls([], [], [])
        for each in self.groups:
            operation = self.operations[each[0]]
            if not operation.host:
                calls.steps.extend(step for at in each for step in self.operations[at].steps)
                rows = [len(each)] if len(each) > 1 else [1] * len(operation.steps)
                calls.groups.extend(rows)
                calls.seconds.extend(
                    [sum(self.operations[at].node_plan.seconds for at in each) / len(rows)] * len(rows)
                )
                continue
            if calls.steps:
                parts.append(calls)
                calls = Calls([], [], [])
            parts.append(self._hosts[id(operation.node_plan.node)])
        if calls.steps or not parts:
            parts.append(calls)
        return parts

    def _check_addresses(self, segments: Sequence[Segment]) -> None:
        """Check that each address has a base that a run resolves; otherwise kernels would read invalid memory."""
        known = {ARENA, WORKSPACE, FAILURE, *self._constants.arrays}
        known |= {f"input {at}" for at in range(len(self.inputs))}
        known |= {f"output {at}" for at in range(len(self.outputs))}
        for segment in segments:
            if isinstance(segment, Recording) and segment.bases - known:
                raise RuntimeError(f"addresses without a base: {', '.join(sorted(segment.bases - known))}")

    def _host(self, node: Node) -> Host:
        for name in node.inputs:
            if name in self._raw and name not in self._read_by_hosts:
                self._read_by_hosts[name] = owned_copy(self._raw[name])
        operands = [
            None if not name else self._read_by_hosts.get(name, self.memory.places.get(name)) for name in node.inputs
        ]
        return Host(node, operands, self._written(node))


def _values(places: Sequence[TensorView | None], forms: Sequence[str]) -> list[Value | None]:
    """The types that kernels read or write at these places; tensors stored as bfloat16 or float16 count as float32."""
    return [
        None if at is None else Value(at.shape, at.number if unrounded(form) != form else at.dtype, at.array)
        for at, form in zip(places, forms, strict=False)
    ]


def _in_form(array: np.ndarray, form: str, target: Target) -> np.ndarray:
    """Convert a constant to the form that a node reads."""
    dtype = stored_as(form, array.dtype)
    elements = array if dtype == array.dtype else round_to(array, OF_DTYPE[dtype])
    if unrounded(form) == BLOCKED:
        return layouts.from_nchw(elements.reshape(image_shape(array.shape)), layouts.blocked(target.block(dtype)))
    return np.ascontiguousarray(np.moveaxis(elements, 1, -1) if unrounded(form) == CHANNELS_LAST else elements)
