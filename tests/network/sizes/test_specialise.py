"""Graphs specialised to the sizes of their inputs, and interpreted."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from cpuconv.network.sizes.specialise import specialise  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import close, made, parse, run  # noqa: E402

OPEN = "g (float[N,3] x, float[N,M] z) => (float[N,K] y) { y = Concat <axis = 1> (x, z) }"
X = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)

# Flatten as PyTorch writes it, and doubling of the plane by sizes computed from the shape.
CHAIN = """g (float[N,3,H,W] x) => (float[N,K] y, float[N,3,A,B] z) <int64 one = {1}, int64[1] axis = {0}> {
    s = Shape(x)
    first = Constant <value_int = 0> ()
    n = Gather <axis = 0> (s, first)
    n1 = Unsqueeze(n, axis)
    rest = Constant <value_ints = [-1]> ()
    sizes = Concat <axis = 0> (n1, rest)
    y = Reshape(x, sizes)
    start = Constant <value_ints = [2]> ()
    end = Constant <value_ints = [4]> ()
    plane = Slice(s, start, end)
    halves = Cast <to = 1> (plane)
    two = Constant <value_float = 2.0> ()
    doubled = Mul(halves, two)
    whole = Floor(doubled)
    ints = Cast <to = 7> (whole)
    begin = Slice(s, axis, start)
    all = Concat <axis = 0> (begin, ints)
    z = Resize <mode = "nearest"> (x, , , all)
}"""


def test_symbols_are_bound_everywhere():
    graph = specialise(read(parse(OPEN)), {"x": (4, 3), "z": [4, 2]})
    assert [graph.value(name).shape for name in ("x", "z", "y")] == [(4, 3), (4, 2), (4, 5)]
    assert all(graph.value(name).dtype == np.float32 for name in ("x", "z", "y"))


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({}, SourceError, r"input 'x' of shape float32\[N,3\] must have fixed sizes"),
        ({"x": (4, 3)}, SourceError, r"input 'z' of shape float32\[N,M\] must have fixed sizes"),
        ({"w": (4, 3)}, ArgumentError, r"shapes of inputs \(x, z\), not one of 'w'"),
        ({"x": (4, 5), "z": (4, 1)}, ArgumentError, r"input_shapes\['x'\]' must be a shape that fits float32\[N,3\]"),
        ({"x": (4, 3), "z": (5, 1)}, ArgumentError, r"input_shapes\['z'\]' must be .* where {'N': 4}, not \(5, 1\)"),
        ({"x": (4, 3, 1), "z": (4, 1)}, ArgumentError, "must be a shape that fits"),
        ({"x": (-4, 3), "z": (-4, 1)}, ArgumentError, "must be a shape that fits"),
        ({"x": (4.0, 3), "z": (4, 1)}, ArgumentTypeError, "must be a sequence of integers"),
    ],
)
def test_shapes_that_do_not_fit(shapes, error, message):
    with pytest.raises(error, match=message):
        specialise(read(parse(OPEN)), shapes)


def test_shape_arithmetic_becomes_constants():
    graph = made(parse(CHAIN), {"x": X})
    assert [node.op for node in graph.nodes] == ["Reshape", "Resize"]
    assert graph.constants.keys() == {"sizes", "all"}
    np.testing.assert_array_equal(graph.constants["all"], [2, 3, 8, 10])
    y, z = interpret(graph, {"x": X}).values()
    close(y, X.reshape(2, -1))
    close(z, X.repeat(2, 2).repeat(2, 3))


@pytest.mark.parametrize("symbol", ["?", "-1", "None"])
def test_symbols_that_say_unknown_do_not_tie_sizes(symbol):
    model = parse("g (float[N,3,M] x) => (float[N,3,M] y) { y = Relu(x) }")
    for axis in (0, 2):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = symbol
    assert read(model).value("x").shape == (None, 3, None)
    assert made(model, {"x": np.zeros((1, 3, 5), np.float32)}).value("y").shape == (1, 3, 5)


def test_one_graph_serves_any_sizes():
    graph = read(parse(CHAIN))
    for shape in ((1, 3, 7, 2), (5, 3, 1, 1)):
        x = np.zeros(shape, np.float32)
        y, z = interpret(specialise(graph, {"x": shape}), {"x": x}).values()
        assert (y.shape, z.shape) == ((shape[0], x[0].size), (*shape[:2], 2 * shape[2], 2 * shape[3]))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_branch_is_taken_where_its_condition_follows_from_shapes(rows):
    model = parse(
        """g (float[N,3] x) => (float[] y, float[] z) <int64[1] one = {1}> {
            first = Constant <value_ints = [0]> () start = Shape <start = 0, end = 1> (x) alone = Equal(start, one)
            y, z = If (alone) <
                then_branch = t () => (float[] p, float[] q) { n = Neg(x) p = Squeeze(n, first) q = Identity(p) },
                else_branch = e () => (float[] p, float[] x) <float two = {2.0}> { p = Mul(x, two) }>
        }"""
    )
    x = np.ones((rows, 3), np.float32)
    graph = made(model, {"x": x}, strict=True)
    assert "If" not in {node.op for node in graph.nodes}
    y, z = interpret(graph, {"x": x}).values()
    close(y, -x[0] if rows == 1 else 2 * x)
    close(z, -x[0] if rows == 1 else x)


@pytest.mark.parametrize("rows", [1, 2])
def test_branches_within_branches_read_what_is_around_them(rows):
    model = parse(
        """g (float[N,3] x) => (float[] y) <int64[1] one = {1}> {
            start = Shape <start = 0, end = 1> (x) alone = Equal(start, one)
            y = If (alone) <
                then_branch = t () => (float[] p) { n = Neg(x) p = If (alone) <
                    then_branch = u () => (float[] q) { q = Mul(n, x) },
                    else_branch = v () => (float[] q) { q = Abs(n) }> },
                else_branch = e () => (float[] p) { n = Abs(x) p = If (alone) <
                    then_branch = u () => (float[] q) { q = Abs(n) },
                    else_branch = v () => (float[] q) { m = Neg(n) q = Add(m, x) }> }>
        }"""
    )
    x = np.full((rows, 3), 2, np.float32)
    (y,) = interpret(made(model, {"x": x}, strict=True), {"x": x}).values()
    close(y, -x * x if rows == 1 else 0 * x)


def test_outputs_that_are_constants_or_inputs():
    model = parse("g (float[2,3] x) => (int64[2] s, float[2,3] x) { s = Shape(x) }")
    x = np.ones((2, 3), np.float32)
    graph = made(model)
    assert graph.nodes == ()
    shape, same = interpret(graph, {"x": x}).values()
    np.testing.assert_array_equal(shape, [2, 3])
    assert same is x


def test_dead_nodes_and_constants_go():
    graph = made(parse("g (float[3] x) => (float[3] y) <float[3] w = {1,2,3}> { a = Add(x, w) y = Relu(x) }"))
    assert [node.op for node in graph.nodes] == ["Relu"] and not graph.constants and graph.values.keys() == {"x", "y"}


def test_wide_values_are_not_rounded_on_the_way():
    model = parse("g (float[1] x) => (float[1] y) <float big = {16777216}> { a = Add(x, big) y = Sub(a, big) }")
    feed = {"x": np.float32([0.3])}
    close(run(model, feed)[0], np.float32([0]))
    close(run(model, feed, wide=True)[0], np.float64(feed["x"]), 1e-8)


@pytest.mark.parametrize(("name", "bits"), [("float16", 11), ("bfloat16", 8), ("double", 53)])
def test_floats_are_rounded_once_at_the_end_of_an_operator(name, bits):
    model = parse(f"g ({name}[2,9] x, {name}[9,3] w) => ({name}[2,3] y) {{ y = Gemm <alpha = 0.5> (x, w) }}")
    dtype = read(model).value("x").dtype
    rng = np.random.default_rng(0)
    feed = {key: rng.normal(size=shape).astype(dtype) for key, shape in (("x", (2, 9)), ("w", (9, 3)))}
    (got,) = run(model, feed)
    exact = 0.5 * feed["x"].astype(np.float64) @ feed["w"].astype(np.float64)
    assert got.dtype == dtype
    assert (np.abs(got.astype(np.float64) - exact) <= 2.0**-bits * np.abs(exact)).all()


def test_computed_constants_lie_in_order_in_memory():
    model = parse(
        "g (float[3,2] x) => (float[3,2] y) <float[2,3] w = {1,2,3,4,5,6}> { t = Transpose(w) y = Add(x, t) }"
    )
    (constant,) = made(model).constants.values()
    assert constant.flags.c_contiguous and not constant.flags.writeable
    np.testing.assert_array_equal(constant, [[1, 4], [2, 5], [3, 6]])


def test_integers_are_exact():
    model = parse("g (int64[1] x) => (int64[1] y) <int64 big = {9007199254740993}> { a = Mul(x, big) y = Relu(a) }")
    np.testing.assert_array_equal(run(model, {"x": np.array([3])})[0], [3 * 9007199254740993])


@pytest.mark.parametrize(
    ("feed", "error", "message"),
    [
        ({}, ArgumentError, "'feed' must be arrays for x"),
        ({"x": np.float32([1]), "z": np.float32([1])}, ArgumentError, "'feed' must be arrays for x, not x, z"),
        ({"x": np.float32([1, 2])}, ArgumentError, r"feed\['x'\]' must be of shape \(1,\), not \(2,\)"),
        ({"x": np.float64([1])}, ArgumentTypeError, r"feed\['x'\]' must be an array of float32, not float64"),
    ],
)
def test_feeds_that_do_not_fit(feed, error, message):
    graph = made(parse("g (float[1] x) => (float[1] y) { y = Relu(x) }"))
    with pytest.raises(error, match=message):
        interpret(graph, feed)
