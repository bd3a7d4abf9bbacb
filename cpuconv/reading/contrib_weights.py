"""com.microsoft operators with block-quantised weights of a few bits; weights become float32 when a model is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.problem.integers import divide
from cpuconv.reading.contrib_nodes import Builder

_BYTE = 8  # bits
_BNB4_TABLES = {  # value of each 4-bit code, relative to the block's absolute maximum
    0: [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4, -0.0, -1 / 192, -2 / 3, -1, -1 / 3, -1 / 2, -1 / 6, -1 / 4],
    1: [
        -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
    ],
}  # fmt: skip


def numbers(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack the first `count` numbers of `bits` bits along the last axis, lowest bits of a byte first."""
    if bits == _BYTE:
        return packed[..., :count]
    places = np.unpackbits(packed, axis=-1, bitorder="little")[..., : count * bits]
    units = places.reshape(*packed.shape[:-1], count, bits)
    return (units << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)


def matmul_nbits(
    made: Builder, K: int, N: int, block_size: int, bits: int = 4, accuracy_level: int = 0, **others: Any
) -> None:
    """Matrix multiplication with weights packed per column in blocks, each with a scale and a zero point."""
    x, bias, blocks = made.input(0), made.input(5), divide(K, block_size)
    if others or made.input(4) or not 1 < bits <= _BYTE:
        raise ArgumentError(must("MatMulNBits", "of 2 to 8 bits, in the order of its blocks", made.node.attributes))
    packed, scales = made.constant(1, "weights"), made.constant(2, "scales").astype(np.float32)
    whole = numbers(packed.reshape(N, -1), bits, blocks * block_size).reshape(N, blocks, block_size)
    zeros: Any = np.float32(1 << bits - 1)
    if made.input(3):
        points = made.constant(3, "zero_points")
        zeros = numbers(points.reshape(N, -1), bits, blocks) if points.dtype == np.uint8 else points
        zeros = zeros.reshape(N, blocks, 1).astype(np.float32)
    weights = (whole - zeros) * scales.reshape(N, blocks, 1)
    _multiply(made, x, weights.reshape(N, -1)[:, :K], bias)


def matmul_bnb4(
    made: Builder, K: int, N: int, block_size: int, quant_type: int, training_mode: int = 0, transB: int = 1
) -> None:
    """Matrix multiplication with 4-bit weights (floats or normal-distribution quantiles), high half of a byte first."""
    if quant_type not in _BNB4_TABLES or not transB:
        raise ArgumentError(
            must("quant_type", f"one of {', '.join(map(str, _BNB4_TABLES))}, with a transposed matrix", quant_type)
        )
    packed, largest = made.constant(1, "weights").reshape(-1), made.constant(2, "absmax").astype(np.float32)
    halves = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: N * K]
    values = np.array(_BNB4_TABLES[quant_type], np.float32)[halves]
    weights = values * np.repeat(largest.reshape(-1), block_size)[: N * K]
    _multiply(made, made.input(0), weights.reshape(N, K), "")


def _multiply(made: Builder, x: str, weights: np.ndarray, bias: str) -> None:
    product = made.add("MatMul", x, made.array(weights.T))
    made.last("Add" if bias else "Identity", product, bias)


def gathered_blocks(
    made: Builder, gather_axis: int = 0, quantize_axis: int = 1, block_size: int = 128, bits: int = 4
) -> None:
    """Gather of rows of a packed table, with a scale and a zero point per block."""
    data, scales = made.constant(0, "data"), made.constant(2, "scales").astype(np.float32)
    points = made.constant(3, "zero_points") if made.input(3) else None
    middle, axis = 0, quantize_axis % data.ndim
    if data.dtype == np.uint8:
        if axis != data.ndim - 1:
            raise ArgumentError(must("quantize_axis", "the last", quantize_axis))
        middle, each = 1 << bits - 1, _BYTE // bits
        data = numbers(data, bits, data.shape[-1] * each)
        points = points if points is None else numbers(points, bits, scales.shape[-1])
    size = data.shape[axis]

    def spread(array: np.ndarray) -> np.ndarray:
        return np.repeat(array.astype(np.float32), block_size, axis).take(range(size), axis)

    zeros = np.float32(middle) if points is None else spread(points)
    table = (data.astype(np.float32) - zeros) * spread(scales)
    made.last("Gather", made.array(table), made.input(1), axis=gather_axis)
