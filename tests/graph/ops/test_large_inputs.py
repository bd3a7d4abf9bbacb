"""Operators that compute offsets, on an input of 4.4 GB: places beyond what 32 bits count, by indices of any type.

The input takes no memory but for the pages that are written to, and those that are read are one page of zeros.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.memory.free_memory import free_bytes  # noqa: E402
from support.graphs import one_node  # noqa: E402

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory that is not reserved")
ROWS, COLUMNS = 4_400_000, 1000
BYTES = ROWS * COLUMNS
FAR = [0, 1, 2_147_483, 2_147_484, 4_294_967, 4_294_968, ROWS - 2, ROWS - 1]  # rows on both sides of 2^31 and 2^32
LAST = np.iinfo(np.int64).min
Expected = Callable[[np.ndarray], np.ndarray]


def int64(*numbers: object) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.fixture(scope="module")
def memory() -> np.ndarray:
    """The bytes of the input, those of some rows set."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        whole = np.frombuffer(mmap.mmap(-1, BYTES, flags=flags), np.uint8)
    except OSError as error:
        pytest.skip(f"this machine does not give memory that nothing is written to: {error}")
    rows = whole.reshape(ROWS, COLUMNS)
    rows[FAR] = np.random.default_rng(0).integers(1, 100, (len(FAR), COLUMNS), np.uint8)
    return whole


def ran(
    op: str, x: np.ndarray, others: list[np.ndarray], known: bool, outputs: int = 1, **attributes: object
) -> np.ndarray:
    """The last output of a node, its other operands known beforehand or fed."""
    arrays = [np.empty(0, x.dtype), *others]
    model, feed = one_node(op, arrays, outputs, fixed=range(1, len(arrays)) if known else (), **attributes)
    stated = model.graph.input[0].type.tensor_type
    stated.ClearField("shape")
    for size in x.shape:
        stated.shape.dim.add().dim_value = size
    del model.graph.output[: outputs - 1]
    made = cpuconv.compile(model, strategy="heuristic", threads=2)
    (y,) = made.run({**feed, "x0": x}).values()
    return y


R, C, FLAT = (ROWS, COLUMNS), (COLUMNS, ROWS), (1, BYTES)
MIXED = np.array([FAR[5], 1, FAR[2], FAR[6], FAR[3]])
INDEXED: list[tuple[str, tuple[int, ...], list[np.ndarray], dict[str, int], Expected]] = [
    ("Gather", R, [MIXED], {}, lambda x: x[MIXED]),
    ("Gather", R, [np.array(FAR[6])], {}, lambda x: x[FAR[6]]),
    ("Gather", R, [np.array([1, FAR[3], 2 * FAR[3] - 1])], {}, lambda x: x[[1, FAR[3], 2 * FAR[3] - 1]]),
    ("Gather", R, [np.array([-1, -2, 0, -ROWS])], {}, lambda x: x[[-1, -2, 0, 0]]),
    ("Gather", C, [np.array([5, ROWS - 1, 7])], {"axis": 1}, lambda x: x[:, [5, ROWS - 1, 7]]),
    ("Gather", FLAT[::-1], [np.array([7, 2**31 - 1, 9])], {}, lambda x: x[[7, 2**31 - 1, 9]]),
    ("GatherElements", R, [MIXED[:, None]], {}, lambda x: x[MIXED, :1]),
    ("GatherND", R, [np.stack([MIXED, [0, 999, 500, 1, 2]], 1)], {}, lambda x: x[MIXED, [0, 999, 500, 1, 2]]),
    ("GatherND", R, [MIXED[:, None]], {}, lambda x: x[MIXED]),
]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("op", "shape", "others", "attributes", "expected"), INDEXED)
def test_what_is_taken_by_index(op, shape, others, attributes, expected, known, memory):
    x = memory.reshape(shape)
    for dtype in (np.int64,) if op == "GatherND" else (np.int32, np.int64):
        assert np.array_equal(ran(op, x, [each.astype(dtype) for each in others], known, **attributes), expected(x))


PARTS: list[tuple[str, tuple[int, ...], list[np.ndarray], int, dict[str, object], Expected]] = [
    ("Slice", R, [int64(FAR[5]), int64(FAR[5] + 2)], 1, {}, lambda x: x[FAR[5] : FAR[5] + 2]),
    ("Slice", R, [int64(ROWS - 1), int64(LAST), int64(0), int64(-2_147_484)], 1, {}, lambda x: x[::-2_147_484]),
    ("Slice", R, [int64(0, 990), int64(ROWS, 0), int64(0, 1), int64(2_147_483, -3)], 1, {},
     lambda x: x[::2_147_483, 990:0:-3]),
    ("Slice", C, [int64(ROWS - 1), int64(LAST), int64(1), int64(-2_000_000)], 1, {}, lambda x: x[:, ::-2_000_000]),
    ("Split", R, [int64(ROWS - 2, 2)], 2, {}, lambda x: x[-2:]),
    ("Pad", R, [int64(2 - ROWS, 3, 0, -5)], 1, {}, lambda x: np.pad(x[-2:, :-5], ((0, 0), (3, 0)))),
    ("Compress", R, [np.isin(np.arange(ROWS), FAR[2:])], 1, {"axis": 0}, lambda x: x[FAR[2:]]),
    ("ArgMax", FLAT, [], 1, {"axis": 1}, lambda x: x.argmax(1)[:, None]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shape", "others", "outputs", "attributes", "expected"), PARTS)
def test_parts_and_places(op, shape, others, outputs, attributes, expected, memory):
    x = memory.reshape(shape)
    assert np.array_equal(ran(op, x, others, True, outputs, **attributes), expected(x))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("op", "indices", "updates"),
    [
        ("ScatterND", MIXED[:, None], np.arange(5 * COLUMNS, dtype=np.uint8).reshape(5, COLUMNS)),
        ("ScatterElements", MIXED[:, None] * np.ones((1, COLUMNS), int), np.ones((5, COLUMNS), np.uint8)),
    ],
)
def test_what_is_put_by_index(op, indices, updates, memory):
    if free_bytes() < 3.5 * BYTES:
        pytest.skip("the output takes 4.4 GB, and so does what it is copied from")
    x = memory.reshape(R)
    y = ran(op, x, [indices, updates], True)
    assert np.array_equal(y[MIXED], updates) and np.array_equal(y[[0, FAR[4], FAR[7]]], x[[0, FAR[4], FAR[7]]])
