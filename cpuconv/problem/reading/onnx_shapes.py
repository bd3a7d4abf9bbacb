"""Axes that an ONNX model leaves open, filled in: the batch, and shapes that the user states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cpuconv.errors import must

if TYPE_CHECKING:
    import onnx


def fix_inputs(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs the stated shapes, and axes of the same name elsewhere the same sizes.

    Raises
    ------
    ValueError
        The model has no such input, or states another number of axes or another size.
    """
    inputs = {value.name: value.type.tensor_type.shape.dim for value in _inputs(graph)}
    named: dict[str, int] = {}
    for name, sizes in shapes.items():
        if name not in inputs:
            raise ValueError(must("input", f"one of the model's ({', '.join(inputs)})", repr(name)))
        dims = inputs[name]
        known = [dim.dim_value or named.get(dim.dim_param, 0) for dim in dims]
        if len(known) != len(sizes) or any(a not in (0, b) for a, b in zip(known, sizes, strict=True)):
            text = "x".join(str(size or dim.dim_param or "?") for size, dim in zip(known, dims, strict=True))
            raise ValueError(must("input", f"a shape that fits {name}={text}", f"{name}={'x'.join(map(str, sizes))}"))
        named |= {dim.dim_param: size for dim, size in zip(dims, sizes, strict=True) if dim.dim_param}
        for dim, size in zip(dims, sizes, strict=True):
            dim.dim_value = size
    _set_named(graph, named)


def fix_batch(graph: onnx.GraphProto, batch: int | None) -> None:
    """Set the first axis of every input to `batch` (None: 1) where it is open, and all axes of the same name with it.

    Raises
    ------
    ValueError
        A batch is given, and no input leaves it open.
    """
    firsts = [value.type.tensor_type.shape.dim[0] for value in _inputs(graph) if value.type.tensor_type.shape.dim]
    free = [dim for dim in firsts if dim.dim_value < 1]
    if batch is not None and not free:
        raise ValueError(must("batches", "left out: the model fixes its batch", batch))
    _set_named(graph, {dim.dim_param: batch or 1 for dim in free if dim.dim_param})
    for dim in free:
        dim.dim_value = batch or 1


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """What a caller feeds: old files list their weights among the inputs."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _set_named(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
    for value in (*graph.input, *graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
