"""Conversions between layouts in plain NumPy: slow and simple, the reference for the compiled reorders."""

from __future__ import annotations

import numpy as np

from .layout import Layout, get


def to_nchw(x: np.ndarray, layout: str | Layout, channels: int | None = None) -> np.ndarray:
    """Return the logical NCHW array of a physical array; a view where the layout allows it.

    Parameters
    ----------
    x : np.ndarray
        Physical array in `layout`, of any dtype.
    layout : str | Layout
        The layout of `x`.
    channels : int | None
        Real channels of a blocked layout with padding in its last block; None returns all stored channels.

    Raises
    ------
    ValueError
        The rank of `x` differs from that of the layout, or `channels` does not end in the last block.
    """
    layout = get(layout)
    if x.ndim != layout.rank:
        raise ValueError(f"Argument 'x' must be an array of rank {layout.rank} for {layout}, not {x.ndim}.")
    if layout.block == 1:
        nchw = x.transpose([layout.axes.index(axis) for axis in "nchw"])
    else:
        n, blocks, h, w, block = x.shape
        nchw = x.transpose(0, 1, 4, 2, 3).reshape(n, blocks * block, h, w)
    stored = nchw.shape[1]
    if channels is None:
        return nchw
    if not stored - layout.block < channels <= stored:
        raise ValueError(f"Argument 'channels' must be at most {stored} and end in the last block, not {channels}.")
    return nchw[:, :channels]


def from_nchw(x: np.ndarray, layout: str | Layout) -> np.ndarray:
    """Return a logical NCHW array in `layout`, C-contiguous, with zeros in the padding of the last channel block.

    Raises
    ------
    ValueError
        `x` is not of rank 4.
    """
    layout = get(layout)
    if x.ndim != 4:
        raise ValueError(f"Argument 'x' must be an array of rank 4, not {x.ndim}.")
    if layout.block == 1:
        return np.ascontiguousarray(x.transpose(["nchw".index(axis) for axis in layout.axes]))
    n, c, h, w = x.shape
    blocks = -(-c // layout.block)
    filled = np.zeros((n, blocks * layout.block, h, w), x.dtype)
    filled[:, :c] = x
    return np.ascontiguousarray(filled.reshape(n, blocks, layout.block, h, w).transpose(0, 1, 3, 4, 2))


def convert(x: np.ndarray, src: str | Layout, dst: str | Layout, channels: int | None = None) -> np.ndarray:
    """Convert the physical array `x` from layout `src` to `dst`; `channels` as for `to_nchw`."""
    return from_nchw(to_nchw(x, src, channels), dst)
