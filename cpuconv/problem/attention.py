"""Attention in NumPy: of floating-point numbers, and of int8 or uint8 with scales and zero points.

The latter is softmax(q k + masks) v as a file computes it that quantises the scores (also after each mask), the weights
and the result: every QuantizeLinear's rounding is kept. Rows with NaN, or with -inf alone, have no defined result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32, OF_DTYPE, S8, U8, Element
from cpuconv.problem.quantization import bounds

MAX_MASKS = 2


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, scale: float, zero_rows: str
) -> np.ndarray:
    """Compute softmax(q k · scale + mask) v.

    `zero_rows`: rows that are zero, whatever v has: those without keys ("hidden"), or all of NaN weights ("nan").
    """
    scores = q @ k * scale
    scores = scores if mask is None else scores + mask
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - largest)
    weights = weights / weights.sum(-1, keepdims=True)
    y: np.ndarray = weights @ v
    if zero_rows:
        zero = largest == -np.inf if zero_rows == "hidden" else np.isnan(weights[..., :1])
        y = np.where(zero, 0, y)
    return y


@dataclass(frozen=True)
class QuantizedTensor:
    """Type, scale and zero point of a tensor; float32 has scale 1."""

    element: Element
    scale: float
    zero: int

    @property
    def limits(self) -> tuple[int, int]:
        """Lowest and highest integer less the zero point; those of float32 are not used."""
        low, high = (0, 0) if self.element == F32 else bounds(self.element)
        return low - self.zero, high - self.zero

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """Integers less the zero point, for x in units of the scale; float32 as it is."""
        return x if self.element == F32 else np.clip(np.rint(x), *self.limits)


@dataclass(frozen=True)
class QuantizedAttention:
    """Operands, weights and result of an attention, and its scores: of the products, then after each mask.

    Scores are all of one type.
    """

    q: QuantizedTensor
    k: QuantizedTensor
    v: QuantizedTensor
    weights: QuantizedTensor
    y: QuantizedTensor
    scores: tuple[QuantizedTensor, ...]

    @classmethod
    def of(cls, attributes: Mapping[str, Any], operands: Sequence[np.dtype], masks: int) -> QuantizedAttention:
        """Build it from a node's attributes: `scales` and `zero_points` in the order of the fields, and types.

        Raises
        ------
        ValueError
            A type has no kernels, or there are other numbers of masks, scales or zero points.
        """
        scales, points = attributes["scales"], attributes["zero_points"]
        types: list[Any] = [OF_DTYPE.get(attributes[name]) for name in ("weight_type", "y", "score_type")]
        if types[0] not in (U8, S8) or not {*types[1:]} <= {U8, S8, F32}:
            raise ValueError("weights must be uint8 or int8, scores and results uint8, int8 or float32")
        if masks > MAX_MASKS or not len(scales) == len(points) == 6 + masks:
            raise ValueError(f"there are {masks} masks, {len(scales)} scales and {len(points)} zero points")
        elements = [*(OF_DTYPE[each] for each in operands), *types, *types[2:] * masks]
        made = [QuantizedTensor(each, float(s), int(z)) for each, s, z in zip(elements, scales, points, strict=True)]
        if not all(each.limits[0] <= 0 <= each.limits[1] and 0 < each.scale < math.inf for each in made):
            raise ValueError("scales must be finite numbers above 0, and zero points of the types of their tensors")
        q, k, v, weights, y, *scores = made
        return cls(q, k, v, weights, y, tuple(scores))

    @property
    def factors(self) -> tuple[np.float32, np.float32]:
        """Factors of both sums of products, as in QLinearMatMul."""
        with np.errstate(all="ignore"):
            made = [np.float32(a.scale) * np.float32(b.scale) for a, b in ((self.q, self.k), (self.weights, self.v))]
            return made[0] / np.float32(self.scores[0].scale), made[1] / np.float32(self.y.scale)

    def inverse(self, number: int) -> np.float32:
        """Inverse of a scale of the scores."""
        return np.float32(1 / self.scores[number].scale)

    def result(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, masks: Sequence[np.ndarray]) -> np.ndarray:
        """Compute y; sums are exact, factors float32 as in kernels, and softmax is float64."""
        narrow = np.float32
        score, value = self.factors
        sums = (q.astype(np.float64) - self.q.zero) @ (k.astype(np.float64) - self.k.zero)
        scores = self.scores[0].rounded(sums.astype(narrow) * score)
        for number, mask in enumerate(masks, 1):
            scores = scores * narrow(self.scores[number - 1].scale) + mask.astype(narrow)
            if self.scores[0].element != F32:
                scores = self.scores[number].rounded(scores * self.inverse(number))
        scores = scores.astype(np.float64) * narrow(self.scores[-1].scale)
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights = self.weights.rounded(weights / weights.sum(-1, keepdims=True) / narrow(self.weights.scale))
        sums = weights @ (v.astype(np.float64) - self.v.zero)
        return self.y.rounded(sums.astype(narrow) * value) + self.y.zero
