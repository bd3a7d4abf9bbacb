"""Gathers and scatters by kernels: all types, reductions, ranks and threads, against loops over elements."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.graph.ir import Graph, Value  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from cpuconv.kernels.indexing.combining import NUMBERS, REDUCTIONS  # noqa: E402
from support.graph import lowered  # noqa: E402

LIMITS = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
TYPES = [*map(np.dtype, NUMBERS), *HALVES]
FUNCTIONS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "none": lambda old, new: new}


def numbers(rng, shape, dtype):
    array = rng.integers(0, 5, shape) if dtype.kind in "iub" else rng.uniform(0.5, 1.5, shape)
    return np.asarray(array).astype(dtype)


def run(op, arrays, threads=1, kernels=True, **attributes):
    """The output of a node of fed operands; `kernels`: no reference may compute it."""
    names = [f"x{at}" for at in range(len(arrays))]
    node = TABLE[op].node(names, ["y"], **attributes)
    values = {name: Value(array.shape, array.dtype) for name, array in zip(names, arrays, strict=True)}
    model = cpuconv.compile(Graph(tuple(names), ("y",), (node,), {}, values), strategy="heuristic", threads=threads)
    feed = dict(zip(names, arrays, strict=True))
    y = model.run(feed)["y"]
    assert not kernels or "reference" not in str(model.explain())
    return y


def element_by_element(y, places, updates, reduction):
    """Put updates one after another, each result rounded to the type."""
    y = y.copy()
    with np.errstate(all="ignore"):
        for place, update in zip(places, updates, strict=True):
            y[place] = np.asarray(FUNCTIONS[reduction](y[place], update)).astype(y.dtype)
    return y


def along(indices, axis):
    """The index in the data of each element of `indices`."""
    for place in np.ndindex(indices.shape):
        yield (*place[:axis], int(indices[place]), *place[axis + 1 :])


@pytest.mark.parametrize("op", ["Gather", "GatherND", "ScatterND"])
def test_a_single_slice_lies_in_memory_with_gaps(op):
    """As in a part of a concatenation."""
    x, one = numbers(np.random.default_rng(0), (2, 3, 1), np.dtype(np.float32)), np.ones((), np.int64)
    arrays = [x, one.reshape(() if op == "Gather" else 1), *[-x[0]] * (op == "ScatterND")]
    node = TABLE[op].node([f"x{at}" for at in range(len(arrays))], ["y"])
    assert lowered.check(node, arrays, apart=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("reduction", ["none", *REDUCTIONS])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions_of_all_types(dtype, reduction, threads):
    rng = np.random.default_rng(0)
    data, updates = numbers(rng, (6, 70), dtype), numbers(rng, (9, 70), dtype)
    for op, indices in (
        ("ScatterND", rng.integers(-6, 6, (9, 1))),
        ("ScatterElements", rng.integers(-6, 6, (9, 70))),
        ("ScatterElements", np.broadcast_to(rng.integers(0, 6, (9, 1)), (9, 70)).copy()),
    ):
        y = run(op, [data, indices, updates], threads, reduction=reduction)
        if op == "ScatterND":
            expected = element_by_element(data, [int(at) for (at,) in indices], updates, reduction)
        else:
            expected = element_by_element(data, along(indices, 0), updates.ravel(), reduction)
        assert y.dtype == dtype
        if dtype in HALVES:  # computed in float32, and rounded once
            np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), rtol=0.05)
        else:
            assert np.array_equal(y, expected)


@st.composite
def elements(draw):
    shape = draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    axis = draw(st.integers(0, len(shape) - 1))
    counts = [draw(st.integers(1, 40 if at == axis else size)) for at, size in enumerate(shape)]
    return np.random.default_rng(draw(st.integers(0, 99))), tuple(shape), axis, tuple(counts)


@LIMITS
@given(elements(), st.sampled_from([1, 2]), st.sampled_from([np.int32, np.int64]), st.sampled_from([np.uint8, float]))
def test_elements(case, threads, index, dtype):
    rng, shape, axis, counts = case
    data, indices = numbers(rng, shape, np.dtype(dtype)), rng.integers(-shape[axis], shape[axis], counts).astype(index)
    places = list(along(indices, axis))
    y = run("GatherElements", [data, indices], threads, axis=axis)
    assert np.array_equal(y.ravel(), [data[place] for place in places])
    updates = numbers(rng, counts, np.dtype(dtype))
    for reduction in ("none", "add"):
        y = run("ScatterElements", [data, indices, updates], threads, axis=axis, reduction=reduction)
        np.testing.assert_allclose(y, element_by_element(data, places, updates.ravel(), reduction), rtol=1e-12)


@st.composite
def slices(draw):
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    batch = draw(st.integers(0, len(shape) - 1))
    count = draw(st.integers(1, len(shape) - batch))
    points = draw(st.lists(st.integers(1, 30), max_size=2))
    return np.random.default_rng(draw(st.integers(0, 99))), tuple(shape), batch, count, tuple(points)


@LIMITS
@given(slices(), st.sampled_from([1, 2]), st.sampled_from([np.uint8, np.int16, np.float32, np.complex128]))
def test_slices(case, threads, dtype):
    rng, shape, batch, count, points = case
    data = numbers(rng, shape, np.dtype(np.float32)).astype(dtype)
    columns = [rng.integers(-size, size, (*shape[:batch], *points)) for size in shape[batch : batch + count]]
    indices = np.stack(columns, -1)
    y = run("GatherND", [data, indices], threads, batch_dims=batch)
    for place in itertools.product(*map(range, indices.shape[:-1])):
        assert np.array_equal(y[place], data[(*place[:batch], *indices[place])])
    if batch == 0:
        updates = numbers(rng, (*points, *shape[count:]), np.dtype(np.float32)).astype(dtype)
        y = run("ScatterND", [data, indices, updates], threads)
        flat = updates.reshape(-1, *shape[count:])
        assert np.array_equal(y, element_by_element(data, [*map(tuple, indices.reshape(-1, count))], flat, "none"))
    axis = batch
    places = rng.integers(-shape[axis], shape[axis], points)
    assert np.array_equal(run("Gather", [data, places], threads, axis=axis), np.take(data, places, axis))


def test_indices_that_are_expanded_along_the_last_axis():
    """Their rows are moved at once."""
    rng = np.random.default_rng(0)
    data, indices = rng.random((2, 50, 36), np.float32), rng.integers(-50, 50, (2, 30, 1))
    expand = TABLE["Expand"].node(["i", "sizes"], ["wide"])
    gather = TABLE["GatherElements"].node(["x", "wide"], ["y"], axis=1)
    values = {"x": Value(data.shape, data.dtype), "i": Value(indices.shape, indices.dtype)}
    graph = Graph(("x", "i"), ("y",), (expand, gather), {"sizes": np.array([2, 30, 36])}, values)
    y = cpuconv.compile(graph, threads=1).run({"x": data, "i": indices})["y"]
    assert np.array_equal(y, np.take_along_axis(data, np.broadcast_to(indices, (2, 30, 36)), 1))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode):
    rng = np.random.default_rng(0)
    for shape, axis, length in (((2, 3, 16, 8), -2, 5), ((3, 7, 2), 1, 7), ((2, 5), 1, 1)):
        data, size = rng.random(shape, np.float32), shape[axis]
        updates = rng.random([length if at == axis % len(shape) else each for at, each in enumerate(shape)], np.float32)
        starts = rng.integers(0, size - length + 1 if mode == "linear" else 3 * size, shape[0])
        y = run("TensorScatter", [data, updates, starts], axis=axis, mode=mode)
        expected = data.copy()
        for image, start in enumerate(starts):
            places = (start + np.arange(length)) % size
            np.moveaxis(expected[image], axis % len(shape) - 1, 0)[places] = np.moveaxis(
                updates[image], axis % len(shape) - 1, 0
            )
        assert np.array_equal(y, expected)
        assert np.array_equal(run("TensorScatter", [data, updates, 0 * starts], axis=axis, mode=mode),
                              run("TensorScatter", [data, updates], axis=axis, mode=mode))  # fmt: skip
        for wrong in (-1, size - length + 1) if mode == "linear" else ():
            with pytest.raises(SourceError, match=f"index {wrong} is out of bounds"):
                run("TensorScatter", [data, updates, np.full(shape[0], wrong)], axis=axis, mode=mode)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_data_of_no_other_reader_is_overwritten_but_no_input_is(op, threads):
    rng = np.random.default_rng(0)
    data, indices = rng.random((64, 64), np.float32), rng.integers(0, 64, (64, 64))
    indices, updates = (indices[:, :1] if op == "ScatterND" else indices), rng.random((64, 64), np.float32)
    nodes = [
        TABLE["Exp"].node(["x"], ["e"]),
        TABLE["Exp"].node(["u"], ["v"]),
        TABLE[op].node(["e", "i", "v"], ["s"], reduction="add"),
        TABLE["Add"].node(["s", "v"], ["t"]),
        TABLE[op].node(["t", "i", "t"], ["y"]),  # the data is its updates, too
    ]
    feed = {"x": data, "i": indices, "u": updates}
    values = {name: Value(array.shape, array.dtype) for name, array in feed.items()}
    kept = {name: array.copy() for name, array in feed.items()}
    y = cpuconv.compile(Graph(tuple(feed), ("y",), nodes, {}, values), threads=threads).run(feed)["y"]
    places = [int(at) for (at,) in indices] if op == "ScatterND" else list(along(indices, 0))

    def flat(array):
        return array if op == "ScatterND" else array.ravel()

    t = element_by_element(np.exp(data), places, flat(np.exp(updates)), "add") + np.exp(updates)
    np.testing.assert_allclose(y, element_by_element(t, places, flat(t), "none"), rtol=1e-5)
    assert all(np.array_equal(kept[name], array) for name, array in feed.items())


def test_nan_is_the_extreme():
    data, updates = np.float32([1, np.nan, 1, 1]), np.float32([np.nan, 1, 2, 0])
    for reduction in ("min", "max"):
        y = run("ScatterElements", [data, np.arange(4), updates], reduction=reduction)
        assert np.array_equal(y, FUNCTIONS[reduction](data, updates), equal_nan=True)


def test_an_index_out_of_bounds_ends_only_its_run():
    data, good = np.arange(40, dtype=np.float32).reshape(10, 4), np.array([[1], [-1]])
    node = TABLE["GatherND"].node(["x", "i"], ["y"])
    values = {"x": Value(data.shape, data.dtype), "i": Value(good.shape, good.dtype)}
    model = cpuconv.compile(Graph(("x", "i"), ("y",), (node,), {}, values))
    for wrong in (10, -11, 2**31, -(2**63), 2**63 - 1):
        with pytest.raises(SourceError, match=f"GatherND node .*index {wrong} is out of bounds"):
            model.run({"x": data, "i": np.array([[0], [wrong]])})
        assert np.array_equal(model.run({"x": data, "i": good})["y"], data[[1, -1]])


@pytest.mark.parametrize("threads", [1, 2])
def test_open_sizes(threads):
    """A model of open sizes, at several in both orders."""
    rng = np.random.default_rng(0)
    nodes = [
        TABLE["GatherElements"].node(["x", "i"], ["g"], axis=1),
        TABLE["ScatterElements"].node(["x", "i", "g"], ["s"], axis=1, reduction="add"),
        TABLE["GatherND"].node(["s", "p"], ["y"]),
    ]
    values = {
        "x": Value(("n", "m"), np.dtype(np.float32)),
        "i": Value(("n", "k"), np.dtype(np.int64)),
        "p": Value(("r", 1), np.dtype(np.int64)),
    }
    graph = Graph(("x", "i", "p"), ("y",), nodes, {}, values)
    sizes = [(3, 7, 5, 4), (1, 1, 1, 1), (40, 300, 9, 70), (5, 16, 64, 2), (3, 8, 200, 9)]
    model = cpuconv.compile(graph, threads=threads)
    for n, m, k, r in (*sizes, *sizes[::-1]):
        x = rng.random((n, m), np.float32)
        i, p = rng.integers(-m, m, (n, k)), rng.integers(-n, n, (r, 1))
        s = element_by_element(x, along(i, 1), np.take_along_axis(x, i, 1).ravel(), "add")
        np.testing.assert_allclose(model.run({"x": x, "i": i, "p": p})["y"], s[p[:, 0]], rtol=1e-5)


@pytest.mark.parametrize("shape", [(64, 64), (512,), (8, 16, 32)])
def test_threads_share_large_scatters_without_order(shape):
    """Each thread writes its own part of the memory, whichever updates are in it."""
    rng = np.random.default_rng(0)
    data, indices = rng.integers(0, 9, shape), rng.integers(0, shape[0], (20000 // len(shape), 1))
    updates = rng.integers(0, 9, (len(indices), *shape[1:]))
    expected = data.copy()
    np.add.at(expected, indices[:, 0], updates)
    assert np.array_equal(run("ScatterND", [data, indices, updates], 2, reduction="add"), expected)
    wide = np.broadcast_to(indices.reshape(-1, *[1] * (len(shape) - 1)), updates.shape).copy()
    assert np.array_equal(run("ScatterElements", [data, wide, updates], 2, reduction="add"), expected)
