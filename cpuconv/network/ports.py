"""Ports: inputs and outputs of a network, and validation of the arrays that callers pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvError, kind_of, must
from cpuconv.graph.ir import Value
from cpuconv.memory.aligned import new_array
from cpuconv.problem.arrays import address, as_float32_view, looks_like_nhwc

_FLOAT32 = np.dtype(np.float32)
_IMAGES = 4  # axes of a batch of images
_CONVERTIBLE = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} | {"bool", "bfloat16"}
_FORM = "a dict of arrays by input name"


@dataclass(frozen=True)
class Port:
    """An input or output of a network.

    Attributes
    ----------
    name : str
    shape : tuple of (int, str or None), or None
        Sizes; a symbol or None where the model leaves one open. None: the rank is unknown.
    dtype : numpy.dtype or None
        None: unknown until sizes are known.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: np.dtype | None

    def __str__(self) -> str:
        return f"{self.name}: {Value(self.shape, self.dtype)}"


def sizes(value: Value) -> tuple[int, ...]:
    """The sizes of a tensor of fixed shape."""
    return tuple(map(int, value.shape or ()))  # type: ignore[arg-type]  # concrete


def fed(ports: Sequence[Port], feed: Mapping[str, Any]) -> list[np.ndarray]:
    """The arrays of a feed in the order of the inputs, validated as far as the model states shapes and dtypes."""
    if type(feed) is dict and len(feed) == len(ports):
        try:  # noqa: SIM105, the context manager takes 0.3 µs
            return [_array(port, feed[port.name]) for port in ports]
        except KeyError:  # reported below
            pass
    if not isinstance(feed, Mapping):
        names = ", ".join(f"{port.name!r}: …" for port in ports)
        form = f"{_FORM}, as in run({{{names}}})"
        actual = f"{kind_of(feed)}, as ONNX Runtime's sessions take before it (cpuconv.InferenceSession does so too)"
        raise ArgumentTypeError(must("feed", form, actual if feed is None or _is_names(feed) else kind_of(feed)))
    names = [port.name for port in ports]
    if len(feed) != len(names) or any(name not in feed for name in names):
        expected = f"arrays for {', '.join(names) or 'nothing'}"
        for name in feed:
            if name not in names:
                raise ArgumentError(must("feed", expected, f"one for {name!r}"))
        raise ArgumentError(must("feed", expected, f"without {next(name for name in names if name not in feed)!r}"))
    return [_array(port, feed[port.name]) for port in ports]


def converted(ports: Sequence[Port], feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The feed, with numeric arrays converted to the dtypes of their inputs; `fed` reports other errors."""
    if not isinstance(feed, Mapping):
        return feed
    return {**feed, **{port.name: _converted(port, feed[port.name]) for port in ports if port.name in feed}}


def _converted(port: Port, given: Any) -> Any:
    if port.dtype is None or getattr(given, "dtype", None) == port.dtype:
        return given
    array = np.asarray(given.detach() if hasattr(given, "detach") else given)
    return array.astype(port.dtype) if array.dtype.name in _CONVERTIBLE else given


def _is_names(given: Any) -> bool:
    """Whether an argument is a list of names, such as the output names of an ONNX Runtime session."""
    return isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given)


def _array(port: Port, given: Any) -> np.ndarray:
    """Validate an array for an input, and make it C-contiguous."""
    if type(given) is np.ndarray and given.dtype == port.dtype and given.flags.aligned:
        array = given  # fast path, as the checks are measurable in small networks
        if array.shape == port.shape and array.flags.c_contiguous:
            return array
    elif port.dtype == _FLOAT32:
        array = _float32(given, f"feed[{port.name!r}]")
    else:
        array = given if isinstance(given, np.ndarray) else np.asarray(given)
        if array.dtype != port.dtype:
            wanted = f"of dtype {port.dtype} (Model.run(…, convert=True) converts)"
            raise ArgumentTypeError(must(f"feed[{port.name!r}]", wanted, array.dtype))
    if port.shape is not None and array.ndim != len(port.shape):
        rank = f"of rank {array.ndim}, {array.shape}"
        raise ArgumentError(must(f"feed[{port.name!r}]", f"of rank {len(port.shape)}", rank))
    if array.ndim == _IMAGES and port.shape is not None and array.shape != port.shape:
        likely = looks_like_nhwc(array.shape, port.shape)
        if likely and not Value(port.shape, port.dtype).fits(array.shape):
            wanted = f"of shape {Value(port.shape, port.dtype)}"
            raise ArgumentError(must(f"feed[{port.name!r}]", wanted, f"{array.shape}{likely}"))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)


def _float32(given: Any, label: str) -> np.ndarray:
    """Validate a float32 array; the error for another dtype names a conversion."""
    name = str(getattr(given, "dtype", "")).removeprefix("torch.")
    if name != "float32" and name in _CONVERTIBLE:
        cast = "cast it with .astype(np.float32), or call Model.run(…, convert=True)"
        raise ArgumentTypeError(must(label, f"of dtype float32: {cast}", name))
    return as_float32_view(given, label)


class OutputArrays:
    """Allocate the arrays of a program's outputs, or validate those that the caller gives.

    Parameters
    ----------
    values : mapping of str to Value
        Shape and dtype of each output, of known sizes.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        described = {name: (sizes(value), np.dtype(value.dtype)) for name, value in values.items()}
        self._outputs = {name: (*each, math.prod(each[0]) * each[1].itemsize) for name, each in described.items()}

    def new(self) -> dict[str, np.ndarray]:
        """Allocate an array for each output."""
        return {name: new_array(shape, dtype, size) for name, (shape, dtype, size) in self._outputs.items()}

    def given(self, out: Mapping[str, np.ndarray], inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """An array for each output: given arrays after validation, and new ones; `inputs` are C-contiguous."""
        if type(out) is not dict and not isinstance(out, Mapping):
            raise ArgumentTypeError(must("out", "a dict of arrays by output name", kind_of(out)))
        for name in out:
            if name not in self._outputs:
                raise ArgumentError(must("out", f"arrays for {', '.join(self._outputs)}", f"one for {name!r}"))
        arrays: dict[str, np.ndarray] = {}
        for name, (shape, dtype, size) in self._outputs.items():
            if name not in out:
                arrays[name] = new_array(shape, dtype, size)
                continue
            array = out[name]
            if (
                not isinstance(array, np.ndarray)
                or array.dtype != dtype
                or array.shape != shape
                or not array.flags.carray
            ):
                raise _unfit(f"out[{name!r}]", array, shape, dtype)
            start = address(array)
            for other in (*inputs, *arrays.values()):
                if (at := address(other)) < start + size and start < at + other.nbytes:
                    taken = next((f"out[{name!r}]" for name in arrays if arrays[name] is other), "an input")
                    raise ArgumentError(must(f"out[{name!r}]", "separate memory", f"memory that {taken} occupies"))
            arrays[name] = array
        return arrays


def _unfit(label: str, array: Any, shape: tuple[int, ...], dtype: np.dtype) -> CpuconvError:
    """The error of an output that cannot be written to an array."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        actual = getattr(array, "dtype", type(array).__name__)
        return ArgumentTypeError(must(label, f"a NumPy array of {dtype}", actual))
    if array.shape != shape:
        return ArgumentError(must(label, f"of shape {shape}", array.shape))
    return ArgumentError(must(label, "writable and C-contiguous", f"of strides {array.strides}"))
