"""`reorder`: an activation from one layout to another, as fast as memory allows.

The programs of former calls are kept. A call with the same shape and strides checks its arrays, writes two addresses
into an argument block and starts the program.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import layouts
from cpuconv.elements import F32
from cpuconv.errors import ArgumentError, must
from cpuconv.isa import current
from cpuconv.kernels.binding.bound_step import bind
from cpuconv.kernels.binding.steps import Operand, Ref, Space
from cpuconv.kernels.copies.reordering import reorder_step
from cpuconv.memory.aligned import aligned
from cpuconv.problem.arrays import FLOAT32, address, as_float32_view, check_out, like, writable_view
from cpuconv.problem.integers import integer
from cpuconv.problem.problem import layout_name
from cpuconv.runtime import Program, get_num_threads
from cpuconv.runtime.threads import check_threads
from cpuconv.solvers.shared.base import contiguous
from layouts import Layout

_ALIGNED = F32.bytes  # a name of this module: every call asks for it
_PARALLEL_BYTES = 1 << 18  # below this, one thread is done before others have started
_MOST_BOUND = 256  # kinds of calls for which programs are kept; the least recently used goes first


def reorder(x: object, src_layout: str, dst_layout: str, *, channels: int | None = None, out: Any = None) -> Any:
    """The activation `x` in another layout.

    Parameters
    ----------
    x : array
        float32 (NumPy's, or a torch tensor), in `src_layout`, of any strides: (N, C, H, W) for "NCHW", (N, H, W, C) for
        "NHWC", (N, ceil(C/b), H, W, b) for "NCHW<b>c".
    src_layout : str
        Layout of `x`: one of `layouts.NAMES`, or an alias.
    dst_layout : str
        Layout of the result.
    channels : int
        C. Needed only where `src_layout` is blocked and its last block is not full.
    out : numpy.ndarray or torch.Tensor
        C-contiguous float32 of the result's shape, overlapping `x` nowhere; made when None.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        `out`, or a new C-contiguous float32 array (a tensor if `x` is one); channels that fill up a last block are
        zero, whatever `x` holds there.

    Raises
    ------
    ArgumentTypeError
        `x` or `out` is not a float32 array, or `channels` not an integer.
    ArgumentError
        A layout is unknown, `x` has not its rank or not so many `channels`, or `out` has a wrong shape or overlaps `x`.

    Examples
    --------
    >>> cpuconv.reorder(x, "NCHW", "NCHW16c").shape  # x of shape (1, 20, 8, 8)
    (1, 2, 8, 8, 16)
    """
    given = x
    if type(x) is not np.ndarray or x.dtype is not FLOAT32 or (start := address(x)) % _ALIGNED:
        x = as_float32_view(x, "x")
        start = address(x)
    if type(src_layout) is not str or type(dst_layout) is not str:
        src_layout, dst_layout = layout_name(src_layout, "src_layout"), layout_name(dst_layout, "dst_layout")
    if channels is not None:
        channels = integer(channels, "channels", 0)
    move = _moves(x.shape, x.strides, src_layout, dst_layout, channels, get_num_threads())
    if out is None:
        target = aligned(move.shape)
        result = target if type(given) is np.ndarray else like(given, target)
        end = address(target)
    else:
        target, result = out if isinstance(out, np.ndarray) else writable_view(out, "out"), out
        end = address(target)
        if not (
            target.shape == move.shape
            and target.dtype is FLOAT32
            and target.flags.carray
            and (end - start >= move.x_span > 0 or start - end >= target.nbytes and move.x_span)
        ):  # not plainly right: look closer
            check_out(target, move.shape, (x,))
    if target.size:
        move.run(start, end)
    return result


class _Move:
    """A reorder between two views, bound; several threads may run it at once, each with a program of its own."""

    def __init__(
        self, shape: tuple[int, ...], strides: tuple[int, ...], src: str, dst: str, channels: int | None, threads: Any
    ) -> None:
        source, target = layouts.get(layout_name(src, "src_layout")), layouts.get(layout_name(dst, "dst_layout"))
        logical = _logical_shape(shape, source, channels)
        self.shape = target.shape(*logical)
        dense = contiguous(source.name, logical) == source.strides(strides)
        self.x_span = F32.bytes * math.prod(shape) if dense else 0  # bytes, where `x` has no gaps and runs forward
        self._views = logical, source.strides(strides), contiguous(target.name, logical)
        size = F32.bytes * math.prod(self.shape)
        self._threads = 1 if size < _PARALLEL_BYTES else check_threads(None if threads == "auto" else threads)
        self._free: list[tuple[Program, memoryview]] = []

    def run(self, x: int, y: int) -> None:
        """Move from address `x` to address `y`."""
        try:
            bound = self._free.pop()
        except IndexError:
            bound = self._bind()
        program, block = bound
        block[0], block[1] = x, y
        program.run()
        self._free.append(bound)

    def _bind(self) -> tuple[Program, memoryview]:
        """A program, and its argument block, which starts with x and y."""
        shape, source, target = self._views
        space = Space()
        step = reorder_step(
            current(), space, shape, Operand(Ref("x"), source), Operand(Ref("y"), target), self._threads
        )
        workspace = aligned(space.size, np.uint8)
        kept: list[Any] = [workspace]
        bound = bind(step, kept, {"workspace": address(workspace)})
        assert bound.late == {"x": [0], "y": [1]}
        return Program([bound.row], self._threads, kept), bound.block.data


_moves = functools.lru_cache(maxsize=_MOST_BOUND)(_Move)  # the only state of the process here


def _logical_shape(shape: tuple[int, ...], layout: Layout, channels: int | None) -> tuple[int, int, int, int]:
    """(N, C, H, W) of an `x` of that physical shape."""
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
