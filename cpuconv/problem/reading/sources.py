"""Problems from where users have them: ONNX files, lists of benchdnn problem strings, single problem strings."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, SourceError
from cpuconv.problem.arguments import padding, problem_from_arguments
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.reading.onnx_shapes import fix_batch, fix_inputs
from cpuconv.problem.types import ALL_F32, Types

if TYPE_CHECKING:
    import onnx

_NAME = re.compile(r'n"([^"]*?)(?:\*(\d+))?"')  # benchdnn: n"network:layer*repeats"
_COMMENT = re.compile(r'^((?:[^"#]|"[^"]*")*)#.*$')
_AUTO_PAD = {"VALID": "valid", "SAME_UPPER": "same_upper", "SAME_LOWER": "same_lower"}
_SHAPE_VALUES = 4096  # tensors of more elements are weights, whose values shape inference never needs
_TENSOR_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


class Entry(NamedTuple):
    """A problem as a source states it: how it calls it, how often it occurs, and in which network."""

    problem: ConvProblem
    label: str
    count: int  # type: ignore[assignment]  # hides tuple.count
    network: str


def is_model(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a model's file rather than a list of problems."""
    return os.fspath(source).endswith(".onnx")


def load(
    source: str | os.PathLike[str],
    layouts: tuple[str, str] | None = None,
    threads: int = 1,
    batches: Sequence[int] = (),
    inputs: Mapping[str, Sequence[int]] | None = None,
    types: Types = ALL_F32,
) -> list[Entry]:
    """Every 2-D convolution of a source, in its order, equal ones of a network merged.

    Parameters
    ----------
    source : path or str
        An ONNX file (extra ``onnx``), a text file with one benchdnn problem string or key a line (``#`` starts a
        comment), or one such string.
    layouts : (str, str) or None
        Layouts in and out, where the source does not state them; None is NCHW for both.
    threads : int
        Threads of each problem, where the source does not state them.
    batches : sequence of int
        Sizes to take in turn for the first axis of a model's inputs, where it is open; without them 1.
    inputs : mapping of str to sequence of int, or None
        Shapes of a model's inputs by name, as far as it leaves them open.
    types : Types
        Element types, where the source does not state them.

    Raises
    ------
    SourceError
        There is no such file, a line is no problem, a Conv node of a model has an unknown shape, or a model does not
        admit `batches` or `inputs`; the message names the line, node or input.

    Warns
    -----
    CpuconvWarning
        A model has Conv nodes that are not 2-D; they are left out.
    """
    text = os.fspath(source)
    in_layout, out_layout = layouts or ("NCHW", "NCHW")
    settings = {"in_layout": in_layout, "out_layout": out_layout, "threads": threads, "types": types}
    if os.path.isdir(text):
        raise SourceError(f"Source {text!r} is a folder; an ONNX file, a text file or a problem string is needed.")
    if not os.path.isfile(text):
        return [_parse_source(text, settings)]
    if is_model(text):
        stated = [entry for batch in batches or (None,) for entry in _from_onnx(text, settings, batch, inputs or {})]
    else:
        stated = list(_from_text(text, settings))
    entries = merged(stated)
    if not entries:
        raise SourceError(f"Source {text!r} has no 2-D convolution.")
    return entries


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Equal problems of one network as one entry, under the first one's label, counts added."""
    merged: dict[tuple[ConvProblem, str], Entry] = {}
    for entry in entries:
        first = merged.get((entry.problem, entry.network))
        merged[entry.problem, entry.network] = first._replace(count=first.count + entry.count) if first else entry
    return list(merged.values())


# --- problem strings ---------------------------------------------------------------------------------------------


def _parse_source(text: str, settings: Mapping[str, Any]) -> Entry:
    """The source itself as a problem string."""
    if not re.match(r'\w+(\s|"|$)', text):
        raise SourceError(f"Source {text!r} must be a file that exists or a problem string; there is no such file.")
    try:
        return _entry(text, settings)
    except (ArgumentError, ArgumentTypeError) as error:
        raise SourceError(f"Source {text!r} must be a file that exists or a problem string: {error}") from error


def _entry(text: str, settings: Mapping[str, Any], network: str = "") -> Entry:
    """One problem string with its name; what stands before a colon there is the network."""
    problem = ConvProblem.parse(text, **settings)
    name = _NAME.search(text)
    label = name[1] if name else problem.shape_key
    stated, colon, _ = label.partition(":")
    return Entry(problem, label, int(name[2] or 1) if name else 1, stated if colon else network)


def _from_text(path: str, settings: Mapping[str, Any]) -> Iterator[Entry]:
    """The problem strings of a file."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"Source {path!r} must be an .onnx file or a text file that can be read: {error}") from error
    for number, line in enumerate(lines, 1):
        text = _COMMENT.sub(r"\1", line).strip()
        if not text:
            continue
        try:
            yield _entry(text, settings, Path(path).stem)
        except (ArgumentError, ArgumentTypeError) as error:
            raise SourceError(f"{path}, line {number}: {error}") from error


# --- ONNX --------------------------------------------------------------------------------------------------------

Dims = tuple[int | None, ...]


def _from_onnx(
    path: str, settings: Mapping[str, Any], batch: int | None, inputs: Mapping[str, Sequence[int]]
) -> Iterator[Entry]:
    """Every Conv of a model, subgraphs and functions included; unknown batch sizes are `batch`, or 1."""
    model = _inferred_model(path, batch, inputs)
    network, skipped = Path(path).stem, []
    if batch is not None:
        network += f", batch {batch}"
    for node, shapes in _convs(model.graph, {}):
        label = node.name or node.output[0]
        attributes = {attribute.name: attribute for attribute in node.attribute}
        x_shape, w_shape = (shapes.get(name) for name in node.input[:2])
        rank = len(w_shape or x_shape or (None,) * 4)
        if rank != 4:
            skipped.append(f"{label} ({rank - 2}-D)")
            continue
        for name, shape in zip(node.input[:2], (x_shape, w_shape), strict=True):
            if shape is None or None in shape[1:]:
                known = "unknown" if shape is None else "x".join("?" if d is None else str(d) for d in shape)
                raise SourceError(
                    f"{path}: Conv node {label!r}: the shape of its input {name!r} is {known}; give the model's"
                    " inputs fixed shapes (--input NAME=1x3x224x224)."
                )
        try:
            problem = _problem(x_shape, w_shape, attributes, settings)
        except (ArgumentError, ArgumentTypeError) as error:
            raise SourceError(f"{path}: Conv node {label!r}: {error}") from error
        yield Entry(problem, label, 1, network)
    if skipped:
        warnings.warn(
            f"{path}: Conv nodes that are not 2-D are left out: {', '.join(skipped)}.", CpuconvWarning, stacklevel=4
        )


def _problem(
    x_shape: Any,
    w_shape: Any,
    attributes: Mapping[str, onnx.AttributeProto],
    settings: Mapping[str, Any],
) -> ConvProblem:
    """The problem of a Conv node whose shapes are known, but for the batch."""

    def integers(name: str, default: list[int]) -> list[int]:
        return list(attributes[name].ints) if name in attributes else default

    stride, dilation = integers("strides", [1, 1]), integers("dilations", [1, 1])
    auto_pad = attributes["auto_pad"].s.decode() if "auto_pad" in attributes else "NOTSET"
    if auto_pad in _AUTO_PAD:
        top, bottom, left, right = padding(_AUTO_PAD[auto_pad], w_shape[2:], stride, dilation, x_shape[2:])
    else:
        top, left, bottom, right = integers("pads", [0, 0, 0, 0])  # ONNX lists the near sides first
    return problem_from_arguments(
        (x_shape[0] or 1, *x_shape[1:]),
        w_shape,
        stride=stride,
        padding=((top, bottom), (left, right)),
        dilation=dilation,
        groups=attributes["group"].i if "group" in attributes else 1,
        **settings,
    )


def _inferred_model(path: str, batch: int | None, inputs: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """The model with all shapes that can be inferred, without the values of its weights."""
    try:
        import onnx
        import onnx.inliner
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise SourceError(f"Source {path!r} needs the package onnx: pip install 'cpuconv[onnx]'.") from error
    try:
        model = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise SourceError(f"Source {path!r} must be an ONNX file that can be read: {error}") from error
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) > _SHAPE_VALUES:
            for field in _TENSOR_DATA:
                tensor.ClearField(field)
    try:
        fix_inputs(model.graph, inputs)
        fix_batch(model.graph, batch)
    except ValueError as error:
        raise SourceError(f"Source {path!r}: {error}") from error
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise SourceError(f"Source {path!r}: the shapes of the model cannot be inferred: {error}") from error


def _convs(graph: onnx.GraphProto, outer: Mapping[str, Dims]) -> Iterator[tuple[onnx.NodeProto, Mapping[str, Dims]]]:
    """Each Conv node of a graph and its subgraphs, with the shapes that are known where it stands."""
    shapes = dict(outer)
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in dims)
    shapes.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)
    for node in graph.node:
        if node.op_type == "Conv" and node.domain in ("", "ai.onnx"):
            yield node, shapes
        for attribute in node.attribute:
            for subgraph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _convs(subgraph, shapes)
