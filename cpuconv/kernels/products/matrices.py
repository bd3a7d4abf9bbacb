"""Operands of batched matrix multiplication: stacks of strided matrices, merged into as few GEMMs as possible."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.kernels.binding.steps import Ref
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.problem.integers import broadcast_shapes
from cpuconv.symbolic.sizes import applied

_MAX_OPERANDS = 6


@dataclass(frozen=True)
class Matrices:
    """A stack of matrices: byte strides of each axis of the stack, of rows and of columns."""

    ref: Ref
    stack: tuple[int, ...]
    row: int
    column: int

    @classmethod
    def of(
        cls, place: TensorView, rank: int, row: bool = True, column: bool = True, transposed: bool = False
    ) -> Matrices:
        """The matrices of a tensor in a stack of `rank` axes; `row`, `column`: whether the tensor has that axis."""
        strides, sizes = list(place.strides), list(place.shape)
        steps = [strides.pop() if present else 0 for present in (column, row)]
        sizes = sizes[: len(strides)]
        stack = [0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]
        row_step, column_step = steps if transposed else steps[::-1]
        return cls(place.ref, (0,) * (rank - len(stack)) + tuple(stack), row_step, column_step)

    @property
    def transposed(self) -> Matrices:
        """The transposed matrices."""
        return replace(self, row=self.column, column=self.row)


@dataclass(frozen=True)
class MatmulProblem:
    """A stack of matrix multiplications, each (rows, depth) times (depth, columns)."""

    stack: tuple[int, ...]
    rows: int
    depth: int
    columns: int
    a: Matrices
    b: Matrices
    y: Matrices

    @classmethod
    def of(
        cls, a: TensorView, b: TensorView, y: TensorView, transposed: tuple[bool, bool] = (False, False)
    ) -> MatmulProblem:
        """Build it from tensors, multiplied as NumPy does; operands marked in `transposed` are transposed first."""
        stack, rows, depth, columns = sizes_of(a.shape, b.shape, transposed)
        is_row, is_column, rank = len(a.shape) > 1, len(b.shape) > 1, len(stack)
        left = Matrices.of(a, rank, row=is_row, transposed=transposed[0])
        right = Matrices.of(b, rank, column=is_column, transposed=transposed[1])
        result = Matrices.of(y, rank, row=is_row, column=is_column)
        return cls(stack, rows, depth, columns, left, right, result)

    @property
    def normalized(self) -> MatmulProblem:
        """The same, merged into as few and as large GEMMs as possible, with contiguous rows of the output.

        The output of a single row or column may have any stride; else its rows are contiguous.
        """
        made = self.merged
        if made.columns == 1 and made.y.row == F32.bytes or made.rows == 1 and made.y.column != F32.bytes:
            a, b, y = made.b.transposed, made.a.transposed, made.y.transposed
            return replace(made, rows=made.columns, columns=made.rows, a=a, b=b, y=y)
        return made

    @property
    def merged(self) -> MatmulProblem:
        """The same, merged into as few and as large GEMMs as the operands allow."""
        stack, rows = list(self.stack), self.rows
        a, b, y = self.a, self.b, self.y
        while stack and (
            stack[-1] == 1 or b.stack[-1] == 0 and a.stack[-1] == rows * a.row and y.stack[-1] == rows * y.row
        ):  # adjacent matrices that are multiplied by the same one
            rows *= stack.pop()
            a, b, y = (replace(each, stack=each.stack[:-1]) for each in (a, b, y))
        return replace(self, stack=tuple(stack), rows=rows, a=a, b=b, y=y)

    @property
    def offsets(self) -> Any:
        """Byte offsets of the three matrices of each item, int64."""
        return byte_offsets(self.stack, (self.a, self.b, self.y))

    @property
    def flops(self) -> int:
        """Operations, a multiplication and an addition counted as two."""
        return 2 * math.prod(self.stack) * self.rows * self.depth * self.columns


def sizes_of(
    a: tuple[int, ...], b: tuple[int, ...], transposed: tuple[bool, bool]
) -> tuple[tuple[int, ...], int, int, int]:
    """The stack of matrix multiplications of tensors of these shapes, and the rows, depth and columns of each."""
    a, b = (shape[::-1] if flip else shape for shape, flip in zip((a, b), transposed, strict=True))
    rows = a[-2] if len(a) > 1 else 1
    columns = b[-1] if len(b) > 1 else 1
    return broadcast_shapes(a[:-2], b[:-2]), rows, a[-1], columns


def byte_offsets(stack: tuple[int, ...], operands: Sequence[Matrices]) -> Any:
    """Byte offsets of the operands' matrices for each item of a stack, int64: those of an item are adjacent."""
    strides = (stride for each in operands for stride in each.stack)
    return applied(functools.partial(_offsets, len(stack)), *stack, *strides)


def _offsets(rank: int, *numbers: int) -> np.ndarray:
    """Interleaved offsets of operands, from the `rank` sizes of a stack and the strides of each."""
    if rank == 0:
        return np.zeros(_MAX_OPERANDS, np.int64)
    stack, *strides = (numbers[at : at + rank] for at in range(0, len(numbers), rank))
    return np.stack([_distances(stack, each) for each in strides], -1).ravel()


def _distances(stack: tuple[int, ...], strides: Sequence[int]) -> np.ndarray:
    """Byte offset of each matrix of a stack."""
    distances = np.zeros((), np.int64)
    for size, stride in zip(stack, strides, strict=True):
        distances = distances[..., None] + np.arange(size) * stride
    return distances.ravel()
