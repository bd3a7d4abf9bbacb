"""Indices out of range: an error that names the node, at compile time for constants as at run time for others."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")


import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.graph.ir import Graph, Value  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from support.graphs import one_node  # noqa: E402

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
UPDATES = {
    "ScatterElements": lambda indices: np.zeros(indices.shape, np.float32),
    "ScatterND": lambda indices: np.zeros((*indices.shape[:-1], *X.shape[indices.shape[-1] :]), np.float32),
}
CASES = [  # indices of which `None` is out of range, if it is below or above
    ("Gather", [None], {}, 2),
    ("Gather", [[0, None], [1, 0]], {"axis": 1}, 3),
    ("Gather", None, {"axis": 2}, 4),
    ("Gather", [2, None, 0], {"axis": -1}, 4),
    ("GatherElements", [[[0, None]]], {"axis": 2}, 4),
    ("GatherElements", [[[0], [None]]], {}, 2),
    ("GatherND", [[1, None]], {}, 3),
    ("GatherND", [[[None]], [[0]]], {"batch_dims": 1}, 3),
    ("ScatterElements", [[[0, None]]], {"axis": 1}, 3),
    ("ScatterND", [[None, 0], [1, 2]], {}, 2),
]


def made(op: str, pattern: object, index: int, attributes: dict[str, int], fixed: bool):
    """The network of a node, and what to feed it."""
    indices = np.array(_filled(pattern, index))
    updates = [UPDATES[op](indices)] if op in UPDATES else []
    model, feed = one_node(op, [X, indices, *updates], fixed=[1] if fixed else [], **attributes)
    return model, {name: array for name, array in feed.items() if name in {each.name for each in model.graph.input}}


def _filled(pattern: object, index: int) -> object:
    return (
        [_filled(item, index) for item in pattern]
        if isinstance(pattern, list)
        else index
        if pattern is None
        else pattern
    )


@pytest.mark.parametrize("fixed", [True, False], ids=["constant", "fed"])
@pytest.mark.parametrize(("op", "pattern", "attributes", "size"), CASES)
def test_indices_out_of_range(op, pattern, attributes, size, fixed):
    for index in (size, -size - 1, 10**12):
        model, feed = made(op, pattern, index, attributes, fixed)
        said = rf"{op} node .* cannot take inputs.*index {index} is out of bounds"
        if fixed:
            with pytest.raises(SourceError, match=said):
                cpuconv.compile(model)
        else:
            compiled = cpuconv.compile(model)
            with pytest.raises(SourceError, match=said):
                compiled.run(feed)


@pytest.mark.parametrize("fixed", [True, False], ids=["constant", "fed"])
@pytest.mark.parametrize(("op", "pattern", "attributes", "size"), CASES)
def test_the_first_and_the_last_index(op, pattern, attributes, size, fixed):
    results = []
    for index in (size - 1, -1, 0, -size):
        model, feed = made(op, pattern, index, attributes, fixed)
        results += cpuconv.compile(model).run(feed).values()
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[2], results[3])
    assert not np.array_equal(results[0], results[2])


@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_more_indices_than_axes(op):
    model, _ = made(op, [[0, 0, 0, None]], 0, {}, True)
    with pytest.raises(SourceError, match=f"{op} node .* 4 indices are more than there are axes"):
        cpuconv.compile(model)


NARROW = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    ("shape", "axis", "places"),
    [
        ((300, 7), 0, [1, 5, 100, 3]),  # offsets past the ends of narrow types
        ((300, 7), 0, [3, 40, 77, 114]),  # evenly spaced
        ((300, 7), 0, [100, 99, 98, 97]),
        ((300, 7), 0, [1, 0, 101, 100, 3, 2, 103, 102]),
        ((300, 7), 0, 127),
        ((2, 300, 3, 4), 1, [5, 120, 7, 33]),  # channels
    ],
)
def test_indices_of_any_integer_type(shape, axis, places, dtype, known):
    """Graphs that no ONNX file holds may have them; ONNX has int32 and int64."""
    x, indices = np.random.default_rng(0).random(shape, np.float32), np.array(places, dtype)
    node = TABLE["Gather"].node(["x", "i"], ["y"], axis=axis)
    values = {"x": Value(x.shape, x.dtype)} | ({} if known else {"i": Value(indices.shape, indices.dtype)})
    graph = Graph(tuple(values), ("y",), (node,), {"i": indices} if known else {}, values)
    model = cpuconv.compile(graph, strategy="heuristic", threads=1)
    y = model.run({"x": x} | ({} if known else {"i": indices}))["y"]
    assert np.array_equal(y, np.take(x, indices.astype(int), axis))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.uint64, np.float32])
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND"])
def test_a_model_whose_indices_are_of_other_types_is_refused(op, dtype):
    model, _ = one_node(op, [X, np.array([[0, 1]], dtype)], fixed=[1])
    wanted = "int64" if op == "GatherND" else "int32 or int64"
    with pytest.raises(SourceError, match=f"{op} node 'y0': the input 'x1' must be {wanted}, not {np.dtype(dtype)}"):
        cpuconv.compile(model)
