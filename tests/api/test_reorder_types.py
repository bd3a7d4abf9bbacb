"""Reorders of other types than float32, and from one type to another, against NumPy; what they refuse."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.conv.reorder import reorder
from cpuconv.elements import BF16, F16, F32, S8, S16, S32, U8, Element
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.isa import current
from support.guarded import EDGES, named, place
from support.strided import backwards, numbered

reorder_module = sys.modules[reorder.__module__]  # the package gives its name to the function
FLOATS, BYTES = (F32, BF16, F16), (U8, S8)
CHANGES = [
    *((a, b) for a, b in itertools.product(FLOATS, repeat=2) if a != b),
    *itertools.product(FLOATS, BYTES),
    *itertools.product((*BYTES, S32), FLOATS),
]
names = st.sampled_from(layouts.NAMES)
quick = settings(max_examples=60, deadline=None)


def drawn(shape: tuple[int, ...], element: Element) -> np.ndarray:
    """Numbers of both signs, some of them halfway between integers."""
    numbers = np.random.default_rng(sum(shape)).integers(-700, 700, shape)
    if element.integer:
        return (numbers % 255 - (127 if element == S8 else 0)).astype(element.outside)
    return (numbers / 4).astype(np.float32).astype(element.outside)


def changed(x: np.ndarray, target: Element, scale: float = 1, zero_point: int = 0) -> np.ndarray:
    """By NumPy, in float32."""
    step = np.float32(scale)
    if target.integer:
        ends = np.iinfo(target.dtype)
        shifted = np.rint(x.astype(np.float32) / step) + np.float32(zero_point)
        return np.clip(shifted, ends.min, ends.max).astype(target.dtype)
    if x.dtype.kind in "iu":
        x = (x.astype(np.int32) - zero_point).astype(np.float32) * step
    return x.astype(np.float32).astype(target.outside)


@pytest.mark.parametrize("element", [BF16, F16, U8, S8, S16, S32], ids=str)
@pytest.mark.parametrize(("src", "dst"), [("NCHW", "NCHW32c"), ("NCHW64c", "NHWC"), ("NHWC", "NCHW")])
def test_elements_of_every_type_are_moved(src: str, dst: str, element: Element) -> None:
    x = drawn((2, 70, 5, 7), element)
    given = layouts.from_nchw(x, src)
    y = reorder(given, src, dst, channels=70)
    assert y.dtype == element.outside and y.flags.c_contiguous
    np.testing.assert_array_equal(y, layouts.from_nchw(x, dst))
    out = np.empty_like(y)
    assert reorder(backwards(given), src, dst, channels=70, out=out) is out
    np.testing.assert_array_equal(out, y)


@pytest.mark.parametrize(("source", "target"), CHANGES, ids=lambda element: str(element))
def test_elements_become_those_of_another_type(source: Element, target: Element) -> None:
    options: dict[str, Any] = {"dtype": target.outside}
    if source.integer != target.integer:
        options |= {"scale": 0.37, "zero_point": -5 if S8 in (source, target) else 7}
    for channels, (src, dst) in itertools.product((1, 20, 64), (("NCHW", "NCHW"), ("NCHW", "NCHW16c"))):
        x = drawn((1, channels, 9, 7), source)
        expected = changed(x, target, options.get("scale", 1), options.get("zero_point", 0))
        y = reorder(x, src, dst, **options)
        assert y.dtype == target.outside
        np.testing.assert_array_equal(y, layouts.from_nchw(expected, dst))


@quick
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 70), st.integers(1, 9), st.integers(1, 20)),
    names,
    names,
    st.sampled_from([(F32, U8), (U8, F32), (F32, BF16), (BF16, F32)]),
    st.sampled_from(["dense", "flipped"]),
)
def test_in_every_layout_with_zero_tails(shape, src, dst, pair, kind) -> None:
    source, target = pair
    logical = drawn(shape, source)
    x = layouts.from_nchw(logical, src)
    if rest := shape[1] % layouts.get(src).block:
        x[:, -1, ..., rest:] = 77
    x = backwards(x) if kind == "flipped" else x
    options: dict[str, Any] = {"dtype": target.label}
    if source.integer != target.integer:
        options |= {"scale": 0.5, "zero_point": 100}
    expected = layouts.from_nchw(changed(logical, target, options.get("scale", 1), options.get("zero_point", 0)), dst)
    about = f"reorder {shape} {source} from {src} to {target} {dst} {kind}"
    for edge in EDGES:
        y = named(about, lambda: reorder(place(x, edge), src, dst, channels=shape[1], **options))  # noqa: B023
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-30, 3e38, 2.0**-126])
@pytest.mark.parametrize("element", BYTES, ids=str)
def test_floats_of_all_magnitudes_end_at_the_range(element: Element, scale: float) -> None:
    """By division, as no product with a reciprocal does it; halves to even; NaN to the least."""
    ends = np.iinfo(element.dtype)
    with np.errstate(over="ignore"):
        halves = (np.arange(-600, 600) / 2).astype(np.float32) * np.float32(scale)
    near = [np.nextafter(halves, np.float32(side), dtype=np.float32) for side in (-np.inf, np.inf)]
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1e-45], np.float32)
    x = np.concatenate([halves, *near, special]).reshape(1, 1, 1, -1)
    y = reorder(x, "NCHW", "NCHW", dtype=element.outside, scale=scale, zero_point=3)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = np.clip(np.rint(x / np.float32(scale)) + np.float32(3), ends.min, ends.max)
    np.testing.assert_array_equal(y, np.where(np.isnan(expected), ends.min, expected).astype(element.dtype))


def test_large_enough_for_threads() -> None:
    x = drawn((2, 70, 64, 64), F32)
    for dst, pair in itertools.product(("NCHW", "NHWC", "NCHW64c"), ((U8, 0.5), (BF16, None))):
        element, scale = pair
        made = reorder(x, "NCHW", dst, dtype=element.outside, scale=scale)
        np.testing.assert_array_equal(made, layouts.from_nchw(changed(x, element, scale or 1), dst))
        back = reorder(made, dst, "NCHW", channels=70, dtype="float32", scale=scale)
        np.testing.assert_array_equal(back, changed(changed(x, element, scale or 1), F32, scale or 1))


def test_other_scales_need_no_other_program() -> None:
    x, of, known = numbered((1, 3, 4, 5)), ((1, 0), (2, 9), (0.5, 255)), set()
    for scale, zero in of:
        y = reorder(x, "NCHW", "NHWC", dtype="uint8", scale=scale, zero_point=zero)
        np.testing.assert_array_equal(y, layouts.from_nchw(changed(x, U8, scale, zero), "NHWC"))
        known.add(reorder_module._moves.cache_info().currsize)
    assert len(known) == 1


X = numbered((1, 3, 4, 5))
REFUSED = [
    (X, {"dtype": "uint8"}, ArgumentTypeError, "'scale' must be a finite number above 0"),
    (X, {"dtype": "uint8", "scale": 0}, ArgumentError, "'scale' must be a finite number above 0 in float32, not 0"),
    (X, {"dtype": "uint8", "scale": -1.0}, ArgumentError, "'scale' must be .* above 0"),
    (X, {"dtype": "uint8", "scale": np.nan}, ArgumentError, "'scale' must be .* not nan"),
    (X, {"dtype": "uint8", "scale": [1.0, 2.0]}, ArgumentTypeError, "'scale' must be"),
    (X, {"dtype": "uint8", "scale": 1, "zero_point": 256}, ArgumentError, "'zero_point' must be"),
    (X, {"dtype": "int8", "scale": 1, "zero_point": 128}, ArgumentError, "'zero_point' must be from -128 to 127"),
    (X, {"dtype": "uint8", "scale": 1, "zero_point": 1.0}, ArgumentTypeError, "'zero_point' must be an integer"),
    (X, {"dtype": "int16", "scale": 1}, ArgumentError, "'dtype' must be one of float32, bfloat16"),
    (X, {"scale": 1.0}, ArgumentError, "'scale' must be None, as 'x' is of float32"),
    (X, {"dtype": "bfloat16", "zero_point": 1}, ArgumentError, "'zero_point' must be None"),
    (X.astype(np.uint8), {"dtype": "int8", "scale": 1}, ArgumentError, "'dtype' must be a floating-point type or None"),
    (X.astype(np.uint8), {"dtype": "float32"}, ArgumentTypeError, "'scale' must be a finite number"),
    (X.astype(np.float64), {}, ArgumentTypeError, "'x' must be of dtype float32"),
    (X, {"dtype": "uint8", "scale": 1, "out": np.empty((1, 4, 5, 3), np.int8)}, ArgumentTypeError, "'out' must be of"),
    (X.astype(np.uint8), {"out": np.empty((1, 4, 5, 3), np.int8)}, ArgumentTypeError, "'out' must be of dtype uint8"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "options", "kind", "told"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(x: np.ndarray, options: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        reorder(x, "NCHW", "NHWC", **options)


def test_torch_tensors_of_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(60, dtype=torch.float32).reshape(1, 3, 4, 5).to(torch.bfloat16)
    y = reorder(x, "NCHW", "NHWC")
    assert y.dtype == torch.bfloat16 and torch.equal(y, x.permute(0, 2, 3, 1).contiguous())
    z = reorder(x, "NCHW", "NHWC", dtype=torch.float32)
    assert z.dtype == torch.float32 and torch.equal(z, y.to(torch.float32))


def test_blocks_of_the_instruction_set_hold_a_vector_a_pixel() -> None:
    for element in (U8, BF16):
        layout = layouts.blocked(current().block(element)).name
        y = reorder(drawn((1, 3, 2, 2), element), "NCHW", layout)
        assert y.strides[3] == 4 * current().lanes


@pytest.mark.parametrize("target", BYTES, ids=str)
@pytest.mark.parametrize("scale", [0.1, 1.0, 2e-39, 2.0**126])
def test_halves_ends_and_what_is_no_number_become_bytes(target: Element, scale: float) -> None:
    """By vectors, and what is left one by one; floats of any bits, and those around the middle of two integers."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        halves = (rng.integers(-600, 600, 500) + np.float32(0.5)).astype(np.float32) * np.float32(scale)
        around = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
        bits = rng.integers(0, 1 << 32, 1000, np.uint32).view(np.float32)
        x = np.concatenate([halves, *around, bits, np.float32([np.inf, -np.inf, np.nan, -0.0, 0.0] * 9)])
        ends = np.iinfo(target.dtype)
        for zero_point in (ends.min, 3, ends.max):
            known = np.where(np.isnan(x), np.float32(-np.inf), x)
            expected = changed(known, target, scale, int(zero_point))
            y = reorder(
                x.reshape(1, 1, 1, -1), "NCHW", "NCHW", dtype=target.outside, scale=scale, zero_point=zero_point
            )
            np.testing.assert_array_equal(y.reshape(-1), expected)
