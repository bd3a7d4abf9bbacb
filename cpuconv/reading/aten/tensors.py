"""Dtypes and order in memory of torch tensors, in terms of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cpuconv.elements import BF16

_DTYPES: dict[Any, Any] = {
    torch.float32: np.float32, torch.float64: np.float64, torch.float16: np.float16, torch.bfloat16: BF16.outside,
    torch.int8: np.int8, torch.uint8: np.uint8, torch.int16: np.int16, torch.int32: np.int32, torch.int64: np.int64,
    torch.uint16: np.uint16, torch.uint32: np.uint32, torch.uint64: np.uint64, torch.bool: np.bool_,
}  # fmt: skip


def numpy_dtype(dtype: torch.dtype) -> np.dtype | None:
    """NumPy's dtype of a torch dtype; None if there is none."""
    found = _DTYPES.get(dtype)
    return None if found is None else np.dtype(found)


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Axes in the order of memory, if this order is not that of the tensor: (0, 2, 3, 1) of channels_last images.

    None for contiguous tensors, and for those that overlap or have gaps, which are copied.
    """
    if tensor.is_contiguous():
        return None
    sizes: Sequence[int] = tensor.shape
    strides = tensor.stride()
    if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return 0, 2, 3, 1
    if tensor.ndim == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return 0, 2, 3, 4, 1
    order = tuple(sorted(range(tensor.ndim), key=lambda axis: (-strides[axis], axis)))
    expected = 1
    for axis in reversed(order):
        if not isinstance(sizes[axis], int) or (sizes[axis] != 1 and strides[axis] != expected):
            return None
        expected *= sizes[axis]
    return order
