"""Conversion of array arguments without copies, and checks of output arrays.

Arrays have the dtypes of users' libraries: bfloat16 is that of ml_dtypes, also for bfloat16 torch tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import layouts
from cpuconv.elements import BF16, F16, F32, OF_DTYPE, S8, U8, Element
from cpuconv.errors import ArgumentError, ArgumentTypeError, kind_of, must
from cpuconv.problem.problem import ConvProblem, layout_name

FLOAT32 = F32.dtype
_DLPACK_CPU = 1


def as_float32_view(x: object, name: str) -> np.ndarray:
    """View `x` as a float32 array; see `as_view`."""
    return as_view(x, name, F32)


def as_view(x: object, name: str, element: Element) -> np.ndarray:
    """View `x` as a NumPy array on the same memory.

    Only an array whose memory is not aligned to its elements (a field of a packed record) is copied: kernels cannot
    read it.

    Parameters
    ----------
    x : array of the element's type
        A NumPy array of any strides, read-only or not, or an object on the CPU with ``__dlpack__`` or ``__array__`` (a
        torch tensor; one that requires grad is detached).
    name : str
        The argument's name, for messages.
    element : Element

    Returns
    -------
    numpy.ndarray
        Array of dtype ``element.outside``.

    Raises
    ------
    ArgumentTypeError
        `x` is not an array, has another dtype (nothing is cast silently), has foreign byte order, is masked, or is
        not in CPU memory.
    """
    array = x if type(x) is np.ndarray else _from_foreign(x, name)
    if array.dtype is not element.outside and array.dtype != element.outside:
        raise ArgumentTypeError(_dtype_message(array.dtype, name, (element,)))
    return array if array.flags.aligned else array.copy()


OPERANDS = (F32, BF16, F16, S8, U8)
"""Element types that inputs and weights may have."""


def as_operand(x: object, name: str, elements: Sequence[Element] = OPERANDS) -> tuple[np.ndarray, Element]:
    """View `x` like `as_view`, accepting any of `elements`; also return the element type."""
    array = x if type(x) is np.ndarray else _from_foreign(x, name)
    element = F32 if array.dtype is FLOAT32 else OF_DTYPE.get(array.dtype)
    if element not in elements or element is None:
        raise ArgumentTypeError(_dtype_message(array.dtype, name, elements))
    return array if array.flags.aligned else array.copy(), element


def kernel_view(array: np.ndarray) -> np.ndarray:
    """View an array with the dtypes of kernels and packing: bfloat16 as uint16."""
    return array.view(BF16.dtype) if array.dtype == BF16.outside else array


def _data_word() -> int | None:
    """Byte offset of the data pointer in a NumPy array object: the first word after the object head, as in its C API.

    None if a trial does not find the pointer there.
    """
    trial = np.empty(3, np.float32)[1:]
    offset = object.__basicsize__
    pointer = ctypes.c_size_t.from_address(id(trial) + offset).value
    return offset if pointer == trial.__array_interface__["data"][0] else None


_DATA_WORD = _data_word()
_WORD_AT = ctypes.c_size_t.from_address


def address(array: np.ndarray) -> int:
    """Address of the first element. NumPy's own attributes take 1.5 µs, which is noticeable in small convolutions."""
    return _WORD_AT(id(array) + _DATA_WORD).value if _DATA_WORD else int(array.__array_interface__["data"][0])


def _dtype_message(dtype: np.dtype, name: str, elements: Sequence[Element]) -> str:
    first, *others = elements
    if any(dtype == element.outside.newbyteorder() for element in elements):
        native = dtype.newbyteorder("=").name
        return must(name, f"{native} in native byte order: cast it with .astype(np.{native})", f"{dtype.str!r}")
    expected = f"of dtype {first.label}: cast it with .astype({'ml_dtypes' if first == BF16 else 'np'}.{first.label})"
    if others:
        expected += f"; or of {', '.join(element.label for element in others)}"
    return must(name, expected, f"{dtype}")


def _from_foreign(x: Any, name: str) -> np.ndarray:
    """Convert a subclass of ndarray, a DLPack exporter or an object with ``__array__`` to an array on its memory."""
    if _is_tensor(x):
        try:
            return x.detach().numpy()
        except (RuntimeError, TypeError):  # bfloat16; other errors are reported below
            if x.is_neg():  # elements are stored with the opposite sign
                x = x.resolve_neg()
            with contextlib.suppress(RuntimeError, TypeError):
                return _of_tensor(x)
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentTypeError(must(name, "an array without a mask: fill it with .filled()", "a masked array"))
    if isinstance(x, np.ndarray):
        return x.view(np.ndarray)
    if getattr(x, "requires_grad", False) and hasattr(x, "detach"):
        x = x.detach()  # tensors that record gradients refuse to export their memory
    try:
        if hasattr(x, "__dlpack__"):
            if x.__dlpack_device__()[0] != _DLPACK_CPU:
                raise ArgumentTypeError(must(name, "an array in CPU memory", f"one on {_device(x)}"))
            return np.from_dlpack(x)
        if hasattr(x, "__array__"):
            return np.asarray(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, ArgumentTypeError):
            raise
        actual = f"a {type(x).__name__} that cannot export its memory ({error})"
        raise ArgumentTypeError(must(name, "an array", actual)) from error
    raise ArgumentTypeError(must(name, "a NumPy array or an object with __dlpack__ or __array__", kind_of(x)))


def _is_tensor(x: object) -> bool:
    """Whether `x` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _of_tensor(x: Any) -> np.ndarray:
    """View a tensor's memory as an array; bfloat16 goes to NumPy as int16."""
    if x.requires_grad:  # else 1 of 1.7 us
        x = x.detach()
    try:
        return x.numpy()
    except TypeError:
        torch = sys.modules["torch"]
        if x.dtype != torch.bfloat16:
            raise
        return x.view(torch.int16).numpy().view(BF16.outside)


def like(x: object, result: np.ndarray) -> Any:
    """Convert `result` to the array type of `x`: a torch tensor on the same memory, or `result` itself."""
    if not _is_tensor(x):
        return result
    torch = sys.modules["torch"]
    if result.dtype is not FLOAT32 and result.dtype == BF16.outside:
        return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(result)


def writable_view(x: Any, name: str) -> np.ndarray:
    """View a torch tensor on the CPU as a writable NumPy array on the same memory.

    Raises
    ------
    ArgumentTypeError
        `x` is not a tensor in CPU memory.
    """
    if not _is_tensor(x):
        raise ArgumentTypeError(must(name, "a NumPy array or a torch tensor", kind_of(x)))
    try:
        return _of_tensor(x)
    except (RuntimeError, TypeError) as error:
        raise ArgumentTypeError(must(name, "a tensor in CPU memory", f"{_device(x)} ({error})")) from error


def _device(x: object) -> str:
    return str(getattr(x, "device", "another device"))


def logical_shape(x: np.ndarray, layout: str, channels: int, name: str) -> tuple[int, int, int, int]:
    """Logical shape (N, C, H, W) of the physical array `x` in `layout`.

    Parameters
    ----------
    layout : str
        Layout name or alias.
    channels : int
        C; needed for blocked layouts, whose last block may be partial.
    name : str
        The argument's name, for messages.

    Raises
    ------
    ArgumentError
        The layout is unknown, or the rank or number of blocks does not match.
    """
    known = layouts.get(layout_name(layout, "in_layout" if name == "x" else "out_layout"))
    if x.ndim != known.rank:
        raise ArgumentError(must(name, f"of rank {known.rank} for {known}", f"of rank {x.ndim}, {x.shape}"))
    if known.block == 1:
        n, c, h, w = (x.shape[known.axes.index(axis)] for axis in "nchw")
        return n, c, h, w
    n, _, h, w, _ = x.shape
    expected = known.shape(n, channels, h, w)
    if x.shape != expected:
        raise ArgumentError(must(name, f"of shape {expected}, {known} of {channels} channels", f"{x.shape}"))
    return n, channels, h, w


def check_activation_array(x: np.ndarray, problem: ConvProblem, name: str) -> None:
    """Check that `x` has the physical shape of the problem's input (name "x") or output (any other name).

    Raises
    ------
    ArgumentError
        The shape is another one; the message has the shape that the layout requires.
    """
    reads_input = name == "x"
    layout, logical = (problem.in_layout, problem.in_shape) if reads_input else (problem.out_layout, problem.out_shape)
    expected = layouts.get(layout).shape(*logical)
    if x.shape != expected:
        actual = f"{x.shape}{looks_like_nhwc(x.shape, expected) if layout == 'NCHW' else ''}"
        raise ArgumentError(must(name, f"of shape {expected}, {layout} of (N, C, H, W) = {logical}", actual))


def looks_like_nhwc(given: Sequence[int], wanted: Sequence[int | str | None]) -> str:
    """Hint for an error message if an NHWC array was passed where NCHW is expected; else "".

    Known sizes of `wanted` are compared; symbolic ones match any size.
    """
    if not len(given) == len(wanted) == 4 or all(isinstance(size, str) or size is None for size in wanted[1:]):
        return ""
    channels_first = (given[0], given[3], given[1], given[2])
    fits = all(not isinstance(size, int) or size == here for size, here in zip(wanted, channels_first, strict=True))
    return ", which looks like NHWC: give x.transpose(0, 3, 1, 2)" if fits else ""


def check_out(
    out: object, shape: tuple[int, ...], inputs: Iterable[np.ndarray | None] = (), element: Element = F32
) -> None:
    """Check that a result of physical `shape` can be written to `out` while `inputs` are read.

    Overlap is judged by the memory bounds of the arrays.

    Raises
    ------
    ArgumentTypeError
        `out` is not a NumPy array of the element's dtype.
    ArgumentError
        `out` has another shape, is read-only or not C-contiguous, or overlaps an input.
    """
    if not isinstance(out, np.ndarray):
        raise ArgumentTypeError(must("out", "a NumPy array or a torch tensor", kind_of(out)))
    if out.dtype != element.outside:
        raise ArgumentTypeError(_dtype_message(out.dtype, "out", (element,)))
    if out.shape != shape:
        raise ArgumentError(must("out", f"of shape {shape}", f"{out.shape}"))
    if not out.flags.carray:  # writable, C-contiguous and aligned
        expected = "writable" if not out.flags.writeable else "C-contiguous and aligned"
        raise ArgumentError(must("out", expected, "read-only" if expected == "writable" else f"{out.strides} strides"))
    for other in inputs:
        if other is not None and np.may_share_memory(out, other):
            raise ArgumentError(must("out", "separate memory", "memory that an input occupies"))
