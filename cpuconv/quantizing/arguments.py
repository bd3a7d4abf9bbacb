"""Checks of the arguments of `cpuconv.quantize`."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError, kind_of, must
from cpuconv.graph.ir import Graph
from cpuconv.network.ports import Port
from cpuconv.network.sizes.specialise import bound_inputs
from cpuconv.quantizing.calibrating import Form
from cpuconv.quantizing.choosing import ASKED
from cpuconv.quantizing.graphs.attention import Quantizable
from cpuconv.quantizing.ranges import METHODS

TYPES = {"uint8": np.dtype(np.uint8), "int8": np.dtype(np.int8)}


def file(name: str, given: object) -> Path:
    """Check that `given` is the path of a file that can be created."""
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentTypeError(must(name, "a path", kind_of(given)))
    path = Path(given)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ArgumentError(must(name, "a file in a folder that exists", repr(str(path))))
    return path


def size(source: Any, graph: Graph) -> int:
    """Size of a model in bytes, including constants in external files."""
    if isinstance(source, (str, os.PathLike)):
        whole, held = os.stat(source).st_size, sum(array.nbytes for array in graph.constants.values())
        return whole if held <= whole else whole + held
    return int(source.ByteSize()) if hasattr(source, "ByteSize") else len(source)


def form(method: str, percentile: float, activations: str, full_range: bool, margin: bool) -> Form:
    """Check the quantisation options and collect them in a `Form`."""
    _check_one_of("method", method, METHODS)
    if not 50 <= _number("percentile", percentile) <= 100:
        raise ArgumentError(must("percentile", "from 50 to 100", percentile))
    _check_one_of("activations", activations, TYPES)
    return Form(method, float(percentile), TYPES[activations], full_range, margin=margin)


def tolerance(given: object) -> float | None:
    """Check the tolerance: a number above 0, or None."""
    if given is None:
        return None
    number = _number("tolerance", given)
    if not number > 0:
        raise ArgumentError(must("tolerance", "above 0", given))
    return number


def count(name: str, given: Any) -> int:
    """Check that `given` is an integer of at least 0."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise ArgumentTypeError(must(name, "an integer", repr(given)))
    if int(given) < 0:
        raise ArgumentError(must(name, "0 or more", given))
    return int(given)


def check_callable(name: str, given: object) -> None:
    """Raise `ArgumentTypeError` if `given` is neither callable nor None."""
    if given is not None and not callable(given):
        raise ArgumentTypeError(must(name, "a callable or None", repr(given)))


def check_bool(name: str, given: object, none: bool = False) -> None:
    """Raise `ArgumentTypeError` if `given` is neither a bool nor an allowed None."""
    if not (isinstance(given, bool) or (none and given is None)):
        raise ArgumentTypeError(must(name, "True, False or None" if none else "True or False", repr(given)))


def numbers(name: str, given: Any) -> tuple[float, ...]:
    """Check numbers per channel, such as means; standard deviations must be above 0."""
    try:
        found = tuple(float(number) for number in given)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(must(name, "a sequence of numbers", repr(given))) from error
    if not found or not all(map(math.isfinite, found)) or (name.endswith("std") and min(found) <= 0):
        raise ArgumentError(must(name, "one number or one a channel, deviations above 0", repr(given)))
    return found


def ports(graph: Graph, sizes: Mapping[str, Sequence[int]]) -> tuple[Port, ...]:
    """Input ports of the network, with the sizes that `sizes` states."""
    return tuple(Port(name, value.shape, value.dtype) for name, value in bound_inputs(graph, sizes).items())


def kept(graph: Graph, layers: Sequence[Quantizable], given: Sequence[str]) -> dict[str, str]:
    """Check the names of layers that stay float32; return them with the reason."""
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(name, str) for name in given):
        raise ArgumentTypeError(must("keep", "a sequence of names", repr(given)))
    if not layers:
        raise SourceError(
            f"{graph.name} has no convolution, Gemm or MatMul with constant float32 weights, and no attention."
        )
    names = {layer.name for layer in layers}
    for name in given:
        if name not in names:
            raise ArgumentError(must("keep", f"names among {', '.join(sorted(names))}", repr(name)))
    if names.issubset(given):
        raise ArgumentError(must("keep", "some layers, so that others become int8", "all of them"))
    return dict.fromkeys(given, ASKED)


def _check_one_of(name: str, given: object, known: Collection[str]) -> None:
    if not isinstance(given, str) or given not in known:
        raise ArgumentError(must(name, f"one of {', '.join(known)}", repr(given)))


def _number(name: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float, np.floating, np.integer)):
        raise ArgumentTypeError(must(name, "a number", repr(given)))
    return float(given)
