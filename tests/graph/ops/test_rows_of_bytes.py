"""Work along lines whose ends are bytes: softmax, normalisation of layers and means through their kernels."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from cpuconv.graph import ops
from cpuconv.isa import current
from cpuconv.kernels.binding.tensor_view import FLOAT32
from support.graph.lowered import check, offers

LANES = current().lanes
SIZES = (1, LANES - 1, LANES, 4 * LANES + 1, 16 * LANES, 20 * LANES + 3)  # of which the last are not held in registers
TYPES = [np.dtype(name) for name in ("float32", "uint8", "int8")]
ENDS = pytest.mark.parametrize(("x_type", "y_type"), [(x, y) for x in TYPES for y in TYPES if {x, y} != {FLOAT32}])
UNIT = {"Softmax": 1 / 256, "LayerNormalization": 0.05, "ReduceMean": 0.0173}  # that makes few ties


def _operand(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    if dtype == FLOAT32:
        return rng.normal(0, 2, shape).astype(np.float32)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def _run(op, x, y_type, *others, threads=1, apart=False, constant=(), **attributes):
    scales = {"x_scale": 1.0, "y": y_type, "y_scale": 1.0}
    if x.dtype != FLOAT32:
        scales |= {"x_scale": 0.03, "x_zero_point": 11}
    if y_type != FLOAT32:
        scales |= {"y_scale": UNIT[op], "y_zero_point": -100 if y_type == np.int8 else 7}
    names = ["x", "second", "third"][: 1 + len(others)]
    node = ops.TABLE[f"Quantized{op}"].node(names, ["y"], **attributes, **scales)
    assert check(node, [x, *others], constant, threads, apart, ties=True) == 1


@ENDS
@pytest.mark.parametrize("size", SIZES)
def test_lines_that_lie_side_by_side(size, x_type, y_type):
    x = _operand((3, 2, size), x_type)
    scale, bias = (_operand((size,), FLOAT32) for _ in range(2))
    for threads, apart in ((1, True), (2, False)):
        run = partial(_run, x=x, y_type=y_type, threads=threads, apart=apart)
        run("Softmax")
        _run("LayerNormalization", x, y_type, scale, bias, threads=threads, apart=apart)
        _run("LayerNormalization", x, y_type, scale, threads=threads, apart=apart)
        for keep in (0, 1):
            _run("ReduceMean", x, y_type, np.array([-1]), threads=threads, apart=apart, constant=(1,), keepdims=keep)


@ENDS
@pytest.mark.parametrize("lines", (1, LANES + 1, 5 * LANES))
def test_lines_that_are_neighbours(lines, x_type, y_type):
    x = _operand((2, 9, lines), x_type)
    for threads, apart in ((1, True), (2, False)):
        _run("Softmax", x, y_type, threads=threads, apart=apart, axis=1)
        _run("ReduceMean", x, y_type, np.array([1]), threads=threads, apart=apart, constant=(1,))
        _run("ReduceMean", x, y_type, np.array([0]), threads=threads, apart=apart, constant=(1,))


def test_bytes_without_scales_and_other_outputs_are_not_offered():
    assert not offers(ops.TABLE["Softmax"].node(["x"], ["y"]), [np.ones((2, 3), np.uint8)])
    assert not offers(ops.TABLE["ReduceMean"].node(["x"], ["y"]), [np.ones((2, 3), np.uint8)])
    scales = {"x_scale": 1.0, "y": TYPES[1], "y_scale": 1.0}
    node = ops.TABLE["QuantizedLayerNormalization"].node(["x", "scale"], ["y", "mean"], **scales)
    assert not offers(node, [np.ones((2, 3), np.uint8), np.ones(3, np.float32)])
