"""Multiplication of vectors by small constant matrices, with the fewest operations that their symmetry allows.

Interpolation points ±p give matrices with columns, or rows, that are equal up to signs: sums and differences of the two
halves are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from cpuconv.isa.vector import Vector

Matrix = tuple[tuple[float, ...], ...]


def combine(vec: Vector, coefficients: Sequence[float], values: Sequence[Any]) -> Any | None:
    """sum of coefficient·value as a chain of FMAs, plain terms first; None if all coefficients are zero."""
    terms = [(c, v) for c, v in zip(coefficients, values, strict=True) if c != 0 and v is not None]
    terms.sort(key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    total = None
    for coefficient, value in terms:
        if total is None:
            total = value if coefficient == 1 else vec.mul(value, vec.constant(coefficient))
        elif coefficient == 1:
            total = vec.add(total, value)
        elif coefficient == -1:
            total = vec.sub(total, value)
        else:
            total = vec.fma(value, vec.constant(coefficient), total)
    return total


def apply(vec: Vector, matrix: Sequence[Sequence[float]], values: Sequence[Any]) -> list[Any]:
    """matrix · values."""
    matrix, values = _paired_columns(vec, [list(row) for row in matrix], list(values))
    results: list[Any] = [None] * len(matrix)
    for i, row in enumerate(matrix):
        if results[i] is not None:
            continue
        twin = next((j for j in range(i + 1, len(matrix)) if results[j] is None and _mirror(row, matrix[j])), None)
        if twin is None:
            results[i] = combine(vec, row, values)
            continue
        same = [c if c == d else 0.0 for c, d in zip(row, matrix[twin], strict=True)]
        opposite = [c if c != d else 0.0 for c, d in zip(row, matrix[twin], strict=True)]
        even, odd = combine(vec, same, values), combine(vec, opposite, values)
        results[i], results[twin] = vec.add(even, odd), vec.sub(even, odd)
    return [vec.constant(0.0) if result is None else result for result in results]


def _mirror(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether b is a with some, not all, of its non-zero entries negated, and some work can be shared."""
    if any(abs(x) != abs(y) for x, y in zip(a, b, strict=True)):
        return False
    same = sum(x == y != 0 for x, y in zip(a, b, strict=True))
    opposite = sum(x == -y != 0 for x, y in zip(a, b, strict=True))
    return same > 0 and opposite > 0 and same + opposite > 2


def _paired_columns(vec: Vector, matrix: list[list[float]], values: list[Any]) -> tuple[list[list[float]], list[Any]]:
    """Replace two columns that are equal up to signs by their sum and difference."""
    columns = list(zip(*matrix, strict=True))
    for a in range(len(columns)):
        for b in range(a + 1, len(columns)):
            if values[a] is None or values[b] is None or not _mirror(columns[a], columns[b]):
                continue
            plus, minus = vec.add(values[a], values[b]), vec.sub(values[a], values[b])
            for row in matrix:
                is_sum = row[a] == row[b]
                row.append(row[a] if is_sum else 0.0)
                row.append(0.0 if is_sum else row[a])
                row[a] = row[b] = 0.0
            values[a] = values[b] = None
            values += [plus, minus]
            break
    return matrix, values


class _Counter:
    """Emitter that only counts operations."""

    def __init__(self) -> None:
        self.count = 0

    def constant(self, value: float) -> None:
        """Count nothing: constants are free."""

    def add(self, *values: object) -> int:
        """Count one more operation."""
        self.count += 1
        return self.count

    sub = mul = fma = add


def operations(matrix: Matrix) -> int:
    """Number of vector operations to multiply a matrix by one column."""
    counter = _Counter()
    apply(cast(Vector, counter), matrix, list(range(len(matrix[0]))))
    return counter.count
