"""Operators that NumPy computes, where ONNX's evaluator is wrong or has none: against ONNX Runtime and definitions."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from support.graphs import one_node, runtime_session  # noqa: E402

RNG = np.random.default_rng(0)


def run(op: str, arrays, outputs: int = 1, opset: int = 22, **attributes) -> list[np.ndarray]:
    """The outputs, computed without ONNX's evaluator."""
    model, feed = one_node(op, arrays, outputs, opset, **attributes)
    return list(cpuconv.compile(model, strategy="heuristic", strict=True).run(feed).values())


def theirs(op: str, arrays, outputs: int = 1, opset: int = 22, **attributes) -> list[np.ndarray]:
    model, feed = one_node(op, arrays, outputs, opset, **attributes)
    return runtime_session(runtime, model).run(None, feed)


@pytest.mark.parametrize("opset", [7, 11, 12, 13, 22])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -2])
def test_hardmax_of_all_opsets(opset, axis):
    if opset < 11 and axis is not None and axis < 0:
        pytest.skip("axes count from the front there")
    x = RNG.integers(0, 3, (3, 4, 5)).astype(np.float32)  # with equal ones
    attributes = {} if axis is None else {"axis": axis}
    (got,) = run("Hardmax", [x], opset=opset, **attributes)
    np.testing.assert_array_equal(got, theirs("Hardmax", [x], opset=opset, **attributes)[0])
    assert got.sum() == (
        x.size / x.shape[-1 if axis is None else axis]
        if opset > 12
        else np.prod(x.shape[: 1 if axis is None else axis % 3])
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_determinants_of_all_floats(dtype):
    x = RNG.uniform(0.5, 1, (2, 3, 3)).astype(dtype)
    (got,) = run("Det", [x])
    assert got.dtype == dtype
    np.testing.assert_allclose(
        got.astype(float), np.linalg.det(x.astype(float)), rtol=float(ml_dtypes.finfo(dtype).eps) * 4
    )


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("outputs", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8, np.bool, np.float16])
def test_unique(in_order, axis, outputs, dtype):
    x = RNG.integers(0, 2, (4, 3)).astype(dtype)
    attributes = {"sorted": in_order, **({} if axis is None else {"axis": axis})}
    got = run("Unique", [x], outputs, **attributes)
    slices = [x.ravel()[at : at + 1] for at in range(x.size)] if axis is None else list(np.moveaxis(x, axis, 0))
    keys = [tuple(each.ravel().tolist()) for each in slices]
    known = sorted({*keys}) if in_order else list(dict.fromkeys(keys))
    first = [keys.index(key) for key in known]
    y = x.ravel()[first] if axis is None else x.take(first, axis)
    wanted = [y, first, [known.index(key) for key in keys], [keys.count(key) for key in known]]
    assert len(got) == outputs and got[0].dtype == dtype
    for array, expected in zip(got, wanted, strict=False):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0625])
def test_regions_pooled(scale):
    x = RNG.standard_normal((2, 3, 9, 11)).astype(np.float32)
    corners = RNG.uniform(-3, 14, (60, 4)).round(1) / scale  # some outside, some turned around
    rois = np.concatenate([RNG.integers(0, 2, (60, 1)), corners], 1).astype(np.float32)
    for pooled in ([1, 1], [2, 3], [7, 7], [12, 1]):
        attributes = {"pooled_shape": pooled, "spatial_scale": scale}
        (got,) = run("MaxRoiPool", [x, rois], **attributes)
        np.testing.assert_array_equal(got, theirs("MaxRoiPool", [x, rois], opset=21, **attributes)[0])
        wide = run("MaxRoiPool", [x.astype(np.float64), rois.astype(np.float64)], **attributes)[0]
        assert wide.dtype == np.float64
        np.testing.assert_array_equal(wide, got)


def test_regions_of_no_image():
    x, rois = np.ones((1, 1, 4, 4), np.float32), np.float32([[1, 0, 0, 2, 2]])
    with pytest.raises(SourceError, match="MaxRoiPool node 'y0' cannot take .*image 1 of 1"):
        run("MaxRoiPool", [x, rois], pooled_shape=[2, 2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("aligned", [0, 1])
def test_grids_of_all_sizes(dtype, aligned):
    """ONNX's evaluator counts by steps that are rounded, and divides by zero where a side is one element."""
    for sides in ((1, 1), (1, 5), (49, 3), (103, 107), (2, 3, 1)):
        count = len(sides)
        theta = RNG.standard_normal((2, count, count + 1)).astype(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (got,) = run("AffineGrid", [theta, np.array([2, 1, *sides])], align_corners=aligned)
        assert got.dtype == dtype and got.shape == (2, *sides, count)
        for at in np.ndindex(*[min(side, 4) for side in sides]):
            place = [
                (0 if side == 1 else 2 * i / (side - 1) - 1) if aligned else (2 * i + 1) / side - 1
                for i, side in zip(at, sides, strict=True)
            ]
            wanted = theta.astype(float) @ [*place[::-1], 1]
            np.testing.assert_allclose(
                got[(slice(None), *at)].astype(float), wanted, atol=8 * float(ml_dtypes.finfo(dtype).eps)
            )
