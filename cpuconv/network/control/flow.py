"""Semantics of If, Loop and Scan nodes, independent of how their bodies are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.graph.control import Control
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.stopping import Stop
from cpuconv.network.control import shapes
from cpuconv.network.control.bodies import Body, Sized
from cpuconv.network.control.turns import Stack, Turns

Arrays = Sequence[np.ndarray]
_ENDLESS = 2**63 - 1


class Flow(Control):
    """The executable semantics of a control-flow node.

    Parameters
    ----------
    sized : callable
        Specialises a body for shapes and dtypes.
    body : callable
        Makes an executable body.
    """

    def __init__(self, sized: Sized, body: Callable[[Graph], Body]) -> None:
        self._sized, self._body = sized, body

    def infer(self, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
        """Infer the outputs, as `shapes.infer`."""
        return shapes.infer(node, inputs, self._sized)

    def evaluate(
        self,
        node: Node,
        arrays: Sequence[np.ndarray | None],
        dtypes: Sequence[np.dtype | None],
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """Compute the outputs; outputs that equal inputs share their memory.

        Raises
        ------
        SourceError
            A body fails; the message names the node and the iteration.
        RunStopped
            `stop`, which is called in each iteration, ended the run.
        """
        given = [None if array is None else _readable(array) for array in arrays]
        if node.op == "If":
            results = self._branch(node, given, stop)
        elif node.op == "Loop":
            results = self._loop(node, given, stop)
        elif node["batched"]:
            results = self._sequences(node, given, stop)
        else:
            results = self._scan(node, [array for array in given if array is not None], stop)
        return results[: len(node.outputs)]

    def _branch(self, node: Node, arrays: Sequence[np.ndarray | None], stop: Stop | None) -> list[np.ndarray]:
        name = "then_branch" if _flag(node, arrays[0]) else "else_branch"
        body, inputs = self._body(node[name]), _all(arrays[1:])
        with body.step() as step, _naming(lambda: f"{node.label}: its {name}"):
            made = step.run(inputs, [None] * len(body.ends.graph.outputs), stop) if body.ends.graph.outputs else []
        return body.ends.outputs(made, inputs)

    def _loop(self, node: Node, arrays: Sequence[np.ndarray | None], stop: Stop | None) -> list[np.ndarray]:
        trips, condition = arrays[:2]
        given, carried = _all(arrays[2:]), node["carried"]
        most = _ENDLESS if trips is None else int(_one(node, trips, "trip count"))
        goes_on = condition is None or _flag(node, condition)
        number = np.zeros(() if trips is None else trips.shape, np.int64)
        flag = np.ones((), bool) if condition is None else condition
        body = self._body(node["body"])
        always = body.ends.passed[0] == 1  # the body returns its input condition unchanged
        rows = most if always and trips is not None else None
        stacks = [Stack(at, rows) for at in range(len(body.ends.computed) - 1 - carried)]
        turn = 0
        with body.step() as step, _naming(lambda: f"{node.label}: iteration {turn}"):
            turns = Turns(step, body.ends, [number, flag, *given], 2, carried, 1, stacks)
            while turn < most and goes_on:
                number.fill(turn)
                turns.run(turn, stop)
                goes_on = always or _flag(node, turns.inputs[1])
                turn += 1
        last = turns.inputs[2 : 2 + carried]
        return [*last, *self._rows(node, stacks, turn, list(map(Value.of, (number, flag, *given))))]

    def _scan(self, node: Node, given: list[np.ndarray], stop: Stop | None) -> list[np.ndarray]:
        """Scan one sequence."""
        carried, scanned = node["carried"], node["scanned"]
        found = given[carried : carried + scanned]
        count = shapes.length(node, [array.shape for array in found])
        axes = [shapes.axis_of(node, at, "input", array.ndim) for at, array in enumerate(found)]
        xs = [np.asarray(np.moveaxis(array, axis, 0), order="C") for array, axis in zip(found, axes, strict=True)]
        xs = [x[::-1] if backwards else x for x, backwards in zip(xs, node["input_directions"], strict=True)]
        body = self._body(node["body"])
        stacks = [Stack(at, count, bool(each)) for at, each in enumerate(node["output_directions"])]
        turn = 0
        with body.step() as step, _naming(lambda: f"{node.label}: iteration {turn}"):
            turns = Turns(step, body.ends, [*given], 0, carried, 0, stacks)
            for turn in range(count):
                turns.inputs[carried : carried + scanned] = [x[turn, ...] for x in xs]
                turns.run(turn, stop)
        rows = self._rows(node, stacks, count, list(map(Value.of, given)))
        axes = [shapes.axis_of(node, at, "output", row.ndim) for at, row in enumerate(rows)]
        return [*turns.inputs[:carried], *(np.moveaxis(row, 0, axis) for row, axis in zip(rows, axes, strict=True))]

    def _sequences(self, node: Node, arrays: Sequence[np.ndarray | None], stop: Stop | None) -> list[np.ndarray]:
        """Scan the sequences of a batch one by one; outputs of shorter ones are padded with zeros."""
        lengths, given = arrays[0], _all(arrays[1:])
        carried, own = node["carried"], node["carried"] + node["scanned"]
        values = shapes.infer(node, [None, *map(Value.of, given)], self._sized)
        batch, most = len(given[0]), given[carried].shape[1]
        ends = [most] * batch if lengths is None else [int(each) for each in lengths.reshape(-1)]
        if len(ends) != batch or any(not 0 <= each <= most for each in ends):
            raise SourceError(f"{node.label} must have {batch} lengths of sequences, from 0 to {most}, not {ends}.")
        results = [np.zeros([int(size or 0) for size in value.shape or ()], value.dtype) for value in values]
        for at, end in enumerate(ends):
            states, xs = ([array[at, ...] for array in part] for part in (given[:carried], given[carried:own]))
            made = self._scan(node, [*states, *(x[:end] for x in xs), *given[own:]], stop)
            for place, (result, array) in enumerate(zip(results, made, strict=False)):
                target = result[at, ...] if place < carried else result[at, : len(array)]
                if target.shape != array.shape:
                    raise SourceError(f"{node.label}: output {place} must keep its shape, not become {array.shape}.")
                target[...] = array
        return results

    def _rows(self, node: Node, stacks: Sequence[Stack], turns: int, inputs: Sequence[Value]) -> list[np.ndarray]:
        """The stacked outputs. Without iterations they are empty, with shapes from the body, unknown sizes being 0."""
        if turns or not stacks:
            return [stack.result(turns) for stack in stacks]
        graph: Graph = node["body"]
        values = shapes.added(node, inputs, self._sized)
        stated = [graph.value(name) for name in graph.outputs[-len(stacks) :]]
        rows = [value if value.concrete else told for value, told in zip(values, stated, strict=True)]
        sizes = [[size if isinstance(size, int) else 0 for size in row.shape or ()] for row in rows]
        return [np.zeros([0, *each], row.dtype or np.float32) for each, row in zip(sizes, rows, strict=True)]


def _readable(array: np.ndarray) -> np.ndarray:
    """Make an array readable for kernels: C-contiguous, and aligned to its element size."""
    dense = np.asarray(array, order="C")
    return dense if dense.flags.aligned else dense.copy()


def _all(arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Arrays none of which is omitted, as `graph.control.check` has verified."""
    return [array for array in arrays if array is not None]


def _one(node: Node, array: np.ndarray, name: str) -> int | bool:
    """The only element of an array."""
    if array.size != 1:
        raise SourceError(f"{node.label}: the {name} must be one number, not an array of shape {array.shape}.")
    return array.item()


def _flag(node: Node, array: np.ndarray | None) -> bool:
    assert array is not None
    return bool(_one(node, array, "condition"))


@contextmanager
def _naming(label: Callable[[], str]) -> Iterator[None]:
    """Prefix the messages of errors with their location."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{label()}: {error}") from error
