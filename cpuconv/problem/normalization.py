"""Normalisation and softmax in NumPy, from ONNX attributes.

Source: ONNX operators of these names, as at inference. VolumeNormalization is made by rewrites.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cpuconv.problem import activation

Attributes = Mapping[str, Any]


def _per_channel(vector: np.ndarray, rank: int) -> np.ndarray:
    """Reshape a per-channel vector to broadcast over (N, C, ...)."""
    return vector.reshape(-1, *[1] * (rank - 2))


def standard(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normalise x to mean 0 and variance 1 over `axes`; return it, the mean and the inverse standard deviation."""
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean, inverse


def batch_normalization(attributes: Attributes, x: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
    """Compute (x - mean) / sqrt(var + epsilon) * scale + bias per channel."""
    scale, bias, mean, var = (_per_channel(vector, max(2, x.ndim)) for vector in vectors)
    return (x - mean) / np.sqrt(var + attributes["epsilon"]) * scale + bias


def instance_normalization(attributes: Attributes, x: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
    """Normalise each plane to mean 0 and variance 1, then apply scale and bias per channel."""
    scale, bias = (_per_channel(vector, x.ndim) for vector in vectors)
    return standard(x, tuple(range(2, x.ndim)), attributes["epsilon"])[0] * scale + bias


def volume_normalization(
    attributes: Attributes, x: np.ndarray, scale: np.ndarray, bias: np.ndarray, residual: np.ndarray | None = None
) -> np.ndarray:
    """Compute activation(instance normalisation + residual) of volumes, whose depth slices are the images of x.

    Image i is a slice of volume i modulo `volumes`. The residual is the optional fourth input.
    """
    slices = x.reshape(-1, attributes["volumes"], *x.shape[1:])
    y = standard(slices, (0, *range(3, slices.ndim)), attributes["epsilon"])[0].reshape(x.shape)
    y = y * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)
    return activation.apply(y if residual is None else y + residual, attributes["activation"])


def group_normalization(attributes: Attributes, x: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
    """Normalise each group of channels to mean 0 and variance 1, then apply scale and bias per channel."""
    scale, bias = (_per_channel(vector, x.ndim) for vector in vectors)
    grouped = x.reshape(len(x), attributes["num_groups"], math.prod(x.shape[1:]) // attributes["num_groups"])
    return standard(grouped, (2,), attributes["epsilon"])[0].reshape(x.shape) * scale + bias


def lp_normalization(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Compute x / (sum of |x|^p)^(1/p) along an axis; 0 where all elements are 0."""
    norm = (np.abs(x) ** attributes["p"]).sum(attributes["axis"], keepdims=True) ** (1 / attributes["p"])
    return np.where(norm == 0, 0, x / norm)


def mean_variance_normalization(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Compute (x - mean) / (standard deviation + 1e-9) over axes."""
    axes = tuple(attributes["axes"])
    return (x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)


def lrn(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Compute x / (bias + alpha / size * sum of squares over `size` neighbouring channels)^beta."""
    size, channels = attributes["size"], x.shape[1]
    squares = np.zeros_like(x)
    for c in range(channels):
        first, last = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
        squares[:, c] = (x[:, first:last] ** 2).sum(1)
    return x / (attributes["bias"] + attributes["alpha"] / size * squares) ** attributes["beta"]


def log_softmax(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Compute log(exp(x) / sum of exp(x)) along an axis."""
    shifted = x - x.max(attributes["axis"], keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(attributes["axis"], keepdims=True))


def softmax(attributes: Attributes, x: np.ndarray) -> np.ndarray:
    """Compute exp(x) / sum of exp(x) along an axis."""
    return np.exp(log_softmax(attributes, x))
