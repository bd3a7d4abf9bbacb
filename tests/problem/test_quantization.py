"""What a quantization may be, and the one error of each that may not."""

from __future__ import annotations

import array
import math
import pickle
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.elements import S8, U8
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.types import Types

SCALES: dict[str, Any] = {"x_scale": 0.5, "w_scale": [0.25, 0.125], "y_scale": 0.1, "residual_scale": 2.0}
BYTES = Types.parse("u8:s8:u8")


def made(**changed: Any) -> Quantization:
    return cpuconv.Quantization(**{**SCALES, **changed})


def test_numbers_are_kept_as_float32_and_integers() -> None:
    kept = made(x_scale=np.float64(0.1), w_scale=np.array([0.1, 3]), x_zero_point=np.int64(7), w_zero_point=[1, 2])
    assert kept.x_scale == float(np.float32(0.1)) and kept.w_scale == (float(np.float32(0.1)), 3.0)
    assert type(kept.x_zero_point) is int and kept.w_zero_point == (1, 2)
    assert made(w_scale=np.array(0.5)).w_scale == 0.5 and made(x_scale=1).x_scale == 1.0
    assert made(y_scale=None).y_scale is None


def test_numbers_of_arrays_of_any_kind() -> None:
    half = np.array([0.25, 0.125], np.float16)
    for scales in (half, half.astype(ml_dtypes.bfloat16), array.array("f", half)):
        assert made(w_scale=scales).w_scale == (0.25, 0.125)
    for one in (half[0], np.array(0.25), np.array(0.25, np.longdouble), ml_dtypes.bfloat16(0.25)):
        assert made(x_scale=one, w_scale=one).w_scale == 0.25
    assert made(x_zero_point=np.array(3, np.uint8)).x_zero_point == 3
    for wrong in (np.ones((2, 1)), np.array(True), np.array("1"), np.array(1j)):
        with pytest.raises(ArgumentTypeError, match="^Argument 'w_scale' must be a finite number above 0 in float32"):
            made(w_scale=wrong)


def test_numbers_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert made(w_scale=torch.tensor([0.25, 0.125], dtype=dtype)).w_scale == (0.25, 0.125)
    learnt = torch.nn.Parameter(torch.tensor(0.25))
    assert made(x_scale=learnt, w_zero_point=torch.tensor([1, 2])).x_scale == 0.25
    with pytest.raises(ArgumentTypeError, match="^Argument 'x_scale' must be a finite number above 0 in float32"):
        made(x_scale=torch.empty((), device="meta"))


def test_equal_ones_are_one_key() -> None:
    one, other = made(w_scale=np.array([0.25, 0.125])), made()
    assert one == other and hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert len({one, other, made(x_zero_point=1), made(w_scale=0.25), made(w_scale=[0.25, 0.5])}) == 4


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 1e-60, 1e60, 10**400])
def test_scales_that_are_none(name: str, value: float) -> None:
    every = f"Argument '{name}' must be a finite number above 0 in float32"
    with pytest.raises(ArgumentError, match=f"^{every}.*, not {re.escape(str(value)[:9])}"):
        made(**{name: value})
    if name == "w_scale":
        with pytest.raises(
            ArgumentError, match=f"^{every}, or one for each output channel, not {re.escape(str(value)[:9])}"
        ):
            made(w_scale=[1.0, value])


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("value", ["1", True, 1j, [[1.0]], {}, object()])
def test_scales_that_are_no_numbers(name: str, value: object) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^Argument '{name}' must be a finite number above 0 in float32"):
        made(**{name: value})


def test_one_number_where_one_is_asked_for() -> None:
    with pytest.raises(ArgumentTypeError, match="^Argument 'x_scale' must be a finite number above 0 in float32, not"):
        made(x_scale=[0.5])
    with pytest.raises(ArgumentTypeError, match="^Argument 'x_zero_point' must be an integer from -128 to 255, not"):
        made(x_zero_point=[0])
    with pytest.raises(ArgumentTypeError, match="^Argument 'x_scale' must be"):
        made(x_scale=None)


@pytest.mark.parametrize("name", ["w_scale", "w_zero_point", "y_least", "y_most"])
def test_sequences_that_are_empty(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"^Argument '{name}' must be .*, not an empty sequence"):
        made(**{name: []})


@pytest.mark.parametrize("name", ["x_zero_point", "w_zero_point", "y_zero_point", "residual_zero_point"])
def test_zero_points_that_are_none(name: str) -> None:
    for value in (-129, 256, np.int64(1000)):
        with pytest.raises(ArgumentError, match=f"^Argument '{name}' must be an integer from -128 to 255.*, not"):
            made(**{name: value})
    for wrong in (1.0, "1", True, None):
        with pytest.raises(ArgumentTypeError, match=f"^Argument '{name}' must be an integer from -128 to 255.*, not"):
            made(**{name: wrong})


@pytest.mark.parametrize("name", ["y", "residual"])
def test_zero_points_without_their_scale(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"^Argument '{name}_zero_point' must be 0 without a {name}_scale, not 3"):
        made(**{f"{name}_scale": None, f"{name}_zero_point": 3})


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"x_zero_point": -1}, "'x_zero_point' must be from 0 to 255, as uint8 is, not -1"),
        ({"w_zero_point": 200}, "'w_zero_point' must be from -128 to 127, as int8 is, not 200"),
        ({"w_zero_point": [0, -129 + 257]}, "'w_zero_point' must be from -128 to 127, as int8 is, not 128"),
        ({"y_zero_point": -5}, "'y_zero_point' must be from 0 to 255, as uint8 is, not -5"),
        ({"residual_zero_point": -5}, "'residual_zero_point' must be from 0 to 255, as uint8 is, not -5"),
        ({"residual_scale": None}, "'residual_scale' must be a finite number .*, for a residual of uint8, not None"),
        ({"w_scale": [1.0] * 3}, "'w_scale' must be a number or 2 numbers, one for each output channel, not 3 numbers"),
        ({"y_least": [1]}, "'y_least' must be a number or 2 numbers, .*, not 1 numbers"),
        ({"y_most": [1, 2, 3]}, "'y_most' must be a number or 2 numbers, .*, not 3 numbers"),
        ({"w_zero_point": [1]}, "'w_zero_point' must be a number or 2 numbers, .*, not 1 numbers"),
        ({"x_scale": 1e-30, "w_scale": 1e-30}, "'w_scale' must be such that x_scale · w_scale is .*makes it 0.0"),
        ({"x_scale": 1e30, "w_scale": [1.0, 1e30]}, "'w_scale' must be such that x_scale · w_scale is .*makes it inf"),
        ({"x_scale": 1e20, "y_scale": 1e-30}, "'y_scale' must be such that .x_scale · w_scale. / y_scale is finite"),
    ],
)
def test_what_does_not_suit_a_problem(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^Argument {message}"):
        made(**changed).check(BYTES, S8, 2, True)


def test_what_suits_a_problem() -> None:
    made().check(BYTES, S8, 2, True)
    made(residual_scale=None).check(BYTES, S8, 2, False)
    made(w_zero_point=[0, 255]).check(BYTES, U8, 2, False)
    made(y_scale=None, residual_scale=None).check(Types.parse("u8:s8:f32"), S8, 2, True)
    made(x_zero_point=-128, y_zero_point=-128).check(Types.parse("s8:s8:s8"), S8, 2, False)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*SCALES, "x_zero_point", "w_zero_point"]), st.one_of(
    st.floats(), st.integers(-300, 300), st.none(), st.text(max_size=3), st.booleans(),
    st.lists(st.one_of(st.floats(), st.integers(-300, 300)), max_size=3),
)))  # fmt: skip
def test_anything_else_is_one_of_our_errors(changed: dict[str, Any]) -> None:
    try:
        kept = made(**changed)
        kept.check(BYTES, U8, 2, True)
    except cpuconv.CpuconvError as error:
        assert str(error).startswith("Argument '") and " must be " in str(error)
    else:
        assert np.isfinite(kept.ratio()).all() and hash(kept) == hash(made(**changed))
