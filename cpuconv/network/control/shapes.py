"""Shape inference of If, Loop and Scan, as far as their bodies determine the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops.base import integers
from cpuconv.network.control.bodies import Ends, Sized
from cpuconv.symbolic.sizes import greatest

Inputs = Sequence[Value | None]
_FLAG, _COUNT = np.dtype(bool), np.dtype(np.int64)


def infer(node: Node, inputs: Inputs, sized: Sized) -> list[Value]:
    """Infer the outputs of a node; shapes are open if they depend on the run.

    Raises
    ------
    SourceError
        A body does not fit its inputs, or its outputs do not fit the node.
    """
    return _RULES[node.op](node, inputs, sized)


def _if(node: Node, inputs: Inputs, sized: Sized) -> list[Value]:
    check_one(node, inputs[0], _FLAG, "condition")
    ends: list[list[Value]] = []
    failed: SourceError | None = None
    for name in ("then_branch", "else_branch"):
        try:
            ends.append(_outputs(node, node[name], _given(inputs[1:]), sized))
        except SourceError as error:  # a branch that is never taken for these sizes may fail
            failed = error
    if not ends:
        assert failed is not None
        raise failed
    made = []
    for values in zip(*ends, strict=False):
        types = {value.dtype for value in values if value.dtype is not None}
        if len(types) > 1:
            raise SourceError(f"{node.label} has branches that give {' and '.join(map(str, values))}.")
        alike = failed is None and all(value.shape == values[0].shape for value in values)
        made.append(Value(values[0].shape if alike else None, values[0].dtype))
    return made[: len(node.outputs)]


def _loop(node: Node, inputs: Inputs, sized: Sized) -> list[Value]:
    trips, condition, *given = inputs
    carried: int = node["carried"]
    check_one(node, trips, _COUNT, "trip count")
    check_one(node, condition, _FLAG, "condition")
    number, flag = Value(_shape(trips), _COUNT), Value(_shape(condition), _FLAG)
    first, *made = _outputs(node, node["body"], [number, flag, *_given(given)], sized)
    check_one(node, first, _FLAG, "condition that its body gives")
    before, after, rows = _given(given[:carried]), made[:carried], made[carried:]
    stays = _check_carried(node, before, after)
    counted = None if trips is None or trips.array is None else greatest(0, integers(trips.array)[0])
    begins = True if condition is None else None if condition.array is None else bool(condition.array.all())
    always = stays and first.array is not None and bool(first.array.all())  # with other shapes it may differ
    goes_on = always or Ends.of(node["body"], 1).passed[0] == 1
    turns = 0 if begins is False or counted == 0 else counted if begins and goes_on else None
    if turns == 0:
        stays, after = True, before
    return [*_states(after, stays), *(_stacked(value, turns, 0, stays) for value in rows)][: len(node.outputs)]


def _scan(node: Node, inputs: Inputs, sized: Sized) -> list[Value]:
    carried, scanned, batched = node["carried"], node["scanned"], node["batched"]
    given = _given(inputs[batched:])
    states, xs, captured = given[:carried], given[carried : carried + scanned], given[carried + scanned :]
    batches = [value.shape[0] for value in (*states, *xs) if value.shape]
    if batched:
        if any(size != batches[0] for size in batches) or any(not value.shape for value in (*states, *xs)):
            raise SourceError(f"{node.label} must have inputs of one batch, not {', '.join(map(str, (*states, *xs)))}.")
        states, xs = ([Value((value.shape or ())[1:], value.dtype) for value in each] for each in (states, xs))
    turns = length(node, [value.shape or () for value in xs])
    slices = [_slice(node, at, value) for at, value in enumerate(xs)]
    made = _outputs(node, node["body"], [*states, *slices, *captured], sized)
    stays = _check_carried(node, states, made[:carried])
    after = _states(states if turns == 0 else made[:carried], stays or turns == 0)
    rows = []
    for at, value in enumerate(made[carried:]):
        axis = 0 if value.shape is None else axis_of(node, at, "output", len(value.shape) + 1)
        rows.append(_stacked(value, turns, axis, stays or turns == 0))
    found = [*after, *rows]
    if batched:
        found = [_batched(value, batches[0]) for value in found]
    return found[: len(node.outputs)]


_RULES: Mapping[str, Callable[[Node, Inputs, Sized], list[Value]]] = {"If": _if, "Loop": _loop, "Scan": _scan}


def length(node: Node, shapes: Sequence[Sequence[int | str | None]]) -> int:
    """The number of iterations of a Scan, from the shapes of the scanned inputs.

    Raises
    ------
    SourceError
        The inputs have different lengths, or lack the scanned axis.
    """
    sizes = [shape[axis_of(node, at, "input", len(shape))] for at, shape in enumerate(shapes)]
    if any(size != sizes[0] for size in sizes):
        raise SourceError(f"{node.label} must scan inputs of one length, not of {', '.join(map(str, sizes))}.")
    return sizes[0] if isinstance(sizes[0], int) else 0


def axis_of(node: Node, at: int, kind: str, rank: int) -> int:
    """The axis of a scan input or output of a given rank.

    Raises
    ------
    SourceError
        There is no such axis.
    """
    axis: int = node[f"{kind}_axes"][at]
    if not -rank <= axis < rank:
        raise SourceError(f"{node.label}: the axis of scan {kind} {at} must be one of {rank}, not {axis}.")
    return axis % rank


def check_one(node: Node, value: Value | None, dtype: np.dtype, name: str) -> None:
    """Check that a trip count or condition is a single number of a dtype.

    Raises
    ------
    SourceError
        It is not.
    """
    if value is None:
        return
    several = value.shape is not None and (len(value.shape) > 1 or any(size not in (1, None) for size in value.shape))
    if several or value.dtype not in (dtype, None):
        raise SourceError(f"{node.label}: the {name} must be one {dtype}, not {value}.")


def added(node: Node, inputs: Inputs, sized: Sized) -> list[Value]:
    """Values that an iteration of a Loop or Scan appends to stacked outputs; unknown if a body does not fit."""
    graph, given, carried = node["body"], _given(inputs), node["carried"]
    skipped = carried + (node.op == "Loop")
    try:
        for at in range(node["scanned"] if node.op == "Scan" else 0):
            given[carried + at] = _slice(node, at, given[carried + at])
        return _outputs(node, graph, given, sized)[skipped:]
    except SourceError:
        return [Value()] * (len(graph.outputs) - skipped)


def _outputs(node: Node, graph: Graph, values: Sequence[Value], sized: Sized) -> list[Value]:
    try:
        made = sized(graph, values)
    except SourceError as error:
        raise SourceError(f"{node.label}: {error}") from error
    return [made.value(name) for name in made.outputs]


def _given(inputs: Inputs) -> list[Value]:
    """The inputs of a body without known elements, as these may differ in the next iteration."""
    return [Value() if value is None else Value(value.shape, value.dtype) for value in inputs]


def _check_carried(node: Node, before: Sequence[Value], after: Sequence[Value]) -> bool:
    """Whether carried values keep their shapes in all iterations.

    Raises
    ------
    SourceError
        A carried value changes its dtype.
    """
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        if None not in (old.dtype, new.dtype) and old.dtype != new.dtype:
            raise SourceError(f"{node.label}: the carried value {at} must stay of {old.dtype}, not become {new.dtype}.")
    return all(old.concrete and old.shape == new.shape for old, new in zip(before, after, strict=True))


def _states(values: Sequence[Value], stays: bool) -> list[Value]:
    return [Value(value.shape if stays else None, value.dtype) for value in values]


def _stacked(value: Value, turns: int | None, axis: int, stays: bool) -> Value:
    """The values of all iterations, stacked along a new axis."""
    if turns is None or value.shape is None or not stays or not value.concrete:
        return Value(None, value.dtype)
    return Value((*value.shape[:axis], turns, *value.shape[axis:]), value.dtype)


def _batched(value: Value, batch: int | str | None) -> Value:
    return Value(None if value.shape is None else (batch, *value.shape), value.dtype)


def _slice(node: Node, at: int, value: Value) -> Value:
    """The slice of an input that a Scan passes to its body in each iteration."""
    shape = value.shape or ()
    axis = axis_of(node, at, "input", len(shape))
    return Value((*shape[:axis], *shape[axis + 1 :]), value.dtype)


def _shape(value: Value | None) -> tuple[int | str | None, ...]:
    return () if value is None or value.shape is None else value.shape
