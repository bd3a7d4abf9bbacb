"""Operators that only move elements, computed by references: they keep their type, and take no more than they give."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import cpuconv
from cpuconv.graph import ops

SIZE = 1 << 20  # elements of a large operand
X = np.arange(SIZE, dtype=np.float32)
IMAGE, ROWS = X.reshape(1, 4, 512, 512), X.reshape(1024, 1024)
PLACES = np.array([3, -1], np.int64)
PAIRS = np.array([[3, 5], [1, -1]], np.int64)
MASK = np.arange(SIZE) % 2 == 0

MOVING: dict[str, tuple[Sequence[np.ndarray | None], Mapping[str, Any]]] = {
    "Compress": ([ROWS, MASK[:1024]], {"axis": 0}),
    "Concat": ([ROWS, ROWS], {"axis": 0}),
    "ConstantOfShape": ([np.array([3, 4])], {}),
    "Copy": ([ROWS], {}),
    "DepthToSpace": ([IMAGE], {"blocksize": 2}),
    "Expand": ([ROWS, np.array([2, 1024, 1024])], {}),
    "Flatten": ([IMAGE], {"axis": 2}),
    "Gather": ([ROWS, PLACES], {"axis": 0}),
    "GatherElements": ([ROWS, PAIRS], {"axis": 0}),
    "GatherND": ([ROWS, PAIRS], {}),
    "Identity": ([ROWS], {}),
    "InterleaveImages": ([IMAGE, IMAGE], {}),
    "Leading": ([ROWS, np.array([100])], {"axis": 1}),
    "MaxUnpool": ([IMAGE, np.arange(SIZE).reshape(IMAGE.shape)], {"kernel_shape": [1, 1]}),
    "NonZero": ([X], {}),
    "OneHot": ([np.arange(1024), np.array([1024]), np.array([0, 1], np.float32)], {}),
    "Pad": ([ROWS, np.array([1, 1, 1, 1]), None], {"mode": "edge"}),
    "Reshape": ([ROWS, np.array([512, -1])], {}),
    "ScatterElements": ([ROWS, PAIRS, ROWS[:2, :2]], {"axis": 0}),
    "ScatterND": ([ROWS, PAIRS, X[:2]], {}),
    "Shape": ([ROWS], {}),
    "Size": ([ROWS], {}),
    "Slice": ([ROWS, np.array([5]), np.array([9])], {}),
    "SpaceToDepth": ([IMAGE], {"blocksize": 2}),
    "Split": ([ROWS], {"axis": 0}),
    "Squeeze": ([IMAGE], {}),
    "Tile": ([ROWS, np.array([2, 1])], {}),
    "TopK": ([ROWS[:16], np.array([2])], {}),
    "Transpose": ([ROWS], {}),
    "Trilu": ([ROWS], {}),
    "Unsqueeze": ([ROWS, np.array([0])], {}),
    "Where": ([MASK.reshape(ROWS.shape), ROWS, ROWS], {}),
}
FAMILIES = ("joining", "moving", "shaping", "indexing")
COMPUTING = {"Cast", "CastLike", "Range", "ArgMax", "ArgMin", "CumSum"}


def _most(call: Callable[[], object]) -> tuple[Any, int]:
    """A result, and the most bytes that were taken on the way to it."""
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_every_operator_of_the_families_that_move_is_known() -> None:
    families = [family for family in ops.FAMILIES if family.__name__.rpartition(".")[2] in FAMILIES]
    assert {op.name for family in families for op in family.OPS} <= MOVING.keys() | COMPUTING


@pytest.mark.parametrize("name", MOVING)
def test_the_reference_gets_its_operands_as_they_are(name: str) -> None:
    arrays, attributes = MOVING[name]
    seen: list[Any] = []

    def noted(node: Any, given: Any) -> Any:
        seen.extend(given)
        return ops.TABLE[name].reference(node, given)

    op = replace(ops.TABLE[name], reference=noted)
    outputs = 2 if name in ("Split", "TopK") else 1
    names = ["" if array is None else f"x{at}" for at, array in enumerate(arrays)]
    node = op.node(names, [f"y{at}" for at in range(outputs)], **attributes)
    results, most = _most(lambda: op.evaluate(node, arrays, [None] * outputs))
    assert all(given is array for given, array in zip(seen, arrays, strict=True))
    floats = [result for result in results if result.dtype.kind == "f"]
    assert all(result.dtype == np.float32 for result in floats)
    if name not in ("TopK", "NonZero", "OneHot", "Trilu"):  # which find places: indices, and truth values
        assert most <= sum(result.nbytes for result in results) + (64 << 10)


@pytest.mark.parametrize("reduction", ["add", "mul"])
def test_sums_of_scattered_floats_are_rounded_once(reduction: str) -> None:
    op = ops.TABLE["ScatterND"]
    node = op.node(["x", "i", "u"], ["y"], reduction=reduction)
    updates = np.full(1000, 0.1 if reduction == "add" else 1.001, np.float32)
    (got,) = op.evaluate(node, [np.ones(1, np.float32), np.zeros((1000, 1), np.int64), updates], [np.dtype("f4")])
    wide = updates.astype(np.float64)
    assert got[0] == np.float32(1 + wide.sum() if reduction == "add" else wide.prod())


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_row_of_a_large_table_costs_a_row(dtype: type) -> None:
    table = np.random.default_rng(0).standard_normal((100_000, 128), dtype=np.float32)  # 51 MB
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "places"], ["y"])],
        "lookup",
        [helper.make_tensor_value_info("places", kind, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 128])],
        [numpy_helper.from_array(table, "table")],
    )
    made = cpuconv.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    places = np.array([77_777], dtype)
    made.run({"places": places})
    result, most = _most(lambda: made.run({"places": places}))
    np.testing.assert_array_equal(result["y"][0], table[77_777])
    assert most < 1 << 20

    def seconds(call: Callable[[], object]) -> float:
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    # a copy of the table in float64, the least of what it took, beside a run
    copies = min(seconds(lambda: table.astype(np.float64)) for _ in range(5))
    assert min(seconds(lambda: made.run({"places": places})) for _ in range(5)) < copies / 4


def test_rows_of_data_that_lie_apart_are_taken_without_a_copy_of_it() -> None:
    node = ops.TABLE["Gather"].node(["x", "i"], ["y"], axis=1)
    results, most = _most(lambda: ops.TABLE["Gather"].evaluate(node, [ROWS.T, PLACES], [None]))
    np.testing.assert_array_equal(results[0], ROWS[PLACES].T)
    assert most < 64 << 10
