"""The epilogue's data: bias, scales, zero points and clamps, in the order of `Epilogue.rows`.

Problems with float sums have only a bias (`padded_bias`). The others have a block of int32 and float32,
[group][vector of the group][row][lanes]. For solvers whose vectors hold channels of several groups, it has one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from cpuconv.conv.recipe import Candidate, padded_bias
from cpuconv.elements import F32, S32
from cpuconv.errors import ArgumentError, must
from cpuconv.isa import current
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization, bounds
from cpuconv.runtime.float_environment import default_environment

_BEYOND = 8  # padding vectors at the end: tiles may load rows of vectors that they do not store
_UNIT = Quantization(x_scale=1.0, w_scale=1.0)  # for sums without scales
_DIVISOR = "divisor"


class Numbers(NamedTuple):
    """The numbers from which the epilogue's rows are computed.

    Attributes
    ----------
    quantization : Quantization or None
        None if the int32 sums are the result.
    sums, below : array, (K,)
        Per output channel: sum of all weights minus zero points, and sum of the negative ones; int64.
    """

    quantization: Quantization | None
    sums: np.ndarray
    below: np.ndarray

    @classmethod
    def of(cls, weight: np.ndarray, quantization: Quantization | None) -> Numbers:
        """Compute the sums of integer weights minus zero points, (K, C/groups, R, S)."""
        return cls(quantization, *(each.sum((1, 2, 3), dtype=np.int64) for each in (weight, np.minimum(weight, 0))))


def padding_word(problem: ConvProblem, quantization: Quantization | None) -> int:
    """The 32-bit group that padding is filled with: the zero point in each of its elements."""
    if quantization is None:
        return 0
    word = np.full(F32.bytes // problem.types.x.bytes, quantization.x_zero_point, problem.types.x.dtype)
    return int(word.view(np.uint32)[0])


@default_environment()
def epilogue_block(
    problem: ConvProblem,
    candidate: Candidate,
    bias: np.ndarray | None,
    numbers: Numbers | None = None,
    closed: bool = False,
) -> np.ndarray:
    """Build the epilogue data that the kernels of a candidate read.

    Parameters
    ----------
    bias : array, (K,), or None
        float32; also int32 for integer sums.
    numbers : Numbers or None
        Quantization numbers, for a problem with integer sums.
    closed : bool
        Whether the kernels are from the closed set.

    Raises
    ------
    ArgumentError
        A bias that must be rounded to integers is not finite.
    """
    if not problem.types.sum.integer:
        return padded_bias(problem.k, bias, problem.groups)
    assert numbers is not None
    groups = 1 if candidate.solver.shared_vectors else problem.groups
    added = candidate.solver.offset(problem, replace(current(), closed=closed))
    return _arranged(_rows(problem, bias, numbers, added), problem.k, groups, current().lanes)


def _arranged(rows: dict[str, np.ndarray], k: int, groups: int, lanes: int) -> np.ndarray:
    """Arrange rows of K numbers in vectors; lanes without a channel are 1 in the divisor's row, otherwise 0."""
    per = k // groups
    vectors = divide(per, lanes)
    block = aligned((groups * vectors + _BEYOND, len(rows), lanes), np.int32)
    block[:] = 0
    for at, (name, row) in enumerate(rows.items()):
        padded = np.full((groups, vectors * lanes), name == _DIVISOR, row.dtype)
        padded[:, :per] = row.reshape(groups, per)
        block[: groups * vectors, at] = padded.view(np.int32).reshape(-1, lanes)
    return block.reshape(-1)


def _rows(
    problem: ConvProblem, bias: np.ndarray | None, numbers: Numbers, added: tuple[int, int] = (0, 0)
) -> dict[str, np.ndarray]:
    """Compute the rows of `Epilogue.rows`, K numbers each.

    Kernels add `added` to the integer input before they multiply: the first number for non-negative weights, the second
    for negative ones.
    """
    scales, k = numbers.quantization or _UNIT, problem.k
    scaled = problem.types.y == F32
    whole = integer_bias(bias, scales, k) if bias is not None and not (scaled and bias.dtype == F32.dtype) else 0
    plain, below = (scales.x_zero_point + each for each in added)
    start = whole - plain * numbers.sums - (below - plain) * numbers.below  # modulo 2^32, like the sums
    values: dict[str, Callable[[], Any]] = {
        "scale": lambda: scales.ratio() if epilogue.short else scales.product(),
        "shift": lambda: 0.0 if bias is None or not scaled or bias.dtype != F32.dtype else bias,
        "residual_scale": lambda: 1.0 if scaled else scales.residual_scale,
        "residual_zero": lambda: 0 if scaled else scales.residual_zero_point,
        _DIVISOR: lambda: scales.y_scale,
        "zero": lambda: scales.y_zero_point,
        "low": lambda: _clamp(problem, scales, epilogue)[0],
        "high": lambda: _clamp(problem, scales, epilogue)[1],
    }
    epilogue = Epilogue.of(problem)
    rows = {"bias": np.broadcast_to((start & 0xFFFFFFFF).astype(np.uint32).view(np.int32), k)}
    for name in epilogue.rows[1:]:
        rows[name] = np.broadcast_to(np.asarray(values[name](), np.float32), k)
    return rows


def integer_bias(bias: np.ndarray, scales: Quantization, k: int) -> np.ndarray:
    """Convert a bias to units of the integer sums, as int64: rint(bias / (x_scale · w_scale)), clamped to int32.

    Raises
    ------
    ArgumentError
        The bias has a NaN or an infinity.
    """
    if bias.dtype == S32.dtype:
        return bias.astype(np.int64)
    if not np.isfinite(bias).all():
        raise ArgumentError(must("bias", "finite, as it is rounded to integers", f"{bias[~np.isfinite(bias)][0]}"))
    with np.errstate(over="ignore"):
        rounded = np.rint(bias / scales.product()).astype(np.float64)
    return np.clip(rounded, *bounds(S32)).astype(np.int64)


def _clamp(problem: ConvProblem, scales: Quantization, epilogue: Epilogue) -> tuple[Any, Any]:
    """Lower and upper bound of the result in its own unit: one value, or one per channel."""
    least, most = scales.clamp(problem.types.y)
    if not epilogue.short or problem.activation is None:
        return least, most
    name, *scalars = problem.activation
    low, high = scalars if name == "clip" else (0.0, np.inf)
    with np.errstate(over="ignore"):
        edges = np.rint(np.array([low, high], np.float32) / np.float32(scales.y_scale or 1)) + scales.y_zero_point
    low, high = (np.minimum(np.maximum(edge, least), most) for edge in edges)
    return low, high
