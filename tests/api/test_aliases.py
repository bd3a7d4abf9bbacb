"""Other names of element types and precisions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import cpuconv
from cpuconv.conv.choice.target import precision_named
from cpuconv.errors import ArgumentError
from support.graphs import parse

X = np.ones((1, 2, 4, 4), np.float32)
W = np.ones((3, 2, 1, 1), np.float32)


@pytest.mark.parametrize(("alias", "dtype"), [("bf16", ml_dtypes.bfloat16), ("fp16", np.float16), ("f16", np.float16)])
def test_dtypes_of_results(alias: str, dtype: type) -> None:
    x, w = X.astype(dtype), W.astype(dtype)
    assert cpuconv.conv2d(x, w, y_dtype=alias).dtype == dtype
    for wide in ("f32", "fp32", "float32"):
        assert cpuconv.conv2d(x, w, y_dtype=wide).dtype == np.float32
    assert cpuconv.reorder(X, "NCHW", "NHWC", dtype=alias).dtype == dtype


def test_an_alias_that_is_no_result_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'y_dtype' must be float32, as 'x' is of float32, not bfloat16"):
        cpuconv.conv2d(X, W, y_dtype="bf16")
    with pytest.raises(ArgumentError, match="'y_dtype' must be one of float32, .*, not 'fp8'"):
        cpuconv.conv2d(X, W, y_dtype="fp8")


def test_precisions() -> None:
    assert [precision_named(each) for each in ("f32", "fp32", "float32")] == ["float32"] * 3
    assert [precision_named(each) for each in ("bf16", "bfloat16")] == ["bfloat16"] * 2
    model = parse("g (float[1,2] x) => (float[1,2] y) { y = Relu(x) }")
    assert cpuconv.compile(model, precision="bf16", threads=1).run({"x": X[0, 0, :1, :2]})["y"].tolist() == [[1, 1]]
    with pytest.raises(ArgumentError, match=r"cpuconv\.quantize makes an int8 network from samples, not 'int8'"):
        cpuconv.compile(model, precision="int8")
    with pytest.raises(ArgumentError, match="16-bit arithmetic is bfloat16, not 'fp16'"):
        cpuconv.compile(model, precision="fp16")
