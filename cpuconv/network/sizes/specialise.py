"""Specialise a graph for inputs of given sizes: infer shapes, and fold what depends only on shapes and constants.

Shapes that depend on the elements of inputs stay open, and so do values computed from these: `sizes.cutting` cuts them
off.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, SourceError, must
from cpuconv.graph import control, ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.names import MAX_HINT, Names
from cpuconv.network.control.bodies import Interpreted, as_inputs
from cpuconv.network.control.flow import Flow
from cpuconv.network.control.shapes import check_one
from cpuconv.network.folding import Folding, check_results, check_values
from cpuconv.network.interpret import run
from cpuconv.network.sizes.arithmetic import as_constant, of_sizes
from cpuconv.reading.foreign import Foreign
from cpuconv.symbolic.sizes import SIZES

Sizes = Mapping[str, Sequence[int]]
Rewrite = Callable[[Graph], Graph]
Count = Callable[[int, int], None]  # called with the number of executed nodes, and the bytes of their results


def specialise(
    graph: Graph,
    input_shapes: Sizes | None = None,
    *,
    strict: bool = False,
    quiet: bool = False,
    early: Rewrite | None = None,
    dequantise: bool = True,
) -> Graph:
    """Infer shapes and dtypes of all values, and fold the nodes whose outputs are equal in every run.

    Parameters
    ----------
    graph : Graph
        Any graph.
    input_shapes : Sizes | None
        Shapes of inputs by name, where the graph leaves them open; a size stated for a symbol applies to all its
        occurrences.
    strict : bool
        Whether to reject operators that only ONNX's reference evaluator computes.
    quiet : bool
        Whether to omit the warning about them, as it has been issued already.
    early : callable or None
        A rewrite that is applied before the dequantisation of integer weights is folded.
    dequantise : bool
        Whether the dequantisation of integer weights is folded.

    Raises
    ------
    ArgumentError
        A shape for an unknown input, or one that does not fit the graph.
    SourceError
        The shape of an input stays open, nodes do not fit together, results do not fit into memory, or an operator is
        rejected.

    Warns
    -----
    CpuconvWarning
        Some operators run through the reference evaluator; the message names them.
    """
    known = bound_inputs(graph, input_shapes or {})
    for name, value in known.items():
        if not value.concrete:
            raise SourceError(
                f"{graph.name}: the input {name!r} of shape {graph.value(name)} must have fixed sizes: state them in"
                " 'input_shapes'."
            )
    made = _specialised(graph, known, early is not None or not dequantise)
    if early is not None:
        made = early(made)
        made = _specialised(made, {name: made.value(name) for name in made.inputs}, False)
    _tell_foreign(made, strict, quiet)
    return made


def _specialised(graph: Graph, known: dict[str, Value], integers: bool, count: Count | None = None) -> Graph:
    """As `specialise`; `integers`: constants are not dequantised; `count` is called for executed nodes of bodies."""
    known |= {name: Value.of(array) for name, array in graph.constants.items()}
    nodes = []
    folding = Folding(graph.constants.values())
    left = deque(graph.nodes)
    names: Names | None = None
    while left:
        node = left.popleft()
        condition = known[node.inputs[0]].array if node.op == "If" else None
        if condition is not None:
            check_one(node, known[node.inputs[0]], np.dtype(bool), "condition")
            names = names or Names((*known, *(name for each in graph.nodes for name in each.outputs)))
            body, own = taken(node, bool(condition.all()), known, names)
            known |= own
            left.extendleft(reversed(body))
            continue
        if control.is_control(node):
            node = _ready(node, known, folding, count)
        inputs = [known[name] if name else None for name in node.inputs]
        outputs = _open(graph, node) if is_open(inputs) else _outputs(node, inputs, folding, integers)
        if is_open([value for value, name in zip(outputs, node.outputs, strict=False) if name]):
            outputs = _open(graph, node)
        known.update((name, value) for name, value in zip(node.outputs, outputs, strict=False) if name)
        if any(known[name].array is None for name in node.outputs if name):
            nodes.append(node)
    kept = {name for node in nodes for name in node.outputs if name}
    folded = {name: value for name, value in known.items() if name not in kept and value.array is not None}
    constants = {name: value.array for name, value in folded.items() if value.array is not None}
    values = {name: Value(value.shape, value.dtype) for name, value in known.items() if name not in constants}
    made = replace(graph, nodes=tuple(nodes), constants=constants, values=values, defaults={}).live()
    exact = {name: as_constant(folded[name]) for name, array in made.constants.items() if array.dtype == SIZES}
    return replace(made, constants={**made.constants, **exact}) if exact else made


def bound_inputs(graph: Graph, stated: Sizes, argument: str = "input_shapes") -> dict[str, Value]:
    """The inputs with their sizes, as far as the graph or `stated` has them; messages call the latter `argument`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A shape for an unknown input, or one that does not fit the graph.
    """
    if not isinstance(stated, Mapping):
        raise ArgumentTypeError(must(argument, "a dict of shapes by input name", f"a {type(stated).__name__}"))
    inputs = frozenset(graph.inputs)
    for name in stated:
        if name not in inputs:
            raise ArgumentError(must(argument, f"shapes of inputs ({', '.join(graph.inputs)})", f"one of {name!r}"))
    symbols: dict[str, int] = {}
    for name in graph.inputs:
        sizes, label = stated.get(name), f"{argument}[{name!r}]"
        if sizes is None:
            continue
        if not isinstance(sizes, Iterable) or any(isinstance(n, bool) or not hasattr(n, "__index__") for n in sizes):
            raise ArgumentTypeError(must(label, "a sequence of integers", repr(sizes)))
        shape = graph.value(name).shape
        shape = (None,) * len(sizes) if shape is None else shape
        known = len(symbols)
        fits = len(sizes) == len(shape) and all(
            size >= 0
            and (size == dim if isinstance(dim, int) else symbols.setdefault(dim, size) == size if dim else True)
            for size, dim in zip(sizes, shape, strict=True)
        )
        if not fits:
            told = dict(itertools.islice(symbols.items(), known))  # set by earlier inputs
            form = f"a shape that fits {graph.value(name)}" + (f" where {told}" if told else "")
            raise ArgumentError(must(label, form, tuple(sizes)))
    return {name: _bound(graph.value(name), stated.get(name), symbols) for name in graph.inputs}


def with_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Replace symbols in the shapes of a graph by sizes."""

    def sized(value: Value) -> Value:
        shape = value.shape and tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in value.shape)
        return replace(value, shape=shape)

    return replace(graph, values={name: sized(value) for name, value in graph.values.items()}) if sizes else graph


def _bound(value: Value, sizes: Sequence[int] | None, symbols: Mapping[str, int]) -> Value:
    """An input with the sizes stated for it or for its symbols."""
    if sizes is not None:
        return Value(tuple(size if isinstance(size, int) else int(size) for size in sizes), value.dtype)
    if value.shape is None:
        return value
    return Value(tuple(symbols.get(dim, dim) if isinstance(dim, str) else dim for dim in value.shape), value.dtype)


def _outputs(node: Node, inputs: Sequence[Value | None], folding: Folding, integers: bool) -> list[Value]:
    """Infer the outputs of a node; compute their elements if those of the inputs are known or not needed."""
    values = ops.semantics(node).infer(node, inputs)
    check_values(node, values)
    wanted = [value for value, name in zip(values, node.outputs, strict=False) if name]
    if integers and node.op == "DequantizeLinear" and inputs[0] and inputs[0].shape:
        return values
    if ops.draws(node):
        return values
    if any(value is not None and value.array is None for value in inputs) or all(v.array is not None for v in wanted):
        return values
    if not folding.allows(node, inputs, wanted):
        return values
    folding.take(node, wanted)
    arrays, dtypes = [None if value is None else value.array for value in inputs], [value.dtype for value in values]
    if any(array is not None and array.dtype == SIZES for array in arrays):
        return of_sizes(node, inputs, values)
    results = run(node, arrays, dtypes)
    check_results(node, [value.shape for value in values], results)
    return [Value() if isinstance(array, list) else _constant(array) for array in results]


def is_open(values: Iterable[Value | None]) -> bool:
    """Whether the shape of one of the values depends on unknown elements."""
    return any(value is not None and not value.concrete for value in values)


def _open(graph: Graph, node: Node) -> list[Value]:
    """Outputs with open shapes, and with the dtypes that the model states."""
    return [Value(None, graph.value(name).dtype) for name in node.outputs]


def _constant(array: np.ndarray) -> Value:
    """A folded constant as a read-only value; a non-contiguous view is copied."""
    array = np.asarray(array, order="C").view()
    array.flags.writeable = False
    return Value.of(array)


def sized(graph: Graph, values: Sequence[Value], count: Count | None = None) -> Graph:
    """Specialise a body for inputs of these shapes and dtypes, which may be open; nested bodies count too."""
    given = as_inputs(graph, values)
    return _specialised(given, {name: given.value(name) for name in given.inputs}, False, count)


def _ready(node: Node, known: Mapping[str, Value], folding: Folding, count: Count | None) -> Node:
    """Insert known constants into the bodies of a control-flow node, which references run; count folded runs."""
    arrays = {name: known[name].array for name in node.inputs if name}
    if count is None and all(array is not None for array in arrays.values()):
        count = partial(folding.step, node)
    outer = node.inputs[control.captured_at(node) :]
    node = control.holding(node, {name: array for name in outer if (array := arrays[name]) is not None})
    body = partial(Interpreted, sized=partial(sized, count=count), changing=node.op == "Loop", count=count)
    return replace(node, semantics=Flow(sized, body))


def taken(node: Node, condition: bool, known: Mapping[str, Value], used: Names) -> tuple[list[Node], dict[str, Value]]:
    """The nodes and constants of the branch that an If takes, under new names, which are added to `used`.

    Constants that are known outside keep their names.
    """
    branch: Graph = node["then_branch" if condition else "else_branch"]
    arrays = {name: array for name, array in branch.constants.items() if not _is(known.get(name), array)}
    own = [*arrays, *(name for inner in branch.nodes for name in inner.outputs if name)]
    first = next(filter(None, node.outputs))[: MAX_HINT // 2]
    names = control.renamed(node, branch) | {name: used.fresh(f"{first}/{name}") for name in own}
    body = [inner.reads(names).writes(names) for inner in branch.nodes]
    for inner, outer in zip(branch.outputs, node.outputs, strict=False):
        if outer:
            body.append(ops.TABLE["Identity"].node([names.get(inner, inner)], [outer], node.origin))
    return body, {names[name]: Value.of(array) for name, array in arrays.items()}


def _is(value: Value | None, array: np.ndarray) -> bool:
    return value is not None and value.array is array


def _foreign(graph: Graph) -> Iterator[str]:
    """The operators of a graph and its bodies that the reference evaluator computes."""
    for node in graph.nodes:
        if isinstance(node.semantics, Foreign):
            yield node.op
        for body in control.bodies(node):
            yield from _foreign(body)


def _tell_foreign(graph: Graph, strict: bool, quiet: bool) -> None:
    """Warn about operators that the reference evaluator computes; with `strict`, raise `SourceError`."""
    foreign = dict.fromkeys(_foreign(graph))
    if foreign and strict:
        raise SourceError(f"{graph.name} has operators without kernels: {', '.join(foreign)}.")
    if foreign and not quiet:
        warnings.warn(
            f"{graph.name}: {', '.join(foreign)} run through the reference evaluator of onnx, which is slow.",
            CpuconvWarning,
            stacklevel=3,
        )
