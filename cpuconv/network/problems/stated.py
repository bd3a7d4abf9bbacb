"""The convolutions of an ONNX file as it states them, before any rewrite: for layouts or types that the user states.

Shapes are inferred by the operators' own rules, without the package onnx and without the elements of weights. What the
rules do not know, such as sizes that depend on what is fed, is what the file states.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, SourceError
from cpuconv.graph import ops
from cpuconv.graph.control import bodies
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.network.interpret import run
from cpuconv.network.problems.compiled import with_batch
from cpuconv.network.sizes.specialise import bound_inputs, is_open, with_sizes
from cpuconv.problem.arguments import padding, problem_from_arguments
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading.sources import Entry, merged
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.reading.onnx_reader import read

_AUTO_PAD = {"VALID": "valid", "SAME_UPPER": "same_upper", "SAME_LOWER": "same_lower"}
_SHAPE_BYTES = 1 << 15  # tensors of more are weights or images, whose values no shape follows from
_FAILURES = (SourceError, ValueError, TypeError, LookupError, ArithmeticError)  # of rules whose inputs do not fit


def stated_problems(
    source: str | os.PathLike[str],
    layouts: tuple[str, str] | None = None,
    threads: int = 1,
    batches: Sequence[int] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    types: Types = ALL_F32,
) -> list[Entry]:
    """Every 2-D convolution of a model, those of its subgraphs and functions included, in its order, equal ones merged.

    Parameters
    ----------
    source : path
        An ONNX file; files beside it that hold weights need not be there.
    layouts : (str, str) or None
        Layouts in and out; None is NCHW for both.
    threads : int
        Threads of each problem.
    batches : sequence of int
        Sizes to take in turn for the first axis of inputs, where it is open; without them 1.
    inputs : mapping of str to sequence of int, or None
        Shapes of inputs by name, as far as the model leaves them open.
    types : Types
        Element types.

    Raises
    ------
    SourceError
        The model cannot be read, a Conv node has an unknown shape, or `batches` or `inputs` do not fit; the message
        names the node or input.

    Warns
    -----
    CpuconvWarning
        Conv nodes that are not 2-D are left out.
    """
    in_layout, out_layout = layouts or ("NCHW", "NCHW")
    settings = {"in_layout": in_layout, "out_layout": out_layout, "threads": threads, "types": types}
    text = os.fspath(source)
    entries: list[Entry] = []
    skipped: dict[str, None] = {}
    graph = read(source, beside=False)
    for batch in batches or (None,):
        network = Path(text).stem + ("" if batch is None else f", batch {batch}")
        try:
            shapes = with_batch(graph, batch, inputs or {})
            for node, x, w in _convolutions(_sized(graph, shapes), {}):
                rank = len(w.shape or x.shape or (None,) * 4)
                if rank == 4:
                    entries.append(Entry(_problem(node, x, w, settings), node.origin, 1, network))
                else:
                    skipped[f"{node.origin} ({rank - 2}-D)"] = None
        except (ArgumentError, ArgumentTypeError, SourceError) as error:
            raise SourceError(f"Source {text!r}: {error}") from error
    if skipped:
        warnings.warn(
            f"{text}: Conv nodes that are not 2-D are left out: {', '.join(skipped)}.", CpuconvWarning, stacklevel=2
        )
    if not entries:
        raise SourceError(f"Source {text!r} has no 2-D convolution.")
    return merged(entries)


def _sized(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph with these shapes of inputs, and sizes in the place of the symbols that they stand for."""
    known = bound_inputs(graph, shapes)
    sizes = {
        dim: size
        for name, value in known.items()
        for dim, size in zip(graph.value(name).shape or (), value.shape or (), strict=False)
        if isinstance(dim, str) and isinstance(size, int)
    }
    sized = with_sizes(graph, sizes)
    return Graph(graph.inputs, graph.outputs, graph.nodes, graph.constants, {**sized.values, **known}, graph.name)


def _problem(node: Node, x: Value, w: Value, settings: Mapping[str, Any]) -> ConvProblem:
    """The problem of a Conv node; an open batch is 1.

    Raises
    ------
    SourceError
        The shape of an operand is unknown, or the node is no convolution.
    """
    image, weights = (_closed(node, name, value) for name, value in zip(node.inputs, (x, w), strict=False))
    stride, dilation = node["strides"] or [1, 1], node["dilations"] or [1, 1]
    try:
        if node["auto_pad"] in _AUTO_PAD:
            asked = _AUTO_PAD[node["auto_pad"]]
            top, bottom, left, right = padding(asked, weights[2:], stride, dilation, image[2:])
        else:
            top, left, bottom, right = node["pads"] or [0, 0, 0, 0]  # ONNX lists the near sides first
        return problem_from_arguments(
            image,
            weights,
            stride=stride,
            padding=((top, bottom), (left, right)),
            dilation=dilation,
            groups=node["group"],
            **settings,
        )
    except (ArgumentError, ArgumentTypeError, ValueError) as error:
        raise SourceError(f"{node.label}: {error}") from error


def _closed(node: Node, name: str, value: Value) -> tuple[int, ...]:
    """The shape of an operand, which must be known but for its first axis."""
    shape = value.shape or ()
    first, *rest = [size if isinstance(size, int) else 0 for size in shape] or [0]
    if value.shape is None or not all(isinstance(size, int) for size in shape[1:]):
        known = "x".join(str(size or "?") for size in (first, *rest)) if shape else "unknown"
        raise SourceError(
            f"{node.label}: the shape of its input {name!r} is {known}; give the model's inputs fixed shapes (--input"
            " NAME=1x3x224x224)."
        )
    return (first or 1, *rest)


# --- shapes ---------------------------------------------------------------------------------------------------------


def _convolutions(graph: Graph, known: dict[str, Value]) -> Iterator[tuple[Node, Value, Value]]:
    """Each Conv node of a graph and of the graphs within, and what is known of its image and weights.

    `known` is what is known of values around the graph; what is found out of its own is added.
    """
    for name in graph.inputs:
        known.setdefault(name, graph.value(name))
    known.update((name, Value.of(array)) for name, array in graph.constants.items())
    for node in graph.nodes:
        inputs = [known.get(name, Value()) if name else None for name in node.inputs]
        if node.op == "Conv":
            yield node, inputs[0] or Value(), inputs[1] or Value()
        ends = []
        for body in bodies(node):
            within = dict(known)
            yield from _convolutions(body, within)
            ends.append([within[name] for name in body.outputs])
        alike = node.op == "If" and len(ends) == 2 and ends[0] == ends[1]
        outputs = ends[0] if alike else _outputs(graph, node, inputs)
        known.update((name, value) for name, value in zip(node.outputs, outputs, strict=False) if name)


def _outputs(graph: Graph, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
    """What the outputs are by the operator's rule, else what the model states; their elements too, if they are few."""
    stated = [graph.value(name) for name in node.outputs]
    if is_open(inputs) or node.meaning is not None:
        return stated
    try:
        found = ops.meaning(node).infer(node, inputs)
        known = all(value is None or value.array is not None for value in inputs)
        if known and all(_is_small(value) for value in (*found, *filter(None, inputs))):
            arrays = [None if value is None else value.array for value in inputs]
            return [Value.of(array) for array in run(node, arrays, [value.dtype for value in found])]
        return found
    except _FAILURES:
        return stated


def _is_small(value: Value) -> bool:
    return value.concrete and value.nbytes <= _SHAPE_BYTES
