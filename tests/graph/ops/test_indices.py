"""Indices out of range: an error that names the node, at compile time for constants as at run time for others."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")


import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
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
        said = rf"{op} node .* cannot take inputs .*index {index} is out of bounds"
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
