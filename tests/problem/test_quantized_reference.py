"""The oracle of integers and of bfloat16: against loops over Python's integers, ONNX Runtime, and formulas."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.elements import BF16, to_bfloat16
from cpuconv.problem import reference
from cpuconv.problem.error_bound import error_bound
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantized_epilogue import is_exact
from cpuconv.problem.types import Types
from support import saturation
from support.geometry import problems, upto
from support.quantized import operands

ONE = np.float32


def sums_by_loops(x: Any, w: Any, p: ConvProblem, x_zero: int, w_zero: Any) -> np.ndarray:
    """Every product that the definition names, in Python's integers; padding contributes nothing."""
    y = np.zeros(p.out_shape, object)
    zeros = np.broadcast_to(np.asarray(w_zero), p.k)
    for n, k, oy, ox in itertools.product(*map(range, p.out_shape)):
        for c, r, s in itertools.product(range(p.cg), range(p.r), range(p.s)):
            iy = oy * p.stride[0] + r * p.dilation[0] - p.pads[0]
            ix = ox * p.stride[1] + s * p.dilation[1] - p.pads[2]
            if 0 <= iy < p.h and 0 <= ix < p.w:
                pixel = int(x[n, k // p.kg * p.cg + c, iy, ix]) - x_zero
                y[n, k, oy, ox] += pixel * (int(w[k, c, r, s]) - int(zeros[k]))
    return y


SMALL = {"n": upto(2, 0), "groups": upto(3), "h": upto(5), "w": upto(5), "r": upto(4), "s": upto(4), "pad": upto(3, 0)}


@settings(max_examples=80, deadline=None)
@given(problems(**SMALL), st.integers(0, 1000), st.sampled_from(["u8", "s8"]), st.sampled_from(["u8", "s8"]))
def test_sums_against_loops(p: ConvProblem, seed: int, x_type: str, w_type: str) -> None:
    assume(p.flops < 8_000)
    p = replace(p, types=Types.parse(f"{x_type}:s8:s32"), activation=None, residual=False)
    given_ = operands(p, seed, w_type)
    x = layouts.to_nchw(given_.x, p.in_layout, p.c)
    expected = sums_by_loops(x, given_.w, p, given_.scales.x_zero_point, given_.scales.w_zero_point)
    expected += given_.bias.astype(object).reshape(-1, 1, 1)
    y = reference.conv2d(given_.x, given_.w, given_.bias, p, None, given_.scales)
    assert y.dtype == np.int32 and y.shape == layouts.get(p.out_layout).shape(*p.out_shape)
    np.testing.assert_array_equal(layouts.to_nchw(y, p.out_layout, p.k), expected.astype(np.int64))
    assert np.count_nonzero(y) == np.count_nonzero(layouts.to_nchw(y, p.out_layout, p.k))


def test_sums_are_modulo_two_to_the_32() -> None:
    p = ConvProblem(1, 1, 1, 1, 2, 1, 1, types=Types.parse("u8:s8:s32"))
    x, w = np.full((1, 1, 1, 1), 255, np.uint8), np.array([127, -128], np.int8).reshape(2, 1, 1, 1)
    bias = np.array([2**31 - 1, -(2**31)], np.int32)
    y = reference.conv2d(x, w, bias, p).reshape(-1)
    assert y.tolist() == [2**31 - 1 + 255 * 127 - 2**32, -(2**31) - 255 * 128 + 2**32]


@pytest.mark.parametrize("x_type, w_type, bits", [("u8", "u8", 8), ("u8", "s8", 7), ("u8", "s8", 8), ("s8", "s8", 8)])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("pads, groups", [((1, 1, 1, 1), 1), ((0, 2, 1, 0), 2)])
def test_against_onnx_runtime(
    x_type: str, w_type: str, bits: int, each: bool, pads: tuple[int, ...], groups: int
) -> None:
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    if (x_type, w_type) == ("u8", "s8"):
        saturation.need(bits)
    p = ConvProblem(2, 6, 9, 8, 8, 3, 2, (2, 1), pads, (1, 2), groups, types=Types.parse(f"{x_type}:s8:{x_type}"))
    given_ = operands(p, 3, w_type, each)
    given_ = replace(given_, w=given_.w if w_type == "u8" else saturation.narrowed(given_.w, bits))
    scales, k = given_.scales, p.k
    kinds = {"u8": (TensorProto.UINT8, np.uint8), "s8": (TensorProto.INT8, np.int8)}
    w_scale = np.float32(scales.w_scale)
    tensors = {
        "xs": np.float32(scales.x_scale), "xz": kinds[x_type][1](scales.x_zero_point), "w": given_.w,
        "ws": w_scale, "wz": np.broadcast_to(np.asarray(scales.w_zero_point, kinds[w_type][1]), w_scale.shape).copy(),
        "ys": np.float32(scales.y_scale), "yz": kinds[x_type][1](scales.y_zero_point), "b": given_.bias,
    }  # fmt: skip
    node = helper.make_node(
        "QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"], strides=p.stride,
        pads=(pads[0], pads[2], p.pads[1], p.pads[3]), dilations=p.dilation, group=groups,
    )  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", kinds[x_type][0], p.in_shape)], [value("y", kinds[x_type][0], p.out_shape)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    (expected,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": given_.x})
    y = reference.conv2d(given_.x, given_.w, given_.bias, p, None, scales)
    assert len(np.unique(expected)) > 20 and k == expected.shape[1]
    np.testing.assert_array_equal(y, expected)


PROBLEM = ConvProblem(1, 8, 5, 6, 4, 3, 3, pads=(1, 1, 1, 1), types=Types.parse("u8:s8:s8"))


@pytest.mark.parametrize("activation", [None, "relu", "relu6", ("clip", -1.0, 3.0), ("leaky_relu", 0.1), "silu"])
@pytest.mark.parametrize("y", ["s8", "f32"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", ["int32", "float32", None])
def test_endings_by_their_formulas(activation: Any, y: str, residual: bool, bias: str | None) -> None:
    """The formulas of `Quantization`, in NumPy's float32."""
    p = replace(PROBLEM, types=Types.parse(f"u8:s8:{y}"), activation=activation, residual=residual)
    given_ = operands(p, 5)
    scales, plain = given_.scales, replace(p, types=Types.parse("u8:s8:s32"), activation=None, residual=False)
    b = None if bias is None else given_.bias if bias == "int32" else given_.float_bias
    xs_ws = ONE(scales.x_scale) * np.float32(scales.w_scale).reshape(-1, 1, 1)
    sums = reference.conv2d(given_.x, given_.w, None, plain, None, scales)
    shift = np.float32(0)
    if bias == "int32":
        sums = sums + b.reshape(-1, 1, 1)
    elif bias == "float32" and y == "f32":
        shift = b.reshape(-1, 1, 1)
    elif bias == "float32":
        sums = sums + np.rint(b.reshape(-1, 1, 1) / xs_ws).astype(np.int32)
    total = sums.astype(np.int32).astype(np.float32)
    result = reference.conv2d(given_.x, given_.w, b, p, given_.residual, scales)
    zero, ys = ONE(scales.y_zero_point), ONE(scales.y_scale or 1)
    if y == "s8" and not residual and activation in (None, "relu", ("clip", -1.0, 3.0)):
        low, high = {None: (-np.inf, np.inf), "relu": (0.0, np.inf)}.get(activation, (-1.0, 3.0))
        expected = np.rint(total * (xs_ws / ys)) + zero
        expected = np.clip(expected, np.rint(ONE(low) / ys) + zero, np.rint(ONE(high) / ys) + zero)
        expected = np.clip(expected, -128, 127)
        assert (expected != expected.flat[0]).any()
    else:
        r = total * xs_ws + shift
        if residual and y == "f32":
            r = r + given_.residual
        elif residual:
            r = r + (given_.residual.astype(np.float32) - ONE(scales.residual_zero_point)) * ONE(scales.residual_scale)
        name = activation[0] if isinstance(activation, tuple) else activation
        r = {
            None: lambda: r, "relu": lambda: np.maximum(r, ONE(0)), "relu6": lambda: np.clip(r, ONE(0), ONE(6)),
            "clip": lambda: np.clip(r, ONE(-1), ONE(3)), "leaky_relu": lambda: np.where(r > 0, r, r * ONE(0.1)),
            "silu": lambda: (r / (1 + np.exp(-r.astype(np.float64)))).astype(np.float32),
        }[name]()  # fmt: skip
        expected = r if y == "f32" else np.clip(np.rint(r / ys) + zero, -128, 127)
    assert result.dtype == {"s8": np.int8, "f32": np.float32}[y]
    if is_exact(p):
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1 if y == "s8" else 1e-6)


def test_weights_less_their_zero_point_are_the_same_problem() -> None:
    p = replace(PROBLEM, types=Types.parse("u8:s16:s8"))
    given_ = operands(p, 7, "u8")
    scales = given_.scales
    less = given_.w.astype(np.int16) - np.asarray(scales.w_zero_point, np.int16).reshape(-1, 1, 1, 1)
    whole = reference.conv2d(given_.x, given_.w, given_.bias, p, None, scales)
    np.testing.assert_array_equal(
        reference.conv2d(given_.x, less, given_.bias, p, None, replace(scales, w_zero_point=0)), whole
    )


def test_bfloat16_is_computed_in_float64() -> None:
    p = ConvProblem(1, 8, 5, 6, 4, 3, 3, pads=(1, 1, 1, 1), types=Types.parse("bf16:bf16:bf16"), residual=True)
    rng = np.random.default_rng(0)
    x, w, residual = (
        rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in (p.in_shape, p.weight_shape, p.out_shape)
    )
    plain = [array.astype(np.float64) for array in (x, w, residual)]
    expected = reference.conv2d(plain[0], plain[1], None, replace(p, types=Types()), plain[2])
    for given_ in ((x, w, residual), tuple(array.view(np.uint16) for array in (x, w, residual))):
        y = reference.conv2d(given_[0], given_[1], None, p, given_[2])
        assert y.dtype == np.float64
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("activation", [None, "hardswish", ("leaky_relu", 3.0)])
def test_the_bound_holds_for_sums_in_float32_and_no_multiple_of_it(activation: Any) -> None:
    p = ConvProblem(1, 64, 6, 6, 8, 3, 3, pads=(1, 1, 1, 1), activation=activation, types=Types.parse("bf16:bf16:bf16"))
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in (p.in_shape, p.weight_shape))
    bias = rng.standard_normal(p.k).astype(np.float32)
    bound, exact = error_bound(x, w, bias, p), reference.conv2d(x, w, bias, p)
    total = np.zeros(p.out_shape, np.float32)
    padded = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1)))
    for c, r, s in itertools.product(range(p.c), range(3), range(3)):  # one term after another
        total += padded[:, c, r : r + 6, s : s + 6][:, None] * w[:, c, r, s].astype(np.float32).reshape(1, -1, 1, 1)
    total += bias.reshape(-1, 1, 1)
    ended = {None: total, "hardswish": total * np.clip(total / 6 + ONE(0.5), 0, 1)}.get(
        activation, np.where(total > 0, total, total * ONE(3))
    )
    kept = to_bfloat16(ended.astype(np.float32))
    error = np.abs(reference.values(kept, BF16) - exact)
    assert (error <= bound).all() and bound.max() < 0.02 * np.abs(exact).max()
    kept = to_bfloat16(ended.astype(np.float32) * ONE(1.02))
    assert (np.abs(reference.values(kept, BF16) - exact) > bound).mean() > 0.3
