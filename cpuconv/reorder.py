"""`reorder`: an activation from one layout to another, as fast as memory allows."""

from __future__ import annotations

import numpy as np

import layouts
from layouts import Layout

from .arrays import as_float32_view
from .errors import ArgumentError, must
from .integers import integer
from .isa import current
from .problem import layout_name
from .runtime import Program, get_num_threads
from .solvers.base import Operand, Ref, Space, aligned
from .solvers.reordering import reorder_step

_PARALLEL_BYTES = 1 << 18  # below this, one thread is done before others have started


def reorder(x: object, src_layout: str, dst_layout: str, *, channels: int | None = None) -> np.ndarray:
    """The activation `x` in another layout.

    Args:
        x: float32 array in `src_layout`, of any strides: (N, C, H, W) for "NCHW", (N, H, W, C) for "NHWC",
            (N, ceil(C/b), H, W, b) for "NCHW<b>c".
        src_layout: Layout of `x`: one of `layouts.NAMES`, or an alias.
        dst_layout: Layout of the result.
        channels: C. Needed only where `src_layout` is blocked and its last block is not full; by default all
            channels stored are real.

    Returns:
        A new C-contiguous float32 array; channels that fill up a last block are zero, whatever `x` has there.

    Raises:
        ArgumentTypeError: `x` is not a float32 array, or `channels` not an integer.
        ArgumentError: An unknown layout, a rank that is not the layout's, or `channels` that `x` does not hold.

    Examples:
        >>> cpuconv.reorder(x, "NCHW", "NCHW16c").shape  # x of shape (1, 20, 8, 8)
        (1, 2, 8, 8, 16)
    """
    array = as_float32_view(x, "x")
    source = layouts.get(layout_name(src_layout, "src_layout"))
    target = layouts.get(layout_name(dst_layout, "dst_layout"))
    shape = _logical_shape(array, source, channels)
    y = aligned(target.shape(*shape))
    if y.size == 0:
        return y
    threads = get_num_threads() if y.nbytes >= _PARALLEL_BYTES else 1
    space = Space()
    operands = (Operand(Ref("x"), source.strides(array.strides)), Operand(Ref("y"), target.strides(y.strides)))
    step = reorder_step(current(), space, shape, *operands, threads)
    workspace = aligned(space.size, np.uint8)
    addresses = {"x": array.ctypes.data, "y": y.ctypes.data, "workspace": workspace.ctypes.data}
    words = {
        name: addresses[value.name] + value.offset if isinstance(value, Ref) else int(value)
        for name, value in step.args.items()
    }
    Program([(step.kernel.entry(step.tile), step.kernel.pack(words), step.parts)], threads).run()
    return y


def _logical_shape(x: np.ndarray, layout: Layout, channels: int | None) -> tuple[int, int, int, int]:
    """(N, C, H, W) of `x`."""
    if x.ndim != layout.rank:
        raise ArgumentError(must("x", f"of rank {layout.rank} for {layout}", f"of rank {x.ndim}, {x.shape}"))
    of = dict(zip(layout.axes, x.shape, strict=True))
    if of.get("b", 1) != layout.block:
        expected = f"of shape (N, C/{layout.block}, H, W, {layout.block}) for {layout}"
        raise ArgumentError(must("x", expected, f"{x.shape}"))
    stored = of["c"] * layout.block
    if channels is None:
        return of["n"], stored, of["h"], of["w"]
    channels = integer(channels, "channels", 0)
    if layout.shape(1, channels, 1, 1) != layout.shape(1, stored, 1, 1):
        least = max(0, stored - layout.block) + 1 if stored else 0
        known = f"{stored}" if layout.block == 1 else f"from {least} to {stored}"
        raise ArgumentError(must("channels", f"{known}, what 'x' of shape {x.shape} holds in {layout}", channels))
    return of["n"], channels, of["h"], of["w"]
