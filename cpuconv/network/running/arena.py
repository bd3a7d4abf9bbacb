"""Memory planning of a network: each tensor gets a place in one arena, by lifetimes.

A *buffer* is the memory of one tensor, or of several that share it: a view shares the memory of its input. An
elementwise result may overwrite an operand with no later readers. The inputs of a concatenation may be parts of its
output, whose lifetime then starts with the earliest producer. Buffers are placed greedily by size, each in the lowest
gap that is free during its lifetime (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference,
arXiv:2001.03288).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.conv.choice.target import Target
from cpuconv.graph import ops
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.ops.base import Op
from cpuconv.kernels.binding.steps import Ref
from cpuconv.kernels.binding.tensor_view import (
    BLOCKED,
    CHANNELS_LAST,
    FLOAT32,
    STRIDED,
    TensorView,
    stored_as,
    unrounded,
)
from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.network.selection.layout import NetworkPlan, NodePlan
from cpuconv.problem.integers import divide
from cpuconv.symbolic.sizes import applied, items_of

ARENA, WORKSPACE = "arena", "workspace"


@dataclass(frozen=True)
class Memory:
    """The memory plan of a network.

    Attributes
    ----------
    places : dict[str, TensorView]
        Places of all values except constants; bases are "arena", "input K" and "output K".
    arena : int
        Size of the arena, in bytes.
    unshared : int
        Size of the same buffers without sharing, in bytes.
    buffers : dict[str, TensorView]
        The places with buffers as bases, for overlap checks: buffers of one stage do not overlap.
    """

    places: dict[str, TensorView]
    arena: int
    unshared: int
    buffers: dict[str, TensorView] = field(default_factory=dict)


def plan_memory(network_plan: NetworkPlan, stages: Sequence[int] | None = None) -> Memory:
    """Plan the memory of a graph with selected offers.

    Parameters
    ----------
    network_plan : NetworkPlan
    stages : Sequence[int] or None
        Stage of each node: nodes of one stage may run concurrently. None: each node has its own.
    """
    planner = _Planner(network_plan, range(len(network_plan.nodes)) if stages is None else stages)
    return planner.memory()


class _Planner:
    """Memory planner; buffers are symbolic bases until they get an offset in the arena."""

    def __init__(self, network_plan: NetworkPlan, stages: Sequence[int]) -> None:
        self.network_plan, self.graph, self.stages = network_plan, network_plan.graph, stages
        self._last = self._last_reads()
        self._last_of: dict[str, int] = {}  # by base: the last node known to read from it
        self.pinned = self._pinned()
        self.parts: dict[str, tuple[str, int]] = {}  # value -> the concatenation that it is a part of, and its position
        self.places: dict[str, TensorView] = {}
        for at, name in enumerate(self.graph.inputs):
            self._settle(name, self._place(name, f"input {at}", "dense"))

    def memory(self) -> Memory:
        """Plan all places."""
        for at in reversed(range(len(self.network_plan.nodes))):
            self._claim_parts(self.network_plan.nodes[at])
        for at, node_plan in enumerate(self.network_plan.nodes):
            self._put(at, node_plan)
        sizes, lives = self._buffers()
        offsets, arena = arrange(sizes, lives)
        places = {name: _moved(place, offsets) for name, place in self.places.items()}
        return Memory(places, arena, sum(sizes.values()), self.places)

    # --- which values share a buffer ------------------------------------------------------------------------------

    def _pinned(self) -> dict[str, str]:
        """Values whose buffer is an output of the network."""
        producers = self.producers
        pinned = {}
        for at, name in enumerate(self.network_plan.outputs.values()):
            while name in producers and (offer := producers[name].offer) is not None and offer.view:
                name = producers[name].node.inputs[0]
            if name in producers:
                pinned[name] = f"output {at}"
        return pinned

    def _claim_parts(self, node_plan: NodePlan) -> None:
        """Let producers write directly into the output of a concatenation, where that is valid."""
        op = _op(node_plan)
        if op is None or op.parts is None or node_plan.offer is None or node_plan.offer.view:
            return
        node, output = node_plan.node, node_plan.node.outputs[0]
        if output in self.pinned:  # callers get contiguous memory; parts of it would do, except for views
            return
        values = self._values(node)
        whole = self._place(output, "whole", node_plan.offer.outputs[0])
        parts = op.parts(node, values, whole)
        for at, (name, part) in enumerate(zip(node.inputs, parts, strict=False)):
            strided = part is not None and unrounded(part.format) == STRIDED
            viewed = strided and name in self._viewed  # views may need dense memory
            if self._may_be_part(name, node_plan) and part is not None and not viewed:
                self.parts[name] = (output, at)

    def _may_be_part(self, name: str, reader: NodePlan) -> bool:
        producer = self.producers.get(name)
        if producer is None or producer.offer is None or producer.offer.view:
            return False
        alone = reader.node.inputs.count(name) == 1 and name not in self.parts and name not in self.pinned
        written = producer.writes(producer.node.outputs.index(name))
        return alone and written == reader.writes(0)

    @lazy
    def producers(self) -> Mapping[str, NodePlan]:
        """The node that writes each value."""
        return {name: node_plan for node_plan in self.network_plan.nodes for name in node_plan.node.outputs if name}

    # --- places ---------------------------------------------------------------------------------------------------

    def _place(self, name: str, base: str, form: str) -> TensorView:
        value = self.graph.value(name)
        shape, dtype = _sizes(value), value.dtype or FLOAT32
        return _in_form(Ref(base), shape, dtype, form, self.network_plan.target)

    def _put(self, at: int, node_plan: NodePlan) -> None:
        """Plan the places of a node's outputs."""
        node, op = node_plan.node, _op(node_plan)
        if node_plan.offer is not None and node_plan.offer.view and op is not None and op.view is not None:
            inputs = [self._operand(name) for name in node.inputs]
            values = [self.graph.value(name) for name in node.outputs if name]
            views = op.view(node, inputs, values)
            for name, place in zip(node.outputs, views, strict=False):
                if name:
                    self._settle(name, place)
            return
        for position, name in enumerate(node.outputs):
            if not name or name in self.places:
                continue
            self._settle(name, self._in_place(at, node_plan, name) or self._own(name, node_plan.writes(position)))

    def _settle(self, name: str, place: TensorView) -> None:
        """Assign a place to a value, and record the last reader of its buffer."""
        base = place.ref.name
        self.places[name] = place
        self._last_of[base] = max(self._last_of.get(base, -1), self._last.get(name, -1))

    def _operand(self, name: str) -> TensorView | None:
        """An input of a view; constants have no address yet, as they are read when the network is compiled."""
        array = self.graph.constants.get(name)
        if array is None:
            return self.places.get(name)
        return TensorView.plain(Ref("constant"), array.shape, array.dtype, array)

    def _values(self, node: Node) -> list[Value | None]:
        """A node's inputs; None for absent ones."""
        return [self.graph.value(name) if name else None for name in node.inputs]

    def _own(self, name: str, form: str) -> TensorView:
        """New memory for a value: a part of a concatenation, an output of the network, or a new buffer."""
        if name in self.parts:
            output, at = self.parts[name]
            if output not in self.places:
                self._settle(output, self._own(output, form))
            reader = self.producers[output]
            op = _op(reader)
            assert op is not None and op.parts is not None
            return op.parts(reader.node, self._values(reader.node), self.places[output])[at]
        return self._place(name, self.pinned.get(name, f"buffer {name}"), form)

    def _in_place(self, at: int, node_plan: NodePlan, name: str) -> TensorView | None:
        """The place of an operand with no later readers, for an operator that may work in place."""
        op = _op(node_plan)
        if op is None or not op.in_place or node_plan.offer is None or name in self.pinned or name in self.parts:
            return None
        value = self.graph.value(name)
        shape, dtype = _sizes(value), stored_as(node_plan.writes(0), value.dtype or FLOAT32)
        for position, operand in enumerate(node_plan.node.inputs):
            place = self.places.get(operand)
            if place is None or place.shape != shape or place.dtype != dtype or place.ref.offset:
                continue
            owner = self.places.get(place.ref.name.removeprefix("buffer "))
            alike = place.format == node_plan.writes(0) == node_plan.reads(position)
            form = node_plan.writes(0)
            last = form == node_plan.reads(position) and unrounded(form) == CHANNELS_LAST
            alike |= last and place.strides == self._place(name, "", node_plan.writes(0)).strides
            if place.block > 1 and place.physical[0] != 1 and place.strides[0] * place.physical[0] != place.size:
                continue  # images overlap
            if alike and owner is not None and owner.size == place.size and self._is_free(at, node_plan, place):
                return place
        return None

    def _is_free(self, at: int, node_plan: NodePlan, place: TensorView) -> bool:
        """Whether node `at` may overwrite a whole buffer: it is the last reader, and reads it in the same order."""
        base = place.ref.name
        operands = [self.places[name] for name in node_plan.node.inputs if name in self.places]
        same = all(other == place for other in operands if other.ref.name == base)
        return base.startswith("buffer ") and same and self._last_of[base] == at

    def _last_reads(self) -> dict[str, int]:
        """The last node that reads each value or a view of it."""
        last: dict[str, int] = {}
        for at, node_plan in reversed(list(enumerate(self.network_plan.nodes))):
            for name in filter(None, node_plan.node.inputs):
                last.setdefault(name, at)
            if node_plan.offer is not None and node_plan.offer.view:
                viewed = node_plan.node.inputs[0]
                last[viewed] = max(last[viewed], *(last.get(name, -1) for name in node_plan.node.outputs))
        return last

    @lazy
    def _viewed(self) -> frozenset[str]:
        """The values that have views."""
        views = (
            node_plan for node_plan in self.network_plan.nodes if node_plan.offer is not None and node_plan.offer.view
        )
        return frozenset(node_plan.node.inputs[0] for node_plan in views)

    # --- buffers --------------------------------------------------------------------------------------------------

    def _buffers(self) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Size of each buffer in bytes, and the first and last stage in which nodes access it."""
        sizes: dict[str, int] = {}
        lives: dict[str, tuple[int, int]] = {}
        for at, node_plan in zip(self.stages, self.network_plan.nodes, strict=True):
            for name in (*node_plan.node.inputs, *node_plan.node.outputs):
                place = self.places.get(name) if name else None
                if place is None or not place.ref.name.startswith("buffer "):
                    continue
                base = place.ref.name
                first, _ = lives.get(base, (at, at))
                lives[base] = first, at
                owner = self.places[base.removeprefix("buffer ")]
                sizes[base] = owner.size
        return sizes, lives


def _op(node_plan: NodePlan) -> Op | None:
    return None if node_plan.node.semantics is not None else ops.TABLE[node_plan.node.op]


def _sizes(value: Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(size if isinstance(size, int) else 0 for size in value.shape)


def _moved(place: TensorView, offsets: Mapping[str, int]) -> TensorView:
    base = offsets.get(place.ref.name)
    if base is None:
        return place
    ref = Ref(ARENA, base + place.ref.offset)
    return TensorView(ref, place.shape, place.strides, place.block, place.dtype, place.array)


def arrange(sizes: Mapping[str, int], lives: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], int]:
    """Place buffers: return their offsets, and the total size in bytes.

    Parameters
    ----------
    sizes : Mapping[str, int]
        Size of each buffer, in bytes.
    lives : Mapping[str, tuple[int, int]]
        First and last stage of each buffer; buffers with a common stage do not overlap.
    """
    names = sorted(sizes, key=lambda name: (lives[name], name))
    if not names:
        return {}, 0
    *offsets, arena = items_of(applied(_Arrangement([lives[name] for name in names]), *(sizes[name] for name in names)))
    return dict(zip(names, offsets, strict=True)), arena


class _Arrangement:
    """Computes the offsets of buffers from their sizes, followed by the total size; lifetimes are fixed."""

    def __init__(self, lives: Sequence[tuple[int, int]]) -> None:
        self._rivals = [
            [at for at, (first, last) in enumerate(lives) if first <= death and birth <= last] for birth, death in lives
        ]

    def __call__(self, *sizes: int) -> tuple[int, ...]:
        placed: list[tuple[int, int] | None] = [None] * len(sizes)  # start and end of each buffer
        for at in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
            size = _step(sizes[at])
            start = _lowest_gap(size, [place for other in self._rivals[at] if (place := placed[other])])
            placed[at] = start, start + size
        return *(start for start, _ in filter(None, placed)), max(end for _, end in filter(None, placed))


def _lowest_gap(size: int, ranges: list[tuple[int, int]]) -> int:
    """The lowest offset at which `size` bytes overlap none of the ranges, given as (start, end)."""
    free = 0
    for start, end in sorted(ranges):
        if start - free >= size:
            break
        free = max(free, end)
    return free


def _step(size: int) -> int:
    """Size of a buffer in whole cache lines, plus one, so that equal sizes are not aligned to multiples of 4 KB."""
    return divide(size, ALIGNMENT) * ALIGNMENT + ALIGNMENT


def constant_place(ref: Ref, array: np.ndarray, form: str, target: Target) -> TensorView:
    """The place of a constant that is stored at `ref`."""
    return _in_form(ref, array.shape, array.dtype, form, target, array)


def _in_form(
    ref: Ref, shape: Sequence[int], dtype: np.dtype, form: str, target: Target, array: np.ndarray | None = None
) -> TensorView:
    """The place of a whole tensor with a form at `ref`."""
    dtype = stored_as(form, dtype)
    if unrounded(form) == BLOCKED:
        return TensorView.blocked(ref, shape, target.block(dtype), array, dtype)
    if unrounded(form) == CHANNELS_LAST:
        return TensorView.channels_last(ref, shape, dtype, array)
    return TensorView.plain(ref, shape, dtype, array)
