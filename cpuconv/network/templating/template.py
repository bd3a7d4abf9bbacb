"""Template of a network for a class of sizes: lowered once with symbolic sizes, evaluated for each size."""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Value
from cpuconv.graph.lowering import Call, Lower
from cpuconv.graph.ops.base import OPERAND_ERRORS
from cpuconv.kernels.binding.steps import Space, Step, micro_kernels
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.binding.word_table import TABLES, WordTable
from cpuconv.kernels.binding.words import Words
from cpuconv.memory.arenas import Arenas
from cpuconv.memory.free_memory import check_bytes
from cpuconv.network.dynamic_suffix import DynamicSuffix
from cpuconv.network.running.arena import Memory
from cpuconv.network.running.building import Builder, Calls
from cpuconv.network.running.constants import FixedConstants
from cpuconv.network.running.context_pool import ContextPool
from cpuconv.network.running.executable import Executable
from cpuconv.network.running.execution_context import Host, Segment
from cpuconv.network.running.packed import Packed
from cpuconv.network.running.recording import Recording, compiled, context_bytes, slices
from cpuconv.network.selection.layout import NetworkPlan
from cpuconv.network.templating.followed import Followed
from cpuconv.network.templating.per_size_node import PerSizeNode, filled_place
from cpuconv.network.templating.sized_suffix import SizedSuffix
from cpuconv.symbolic.filled import Number, filled, held
from cpuconv.symbolic.sizes import Trace, tracing

_OBJECT_BYTES = 1 << 13  # approximate size of an evaluated program's Python objects, in bytes
_MAX_STRUCTURES = 8  # sequences of kernel calls whose words are shared; nodes lowered for each size make others


class _Follower(Builder):
    """A builder for symbolic sizes; nodes whose kernel calls cannot be computed from them become `PerSizeNode`s."""

    def __init__(
        self, plan: NetworkPlan, trace: Trace, target: Target, packed: Packed, per_size: frozenset[str]
    ) -> None:
        self._trace, self._per_size = trace, per_size
        super().__init__(plan, target, packed)

    def _steps(self, lower: Lower, call: Call) -> list[Step]:
        size = call.space.size
        try:
            with self._trace.strictly():
                if not self._per_size.isdisjoint(call.node.outputs):
                    raise TypeError("whether the offer applies depends on the sizes")
                steps = lower(call)
                hash(tuple(step.tile for step in steps))  # raises TypeError if the choice of kernels depends on sizes
                hash(tuple(each.tile for step in steps for each in micro_kernels(step)))
                return steps
        except MemoryError:
            raise
        except OPERAND_ERRORS:
            call.space.size = size
            raw = {name: self._raw[name] for name in call.node.inputs if name in self._raw}
            per_size: Any = PerSizeNode(call.node, call.offer, call.inputs, call.outputs, raw, call.target)
            return [per_size]


class _Chunk:
    """Consecutive kernel calls: those of a table, or of a node that is lowered for each size."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self._per_size = steps[0] if isinstance(steps[0], PerSizeNode) else None
        self.is_per_size = self._per_size is not None
        self._table = None if self._per_size else WordTable(steps)
        self.sizes = self._table.sizes if self._table else steps[0].sizes

    def words(self, numbers: Sequence[Any], name: str, packed: Packed) -> tuple[Words, dict[str, np.ndarray], int]:
        """The argument words for other sizes, the constants used only by them, and bytes of workspace."""
        if self._table is not None:
            words, tables = self._table.words(numbers)
            return words.renamed({TABLES: f"{TABLES} {name}"}), {f"{TABLES} {name}": tables}, 0
        per_size, space = self._per_size, Space()
        assert per_size is not None
        constants = FixedConstants(per_size.raw, packed, f"late {name}")
        steps = per_size.steps(iter(numbers), constants, space)
        return compiled(steps, lambda: Words.of(steps)), constants.arrays, space.size


class ProgramTemplate:
    """The kernel calls of a network as functions of its sizes.

    Parameters
    ----------
    followed : Followed
        The plan with symbolic sizes of `trace`. The constants that nodes read are removed from its graph.
    trace : Trace
    target : Target
    packed : Packed
    arenas : Arenas
        Memory of runs.
    suffix : SizedSuffix or None
        The dynamic suffix.

    Raises
    ------
    TypeError
        A part of the network does not support symbolic sizes.
    """

    def __init__(
        self,
        followed: Followed,
        trace: Trace,
        target: Target,
        packed: Packed,
        arenas: Arenas,
        suffix: SizedSuffix | None = None,
    ) -> None:
        plan, per_size = followed
        self._suffix = suffix
        self._target, self._arenas, self._packed, self._name = target, arenas, packed, plan.graph.name
        with tracing():
            builder = _Follower(plan, trace, target, packed, per_size)
            self._parts = [part if isinstance(part, Host) else _Part(part) for part in builder.parts()]
            self._constants, self._raw_bytes = builder.constants, builder.raw_bytes
            self._constant_outputs = builder.constant_outputs
            self._ends = builder.inputs, builder.outputs
            outputs = sum(value.nbytes for value in builder.outputs.values())
            memory = [builder.memory.arena, builder.workspace_bytes, builder.memory.unshared, outputs]
            shapes = [size for end in self._ends for value in end.values() for size in value.shape or ()]
            sizes = [size for part in self._parts for size in _sizes(part)]
            behind = [] if suffix is None else suffix.sizes
            elements = held(partial(filled, (*self._constant_outputs.values(),)))
            self._function = trace.function([*memory, *shapes, *sizes, *elements, *behind])

    @property
    def nbytes(self) -> int:
        """Size of the suffix's network, which all programs share, in bytes."""
        return 0 if self._suffix is None else self._suffix.nbytes

    def program(self, numbers: Sequence[int]) -> tuple[Executable, DynamicSuffix | None] | None:
        """The executable for other sizes, and its dynamic suffix; None if a recorded answer differs."""
        try:
            found = self._function(numbers)
            if found is None:
                return None
            left = iter(found)
            return self._made(left), None if self._suffix is None else self._suffix.suffix(left)
        except MemoryError:
            raise
        except OPERAND_ERRORS:  # raised by nodes that are lowered for each size
            return None

    def _made(self, left: Iterator[Any]) -> Executable:
        """Build the executable from evaluated numbers."""
        arena, workspace, unshared, outputs = itertools.islice(left, 4)
        check_bytes(arena + outputs, f"{self._name}: a run")
        inputs, ends = ({name: _valued(value, left) for name, value in end.items()} for end in self._ends)
        segments: list[Segment] = []
        own: dict[str, np.ndarray] = {}  # constants of these sizes alone
        for part in self._parts:
            if isinstance(part, Host):
                segments.append(_filled_host(part, lambda size: next(left)))
                continue
            recording, constants, needed = part.recording(left, len(segments), self._target.threads, self._packed)
            own |= constants
            workspace = max(workspace, needed)
            segments.append(recording)
        constant_outputs = filled((*self._constant_outputs.values(),), lambda size: next(left))
        words = sum(segment.nbytes for segment in segments if isinstance(segment, Recording))
        own_bytes = sum(array.nbytes for array in own.values())
        return Executable(
            target=self._target,
            inputs=inputs,
            outputs=ends,
            operations=[],
            groups=[],
            segments=segments,
            memory=Memory({}, arena, unshared),
            constants=ChainMap(own, self._constants),
            constant_outputs=dict(zip(self._constant_outputs, constant_outputs, strict=True)),
            raw_bytes=self._raw_bytes,
            workspace_bytes=workspace,
            own_bytes=words + own_bytes + _OBJECT_BYTES,
            contexts=ContextPool(context_bytes(segments), self._target.idle_bytes),
            arenas=self._arenas,
        )


class _Part:
    """The kernel calls between two nodes that references compute."""

    def __init__(self, calls: Calls) -> None:
        ends = [at for at, step in enumerate(calls.steps) if isinstance(step, PerSizeNode)]
        cuts = sorted({0, len(calls.steps), *ends, *(at + 1 for at in ends)})
        groups = [calls.steps[start:end] for start, end in pairwise(cuts)]
        steps = [step for step in calls.steps if not isinstance(step, PerSizeNode)]
        self._chunks = compiled(steps, lambda: [_Chunk(group) for group in groups])
        self._groups, self._slices = calls.groups, slices(calls.seconds)
        self._has_per_size_nodes = bool(ends)
        self._shared: dict[Any, tuple[Words, Sequence[int]]] = {}  # words and groups of the first size, by structure

    @property
    def sizes(self) -> list[Any]:
        """The symbolic sizes whose numbers `recording` takes."""
        return [size for chunk in self._chunks for size in chunk.sizes]

    def recording(
        self, numbers: Iterator[Any], part: int, threads: int, packed: Packed
    ) -> tuple[Recording, dict[str, np.ndarray], int]:
        """The calls for other sizes, the constants used only by them, and the workspace of per-size nodes in bytes."""
        constants: dict[str, np.ndarray] = {}
        made, workspace = [], 0
        for at, chunk in enumerate(self._chunks):
            own_numbers = [*itertools.islice(numbers, len(chunk.sizes))]
            words, own, needed = chunk.words(own_numbers, f"{part}.{at}", packed)
            made.append(words)
            constants |= own
            workspace = max(workspace, needed)
        first, groups = self._first(made)
        words, changes = first.changed(made)
        known = [] if self._has_per_size_nodes else self._slices  # whether the number of calls is known
        return Recording(words, threads, groups, known, changes), constants, workspace

    def _first(self, calls: Sequence[Words]) -> tuple[Words, Sequence[int]]:
        """The words and groups of the first size whose calls had this structure."""
        chunks = zip(self._chunks, calls, strict=True)
        structure = tuple(words.structure for chunk, words in chunks if chunk.is_per_size)
        found = self._shared.get(structure)
        if found is None:
            if len(self._shared) == _MAX_STRUCTURES:
                self._shared.clear()
            words = Words.joined(calls)._replace(kept=[])
            groups = [1] * len(words.codes) if self._has_per_size_nodes else self._groups
            found = self._shared[structure] = words, groups
        return found


def _sizes(part: _Part | Host) -> list[Any]:
    """The symbolic sizes whose numbers a part takes, in order."""
    return part.sizes if isinstance(part, _Part) else held(partial(_filled_host, part))


def _filled_host(host: Host, number: Number) -> Host:
    """Replace the symbolic sizes in the operands, constants and attributes of a node."""

    def operand(value: Any) -> Any:
        return filled_place(value, number) if isinstance(value, TensorView) else filled(value, number)

    attributes = {name: filled(value, number) for name, value in host.node.attributes.items()}
    is_same = all(value is host.node.attributes[name] for name, value in attributes.items())
    node = host.node if is_same else replace(host.node, attributes=attributes)
    return Host(node, [operand(each) for each in host.inputs], [operand(each) for each in host.outputs])


def _valued(value: Value, numbers: Iterator[Any]) -> Value:
    return Value(tuple(next(numbers) for _ in value.shape or ()), value.dtype, value.array)
