"""A network at other batch sizes, if it computes the items of a batch separately.

The first axis of inputs is the batch, where the model writes 1 or leaves it open. Operators are followed with their
sizes at a batch of 1 and of N: each result of an item has one axis that is N times as long. An operator without one,
such as a mean over the batch, and one whose results have unknown sizes forbid it. Where the model writes 1, target
sizes of operators such as Reshape, and constants that are concatenated, get the new batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

import numpy as np

from cpuconv.errors import ArgumentError, CpuconvError, must
from cpuconv.graph import control, ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.names import Names
from cpuconv.network.sizes.specialise import bound_inputs, specialise

_TARGETS = {"Reshape": 1, "Expand": 1, "Resize": 3, "AffineGrid": 1}  # operand with the sizes of the result
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}  # operands of shape (directions, batch, features)

Shapes = dict[str, tuple[int, ...]]


class AtBatch(NamedTuple):
    """A graph, and the shapes of its inputs at a batch size."""

    graph: Graph
    shapes: Shapes


class Batches:
    """The graph of a network at any batch size.

    Parameters
    ----------
    graph : Graph
        The graph that was read.
    stated : mapping of str to sequence of int
        Sizes of inputs by name; first axes that are the batch are ignored.

    Attributes
    ----------
    inputs : tuple of str
        Inputs whose first axis is the batch.
    outputs : tuple of str
        Outputs whose first axis is the batch.

    Raises
    ------
    ArgumentError
        No input has such an axis, other sizes are open, or an operator forbids other batch sizes; it is named.
    """

    def __init__(self, graph: Graph, stated: Mapping[str, Sequence[int]]) -> None:
        self.inputs = tuple(name for name in graph.inputs if _has_batch(graph.value(name)))
        if not self.inputs:
            raise ArgumentError(must("batches", "left out, as no input has a first axis of 1 or of open size", "given"))
        bound_inputs(graph, {name: sizes for name, sizes in stated.items() if name not in self.inputs})
        self._graph, self._stated = graph, stated
        self._one = specialise(graph, self._shapes(1), quiet=True, dequantise=False)
        self._written = any(graph.value(name).shape[:1] == (1,) for name in self.inputs)  # type: ignore[index]
        self.outputs = tuple(name for name in graph.outputs if name in self._followed(2)[1])

    def at(self, batch: int) -> AtBatch:
        """Return the graph at a batch size.

        Raises
        ------
        ArgumentError
            An operator forbids it.
        """
        followed, _ = self._followed(batch)
        if self._written and batch > 1:
            return AtBatch(followed, {})
        return AtBatch(self._graph, self._shapes(batch))

    def _shapes(self, batch: int) -> Shapes:
        shapes: Shapes = {}
        for name in self._graph.inputs:
            known = self._graph.value(name).shape
            sizes = [*self._stated.get(name, known or ())]
            if name in self.inputs:
                sizes[:1] = [batch]
            if not sizes and known is None or not all(isinstance(size, int) for size in sizes):
                value = self._graph.value(name)
                raise ArgumentError(must("input_shapes", f"given with 'batches' for {name}: {value}", "left out"))
            shapes[name] = tuple(map(int, sizes))
        return shapes

    def _followed(self, batch: int) -> tuple[Graph, Mapping[str, int]]:
        """The graph at a batch size, and the axis of the batch by value."""
        if batch == 1:
            return self._one, {}
        shapes = self._shapes(batch)
        if self._written:
            followed = _Opened(self._one, shapes, self.inputs, batch)
            made, axes = followed.graph(), followed.axes
        else:
            made = specialise(self._graph, shapes, quiet=True, dequantise=False)
            axes = dict.fromkeys(self.inputs, 0)
            for node in made.nodes:
                axes |= _axes(node, axes, self._one, {name: made.value(name) for name in node.outputs if name}, batch)
        for name in made.outputs:
            if axes.get(name, 0) != 0 or (name in axes and self._one.value(name).shape[:1] != (1,)):  # type: ignore[index]
                _refuse(f"output {name!r} has no first axis of items")
        return made, axes


class _Opened:
    """A graph of batch 1 with another batch size; `axes` has the axis of the batch by value."""

    def __init__(self, one: Graph, shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[str], batch: int) -> None:
        self.axes = dict.fromkeys(inputs, 0)
        self._one, self._batch = one, batch
        self._values = {name: Value(shape, one.value(name).dtype) for name, shape in shapes.items()}
        self._values |= {name: Value.of(array) for name, array in one.constants.items()}
        self._names = Names((*self._values, *(name for node in one.nodes for name in node.outputs)))
        self._constants: dict[str, np.ndarray] = dict(one.constants)
        self._nodes: list[Node] = []
        for node in one.nodes:
            self._add(node)

    def graph(self) -> Graph:
        """Return the graph with its new constants."""
        values = {name: value for name, value in self._values.items() if name not in self._constants}
        return replace(self._one, nodes=tuple(self._nodes), constants=self._constants, values=values).live()

    def _add(self, node: Node) -> None:
        if any(name in self.axes for name in node.inputs):
            node = self._with_target(self._with_repeated(node))
        inputs = [self._values[name] if name else None for name in node.inputs]
        try:
            found = ops.semantics(node).infer(node, inputs)
        except CpuconvError as error:
            _refuse(f"{node.label} does not allow other batch sizes ({error})")
        outputs = {name: value for name, value in zip(node.outputs, found, strict=False) if name}
        self.axes |= _axes(node, self.axes, self._one, outputs, self._batch)
        self._values |= {name: replace(value, array=None) for name, value in outputs.items()}
        self._nodes.append(node)

    def _with_target(self, node: Node) -> Node:
        """The node with the sizes of its result at the new batch."""
        at = _TARGETS.get(node.op, 0)
        if not 0 < at < len(node.inputs) or not node.inputs[at] or node.inputs[0] not in self.axes:
            return node
        before, after = (self._one.value(name).shape or () for name in (node.inputs[0], node.outputs[0]))
        axis = self.axes[node.inputs[0]] + len(after) - len(before)
        if node.op == "Reshape":
            axis = _split_at(before, self.axes[node.inputs[0]], after)
        if axis < 0 or 0 in after:
            _refuse(f"{node.label} does not allow other batch sizes")
        sizes = [int(size) * (self._batch if at == axis else 1) for at, size in enumerate(after)]  # type: ignore[arg-type]
        return node.reads({node.inputs[at]: self._constant(node, sizes)})

    def _with_repeated(self, node: Node) -> Node:
        """The node with operands of one item, such as a class token that is concatenated, repeated for each item."""
        if node.op == "Concat":
            axis, operands = next(self.axes[name] for name in node.inputs if name in self.axes), node.inputs
        else:
            axis, operands = 1, tuple(node.inputs[at] for at in _STATES.get(node.op, ()) if at < len(node.inputs))
        renamed = {}
        for name in operands:
            shape = self._values[name].shape if name and name not in self.axes else None
            if shape is None or axis >= len(shape) or shape[axis] != 1:
                continue
            sizes = [self._batch if at == axis else int(size) for at, size in enumerate(shape)]  # type: ignore[arg-type]
            made = self._names.fresh(f"{name}/items")
            self._nodes.append(ops.TABLE["Expand"].node([name, self._constant(node, sizes)], [made], node.origin))
            self._values[made] = Value(tuple(sizes), self._values[name].dtype)
            self.axes[made] = axis
            renamed[name] = made
        return node.reads(renamed)

    def _constant(self, node: Node, sizes: Sequence[int]) -> str:
        name = self._names.fresh(f"{node.outputs[0]}/sizes")
        array = np.array(sizes, np.int64)
        array.flags.writeable = False
        self._constants[name], self._values[name] = array, Value.of(array)
        return name


def _axes(node: Node, axes: Mapping[str, int], one: Graph, outputs: Mapping[str, Value], batch: int) -> dict[str, int]:
    """The axes of the batch in the results of a node, by name."""
    if not any(name in axes for name in node.inputs):
        return {}
    if control.is_control(node) or ops.draws(node):
        _refuse(f"{node.label} may mix them")
    found: dict[str, int] = {}
    for name, value in outputs.items():
        alone = one.value(name)
        before, after = alone.shape or (), value.shape or ()
        if not (alone.concrete and value.concrete) or len(before) != len(after):
            _refuse(f"sizes of {node.label} depend on elements")
        changed = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if len(changed) != 1 or before[changed[0]] * batch != after[changed[0]]:  # type: ignore[operator]
            _refuse(f"{node.label} mixes them: {alone} of one item, {value} of {batch}")
        found[name] = changed[0]
    return found


def _split_at(before: Sequence[int | str | None], axis: int, after: Sequence[int | str | None]) -> int:
    """The axis of the result of a Reshape that begins where `axis` of its operand does; -1 if none does."""
    begins = math.prod(before[:axis])  # type: ignore[arg-type]
    found = [at for at in range(len(after)) if math.prod(after[:at]) == begins]  # type: ignore[arg-type]
    return axis if axis in found else next(iter(found), -1)


def _has_batch(value: Value) -> bool:
    return bool(value.shape) and (value.shape[0] == 1 or not isinstance(value.shape[0], int))  # type: ignore[index]


def _refuse(reason: str) -> NoReturn:
    raise ArgumentError(must("batches", f"left out, as items of a batch are not separate: {reason}", "given"))
