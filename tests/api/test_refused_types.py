"""What calls of other types than float32 refuse: one clear error each, before anything is chosen or compiled."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv import ArgumentError, ArgumentTypeError, Quantization

BF16 = ml_dtypes.bfloat16
SHAPE, WEIGHTS = (1, 8, 6, 5), (4, 8, 3, 3)
PLAIN = Quantization(x_scale=0.1, w_scale=0.1)
SCALED = Quantization(x_scale=0.1, w_scale=0.1, y_scale=0.5)


def call(x: Any = np.uint8, w: Any = np.int8, **options: Any) -> Any:
    return cpuconv.conv2d(np.zeros(SHAPE, x), np.zeros(WEIGHTS, w), **options)


def scales(**changed: Any) -> Quantization:
    return Quantization(**{"x_scale": 0.1, "w_scale": 0.1, "y_scale": 0.5, **changed})


REFUSED: list[tuple[dict[str, Any], type, str]] = [
    ({"x": np.float64}, ArgumentTypeError, "'x' must be of dtype float32: cast .*; or of bfloat16, .*, not float64"),
    ({"x": np.int16, "quantization": SCALED}, ArgumentTypeError, "'x' must be of dtype float32.*, not int16"),
    ({"x": ">f4", "w": BF16}, ArgumentTypeError, "'x' must be float32 in native byte order: cast"),
    ({"w": np.float16}, ArgumentTypeError, "'w' must be of dtype int8 or uint8, as 'x' is of uint8, not float16"),
    ({"x": np.float16, "w": BF16}, ArgumentTypeError, "'w' must be of dtype float16, as 'x' is of float16, not bfloat"),
    ({"x": np.float16, "w": np.float16, "y_dtype": BF16}, ArgumentError, "'y_dtype' must be float16 or float32, as"),
    ({"w": np.int32}, ArgumentTypeError, "'w' must be of dtype float32: cast .*, not int32"),
    ({"x": np.float32}, ArgumentTypeError, "'w' must be of dtype float32, as 'x' is of float32, not int8"),
    ({"x": BF16}, ArgumentTypeError, "'w' must be of dtype bfloat16, as 'x' is of bfloat16, not int8"),
    ({"x": np.float32, "w": BF16}, ArgumentTypeError, "'w' must be of dtype float32, as 'x' is of float32, not bfloat"),
    ({"w": BF16}, ArgumentTypeError, "'w' must be of dtype int8 or uint8, as 'x' is of uint8, not bfloat16"),
    ({"x": BF16, "w": np.float32}, ArgumentTypeError, "'x' must be of dtype float32: cast .*, not bfloat16"),
    ({}, ArgumentError, r"'quantization' must be a cpuconv.Quantization, as 'x' is of uint8 \(only y_dtype='int32'"),
    ({"y_dtype": "float32"}, ArgumentError, "'quantization' must be a cpuconv.Quantization, as 'x' is of uint8"),
    ({"quantization": 0.1}, ArgumentTypeError, "'quantization' must be a cpuconv.Quantization or None, not 0.1"),
    ({"x": BF16, "w": BF16, "quantization": SCALED}, ArgumentError, "'quantization' must be None, as 'x' is of bf"),
    ({"x": np.float32, "w": np.float32, "quantization": SCALED}, ArgumentError, "'quantization' must be None, as 'x'"),
    ({"quantization": PLAIN, "y_dtype": "uint8"}, ArgumentError, "'quantization' must be one with a y_scale, as 'y_d"),
    ({"quantization": SCALED, "y_dtype": "int16"}, ArgumentError, "'y_dtype' must be one of float32, .*, not 'int16'"),
    ({"quantization": SCALED, "y_dtype": 7}, ArgumentError, "'y_dtype' must be one of float32, .*, not 7"),
    ({"quantization": SCALED, "y_dtype": BF16}, ArgumentError, "'y_dtype' must be uint8 or int8 or float32 or int32,"),
    ({"x": BF16, "w": BF16, "y_dtype": "int8"}, ArgumentError, "'y_dtype' must be bfloat16 or float32, as 'x' is"),
    ({"x": np.float32, "w": np.float32, "y_dtype": "bfloat16"}, ArgumentError, "'y_dtype' must be float32, as 'x' is"),
    ({"quantization": scales(x_zero_point=-1)}, ArgumentError, "'x_zero_point' must be from 0 to 255, as uint8 is"),
    ({"x": np.int8, "quantization": scales(x_zero_point=128)}, ArgumentError, "'x_zero_point' must be from -128 to"),
    ({"quantization": scales(w_zero_point=128)}, ArgumentError, "'w_zero_point' must be from -128 to 127, as int8 is"),
    ({"w": np.uint8, "quantization": scales(w_zero_point=-1)}, ArgumentError, "'w_zero_point' must be from 0 to 255"),
    ({"quantization": scales(y_zero_point=128), "y_dtype": "int8"}, ArgumentError, "'y_zero_point' must be from -128"),
    ({"quantization": scales(w_scale=[1.0] * 5)}, ArgumentError, "'w_scale' must be a number or 4 numbers, one"),
    ({"w": np.uint8, "quantization": scales(w_zero_point=[1, 2])}, ArgumentError, "'w_zero_point' must be a num"),
    ({"y_dtype": "int32", "activation": "relu"}, ArgumentError, "'activation' must be None where the result is int32"),
    ({"y_dtype": "int32", "residual": np.zeros((1, 4, 4, 3), np.int32)}, ArgumentError, "'residual' must be None"),
    ({"quantization": SCALED, "residual": np.zeros((1, 4, 4, 3), np.uint8)}, ArgumentError, "'residual_scale' must be"),
]  # fmt: skip


@pytest.mark.parametrize("changed, kind, message", REFUSED)
def test_refused(changed: dict[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=f"^Argument {message}"):
        call(**changed)
    assert issubclass(kind, cpuconv.CpuconvError)


def test_refused_by_plan() -> None:
    w = np.zeros(WEIGHTS, np.int8)
    with pytest.raises(
        ArgumentError, match="^Argument 'quantization' must be a cpuconv.Quantization, as 'x' is of uint8"
    ):
        cpuconv.plan(SHAPE, w)
    with pytest.raises(ArgumentError, match="^Argument 'x_zero_point' must be from -128 to 127, as int8 is, not 200"):
        cpuconv.plan(SHAPE, w, quantization=scales(x_zero_point=200), x_dtype="int8")
    with pytest.raises(
        ArgumentTypeError, match="^Argument 'w' must be of dtype float32, as 'x' is of float32, not int8"
    ):
        cpuconv.plan(SHAPE, w, quantization=SCALED, x_dtype=np.float32)
    with pytest.raises(ArgumentError, match="^Argument 'x_dtype' must be one of float32, .*, not 'float64'"):
        cpuconv.plan(SHAPE, w, quantization=SCALED, x_dtype="float64")
    with pytest.raises(ArgumentError, match="^Argument 'x_dtype' must be one of float32, .*, int8, not 'int32'"):
        cpuconv.plan(SHAPE, w, quantization=SCALED, x_dtype="int32")  # a result, and no input
    with pytest.raises(ArgumentError, match="^Argument 'residual_scale' must be a finite number above 0"):
        cpuconv.plan(SHAPE, w, quantization=SCALED, residual=True)
    with pytest.raises(ArgumentError, match="^Argument 'types' must be x:w:y"):
        cpuconv.explain(SHAPE, WEIGHTS, types="u8:s9:u8")
    named = "^Argument 'types' must be a string such as 'u8:s8:u8', or a Types, not"
    for wrong in (None, 3, ("u8", "s8", "u8")):
        with pytest.raises(ArgumentTypeError, match=named):
            cpuconv.explain(SHAPE, WEIGHTS, types=wrong)  # type: ignore[arg-type]


DTYPES = [np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, BF16, np.bool_]
NAMES = st.sampled_from([None, "float32", "bfloat16", "uint8", "int8", "int32", "int64", np.uint8, 3])
SCALES = st.sampled_from([None, PLAIN, SCALED, scales(w_zero_point=3), scales(x_zero_point=255), scales(w_scale=[1.0])])
BIASES = st.sampled_from([None, np.zeros(4, np.float32), np.zeros(4, np.int32), np.zeros(4, BF16), np.zeros(4)])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), NAMES, SCALES, BIASES)
def test_any_mix_is_a_result_or_one_of_our_errors(x: Any, w: Any, y_dtype: Any, quantization: Any, bias: Any) -> None:
    try:
        y = call(x, w, y_dtype=y_dtype, quantization=quantization, bias=bias, strategy="heuristic")
    except cpuconv.CpuconvError as error:
        assert str(error).startswith("Argument '") and " must be " in str(error)
    else:
        usual = x if quantization is None or quantization.y_scale is not None else np.float32
        assert y.dtype == np.dtype(usual if y_dtype is None else BF16 if y_dtype == "bfloat16" else y_dtype)
