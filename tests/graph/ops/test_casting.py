"""Casts between all types of elements, and quantisation to those of a byte or less: ONNX's tables."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.protos.elements import NUMBERS  # noqa: E402
from support.graphs import one_node  # noqa: E402

NEWEST = 25
INF, NAN = np.inf, np.nan
TYPES = [dtype for dtype in NUMBERS if dtype.kind != "c"]
FLOAT8 = [np.dtype(getattr(ml_dtypes, f"float8_{name}")) for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")]
LARGEST = (448, 240, 57344, 57344)
POWERS = np.dtype(ml_dtypes.float8_e8m0fnu)


def run(op: str, arrays, opset: int = NEWEST, fixed=(), **attributes) -> np.ndarray:
    model, feed = one_node(op, arrays, 1, opset, fixed=fixed, **attributes)
    compiled = cpuconv.compile(model, strategy="heuristic", strict=True)
    (result,) = compiled.run({name: array for name, array in feed.items() if name in {p.name for p in compiled.inputs}})
    return compiled.run({port.name: feed[port.name] for port in compiled.inputs})[result]


def cast(x: np.ndarray, dtype: np.dtype, **attributes) -> np.ndarray:
    return run("Cast", [x], to=NUMBERS[np.dtype(dtype)], **attributes)


def same(got: np.ndarray, expected) -> None:
    """Equal elements, NaN for NaN, and zeros of the same sign."""
    got, expected = got.astype(np.float64), np.asarray(expected, np.float64)
    np.testing.assert_array_equal(got, expected)
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("to", TYPES, ids=str)
def test_numbers_that_both_types_hold(to):
    for x_type in TYPES:
        numbers = [1.0] if POWERS in (x_type, to) else [0.0, 1.0]
        x = np.array(numbers, np.float32).astype(x_type)
        got = cast(x, to)
        assert got.dtype == to
        same(got, numbers)
        if any("float6" in each.name for each in (x_type, to)):  # which ONNX's CastLike does not take
            continue
        like = run("CastLike", [x, np.zeros(1, np.float32).astype(to)])
        assert like.dtype == to
        same(like, numbers)


@pytest.mark.parametrize(("dtype", "largest"), list(zip(FLOAT8, LARGEST, strict=True)), ids=str)
@pytest.mark.parametrize("wide", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_the_table_of_float8(dtype, largest, wide):
    zero = 0.0 if dtype.name.endswith("uz") else -0.0
    x = np.array([0, -0.0, NAN, INF, -INF, 60000, -60000, 1.0], np.float64).astype(wide)
    expected = [0, zero, NAN, largest, -largest, largest, -largest, 1]
    same(cast(x, dtype), expected)
    same(run("CastLike", [x, np.zeros(1, np.float32).astype(dtype)]), expected)
    inf = INF if dtype.name == "float8_e5m2" else NAN
    x, expected = x[:5], [0, zero, NAN, inf, -inf]
    if wide != np.float16:  # which has no more than the largest float8e5m2 rounds to
        x, expected = np.append(x, np.array([1e5, -1e5]).astype(wide)), [*expected, inf, -inf]
    same(cast(x, dtype, saturate=0), expected)
    same(run("CastLike", [x, np.zeros(1, np.float32).astype(dtype)], saturate=0), expected)
    assert cast(np.array([100000], np.int32), dtype).astype(np.float32) == largest


@pytest.mark.parametrize(
    ("mode", "saturate", "expected"),
    [
        ("up", 1, [2**-127, NAN, 2.0**127, 2.0**127, 2**-127, 1, 2, 2, 2, 2]),
        ("up", 0, [NAN, NAN, NAN, NAN, NAN, 1, 2, 2, 2, 2]),
        ("down", 1, [2**-127, NAN, 2.0**127, 2.0**127, 2**-127, 1, 1, 1, 1, 2]),
        ("nearest", 0, [NAN, NAN, NAN, NAN, NAN, 1, 1, 2, 2, 2]),
        ("nearest", 1, [2**-127, NAN, 2.0**127, 2.0**127, 2**-127, 1, 1, 2, 2, 2]),
    ],
)
def test_powers_of_two(mode, saturate, expected):
    x = np.array([0, NAN, INF, 2.0**129, 2.0**-140, 1, 1.25, 1.5, 1.75, 2])
    got = cast(x, POWERS, round_mode=mode, saturate=saturate)
    assert got.dtype == POWERS
    same(got, expected)


def test_powers_of_two_by_a_mode_that_there_is_not():
    with pytest.raises(SourceError, match="round_mode is 'sideways'"):
        cast(np.ones(2, np.float32), POWERS, round_mode="sideways")


@pytest.mark.parametrize("bits", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("sign", ["", "u"])
def test_higher_bits_are_left_out(bits, sign):
    name = f"{sign}int{bits}"
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    x = np.array([0, 1, -1, 200, -56, 7, 8, -9, 2**31, 2**33 + 5, -(2**40) - 3], np.int64)
    expected = x % 2**bits
    expected -= np.where((expected >= 2 ** (bits - 1)) & (sign == ""), 2**bits, 0)
    same(cast(x, dtype), expected)
    same(run("CastLike", [x, np.zeros(1, np.int8).astype(dtype)]), expected)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16])
def test_numbers_are_rounded_once(dtype):
    """A float64 a little above the middle of two neighbours, which float32 holds as the middle itself."""
    ones = np.arange(1, 2, np.float64(ml_dtypes.finfo(dtype).eps))
    middles = (ones[:-1] + ones[1:]) / 2
    for x, expected in ((middles * (1 + 2**-40), ones[1:]), (middles * (1 - 2**-40), ones[:-1])):
        same(cast(x, dtype), expected)
        same(cast(-x, dtype), -expected)


def test_floats_are_cut_and_bools_are_not_zero():
    x = np.array([-2.9, -1.5, -0.0, 0.0, 0.5, 1.9, NAN, INF], np.float32)
    same(cast(x, np.dtype(bool)), [1, 1, 0, 0, 1, 1, 1, 1])
    for dtype in (np.int8, np.int64, ml_dtypes.int4):
        same(cast(x[1:6], np.dtype(dtype)), [-1, 0, 0, 0, 1])
    same(cast(np.array([70000, -70000]), np.dtype(np.float16)), [INF, -INF])


def test_a_type_that_casts_have_not():
    with pytest.raises(SourceError, match="Cast node 'y0': the attribute 'to' must be a type of numbers, not 14"):
        cast(np.ones(2, np.float32), np.dtype(np.complex64))


# --- quantisation ---------------------------------------------------------------------------------------------------

QUANTISED = {"int2": (-2, 1), "uint2": (0, 3), "int4": (-8, 7), "uint4": (0, 15), "int16": (-(2**15), 2**15 - 1)}
QUANTISED |= {"uint16": (0, 2**16 - 1), "int8": (-128, 127), "uint8": (0, 255)}
RNG = np.random.default_rng(0)


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def spread(vector: np.ndarray, axis: int, shape, size: int = 1) -> np.ndarray:
    """Scales of parts or blocks as those of elements."""
    if vector.ndim == 1 and len(shape) > 1:
        vector = vector.reshape([-1 if at == axis else 1 for at in range(len(shape))])
    return np.broadcast_to(np.repeat(vector, size, axis).take(range(shape[axis]), axis), shape)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("fixed", [(), (1, 2)], ids=["computed", "constant"])
@pytest.mark.parametrize("parts", ["one", "axis", "blocks"])
def test_integers_there_and_back(name, fixed, parts):
    dtype, (low, high) = dtype_of(name), QUANTISED[name]
    x = (RNG.standard_normal((3, 7, 4)) * (high - low) / 2).astype(np.float32)
    form = {"one": (), "axis": (7,), "blocks": (3, 3, 4)}[parts]
    scale = RNG.uniform(0.5, 2, form).astype(np.float32)
    zero = RNG.integers(max(low, -100), min(high, 100) + 1, form)
    size = 3 if parts == "blocks" else 0
    each = [spread(v, 1, x.shape, size or 1) if form else v for v in (scale, zero)]
    expected = np.clip(np.rint(x / each[0]) + each[1], low, high)
    attributes = {"axis": 1, "block_size": size}
    got = run("QuantizeLinear", [x, scale, zero.astype(dtype)], fixed=fixed, **attributes)
    assert got.dtype == dtype
    same(got, expected.astype(np.int64))
    back = run("DequantizeLinear", [got, scale, zero.astype(dtype)], fixed=fixed, **attributes)
    np.testing.assert_array_equal(back, (expected.astype(np.int64) - each[1]).astype(np.float32) * each[0])


@pytest.mark.parametrize("name", [*QUANTISED, "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float4_e2m1fn"])
def test_a_type_without_a_zero_point(name):
    dtype = dtype_of(name)
    x = np.array([0, 0.4, 1, 2, -3, 1e9, -1e9], np.float32)
    got = run("QuantizeLinear", [x, np.float32(0.5)], output_dtype=NUMBERS[dtype])
    assert got.dtype == dtype
    limits = QUANTISED.get(name)
    if limits is None:
        largest = float(ml_dtypes.finfo(dtype).max)
        rounded = np.clip(x / 0.5, -largest, largest).astype(dtype)
        same(np.abs(got.astype(np.float32)), np.abs(rounded.astype(np.float32)))
    else:
        same(got, np.clip(np.rint(x / np.float32(0.5)), *limits).astype(np.int64))
    for output, number in ((np.float32, 0), (np.float16, 10), (ml_dtypes.bfloat16, 16)):
        back = run("DequantizeLinear", [got, np.float32(0.5)], output_dtype=number)
        assert back.dtype == output
        same(back, (got.astype(np.float64) * 0.5).astype(output))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_that_does_not_saturate(dtype):
    x = np.array([1, 1e9, -1e9], np.float32)
    inf = INF if dtype.name == "float8_e5m2" else NAN
    for fixed in ((), (2,)):
        got = run("QuantizeLinear", [x, np.float32(1), np.zeros((), np.float32).astype(dtype)], fixed=fixed, saturate=0)
        same(got, [1, inf, -inf])


def test_the_quotient_is_of_the_stated_precision():
    x, scale = np.array([1001], np.float32), np.float32(3)
    assert run("QuantizeLinear", [x, scale, np.int16(0)], fixed=(1, 2)) == 334
    half = np.float16(1001) / np.float16(3)
    got = run("QuantizeLinear", [x, scale, np.int16(0)], fixed=(1, 2), precision=NUMBERS[np.dtype(np.float16)])
    assert got == np.rint(half)
    assert run("QuantizeLinear", [x.astype(np.int32), np.float32(0.5), np.int16(0)]) == 2002


def test_zero_points_of_another_type_and_blocks_that_do_not_fit():
    x, scale = np.ones((2, 6), np.float32), np.ones((2, 2), np.float32)
    with pytest.raises(SourceError, match="zero point must be of 'output_dtype', int8"):
        run("QuantizeLinear", [x, np.float32(1), np.uint8(0)], fixed=(2,), output_dtype=3)
    with pytest.raises(SourceError, match=r"must be one, or of shape \(2, 3\), not \(2, 2\)"):
        run("QuantizeLinear", [x, scale], block_size=2)
    with pytest.raises(SourceError, match="must be uint8, .*, not float32"):
        run("QuantizeLinear", [x, np.float32(1), np.float32(0)])


def test_signs_are_turned_where_the_type_is_an_attribute():
    """Bytes of the other sign move by 128, with a zero point that the model does not have."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=3),
        helper.make_node("DequantizeLinear", ["q", "s"], ["f"]),
        helper.make_node("Conv", ["f", "w"], ["y"]),
    ]
    x, w = RNG.uniform(-1, 1, (1, 4, 5, 5)).astype(np.float32), RNG.uniform(-1, 1, (3, 4, 1, 1)).astype(np.float32)
    ends = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", x.shape), ("y", (1, 3, 5, 5)))]
    constants = [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(np.float32(0.01), "s")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    got = cpuconv.compile(model, strategy="heuristic")(x)
    whole = np.clip(np.rint(x / np.float32(0.01)), -128, 127) * np.float32(0.01)
    np.testing.assert_allclose(got, np.einsum("oi,nihw->nohw", w[:, :, 0, 0], whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "int8", "float8_e4m3fn"])
def test_weights_of_a_product_in_blocks(name):
    dtype, x = dtype_of(name), RNG.standard_normal((3, 64)).astype(np.float32)
    low, high = QUANTISED.get(name, (-100, 100))
    w, zero = (RNG.integers(low, high + 1, shape).astype(np.float32).astype(dtype) for shape in ((64, 8), (4, 8)))
    zero = zero if name in QUANTISED else np.zeros((4, 8), np.float32).astype(dtype)
    scale = RNG.uniform(0.01, 0.02, (4, 8)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(array, key) for key, array in {"w": w, "s": scale, "z": zero}.items()]
    ends = [onnx.helper.make_tensor_value_info(key, 1, shape) for key, shape in (("x", [3, 64]), ("y", [3, 8]))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    made = cpuconv.compile(model, strategy="heuristic", strict=True)
    numbers = (w.astype(np.float32) - zero.astype(np.float32).repeat(16, 0)) * scale.repeat(16, 0)
    np.testing.assert_allclose(made(x), x @ numbers, rtol=1e-4, atol=1e-4)
    assert [row.op for row in made.explain().operators] == ["Linear"]  # of float32 weights
