"""The convolutions of an ONNX file as it states them, before rewrites, for layouts or types that the user states.

Shapes are inferred by the operators' own rules, without the package onnx and without the elements of weights. Where the
rules give no result, such as for sizes that depend on inputs, the file's statement is used.
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
_SHAPE_BYTES = 1 << 15  # larger tensors are weights or images, on whose elements no shape depends
_FAILURES = (SourceError, ValueError, TypeError, LookupError, ArithmeticError)  # raised by rules for unsuitable inputs


def original_problems(
    source: str | os.PathLike[str],
    layouts: tuple[str, str] | None = None,
    threads: int = 1,
    batches: Sequence[int] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    types: Types = ALL_F32,
) -> list[Entry]:
    """List all 2-D convolutions of a model, with its subgraphs and functions, in its order, without duplicates.

    Parameters
    ----------
    source : path
        An ONNX file; its external weight files need not exist.
    layouts : (str, str) or None
        Layouts of input and output; None is NCHW for both.
    threads : int
        Number of threads of each problem.
    batches : sequence of int
        Values for the open first axis of inputs, each in turn; if empty, 1.
    inputs : mapping of str to sequence of int, or None
        Shapes of inputs by name, where the model leaves them open.
    types : Types
        Element types of the problems.

    Raises
    ------
    SourceError
        The model cannot be read, a Conv node has an unknown shape, or `batches` or `inputs` do not fit; the message
        names the node or input.

    Warns
    -----
    CpuconvWarning
        Conv nodes that are not 2-D are skipped.
    """
    in_layout, out_layout = layouts or ("NCHW", "NCHW")
    settings = {"in_layout": in_layout, "out_layout": out_layout, "threads": threads, "types": types}
    text = os.fspath(source)
    entries: list[Entry] = []
    skipped: dict[str, None] = {}
    graph = read(source, external_data=False)
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
    """The graph with these input shapes, and with symbols replaced by the corresponding sizes."""
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
        The shape of an operand is unknown, or the node is not a valid convolution.
    """
    image, weights = (_closed(node, name, value) for name, value in zip(node.inputs, (x, w), strict=False))
    stride, dilation = node["strides"] or [1, 1], node["dilations"] or [1, 1]
    try:
        if node["auto_pad"] in _AUTO_PAD:
            asked = _AUTO_PAD[node["auto_pad"]]
            top, bottom, left, right = padding(asked, weights[2:], stride, dilation, image[2:])
        else:
            top, left, bottom, right = node["pads"] or [0, 0, 0, 0]  # ONNX lists the begin pads of all axes first
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
    """The shape of an operand, in which only the first axis may be unknown."""
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
    """Yield each Conv node of a graph and its subgraphs, with the known shapes of its image and weights.

    `known` has the values of the enclosing graph; values of this graph are added to it.
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
    """Infer the outputs by the operator's rule, else use the model's statement; compute small elements too."""
    stated = [graph.value(name) for name in node.outputs]
    if is_open(inputs) or node.semantics is not None:
        return stated
    try:
        found = ops.semantics(node).infer(node, inputs)
        known = all(value is None or value.array is not None for value in inputs)
        if known and all(_is_small(value) for value in (*found, *filter(None, inputs))):
            arrays = [None if value is None else value.array for value in inputs]
            return [Value.of(array) for array in run(node, arrays, [value.dtype for value in found])]
        return found
    except _FAILURES:
        return stated


def _is_small(value: Value) -> bool:
    return value.concrete and value.nbytes <= _SHAPE_BYTES
