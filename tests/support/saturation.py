"""Weights of bytes by which ONNX Runtime's sums are exact on every CPU, and whether all weights are on this one.

Where a CPU has no instruction that adds four products of bytes to 32 bits, ONNX Runtime multiplies uint8 by int8 with
one that adds two products to 16, and these saturate. Products with weights of 7 bits never do (its quantiser's
`reduce_range` is there for that), nor do those of the other pairs of types.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest


@functools.cache
def exact() -> bool:
    """Whether ONNX Runtime's products of uint8 and int8 are exact on this CPU, which it is asked."""
    import onnxruntime
    from onnx import parser

    from support.graphs import runtime_session

    text = "g (uint8[4,16] x, int8[16,8] w) => (int32[4,8] y) { y = MatMulInteger(x, w) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    x, w = np.full((4, 16), 255, np.uint8), np.full((16, 8), 127, np.int8)
    (sums,) = runtime_session(onnxruntime, model).run(None, {"x": x, "w": w})
    assert (sums == sums.flat[0]).all()
    return bool(sums.flat[0] == 16 * 255 * 127)


def narrowed(weights: np.ndarray, bits: int) -> np.ndarray:
    """Weights of int8 in the range of so many bits."""
    assert weights.dtype == np.int8
    return weights >> (8 - bits)


def widths() -> tuple[int, ...]:
    """Bits of int8 weights by which sums with uint8 are exact on this CPU."""
    return (7, 8) if exact() else (7,)


def need(bits: int) -> None:
    """Skip a test that multiplies uint8 by int8 weights of so many bits where the sums are not exact."""
    if bits not in widths():
        pytest.skip("ONNX Runtime's sums of uint8 and int8 saturate on this CPU")
