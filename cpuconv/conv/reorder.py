"""`reorder`: convert an activation between layouts and element types, at the speed of memory.

Programs of former calls are cached. A call with the same shape and strides checks its arrays, writes two addresses into
an argument block and starts the program.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

import layouts
from cpuconv.elements import BF16, F16, F32, S8, TABLE, U8, Element
from cpuconv.errors import ArgumentError, must
from cpuconv.isa import current
from cpuconv.kernels.binding.bound_step import bind
from cpuconv.kernels.binding.steps import Operand, Ref, Space, Step
from cpuconv.kernels.copies.moving import move_image
from cpuconv.kernels.elementwise.convert import bits_of, convert_step
from cpuconv.memory.aligned import aligned
from cpuconv.problem.arrays import FLOAT32, address, as_operand, check_out, like, writable_view
from cpuconv.problem.integers import integer
from cpuconv.problem.problem import layout_name
from cpuconv.problem.quantization import checked
from cpuconv.problem.requested_types import element_named
from cpuconv.runtime import Program, get_num_threads
from cpuconv.runtime.threads import check_threads
from cpuconv.solvers.shared.base import contiguous
from layouts import Layout

if TYPE_CHECKING:
    from cpuconv.option_types import LayoutName

A = TypeVar("A")

_ALIGNED, _FLOAT32 = F32.bytes, F32.name  # module globals, as every call uses them
_ELEMENTS = tuple(TABLE.values())
_BECOME = (F32, BF16, F16, U8, S8)  # possible target types of a conversion
_PARALLEL_BYTES = 1 << 18  # below this, one thread finishes before others have started
_MAX_PROGRAMS = 256  # cached programs; the least recently used is evicted first


@overload
def reorder(
    x: A,
    src_layout: LayoutName,
    dst_layout: LayoutName,
    *,
    channels: int | None = None,
    dtype: None = None,
    scale: None = None,
    zero_point: None = None,
    out: Any = None,
) -> A: ...
@overload
def reorder(
    x: Any,
    src_layout: LayoutName,
    dst_layout: LayoutName,
    *,
    channels: int | None = None,
    dtype: Any = None,
    scale: float | None = None,
    zero_point: int | None = None,
    out: Any = None,
) -> Any: ...
def reorder(
    x: Any,
    src_layout: str,
    dst_layout: str,
    *,
    channels: int | None = None,
    dtype: Any = None,
    scale: float | None = None,
    zero_point: int | None = None,
    out: Any = None,
) -> Any:
    """Convert the activation `x` to another layout or dtype.

    Parameters
    ----------
    x : array
        float32, bfloat16 (of ml_dtypes), float16, uint8, int8, int16 or int32 (NumPy array or torch tensor), in
        `src_layout`, with any strides: (N, C, H, W) for "NCHW", (N, H, W, C) for "NHWC", (N, ceil(C/b), H, W, b) for
        "NCHW<b>c".
    src_layout : str
        Layout of `x`: one of `layouts.NAMES`, or an alias.
    dst_layout : str
        Layout of the result.
    channels : int
        C. Needed only if `src_layout` is blocked and its last block is partial.
    dtype : str or dtype
        Dtype of the result: float32, bfloat16, float16, uint8 or int8; None: that of `x`.
    scale : float
        Quantisation step. Floats become integers by q = clip(rint(x / scale) + zero_point), and integers become floats
        by (q - zero_point) · scale; both in float32. Ties are rounded to even, also from float to bfloat16 or float16;
        NaN becomes the smallest integer.
    zero_point : int
        The integer that represents 0; None: 0.
    out : numpy.ndarray or torch.Tensor
        C-contiguous array of the result's shape and dtype, not overlapping `x`; allocated if None.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        `out`, or a new C-contiguous array (a torch tensor if `x` is one). Padding channels of the last block are zero,
        regardless of their values in `x` and of the zero point.

    Raises
    ------
    ArgumentTypeError
        `x` or `out` is not an array of these dtypes, `channels` or `zero_point` is not an integer, or `scale` is not a
        number.
    ArgumentError
        A layout or dtype is unknown, `x` has a wrong rank or number of `channels`, `out` has a wrong shape or overlaps
        `x`, or a `scale` is missing, superfluous, or not above 0.

    Examples
    --------
    >>> cpuconv.reorder(x, "NCHW", "NCHW16c").shape  # x of shape (1, 20, 8, 8)
    (1, 2, 8, 8, 16)
    >>> cpuconv.reorder(x, "NCHW", "NCHW64c", dtype="uint8", scale=0.02, zero_point=128).shape
    (1, 1, 8, 8, 64)
    """
    given, read = x, _FLOAT32
    if type(x) is not np.ndarray or x.dtype is not FLOAT32 or (start := address(x)) % _ALIGNED:
        x, element = as_operand(x, "x", _ELEMENTS)
        start, read = address(x), element.name
    if type(src_layout) is not str or type(dst_layout) is not str:
        src_layout, dst_layout = layout_name(src_layout, "src_layout"), layout_name(dst_layout, "dst_layout")
    if channels is not None:
        channels = integer(channels, "channels", 0)
    written, change = read, None
    if dtype is not None or scale is not None or zero_point is not None:
        written, change = _asked(read, dtype, scale, zero_point)
    move = _moves(x.shape, x.strides, src_layout, dst_layout, channels, get_num_threads(), read, written)
    if out is None:
        target = aligned(move.shape, move.dtype)
        result = target if type(given) is np.ndarray else like(given, target)
        end = address(target)
    else:
        target, result = out if isinstance(out, np.ndarray) else writable_view(out, "out"), out
        end = address(target)
        if not (
            target.shape == move.shape
            and target.dtype is move.dtype
            and target.flags.carray
            and (end - start >= move.x_span > 0 or start - end >= target.nbytes and move.x_span)
        ):  # the fast check failed: check in detail
            check_out(target, move.shape, (x,), move.written)
    if target.size:
        move.run(start, end, change)
    return result


class _Change(NamedTuple):
    """The bits of a scale, and a zero point, as kernels read them."""

    scale: int
    zero_point: int


def _asked(read: str, dtype: Any, scale: Any, zero_point: Any) -> tuple[str, _Change | None]:
    """The name of the output element, and the numbers of the conversion; None if the element type stays the same."""
    try:
        return _cached_change(read, dtype, scale, zero_point)
    except TypeError:  # an argument is not hashable
        return _change(read, dtype, scale, zero_point)


def _change(read: str, dtype: Any, scale: Any, zero_point: Any) -> tuple[str, _Change | None]:
    element = TABLE[read]
    target = element_named(dtype, "dtype", (*_BECOME, element)) or element
    if target.integer == element.integer:
        if target != element and target.integer:
            raise ArgumentError(
                must("dtype", f"a floating-point type or None, as 'x' is of {element.label}", target.label)
            )
        for name, value in (("scale", scale), ("zero_point", zero_point)):
            if value is not None:
                expected = f"None, as 'x' is of {element.label} and the result of {target.label}"
                raise ArgumentError(must(name, expected, value))
        return target.name, None if target == element else _Change(0, 0)
    of, point = checked(scale, zero_point, element if element.integer else target)
    return target.name, _Change(bits_of(of), point)


_cached_change = functools.lru_cache(maxsize=_MAX_PROGRAMS, typed=True)(_change)


class _Move:
    """A bound reorder between two views; several threads may run it concurrently, each with its own program."""

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        src: str,
        dst: str,
        channels: int | None,
        threads: Any,
        read: str,
        written: str,
    ) -> None:
        source, target = layouts.get(layout_name(src, "src_layout")), layouts.get(layout_name(dst, "dst_layout"))
        logical = _logical_shape(shape, source, channels)
        self.shape = target.shape(*logical)
        self._read, self.written = TABLE[read], TABLE[written]
        self.dtype = FLOAT32 if self.written == F32 else self.written.outside
        self._dense = contiguous(source.name, logical, self._read) == source.strides(strides)
        self.x_span = (
            self._read.bytes * math.prod(shape) if self._dense else 0
        )  # size in bytes of a dense input; 0 if it has gaps or negative strides
        self._views = logical, source.strides(strides), source, target
        size = max(self._read.bytes * math.prod(shape), self.written.bytes * math.prod(self.shape))
        self._threads = 1 if size < _PARALLEL_BYTES else check_threads(None if threads == "auto" else threads)
        self._free: list[_Bound] = []

    def run(self, x: int, y: int, change: _Change | None) -> None:
        """Convert from address `x` to address `y`."""
        try:
            bound = self._free.pop()
        except IndexError:
            bound = self._bind()
        bound.first[0], bound.last[1] = x, y
        if change is not None and bound.change is not None:
            bound.change[3], bound.change[4] = change.scale, change.zero_point
        bound.program.run()
        self._free.append(bound)

    def _bind(self) -> _Bound:
        """Bind a program; its argument blocks start with the input and the output address."""
        space = Space()
        steps = self._steps(space)
        workspace = aligned(space.size, np.uint8)
        owned: list[Any] = [workspace]
        bound = [bind(step, owned, {"workspace": address(workspace)}) for step in steps]
        unresolved = [name for each in bound for name, places in each.unresolved.items() for _ in places]
        assert sorted({*unresolved} - {"scale", "zero"}) == ["x", "y"] and bound[0].unresolved["x"] == [0]
        assert bound[-1].unresolved["y"] == [1]
        change = next((each.block.data for each in bound if "scale" in each.unresolved), None)
        program = Program([each.row for each in bound], self._threads, owned)
        return _Bound(program, bound[0].block.data, bound[-1].block.data, change)

    def _steps(self, space: Space) -> list[Step]:
        """One step if the element type stays the same; otherwise several, through the workspace."""
        shape, strides, source, target = self._views
        read, written, isa = self._read, self.written, current()

        def move(x: Operand, layout: Layout, element: Element, last: bool) -> tuple[Step, Operand]:
            view = contiguous(layout.name, shape, element)
            y = Operand(Ref("y") if last else space.reserve(element.bytes * math.prod(layout.shape(*shape))), view)
            return move_image(isa, space, shape, x, y, self._threads, element), y

        def change(x: Operand, layout: Layout, last: bool) -> tuple[Step, Operand]:
            count = math.prod(layout.shape(*shape))
            y = Operand(
                Ref("y") if last else space.reserve(written.bytes * count), contiguous(layout.name, shape, written)
            )
            step = convert_step(isa, x.ref, y.ref, count, read, written, Ref("scale"), Ref("zero"))
            return step, y

        x = Operand(Ref("x"), strides)
        if read == written:
            return [move(x, target, read, last=True)[0]]
        steps: list[Step] = []
        whole = shape[1] % target.block == 0  # else the padding of the last block is set to zero by a last step
        if not self._dense or whole and source != target and read.bytes < written.bytes:  # reorder the smaller type
            step, x = move(x, target, read, last=False)
            steps.append(step)
            source = target
        step, x = change(x, source, last=whole and source == target)
        steps.append(step)
        if x.ref.name != "y":
            steps.append(move(x, target, written, last=True)[0])
        return steps


class _Bound(NamedTuple):
    """A program with the argument blocks of its first step, its last step, and its conversion step."""

    program: Program
    first: memoryview
    last: memoryview
    change: memoryview | None


_moves = functools.lru_cache(maxsize=_MAX_PROGRAMS)(_Move)  # the only global state of this module


def _logical_shape(shape: tuple[int, ...], layout: Layout, channels: int | None) -> tuple[int, int, int, int]:
    """(N, C, H, W) of an `x` with this physical shape."""
    if len(shape) != layout.rank:
        raise ArgumentError(must("x", f"of rank {layout.rank} for {layout}", f"of rank {len(shape)}, {shape}"))
    of = dict(zip(layout.axes, shape, strict=True))
    if of.get("b", 1) != layout.block:
        expected = f"of shape (N, C/{layout.block}, H, W, {layout.block}) for {layout}"
        raise ArgumentError(must("x", expected, f"{shape}"))
    stored = of["c"] * layout.block
    if channels is None:
        return of["n"], stored, of["h"], of["w"]
    if layout.shape(1, channels, 1, 1) != layout.shape(1, stored, 1, 1):
        least = max(0, stored - layout.block) + 1 if stored else 0
        known = f"{stored}" if layout.block == 1 else f"from {least} to {stored}"
        raise ArgumentError(must("channels", f"{known}, what 'x' of shape {shape} holds in {layout}", channels))
    return of["n"], channels, of["h"], of["w"]
