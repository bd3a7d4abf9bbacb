"""Operators that move or rename data: where views lie, copies between any two places, and parts written in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cpuconv.conv.choice.target import PRECISION_BF16, PRECISION_F32  # noqa: E402
from cpuconv.elements import from_bfloat16, to_bfloat16  # noqa: E402
from cpuconv.graph import ops  # noqa: E402
from cpuconv.graph.ir import Value  # noqa: E402
from cpuconv.graph.lowering import Call  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.kernels.binding.steps import Ref, Space  # noqa: E402
from cpuconv.kernels.binding.tensor_view import BLOCKED, BLOCKED_BF16, DENSE, DENSE_BF16, IN_BF16, STRIDED, TensorView  # noqa: E402
from support.graph.cases import CASES  # noqa: E402
from support.graph.lowered import Kept, check, offers, run_offer, target  # noqa: E402

LANES = current().lanes
quick = settings(max_examples=60, deadline=None)


def node(op: str, inputs: int = 1, outputs: int = 1, **attributes: object):
    """A node of an operator, operands by number."""
    return ops.TABLE[op].node([f"x{i}" for i in range(inputs)], [f"y{i}" for i in range(outputs)], **attributes)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """Elements 1, 2, ... of float32."""
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


# --- copies between places ------------------------------------------------------------------------------------------

CHANNELS = (1, LANES - 1, LANES, LANES + 1, 2 * LANES, 2 * LANES + 3)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("plane", [(5,), (3, 5), (1, 1)])
def test_copy_between_any_two_places(channels, plane):
    for batch in (1, 3):
        x = numbered((batch, channels, *plane))
        for threads, apart in ((1, False), (2, True)):
            count = check(node("Copy"), [x], threads=threads, apart=apart, tolerance=0)
            assert count == (16 if target().stored_parts else 9)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.float64, bool])
def test_copy_of_any_type(dtype):
    x = (np.arange(60) % 2).astype(dtype).reshape(3, 4, 5)
    offer = offers(node("Copy"), [x])[0]
    (got,) = run_offer(node("Copy"), [x], offer)
    assert got.dtype == dtype and np.array_equal(got, x)


# --- operators ------------------------------------------------------------------------------------------------------

MOVING = (
    *("Copy", "Identity", "Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"),
    *("Concat", "Split", "Slice", "Pad", "Tile", "Gather"),
)
INDICES = {"Gather": (1,), "Pad": (1, 2, 3)}  # what kernels want to know beforehand, besides what sizes depend on


def lies(op: str, arrays, outputs: int = 1, threads: int = 1, apart: bool = False, **attributes) -> list[str]:
    """Check every offer of an operator, to the bit; gives how they read and write, views marked."""
    made, constant = node(op, len(arrays), outputs, **attributes), INDICES.get(op, ops.TABLE[op].parameters)
    ways = []
    for offer in offers(made, arrays, constant, threads):
        results = run_offer(made, arrays, offer, constant, threads, apart)
        for got, expected in zip(
            results, ops.TABLE[op].evaluate(made, arrays, [y.dtype for y in results]), strict=True
        ):
            np.testing.assert_array_equal(got, expected)
        ways.append(f"{offer.inputs[0]} {offer.outputs[0]}{' view' if offer.view else ''}")
    return ways


@pytest.mark.parametrize("op", MOVING)
def test_every_offer_is_right(op):
    """Random operands; some have no offer, but not all."""
    ways = []

    @settings(max_examples=30, deadline=None)
    @given(data=st.data())
    def some(data):
        case = data.draw(CASES[op])
        attributes = dict(case.attributes)
        if "to" in attributes:
            attributes["to"] = onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])
        ways.extend(lies(op, case.arrays, case.outputs, data.draw(st.integers(1, 2)), **attributes))

    some()
    assert ways


# --- channel blocks -------------------------------------------------------------------------------------------------

around = st.sampled_from((1, 2, 3, LANES - 1, LANES, LANES + 1, 2 * LANES, 2 * LANES + 5))
planes = st.sampled_from(((1, 1), (3, 4), (6,)))


@quick
@given(st.lists(around, min_size=1, max_size=5), planes, st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_channels_one_behind_the_other(channels, plane, batch, threads, apart):
    arrays = [numbered((batch, c, *plane)) + 1000 * at for at, c in enumerate(channels)]
    ways = lies("Concat", arrays, threads=threads, apart=apart, axis=1)
    assert ways == [f"{STRIDED} {DENSE}", f"{BLOCKED} {BLOCKED}"]


@quick
@given(st.lists(around, min_size=1, max_size=5), planes, st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_channels_apart(channels, plane, batch, threads, apart):
    arrays = [numbered((batch, sum(channels), *plane)), np.array(channels)]
    ways = lies("Split", arrays, len(channels), threads, apart, axis=1)
    whole = all(count % LANES == 0 for count in channels[:-1])
    assert ways[0] == f"{STRIDED} {STRIDED} view"
    assert (f"{BLOCKED} {BLOCKED}{' view' if whole else ''}") in ways


@quick
@given(st.data())
def test_parts_in_channel_blocks(data):
    """Channels by whole blocks or not, and planes in steps, backwards too."""
    shape = (data.draw(st.integers(1, 3)), data.draw(around), *data.draw(planes))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    starts, ends, steps = [], [], []
    for axis in axes:
        step = data.draw(st.sampled_from((1, 1, 2, -1)))
        start = data.draw(st.sampled_from((0, LANES, 1))) % shape[axis] if axis == 1 else data.draw(
            st.integers(0, shape[axis] - 1))  # fmt: skip
        starts.append(start if step > 0 else -1)
        ends.append(data.draw(st.integers(start + 1, shape[axis])) if step > 0 else -(2**62))
        steps.append(step)
    numbers = [np.array(each) for each in (starts, ends, axes, steps)]
    assert lies("Slice", [numbered(shape), *numbers], 1, data.draw(st.integers(1, 2)), data.draw(st.booleans()))


@pytest.mark.parametrize(
    ("axis", "start", "end", "way"),
    [
        (0, 1, 3, "blocked blocked view"),
        (1, 0, LANES, "blocked blocked view"),
        (1, LANES, 9 * LANES, "blocked blocked view"),
        (1, 1, LANES + 1, "blocked blocked"),
        (2, 1, 3, "blocked blocked"),
    ],
)
def test_whole_images_and_blocks_of_channels_are_views(axis, start, end, way):
    arrays = [numbered((3, 2 * LANES + 3, 4, 5)), *(np.array([number]) for number in (start, end, axis))]
    assert way in lies("Slice", arrays)


@quick
@given(st.data(), around, planes, st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_channels_in_another_order(data, channels, plane, batch, threads, apart):
    """Channel shuffles, and any channels, some more than once."""
    if channels % 2 == 0 and data.draw(st.booleans()):
        order = np.arange(channels).reshape(2, -1).T.ravel()
    else:
        order = np.array(data.draw(st.lists(st.integers(-channels, channels - 1), min_size=1, max_size=2 * LANES)))
    ways = lies("Gather", [numbered((batch, channels, *plane)), order], threads=threads, apart=apart, axis=1)
    assert "blocked blocked" in ways


@pytest.mark.parametrize(
    ("dtype", "precision"), [("uint8", PRECISION_F32), ("int8", PRECISION_F32), ("float32", PRECISION_BF16)]
)
@quick
@given(st.data(), planes, st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_channels_of_narrow_elements_in_another_order(dtype, precision, data, plane, batch, threads, apart):
    """The same of bytes and of bfloat16, whose blocks have more channels."""
    channels = data.draw(st.sampled_from((2, 2 * LANES - 1, 4 * LANES, 4 * LANES + 2, 9 * LANES)))
    order = np.arange(channels)[: channels // 2 * 2].reshape(2, -1).T.ravel()
    if data.draw(st.booleans()):
        order = np.array(data.draw(st.lists(st.integers(-channels, channels - 1), min_size=1, max_size=4 * LANES)))
    x = (numbered((batch, channels, *plane)) % 251 - (123 if dtype == "int8" else 0)).astype(dtype)
    row = node("Gather", 2, axis=1)
    form = BLOCKED if precision == PRECISION_F32 else BLOCKED_BF16
    made = [offer for offer in offers(row, [x, order], (1,), threads, precision) if offer.outputs == (form,)]
    assert check(row, [x, order], (1,), threads, apart, tolerance=0, made=made, precision=precision) == 1


@pytest.mark.parametrize(
    ("dtype", "precision"), [("uint8", PRECISION_F32), ("int8", PRECISION_F32), ("float32", PRECISION_BF16)]
)
@pytest.mark.parametrize("sizes", [(1, 2), (LANES + 1, 3), (4 * LANES, 5, 2 * LANES), (3, 8 * LANES, 4 * LANES + 2)])
def test_parts_of_channels_of_narrow_elements(sizes, dtype, precision):
    x = (numbered((2, sum(sizes), 3, 4)) % 120).astype(dtype)
    row = node("Split", 2, len(sizes), axis=1)
    form = BLOCKED if precision == PRECISION_F32 else BLOCKED_BF16
    arrays = [x, np.array(sizes)]
    for threads, apart in ((1, False), (2, True)):
        made = [each for each in offers(row, arrays, (1,), threads, precision) if {*each.outputs} == {form}]
        assert check(row, arrays, (1,), threads, apart, tolerance=0, made=made, precision=precision) == 1


@pytest.mark.parametrize(
    "order", [[0, 0, 1, 1], [4, 2, 3, 1], [0, 3, 0, 3, 0, 3], [4, 3, 0, -1, -2, 0], [0, 1, 4, 5, 2, 4]]
)
def test_rows_of_picks(order):
    for axis in (0, 1, 2):
        assert lies("Gather", [numbered((6, 6, 6)), np.array(order)], axis=axis)[0] == "strided dense"


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("channels", CHANNELS)
def test_planes_with_something_around_them(mode, channels):
    for shape, pads, axes in (
        ((2, channels, 4, 5), [1, 2, 3, 1], [2, 3]),
        ((3, channels, 6), [2, 0], [-1]),
        ((1, channels, 5, 6), [-1, 2, 2, -1], [3, 2]),
    ):
        for value in (None, np.float32(1.5)) if mode == "constant" else (None,):
            arrays = [numbered(shape), np.array(pads), value if value is None else np.array(value), np.array(axes)]
            assert lies("Pad", arrays, threads=2, mode=mode) == ["strided dense", "blocked blocked"]
            lies("Pad", arrays, apart=True, mode=mode)


def test_channels_around_others_are_plain():
    arrays = [numbered((2, 5, 3, 4)), np.array([0, 1, 0, 0, 0, 2, 1, 0])]
    assert lies("Pad", arrays, threads=2) == ["strided dense"]


@pytest.mark.parametrize("channels", CHANNELS)
def test_blocks_read_by_other_axes(channels):
    for batch in (1, 3):
        flat = batch == 1 or channels % LANES == 0
        for apart in (False, True):
            pixel = lies("Flatten", [numbered((batch, channels, 1, 1))], apart=apart)
            assert ("blocked dense view" in pixel) == flat
            plane = lies("Reshape", [numbered((batch, channels, 3, 4)), np.array([batch, channels, 12])], apart=apart)
            assert "blocked blocked view" in plane
            for order in ((0, 2, 3, 1), (0, 2, 1, 3), (3, 1, 2, 0)):
                turned = lies("Transpose", [numbered((batch, channels, 3, 4))], threads=2, apart=apart, perm=order)
                assert "blocked dense" in turned


def test_tensors_of_a_size_of_zero_are_left_to_the_references():
    empty = np.zeros((2, 0, 3), np.float32)
    for op, arrays, attributes in (
        ("Copy", [empty], {}),
        ("Concat", [empty, empty], {"axis": 0}),
        ("Transpose", [empty], {}),
        ("Reshape", [empty, np.array([0, 0, 3])], {}),
        ("Tile", [empty, np.array([1, 1, 2])], {}),
        ("Pad", [empty, np.array([0, 1, 0, 0, 1, 0])], {}),
        ("Slice", [np.ones((2, 3)), np.array([1]), np.array([1])], {}),
        ("Gather", [empty, np.array([0])], {}),
    ):
        assert lies(op, arrays, **attributes) == [], op


# --- parts in place -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "axis", "output", "legal"),
    [
        ([(2, LANES, 3, 3), (2, 5, 3, 3)], 1, BLOCKED, True),
        ([(2, 5, 3, 3), (2, LANES, 3, 3)], 1, BLOCKED, False),
        ([(2, 5, 3, 3), (1, 5, 3, 3)], 0, BLOCKED, True),
        ([(2, 5, 2, 3), (2, 5, 3, 3)], 2, BLOCKED, False),
        ([(2, 5, 3, 3), (2, 2, 3, 3)], 1, DENSE, True),
        ([(2, 1, 3, 3), (2, 1, 2, 3)], 2, DENSE, True),
        ([(1, 2, 3, 3), (1, 2, 2, 3)], 2, DENSE, False),
        ([(4,), (3,)], 0, DENSE, True),
    ],
)
def test_inputs_written_in_place_are_not_copied(shapes, axis, output, legal):
    arrays = [numbered(shape) for shape in shapes]
    made = node("Concat", len(arrays), axis=axis)
    values = [Value(array.shape, array.dtype) for array in arrays]
    whole = np.concatenate(arrays, axis)
    place = (
        TensorView.blocked(Ref("y"), whole.shape, LANES)
        if output == BLOCKED
        else TensorView.plain(Ref("y"), whole.shape)
    )
    parts = ops.TABLE["Concat"].parts(made, values, place)
    assert bool(parts) == legal
    for others in range(len(parts)):  # the first ones elsewhere
        elsewhere = [replace(part, ref=Ref(f"x{at}")) for at, part in enumerate(parts[:others])]
        places = [*elsewhere, *parts[others:]]
        offer = offers(made, arrays)[output == BLOCKED]
        call = Call(made, places, [place], offer, target(), Space(), Kept())
        steps = ops.TABLE["Concat"].lower(call)
        assert [step.args["x"] for step in steps] == [part.ref for part in elsewhere]
        assert [step.args["y"] for step in steps] == [part.ref for part in parts[:others]]


# --- narrow elements ------------------------------------------------------------------------------------------------

BLOCK = target().block(np.dtype(np.uint8))


def _numbers(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return (1 + np.arange(np.prod(shape)) % 113).reshape(shape).astype(dtype)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["uint8", "int8", "float16", "int32", "bfloat16"])
@pytest.mark.parametrize(
    ("op", "shapes", "constants", "attributes"),
    [
        ("Copy", [(2, 5, 4, 3)], [], {}),
        ("Copy", [(1, BLOCK + 3, 5, 7)], [], {}),
        ("Copy", [(2, 3, 9)], [], {}),
        ("Identity", [(2, 5, 4, 3)], [], {}),
        ("Transpose", [(2, 5, 4, 3)], [], {"perm": (0, 2, 3, 1)}),
        ("Reshape", [(2, BLOCK, 4, 3)], [(2, BLOCK, 12)], {}),
        ("Reshape", [(2, BLOCK, 1, 1)], [(2, BLOCK)], {}),
        ("Concat", [(2, 2 * BLOCK, 4, 3), (2, 5, 4, 3)], [], {"axis": 1}),
        ("Concat", [(2, 6, 4, 3), (2, 5, 4, 3)], [], {"axis": 1}),
        ("Concat", [(2, 6, 4, 3), (2, 6, 2, 3)], [], {"axis": 2}),
        ("Slice", [(2, 3 * BLOCK, 4, 3)], [(BLOCK,), (2 * BLOCK,), (1,)], {}),
        ("Slice", [(2, 20, 4, 3)], [(2,), (9,), (1,)], {}),
        ("Slice", [(2, 20, 4, 3)], [(1,), (3,), (2,)], {}),
        ("Pad", [(2, 7, 4, 3)], [(0, 0, 1, 2, 0, 0, 3, 0)], {}),
    ],
)
def test_narrow_elements_are_moved_in_blocks_of_their_own(op, shapes, constants, attributes, name, threads):
    dtype = np.dtype(name) if name != "bfloat16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    arrays = [*(_numbers(shape, dtype) for shape in shapes), *(np.array(each) for each in constants)]
    made = node(op, len(arrays), **attributes)
    known = range(len(shapes), len(arrays))
    expected = ops.TABLE[op].evaluate(made, arrays, [dtype])[0]
    ways = offers(made, arrays, known, threads)
    assert ways
    for way in ways:
        for apart in (False, True):
            (found,) = run_offer(made, arrays, way, known, threads, apart)
            assert found.dtype == dtype and np.array_equal(found, expected), way


@pytest.mark.parametrize("channels", [1, LANES - 1, LANES, LANES + 1, 2 * LANES, 3 * LANES + 2])
@pytest.mark.parametrize("apart", [False, True])
def test_floats_become_bfloat16_and_come_back(channels, apart):
    """Copies between all forms of either type, rounded to the nearest."""
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((2, channels, 3, 5)).astype(np.float32)
    made = offers(node("Copy"), [x], precision="bfloat16")
    forms = {(*offer.inputs, *offer.outputs) for offer in made}
    assert {(DENSE, DENSE_BF16), (DENSE, BLOCKED_BF16), (BLOCKED, BLOCKED_BF16), (BLOCKED_BF16, BLOCKED)} <= forms
    assert {(BLOCKED, DENSE_BF16), (BLOCKED_BF16, DENSE_BF16)} <= forms
    for offer in made:
        (got,) = run_offer(node("Copy"), [x], offer, apart=apart)
        narrow = any(form in IN_BF16.values() for form in (*offer.inputs, *offer.outputs))
        np.testing.assert_array_equal(
            got.astype(np.float32), from_bfloat16(to_bfloat16(x)).reshape(x.shape) if narrow else x
        )
