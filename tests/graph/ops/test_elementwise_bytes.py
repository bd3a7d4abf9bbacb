"""Expressions of integer operands and results."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")


from cpuconv.graph import ops  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.kernels.elementwise.expression import Operand, apply  # noqa: E402
from support.graph import lowered  # noqa: E402
from support.graph.expressions import SECOND  # noqa: E402
from support.graph.lowered import small_work_is_shared  # noqa: E402, F401

LANES = current().lanes
X, Z = Operand(0), Operand(1)
BLOCK = lowered.target().block(np.dtype(np.uint8))


def _bytes(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    return (rng.integers(-100, 100, shape) + 128 * (dtype is np.uint8)).astype(dtype)


@pytest.mark.parametrize("types", ["u8 u8 u8", "s8 f4 u8", "u8 s8 f4", "s4 s8 s8"])
@pytest.mark.parametrize("channels", [1, LANES + 1, BLOCK, BLOCK + LANES + 3, 2 * BLOCK])
@pytest.mark.parametrize("second", SECOND)
def test_bytes(second, channels, types):
    """Scales are powers of two, so that nothing is rounded but the result."""
    names = {"u8": np.uint8, "s8": np.int8, "f4": np.float32, "s4": np.int32}
    a, b, to = (names[name] for name in types.split())
    arrays = [_bytes((2, channels, 3, 5), a), _bytes(SECOND[second](channels), b)]
    total = apply("add", apply("mul", apply("sub", X, 3), 0.5), apply("mul", apply("sub", Z, 7), 0.25))
    whole = apply("add", apply("round", apply("quotient", apply("max", total, 0), 2)), 5)
    tree = total if to is np.float32 else whole
    node = ops.TABLE["Elementwise"].node(["x0", "x1"], ["y"], expression=tree, to=np.dtype(to))
    for threads, apart in ((1, False), (3, True)):
        assert lowered.check(node, arrays, (), threads, apart) > 0


def test_quotients_of_operands_are_rounded_once():
    x = np.random.default_rng(0).standard_normal(999).astype(np.float32)
    scale = np.float32(0.0387)
    node = ops.TABLE["QuantizeLinear"].node(["x", "s", "z"], ["y"])
    arrays = [x, scale, np.array(120, np.uint8)]
    assert lowered.check(node, arrays, (1, 2)) == 1
    assert repr(apply("quotient", X, 3)) == "quotient(x0,3.0)"
