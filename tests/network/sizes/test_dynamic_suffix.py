"""Networks of which sizes depend on the elements of inputs."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from support import oracle

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.errors import ArgumentError, SourceError  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from cpuconv.network.sizes.cutting import cut  # noqa: E402
from support.graph.detector import detector  # noqa: E402
from support.graphs import close, made, normal, parse, programs_of, runtime_session  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 3, 6, 6)).astype(np.float32)


def test_detector_is_that_of_onnx_runtime():
    source = detector()
    model, session = cpuconv.compile(source, threads=1), runtime_session(pytest.importorskip("onnxruntime"), source)
    counts = set()
    for size in (6, 6, 9):
        x = RNG.normal(size=(1, 3, size, size)).astype(np.float32)
        results = model.run({"x": x})
        assert [*results] == ["all", "best", "chosen"]
        for got, expected in zip(results.values(), session.run(None, {"x": x}), strict=True):
            close(got, expected)
        counts.add(len(results["chosen"]))
    assert 0 not in counts
    assert "NonMaxSuppression" in str(model.explain())


def test_kernels_run_all_that_does_not_depend_on_elements():
    head, suffix = cut(made(detector(), {"x": X}))
    assert [node.op for node in suffix.nodes] == ["Leading", "Slice", "Squeeze", "Gather"]
    assert "BoundedNonMaxSuppression" in {node.op for node in head.nodes}
    assert {node.op for node in head.nodes}.isdisjoint(node.op for node in suffix.nodes if node.op != "Squeeze")
    assert head.outputs == ("all", "chosen bound", "chosen count", "first")
    assert {*suffix.inputs} == {"chosen bound", "chosen count", "first"}
    assert suffix.outputs == ("best", "chosen")


def test_nothing_but_a_tail():
    model = cpuconv.compile(parse("g (int64[2,3] x) => (int64[2,N] y, int64[2,3] z) { y = NonZero(x) z = Neg(x) }"))
    assert [str(port) for port in model.outputs] == ["y: int64[2,N]", "z: int64[2,3]"]
    for x in (np.array([[0, 1, 0], [2, 0, 3]]), np.zeros((2, 3), np.int64)):
        results = model.run({"x": x})
        np.testing.assert_array_equal(results["y"], np.nonzero(x))
        np.testing.assert_array_equal(results["z"], -x)
    alone = cpuconv.compile(parse("g (int64[2,3] x) => (int64[2,N] y) { y = NonZero(x) }"))
    np.testing.assert_array_equal(alone(x), np.nonzero(x))


def test_a_shape_that_is_fed():
    model = cpuconv.compile(parse("g (int64[6] x, int64[2] s) => (int64[A,B] y) { y = Reshape(x, s) }"))
    x = np.arange(6)
    for shape in ((2, 3), (6, -1)):
        y = model.run({"x": x, "s": np.array(shape)})["y"]
        np.testing.assert_array_equal(y, x.reshape(shape))
        assert not np.may_share_memory(y, x)
    with pytest.raises(SourceError, match="Reshape node 'y' cannot take inputs"):
        model.run({"x": x, "s": np.array((4, 4))})
    y = np.empty((3, 2), np.int64)
    model.run({"x": x, "s": np.array((3, 2))}, out={"y": y})
    np.testing.assert_array_equal(y, x.reshape(3, 2))
    with pytest.raises(SourceError, match="'s' must be fed"):
        cpuconv.compile(parse("g (int64[6] x, int64[2] s) => (int64[A,B] y) { y = Reshape(x, s) }")).explain()


def test_outputs_of_sizes_that_are_found_are_made():
    model = cpuconv.compile(parse("g (int64[2,3] x) => (int64[2,N] y) { y = NonZero(x) }"))
    with pytest.raises(ArgumentError, match="'out' must be arrays for"):
        model.run({"x": np.ones((2, 3), np.int64)}, out={"y": np.empty((2, 6), np.int64)})


CROPS = """g (float[1,3,H,W] x) => (float[K,8,P,Q] y) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    lively = Relu(a)
    mean = ReduceMean <axes = [0, 2, 3], keepdims = 0> (lively)
    least = ReduceMin <keepdims = 0> (mean)
    bright = Greater(mean, least)
    places = NonZero(bright)
    rows = Squeeze(places)
    crops = Gather <axis = 1> (lively, rows)
    swapped = Transpose <perm = [1, 0, 2, 3]> (crops)
    y = Conv <kernel_shape = [3,3]> (swapped, v)
}"""


def test_what_is_worthwhile_runs_natively_for_the_sizes_that_are_found():
    source = parse(CROPS, **normal(RNG, {"w": (8, 3, 3, 3), "v": (8, 1, 3, 3)}))
    session = runtime_session(pytest.importorskip("onnxruntime"), source)
    model = cpuconv.compile(source, threads=oracle.THREADS)
    counts = set()
    for size in (6, 9, 6, 7):
        x = RNG.normal(size=(1, 3, size, size)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        first = model(x)
        close(first, expected)
        np.testing.assert_array_equal(model(x), first)
        counts.add(len(first))
    assert 0 not in counts
    rows = {row.op: row.algorithm for row in model.explain().operators}
    assert rows["Leading"] == "reference" and rows["Conv"] not in ("", "reference")
    timed = model.profile({"x": x}, runs=2)
    assert [row.op for row in timed.rows].count("Conv") == 2 and "Leading" in {row.op for row in timed.rows}
    assert sum(row.share for row in timed.rows) == pytest.approx(1)


def test_a_model_goes_with_its_last_reference():
    """Its parts hold what they share, and nothing that holds them."""
    model = cpuconv.compile(detector(), threads=1)
    model.run({"x": X})
    parts = [weakref.ref(part) for part in (model, programs_of(model), programs_of(model).last.suffix)]
    gc.collect()
    gc.disable()
    try:
        del model
        assert not any(part() for part in parts)
    finally:
        gc.enable()


def test_sizes_that_one_part_computes_for_the_next():
    """How many rows are asked for follows from elements of an image, by way of the operators in between."""
    text = """g (float[2,4] x) => (float[N,4] y, float[N,M] z) <int64[1] one = {1}, int64[1] four = {4}> {
        s = ReduceMax <keepdims = 0> (x)
        n = Cast <to = 7> (s)
        count = Reshape(n, one)
        shape = Concat <axis = 0> (count, four)
        y = Expand(row, shape)
        z = MatMul(y, m)
    }"""
    source = parse(text, **normal(RNG, {"row": (1, 4), "m": (4, 3)}))
    model, session = cpuconv.compile(source), runtime_session(pytest.importorskip("onnxruntime"), source)
    for most in (3, 1, 3, 5):
        x = RNG.uniform(0, 1, (2, 4)).astype(np.float32)
        x[1, 2] = most + 0.5
        for got, expected in zip(model.run({"x": x}).values(), session.run(None, {"x": x}), strict=True):
            close(got, expected)


def test_operators_that_only_the_evaluator_knows():
    text = """g (float[5] x) => (float[N] y, float[N] z) {
        m = ReduceMax(x) count = Cast<to = 7>(m) y = CenterCropPad(x, count) z = Neg(y) }"""
    feed = {"x": np.float32([3, 1, 2, 3, 1])}
    with pytest.warns(cpuconv.CpuconvWarning, match="CenterCropPad run through the reference evaluator"):
        graph = made(parse(text, 18))
    for wide in (False, True):
        y, z = interpret(graph, feed, wide=wide).values()
        np.testing.assert_array_equal(y, [1, 2, 3])
        np.testing.assert_array_equal(z, [-1, -2, -3])


@pytest.mark.filterwarnings("ignore:.*If run through")
def test_a_branch_that_is_taken_by_what_is_fed():
    model = cpuconv.compile(
        parse(
            """g (float[3] x, bool c) => (float[N] y) {
                y = If (c) < then_branch = t () => (float[3] p) { p = Neg(x) },
                             else_branch = e () => (float[1] q) { q = ReduceSum(x) }>
            }"""
        )
    )
    x = np.float32([1, 2, 3])
    np.testing.assert_array_equal(model.run({"x": x, "c": np.array(True)})["y"], -x)
    np.testing.assert_array_equal(model.run({"x": x, "c": np.array(False)})["y"], [6])
