"""What a network is fed on the command line: sizes that it leaves open, arrays from files, random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops.base import is_float
from cpuconv.network.ports import Port
from cpuconv.network.sizes.specialise import bound_inputs

RANDOM = "random"
_SMALL = 10  # random integers are below

Sizes = tuple[int, ...]


def loaded(name: str, file: str) -> np.ndarray:
    """The array of a file of NumPy's format.

    Raises
    ------
    ArgumentError
        It cannot be read.
    """
    try:
        with open(file, "rb") as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)
    except Exception as error:  # NumPy raises many kinds for what is no such file
        raise ArgumentError(must(f"--input {name}", "a .npy file that can be read", f"{file!r} ({error})")) from error


def shapes(
    graph: Graph, stated: Mapping[str, Sizes], given: Mapping[str, np.ndarray], named: Sequence[str] = ()
) -> dict[str, Sizes]:
    """Sizes of every input.

    Parameters
    ----------
    graph : Graph
        As the model states it.
    stated : Mapping[str, Sizes]
        Of inputs by name; of symbols one size each.
    given : Mapping[str, np.ndarray]
        Arrays for some inputs.
    named : Sequence[str]
        What else is said to be an input.

    Raises
    ------
    ArgumentError
        A name is neither an input nor a symbol, sizes do not fit, or some stay open.
    ArgumentTypeError
        An array is of another dtype than its input.
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
    """The sizes stated for inputs, and those for symbols; `fed` is what else is said to be an input.

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
    """Options for what there is not; a symbol that is to have several sizes."""
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
    """Sizes of all inputs: open ones are those of the symbols, and 1 on first axes."""
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


def drawn(ports: Sequence[Port], given: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """An array for every input: those given, and random ones, the same for the same seed."""
    rng = np.random.default_rng(seed)
    feed = {}
    for port in ports:
        sizes = tuple(int(size or 0) for size in port.shape or ())
        feed[port.name] = given[port.name] if port.name in given else _random(rng, sizes, port.dtype)
    return feed


def _random(rng: np.random.Generator, sizes: Sizes, dtype: np.dtype | None) -> np.ndarray:
    """Standard normal numbers, booleans, or small integers."""
    dtype = np.dtype(np.float32) if dtype is None else dtype
    if is_float(dtype):
        return np.asarray(rng.standard_normal(sizes), dtype)
    return rng.integers(2 if dtype.kind == "b" else _SMALL, size=sizes).astype(dtype)


def _text(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))
