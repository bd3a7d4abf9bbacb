"""Input arrays for command-line runs: sizes for open dimensions, arrays from files, random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops.base import is_float
from cpuconv.images.files import picture_in
from cpuconv.images.image import PRESETS, Image
from cpuconv.network.model import Model
from cpuconv.network.ports import Port
from cpuconv.network.sizes.specialise import bound_inputs

RANDOM = "random"
_SMALL = 10  # exclusive upper bound of random integers

Sizes = tuple[int, ...]


def loaded(name: str, file: str) -> np.ndarray:
    """Load an array from a file in NumPy's format.

    Raises
    ------
    ArgumentError
        The file cannot be read.
    """
    try:
        with open(file, "rb") as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)
    except Exception as error:  # NumPy raises many types for other file formats
        raise ArgumentError(must(f"--input {name}", "a .npy file that can be read", f"{file!r} ({error})")) from error


def shapes(
    graph: Graph, stated: Mapping[str, Sizes], given: Mapping[str, np.ndarray], named: Sequence[str] = ()
) -> dict[str, Sizes]:
    """Return the sizes of every input.

    Parameters
    ----------
    graph : Graph
        The graph as read from the model.
    stated : Mapping[str, Sizes]
        Sizes per input name; one size per symbol.
    given : Mapping[str, np.ndarray]
        Arrays of some inputs.
    named : Sequence[str]
        Further names used as inputs.

    Raises
    ------
    ArgumentError
        A name is neither an input nor a symbol, sizes do not fit, or some stay open.
    ArgumentTypeError
        The dtype of an array differs from that of its input.
    """
    inputs = {name: graph.value(name) for name in graph.inputs}
    own, symbols = divided(graph, stated, (*given, *named))
    for name, array in given.items():
        _check_array(name, array, inputs[name], own.get(name))
        own[name] = array.shape
    closed = _closed(bound_inputs(graph, own), symbols)
    for name, value in inputs.items():
        for dim, size in zip(value.shape or (), closed[name], strict=False):
            if isinstance(dim, str) and symbols.get(dim, size) != size:
                raise ArgumentError(must(f"--shape {dim}", f"{size}, as in the sizes of {name}", symbols[dim]))
    return closed


def divided(
    graph: Graph, stated: Mapping[str, Sizes], fed: Sequence[str] = ()
) -> tuple[dict[str, Sizes], dict[str, int]]:
    """Split stated sizes into those of inputs and those of symbols; `fed` has further names used as inputs.

    Raises
    ------
    ArgumentError
        A name is neither an input nor a symbol, or sizes do not fit.
    """
    inputs = {name: graph.value(name) for name in graph.inputs}
    _check_names(inputs, stated, fed)
    own = {name: sizes for name, sizes in stated.items() if name in inputs}
    for name, sizes in own.items():
        if not inputs[name].fits(sizes):
            raise ArgumentError(must(f"--shape {name}", f"sizes that fit {inputs[name]}", _text(sizes)))
    return own, {name: sizes[0] for name, sizes in stated.items() if name not in inputs}


def _check_names(inputs: Mapping[str, Value], stated: Mapping[str, Sizes], fed: Sequence[str]) -> None:
    """Raise for options that name unknown inputs or symbols, and for a symbol with several sizes."""
    listed = [f"{name}: {value}" for name, value in inputs.items()]
    symbols = sorted({dim for value in inputs.values() for dim in value.shape or () if isinstance(dim, str)})
    for name in fed:
        if name not in inputs:
            raise ArgumentError(must("--input", f"for one of {', '.join(listed) or 'nothing'}", f"for {name!r}"))
    for name, sizes in stated.items():
        if name not in inputs and name not in symbols:
            known = ", ".join([*listed, *symbols]) or "nothing"
            raise ArgumentError(must("--shape", f"for one of {known}", f"for {name!r}"))
        if name not in inputs and len(sizes) != 1:
            raise ArgumentError(must(f"--shape {name}", "one size", _text(sizes)))


def _check_array(name: str, array: np.ndarray, value: Value, stated: Sizes | None) -> None:
    label = f"--input {name}"
    if array.dtype != value.dtype:
        raise ArgumentTypeError(must(label, f"an array of {value}", f"of {Value.of(array)}"))
    if not value.fits(array.shape) or (stated is not None and stated != array.shape):
        expected = f"an array of {value}" if stated is None else f"of the sizes of --shape, {_text(stated)}"
        raise ArgumentError(must(label, expected, f"of {Value.of(array)}"))


def _closed(inputs: Mapping[str, Value], symbols: Mapping[str, int]) -> dict[str, Sizes]:
    """Return the sizes of all inputs; open sizes are those of the symbols, or 1 on a first axis."""
    firsts = [value.shape[0] for value in inputs.values() if value.shape]
    symbols = {first: 1 for first in firsts if isinstance(first, str)} | dict(symbols)
    closed = {}
    for name, value in inputs.items():
        sizes = [symbols.get(dim) if isinstance(dim, str) else dim for dim in value.shape or ()]
        if sizes and sizes[0] is None:
            sizes[0] = 1
        closed[name] = tuple(size for size in sizes if size is not None)
        if value.shape is None or len(closed[name]) < len(sizes):
            raise ArgumentError(
                must("--shape", f"given for {name}: {value}, whose sizes the model leaves open", "left out")
            )
    return closed


def with_pictures(model: Model, files: Sequence[str], preset: str | None) -> dict[str, list[Any]]:
    """Let the model's image input take pictures, unless it does, and return those in the files, by its name.

    Raises
    ------
    ArgumentError
        A file cannot be read, or not one input takes pictures.
    """
    if not files:
        return {}
    if preset is not None or not model.images:
        image = Image.preset(preset or PRESETS[0], color="RGB")
        names = [port.name for port in model.inputs if port.shape is not None and len(port.shape) == 4]
        if len(names) != 1:
            raise ArgumentError(must("--image", "left out where the network has not one image input", "given"))
        model.with_images({names[0]: image})
    (name, *more) = model.images
    if more:
        raise ArgumentError(must("--image", "left out where several inputs take pictures", "given"))
    return {name: [picture_in(file, "--image") for file in files]}


def drawn(ports: Sequence[Port], given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return an array per input: the given ones, and random ones that depend only on the seed."""
    rng = np.random.default_rng(seed)
    feed = {}
    for port in ports:
        sizes = tuple(int(size or 0) for size in port.shape or ())
        feed[port.name] = given[port.name] if port.name in given else _random(rng, sizes, port.dtype)
    return feed


def _random(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype | None) -> np.ndarray:
    """Draw standard normal numbers, booleans, or small integers."""
    dtype = np.dtype(np.float32) if dtype is None else dtype
    if is_float(dtype):
        return np.asarray(rng.standard_normal(sizes), dtype)
    return rng.integers(2 if dtype.kind == "b" else _SMALL, size=sizes).astype(dtype)


def _text(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))
