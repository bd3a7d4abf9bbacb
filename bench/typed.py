"""Data of convolutions in other types than float32, the reference output, and the allowed errors.

Integer references are exact int64 sums, requantised in ONNX Runtime's order of float32 operations:
`clip(rint((sums + bias) * (x_scale * w_scale / y_scale)) + y_zero_point)`. References of bfloat16 and float16 are
float64 sums over operands that are rounded once. No code is shared with any engine, cpuconv included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench import oracle
from cpuconv.elements import BF16, F16, F32, S8, S32, U8, Element, from_bfloat16, to_bfloat16
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types

NAMES = {
    "f32": ALL_F32,
    "bf16": Types.parse("bf16"),
    "f16": Types.parse("f16"),
    "int8": Types.parse("u8:s8:u8"),
}  # abbreviations of x:w:y
RANGES = {U8: (0, 255), S8: (-128, 127)}
X_ZEROS = {U8: 121, S8: -7}  # no powers of two, so that an omitted zero point is noticed
Y_ZEROS = {U8: 131, S8: 5}
W_BITS = 8  # default bits of integer weights
X_SCALE, W_SCALES = np.float32(0.05), (0.01, 0.02)
SPREAD = 3.5  # range of an 8-bit output, in standard deviations of the sums: a few saturate
BF16_LIMITS = (4.2e-3, 8e-3)  # cpuconv's and a peer's, relative to the largest value: half a last place is up to 3.9e-3
F16_LIMITS = (6e-4, 5e-3)  # the same; half a last place is up to 4.9e-4, and peers may sum in float16
SUM_LIMITS = (1e-4, 5e-3)  # for float32 outputs
STEP_LIMITS = (0, 1)  # for integer outputs, in units of their last place
EXACT = ("onnxruntime",)  # peers whose integer outputs must be exact, like cpuconv's


@dataclass(frozen=True)
class Scales:
    """Quantisation, `scale * (integer - zero)`; weights have a scale per output channel and no zero point."""

    x_scale: np.float32
    x_zero: int
    w_scale: np.ndarray
    y_scale: np.float32
    y_zero: int

    @property
    def sums(self) -> np.ndarray:
        """Scale of the integer sums, by output channel, float32."""
        return self.x_scale * self.w_scale


@dataclass(frozen=True)
class Data:
    """Input (N, C, H, W), weights (K, C/g, R, S) and bias (K,), as arrays of the elements' NumPy dtypes.

    The bias is int32 for integer sums, else float32 with values that bfloat16 represents exactly.
    """

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray
    scales: Scales | None = None


def types_of(text: str) -> Types:
    """Parse types from a name or from x:w:y."""
    return NAMES.get(text) or Types.parse(text)


def data(problem: ConvProblem, w_bits: int = W_BITS) -> Data:
    """Make the data of a problem, equal in every process; integer weights have `w_bits` bits.

    Raises
    ------
    ValueError
        If the types are not supported.
    """
    types = problem.types
    if types.x in RANGES and types.w == S8 and types.y in (*RANGES, F32, S32):
        return _integers(problem, w_bits)
    if {types.x, types.w} <= {BF16, F16, F32} and types.y in (BF16, F16, F32):
        x, w, bias = oracle.arrays(problem)
        return Data(_as(types.x, x), _as(types.w, w), from_bfloat16(to_bfloat16(bias)))
    raise ValueError(f"Types {types} are not compared.")


def answer(problem: ConvProblem, given: Data) -> np.ndarray:
    """Compute the reference output (N, K, OH, OW): int64 for integer types, else float64."""
    x, w = (numbers(array) for array in (given.x, given.w))
    if given.scales is None:
        return oracle.convolve(problem, x, w, given.bias)
    scales = given.scales
    sums = oracle.convolve(problem, x - scales.x_zero, w, given.bias).astype(np.int64)  # exact below 2**53
    if problem.types.y == S32:
        return sums
    if problem.types.y == F32:
        return sums * scales.sums.astype(np.float64)[:, None, None]
    scaled = sums.astype(np.float32) * (scales.sums / scales.y_scale)[:, None, None]
    return quantized(scaled, scales.y_zero, problem.types.y)


def quantized(steps: np.ndarray, zero: int, element: Element) -> np.ndarray:
    """Quantise values in units of the scale to an integer type: nearest, ties to even; the result is int64."""
    return np.clip(np.rint(steps) + zero, *RANGES[element]).astype(np.int64)


def numbers(array: np.ndarray) -> np.ndarray:
    """Convert an array of an element's dtype to float64."""
    return (from_bfloat16(array) if array.dtype == BF16.dtype else array).astype(np.float64)


def error(problem: ConvProblem, output: np.ndarray, reference: np.ndarray) -> float:
    """Return an output's error: in units of the last place for integers, else relative to the largest value."""
    output = np.asarray(output)
    if output.shape != reference.shape or output.dtype != problem.types.y.dtype:
        return float("inf")
    if not problem.types.y.integer:
        return oracle.error(numbers(output), reference)
    return float(np.abs(output.astype(np.int64) - reference).max(initial=0))


def limit(types: Types, key: str, ours: bool) -> float:
    """Return the largest `error` with which an engine's figure counts."""
    limits = STEP_LIMITS if types.y.integer else SUM_LIMITS
    for element, its in ((F16, F16_LIMITS), (BF16, BF16_LIMITS)):
        limits = its if element in (types.x, types.w, types.y) else limits
    return limits[not (ours or (types.y.integer and key in EXACT))]


def dequantized(given: Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dequantise input, weights and bias to float32."""
    if given.scales is None:
        x, w, bias = numbers(given.x), numbers(given.w), given.bias
    else:
        scales = given.scales
        x = scales.x_scale * (numbers(given.x) - scales.x_zero)
        w, bias = scales.w_scale[:, None, None, None] * numbers(given.w), given.bias * scales.sums
    return x.astype(np.float32), w.astype(np.float32), bias.astype(np.float32)


def _as(element: Element, array: np.ndarray) -> np.ndarray:
    return to_bfloat16(array) if element == BF16 else array.astype(element.dtype)


def _integers(problem: ConvProblem, w_bits: int) -> Data:
    types, rng = problem.types, np.random.default_rng(0)
    low, high = RANGES[types.x]
    x = rng.integers(low, high, (problem.n, problem.c, problem.h, problem.w), endpoint=True).astype(types.x.dtype)
    w = rng.integers(-127, 127, problem.weight_shape, endpoint=True).astype(np.int8) >> (8 - w_bits)
    w_scale = rng.uniform(*W_SCALES, problem.k).astype(np.float32)
    bias = rng.integers(-5000, 5000, problem.k).astype(np.int32)
    spread = 74.0 * 73.5 * np.sqrt(problem.cg * problem.r * problem.s) * float(w_scale.mean() * X_SCALE)
    y_scale = np.float32(spread * SPREAD / 128)
    return Data(x, w, bias, Scales(X_SCALE, X_ZEROS[types.x], w_scale, y_scale, Y_ZEROS.get(types.y, 0)))
