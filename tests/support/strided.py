"""The same values in memory of other strides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """1, 2, 3 …: no element equals another, none equals a zero of the tail."""
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def read_only(array: np.ndarray) -> np.ndarray:
    """A copy that nobody can write to."""
    array = array.copy()
    array.flags.writeable = False
    return array


def sliced(array: np.ndarray, step: int = 1) -> np.ndarray:
    """A slice of a larger array of NaN (of integers, of -1 or the largest), every `step`-th element of each axis."""
    around = np.empty([step * size + 1 for size in array.shape], array.dtype)
    around.view(np.uint8)[...] = 0xFF
    inner = around[tuple(slice(0, step * size, step) for size in array.shape)]
    inner[...] = array
    return inner


def transposed(array: np.ndarray, *order: int) -> np.ndarray:
    """With axes in that order in memory."""
    return array.transpose(order).copy().transpose(np.argsort(order))


def backwards(array: np.ndarray) -> np.ndarray:
    """Every axis runs towards lower addresses."""
    turned = (slice(None, None, -1),) * array.ndim
    return array[turned].copy()[turned]


def apart(array: np.ndarray, gap: int, fill: float = np.nan) -> np.ndarray:
    """With `gap` floats of `fill` before each item of the first axis, and behind the last."""
    count, size = len(array), array[0].size
    rows = np.full((count + 1) * (gap + size), fill, np.float32).reshape(count + 1, gap + size)
    rows[:-1, gap:] = array.reshape(count, size)
    return rows[:-1, gap:].reshape(array.shape)


def overlapping(array: np.ndarray, parts: int, place: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Of `parts` parts of the channels, each image has all but the last in common with the one before, as `place`d."""
    first = array[0].reshape(parts, -1, *array.shape[2:])
    slices = place(np.concatenate([first, array[1:, -first.shape[1] :]]))
    return np.lib.stride_tricks.as_strided(slices, array.shape, slices.strides)


# Of arrays of rank 4.
VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "dense": np.copy,
    "channels last": lambda x: transposed(x, 0, 2, 3, 1),
    "filters last": lambda x: transposed(x, 2, 3, 1, 0),
    "rows last": lambda x: transposed(x, 3, 1, 0, 2),
    "fortran": np.asfortranarray,
    "backwards": backwards,
    "sliced": sliced,
    "every other column": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "every third row": lambda x: np.repeat(x, 3, axis=2)[:, :, 1::3],
    "every other channel": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "half of the channels": lambda x: np.concatenate([x, x], axis=1)[:, : x.shape[1]],
    "unaligned": lambda x: np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
    "bytes": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
}


class Exporter:
    """A tensor of another library, with ``__dlpack__``, on the device it is told."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array, self.kind, self.device, self.shape = array, device, f"device {device}", array.shape

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


class Convertible:
    """An array of another library with ``__array__`` and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array
