"""conv2d and plan on floats of 16 bits and on integers, as users call them, against the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
import layouts
from cpuconv import ArgumentError, ArgumentTypeError, Quantization
from cpuconv.api import operands as call_operands
from cpuconv.conv import session
from cpuconv.elements import BF16, F16, F32, S8, S16, S32, U8
from cpuconv.isa import current
from cpuconv.problem import reference
from cpuconv.problem.error_bound import error_bound
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from support import oracle
from support.examples import examples
from support.quantized import QuantizedOperands, operands
from support.strided import backwards, sliced

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
BYTES = ["u8", "s8"]
CALLED = ("stride", "dilation", "groups", "activation", "in_layout", "out_layout", "threads")
PROBLEM = ConvProblem(2, 20, 9, 11, 24, 3, 3, pads=(1, 1, 1, 1), types=Types.parse("u8:s8:u8"))
NAMES = st.sampled_from(["NCHW", "NHWC", *(f"NCHW{current().block(each)}c" for each in (U8, BF16, F32)), "NCHW8c"])


def options(problem: ConvProblem, **more: Any) -> dict[str, Any]:
    top, bottom, left, right = problem.pads
    stated = {name: getattr(problem, name) for name in CALLED}
    return {"padding": ((top, bottom), (left, right)), "strategy": "heuristic", **stated, **more}


def called(problem: ConvProblem, given_: QuantizedOperands, bias: Any, x: Any = None, **more: Any) -> Any:
    asked = options(problem, y_dtype=problem.types.y.label, quantization=given_.scales, **more)
    return cpuconv.conv2d(given_.x if x is None else x, given_.w, bias, residual=given_.residual, **asked)


def planned(problem: ConvProblem, given_: QuantizedOperands, bias: Any, **more: Any) -> cpuconv.Plan:
    types = problem.types
    asked = options(problem, y_dtype=types.y.label, x_dtype=types.x.label, quantization=given_.scales, **more)
    return cpuconv.plan(problem.in_shape, given_.w, bias, residual=problem.residual, **asked)


@st.composite
def geometry(draw: Any) -> ConvProblem:
    r, s = draw(st.sampled_from([(1, 1), (3, 3), (2, 3)]))
    plane = st.integers(5, 12)
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 16]))
    channels = st.integers(1, 140 // groups).map(lambda each: each * groups)
    if groups > 3 and draw(st.booleans()):
        channels, groups = st.just(70), 70  # depthwise
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    return ConvProblem(
        draw(st.integers(1, 2)), draw(channels), draw(plane), draw(plane), draw(channels), r, s,
        draw(st.sampled_from([(1, 1), (2, 1), (2, 2)])), pads, draw(st.sampled_from([(1, 1), (1, 2)])),
        groups, in_layout=draw(NAMES), out_layout=draw(NAMES), threads=draw(st.integers(1, oracle.THREADS)),
    )  # fmt: skip


ENDS = st.sampled_from([None, None, "relu", "relu6", ("clip", -0.5, 2.0), ("leaky_relu", 0.25)])
VIEWS = st.sampled_from([np.asarray, backwards, sliced])


@settings(max_examples=examples(60), deadline=None)
@given(
    geometry(), st.sampled_from(BYTES), st.sampled_from(BYTES), st.sampled_from(["u8", "s8", "f32", "s32"]), ENDS,
    st.booleans(), st.sampled_from(["int32", "float32", "none"]), st.booleans(), VIEWS, st.integers(0, 99),
)  # fmt: skip
def test_integers_are_the_oracle_to_the_last_bit(
    p: ConvProblem, x: str, w: str, y: str, end: Any, residual: bool, bias: str, each: bool, view: Any, seed: int
) -> None:
    plain = y == "s32"
    end = None if plain else end
    p = replace(p, types=Types.parse(f"{x}:s8:{y}"), activation=end, residual=residual and not plain)
    given_ = operands(p, seed, w, each)
    b = {"int32": given_.bias, "float32": given_.float_bias, "none": None}[bias]
    expected = reference.conv2d(given_.x, given_.w, b, p, given_.residual, given_.scales)
    result = called(p, given_, b, view(given_.x))
    assert result.dtype == p.types.y.outside
    np.testing.assert_array_equal(result, expected)
    made = planned(p, given_, b)
    out = np.full_like(expected, 77)
    assert made(view(given_.x), residual=given_.residual, out=out) is out
    np.testing.assert_array_equal(out, expected)
    assert made.problem.types.w in ((S8, S16) if w == "u8" else (S8,))


@settings(max_examples=examples(40), deadline=None)
@given(
    geometry(), st.sampled_from([BF16, F16]), st.booleans(), ENDS, st.booleans(), st.booleans(), VIEWS,
    st.integers(0, 99),
)  # fmt: skip
def test_floats_of_16_bits_are_within_the_bound(
    p: ConvProblem, half: Any, narrow: bool, end: Any, residual: bool, biased: bool, view: Any, seed: int
) -> None:
    y = half if narrow else F32
    p = replace(p, types=Types(half, half, F32, y), activation=end, residual=residual)
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shape).astype(half.outside) for shape in (p.in_shape, p.weight_shape))
    x = view(layouts.from_nchw(x, p.in_layout))
    added = layouts.from_nchw(rng.standard_normal(p.out_shape).astype(y.outside), p.out_layout) if residual else None
    bias = rng.standard_normal(p.k).astype(np.float32).astype(half.outside) if biased else None
    asked = options(p, y_dtype=None if narrow else "float32", accuracy="exact")  # Winograd's errors are larger
    wide = None if bias is None else bias.astype(np.float32)
    expected, bound = reference.conv2d(x, w, wide, p, added), error_bound(x, w, wide, p, added)
    for given_bias in (bias, wide):
        result = cpuconv.conv2d(x, w, given_bias, residual=added, **asked)
        assert result.dtype == y.outside
        assert (np.abs(result.astype(np.float64) - expected) <= bound).all()
    made = cpuconv.plan(p.in_shape, w, bias, residual=residual, **asked)
    np.testing.assert_array_equal(made(x, residual=added), result)


def test_auto_layouts_are_blocks_of_the_types() -> None:
    w = np.ones((256, 256, 3, 3), np.int8)
    scales = Quantization(x_scale=1, w_scale=1)
    plan = cpuconv.plan(
        (1, 256, 14, 14), w, padding=1, in_layout="auto", out_layout="auto", quantization=scales, strategy="heuristic"
    )
    assert (plan.in_layout, plan.out_layout) == (f"NCHW{current().block(U8)}c", f"NCHW{current().block(F32)}c")


def test_results_by_their_dtype() -> None:
    given_ = operands(PROBLEM, 1)
    unscaled = replace(given_.scales, y_scale=None, y_zero_point=0)
    asked = options(PROBLEM)
    for dtype, kept in ((None, np.uint8), ("int8", np.int8), (np.float32, np.float32), ("int32", np.int32)):
        scales = replace(given_.scales, y_zero_point=3)
        y = cpuconv.conv2d(given_.x, given_.w, quantization=scales, y_dtype=dtype, **asked)
        assert y.dtype == kept
    real = cpuconv.conv2d(given_.x, given_.w, quantization=given_.scales, y_dtype="float32", **asked)
    assert real.dtype == np.float32
    np.testing.assert_array_equal(cpuconv.conv2d(given_.x, given_.w, quantization=unscaled, **asked), real)
    sums = cpuconv.conv2d(given_.x, given_.w, given_.bias, y_dtype="int32", **asked)
    plain = replace(PROBLEM, types=Types.parse("u8:s8:s32"))
    np.testing.assert_array_equal(sums, reference.conv2d(given_.x, given_.w, given_.bias, plain))


def test_what_is_remembered_does_not_outlive_its_values() -> None:
    """Weights, biases, scales and zero points are data: another call with others is of those."""
    given_ = operands(PROBLEM, 2, "u8")
    weights = given_.w.copy()
    others = {"x_zero_point": 3, "w_zero_point": [1] * 24, "w_scale": 1e-4, "y_scale": 0.02, "y_zero_point": 9}
    for changed in ({}, *({name: value} for name, value in others.items()), {}):
        scales = replace(given_.scales, **changed)
        for bias in (given_.bias, given_.bias + 40, given_.float_bias, None):
            y = cpuconv.conv2d(given_.x, weights, bias, quantization=scales, **options(PROBLEM))
            np.testing.assert_array_equal(y, reference.conv2d(given_.x, weights, bias, PROBLEM, None, scales))
        weights += 1  # in place, wrapping around


def test_weights_less_their_zero_point_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given_, made = operands(PROBLEM, 3, "u8"), []
    original = call_operands.signed
    monkeypatch.setattr(call_operands, "signed", lambda *rest: made.append(1) or original(*rest))
    session.current.clear()
    for _ in range(3):
        called(PROBLEM, given_, given_.bias)
    assert len(made) == 1
    called(PROBLEM, replace(given_, scales=replace(given_.scales, w_zero_point=0)), None)
    assert len(made) == 2


@pytest.mark.parametrize("point, kept", [(128, S8), ([128] * 24, S8), (127, S16), (0, S16)])
def test_unsigned_weights_are_int8_where_they_fit(point: Any, kept: Any) -> None:
    w = np.zeros(PROBLEM.weight_shape, np.uint8)
    w[0, 0, 0], w[1, 1, 1] = 255, 0
    scales = Quantization(x_scale=1, w_scale=1, w_zero_point=point)
    plan = cpuconv.plan(PROBLEM.in_shape, w, padding=1, quantization=scales, strategy="heuristic")
    assert plan.problem.types == Types(U8, kept, S32, F32)
    x = np.random.default_rng(0).integers(0, 256, PROBLEM.in_shape).astype(np.uint8)
    np.testing.assert_array_equal(plan(x), reference.conv2d(x, w, None, plan.problem, None, scales))


def test_signed_weights_may_have_a_zero_point() -> None:
    w = np.random.default_rng(1).integers(-128, 128, PROBLEM.weight_shape).astype(np.int8)
    x = np.random.default_rng(2).integers(-128, 128, PROBLEM.in_shape).astype(np.int8)
    scales = Quantization(x_scale=1, x_zero_point=-5, w_scale=0.01, w_zero_point=np.arange(24) - 12)
    y = cpuconv.conv2d(x, w, padding=1, quantization=scales, strategy="heuristic")
    np.testing.assert_array_equal(
        y, reference.conv2d(x, w, None, replace(PROBLEM, types=Types.parse("s8:s16:f32")), None, scales)
    )


def test_no_images_give_no_results() -> None:
    scales = Quantization(x_scale=1, w_scale=1, y_scale=1)
    y = cpuconv.conv2d(np.zeros((0, 8, 4, 4), np.uint8), np.ones((4, 8, 1, 1), np.int8), quantization=scales)
    assert y.shape == (0, 4, 4, 4) and y.dtype == np.uint8


@pytest.mark.parametrize("y", ["u8", "s32"])
def test_a_bias_that_no_integer_is(y: str) -> None:
    given_, p = operands(PROBLEM, 1), replace(PROBLEM, types=Types.parse(f"u8:s8:{y}"))
    for wrong in (np.nan, np.inf):
        bias = given_.float_bias.copy()
        bias[3] = wrong
        with pytest.raises(ArgumentError, match=f"^Argument 'bias' must be finite, as it is rounded .*, not {wrong}"):
            called(p, given_, bias)
    large = np.full(p.k, 3e38, np.float32) * np.resize([1, -1], p.k).astype(np.float32)
    y_large = called(p, given_, large)
    np.testing.assert_array_equal(y_large, reference.conv2d(given_.x, given_.w, large, p, None, given_.scales))


def test_arrays_of_other_dtypes_are_refused() -> None:
    given_ = operands(PROBLEM, 1)
    plan = planned(PROBLEM, given_, None)
    with pytest.raises(ArgumentTypeError, match="^Argument 'x' must be of dtype uint8: cast it .*, not int8"):
        plan(given_.x.astype(np.int8))
    with pytest.raises(ArgumentTypeError, match="^Argument 'out' must be of dtype uint8: cast it .*, not float32"):
        plan(given_.x, out=np.zeros(PROBLEM.out_shape, np.float32))
    with pytest.raises(
        ArgumentTypeError, match="^Argument 'bias' must be of dtype float32: .*; or of int32, not float64"
    ):
        called(PROBLEM, given_, np.zeros(24))
    with pytest.raises(ArgumentTypeError, match="^Argument 'bias' must be of dtype int32: cast it .*, not float32"):
        cpuconv.conv2d(given_.x, given_.w, given_.float_bias, y_dtype="int32")
    with pytest.raises(ArgumentError, match="^Argument 'bias' must be of shape .24,., not .23,."):
        called(PROBLEM, given_, given_.bias[:-1])
    adding = replace(PROBLEM, residual=True)
    more = operands(adding, 1)
    with pytest.raises(ArgumentTypeError, match="^Argument 'residual' must be of dtype uint8: cast it .*, not float32"):
        called(adding, replace(more, residual=more.residual.astype(np.float32)), None)


def test_torch_tensors_in_and_out() -> None:
    torch = pytest.importorskip("torch")
    given_ = operands(PROBLEM, 1)
    x, w, bias = (torch.from_numpy(array) for array in (given_.x, given_.w, given_.bias))
    for dtype, kept in (("uint8", torch.uint8), (torch.int8, torch.int8), (torch.int32, torch.int32)):
        scales = replace(given_.scales, y_zero_point=9)
        y = cpuconv.conv2d(x, w, bias, y_dtype=dtype, quantization=scales, **options(PROBLEM))
        assert y.dtype == kept
        plain = cpuconv.conv2d(given_.x, given_.w, given_.bias, y_dtype=dtype, quantization=scales, **options(PROBLEM))
        np.testing.assert_array_equal(y.numpy(), plain)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_torch_tensors_of_16_bits_in_and_out(name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    x, w = torch.randn(PROBLEM.in_shape).to(dtype), torch.nn.Parameter(torch.randn(24, 20, 3, 3).to(dtype))
    y = cpuconv.conv2d(x, w, padding=1)
    assert y.dtype == dtype
    out = torch.zeros_like(y)
    plan = cpuconv.plan(PROBLEM.in_shape, w, torch.zeros(24).to(dtype), padding=1)
    assert plan(x, out=out) is out and torch.equal(out, y)
    near = torch.nn.functional.conv2d(x.float(), w.float(), padding=1)
    assert torch.allclose(y.float(), near, rtol=0.01, atol=0.1)
    wide = cpuconv.conv2d(x, w, padding=1, y_dtype=torch.float32)
    assert wide.dtype == torch.float32 and torch.allclose(wide, near, rtol=1e-3, atol=1e-3)


def test_explain_of_types() -> None:
    told = cpuconv.explain((1, 64, 8, 8), (64, 64, 1, 1), types="u8:s8:u8", strategy="heuristic")
    assert "--dt=u8:s8:u8" in str(told)
    for name, dtype in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
        plan = cpuconv.plan((1, 64, 8, 8), np.ones((64, 64, 1, 1), dtype), strategy="heuristic")
        assert f"--dt={name}:{name}:{name}" in str(plan.explain())
