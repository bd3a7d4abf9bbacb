"""TopK, ArgMax, CumSum, NonZero and NonMaxSuppression through their kernels: all types, axes, ties, NaN and sizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.graph import ops
from cpuconv.isa import current
from cpuconv.network.interpret import interpret
from support.graph.lowered import offers, run_offer, small_work_is_shared  # noqa: F401
from support.graphs import made, parse

LANES = current().lanes
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64", ml_dtypes.bfloat16)]
SUMMED = [each for each in INTEGERS if each.itemsize > 2] + FLOATS
SIZES = st.sampled_from((1, 2, 5, LANES - 1, LANES, LANES + 1, 3 * LANES + 2, 5 * LANES))
SHAPES = st.lists(SIZES, min_size=1, max_size=3).map(tuple)
THREADS, FLAG, SEEDS = st.sampled_from((1, 2)), st.sampled_from((0, 1)), st.integers(0, 1 << 30)


def numbers(seed, shape, dtype):
    """Few different numbers, the ends of the type, zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype).min, np.iinfo(dtype).max
        return rng.choice(np.array([*ends, ends[0] + 1, 0, 1, 3], dtype), shape)
    special = [0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan]
    x = np.where(rng.random(shape) < 0.3, rng.choice(special, shape), rng.normal(size=shape))
    return x.astype(dtype)


def run(op, arrays, outputs, constant=(), threads=1, apart=False, **attributes):
    """The outputs of a node by its kernels and by its reference."""
    names = [f"x{at}" for at in range(len(arrays))]
    node = ops.TABLE[op].node(names, [f"y{at}" for at in range(outputs)], **attributes)
    (offer,) = offers(node, arrays, constant, threads)
    wide = [each.astype(np.float32) if each.dtype == ml_dtypes.bfloat16 else each for each in arrays]  # whose NaN sort
    return run_offer(node, arrays, offer, constant, threads, apart), ops.TABLE[op].reference(node, wide)


def equal(found, wanted):
    for got, expected in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), np.asarray(expected).astype(np.float64))


@given(st.data(), SHAPES, st.sampled_from(INTEGERS + FLOATS), SEEDS, FLAG, THREADS, st.booleans())
@settings(deadline=None, max_examples=150)
def test_first_elements(data, shape, dtype, seed, largest, threads, apart):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = np.array([data.draw(st.integers(1, shape[axis]))])
    x = numbers(seed, shape, dtype)
    equal(*run("TopK", [x, k], 2, [1], threads, apart, axis=axis, largest=largest))


@pytest.mark.parametrize("order", ("random", "ascending", "descending", "equal"))
@pytest.mark.parametrize(("size", "k"), ((3000, 40), (3000, 300), (9000, 1000), (700, 700), (2000, 1)))
@pytest.mark.parametrize("dtype", (np.float32, np.int64, np.uint8), ids=str)
def test_first_elements_of_long_lines(dtype, size, k, order):
    """Sorted lines pass many elements at first, so that those found are sorted early."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(2, size)) * 100).astype(dtype)
    x = {"random": x, "ascending": np.sort(x), "descending": np.sort(x)[:, ::-1].copy(), "equal": 0 * x}[order]
    for largest in (0, 1):
        equal(*run("TopK", [x, np.array([k])], 2, [1], largest=largest))


def test_only_wanted_results_are_written():
    x = numbers(0, (3, 50), np.dtype(np.float32))
    for k in (1, 7):
        for outputs in (["y", "z"], ["", "y"]):
            node = ops.TABLE["TopK"].node(["x", "k"], outputs)
            model = parse(
                f"g (float[3,50] x) => ({'float' if outputs[0] else 'int64'}[3,{k}] y) <int64[1] k = {{{k}}}>"
                f" {{ {', '.join(outputs)} = TopK(x, k) }}"
            )
            (got,) = cpuconv.compile(model, threads=1).run({"x": x}).values()
            wanted = ops.TABLE["TopK"].reference(node, [x, np.array([k])])[outputs.index("y")]
            np.testing.assert_array_equal(got, wanted)


@given(st.data(), SHAPES, st.sampled_from(INTEGERS + FLOATS), SEEDS, FLAG, FLAG, THREADS, st.booleans())
@settings(deadline=None, max_examples=150)
def test_extremes(data, shape, dtype, seed, final, keepdims, threads, apart):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = numbers(seed, shape, dtype)
    for op in ("ArgMax", "ArgMin"):
        options = {"axis": axis, "select_last_index": final, "keepdims": keepdims}
        equal(*run(op, [x], 1, [], threads, apart, **options))


@given(st.data(), SHAPES, st.sampled_from(SUMMED), SEEDS, FLAG, FLAG, THREADS, st.booleans())
@settings(deadline=None, max_examples=150)
def test_sums(data, shape, dtype, seed, exclusive, reverse, threads, apart):
    axis = np.array(data.draw(st.integers(-len(shape), len(shape) - 1)))
    x = numbers(seed, shape, dtype)
    (got,), _ = run("CumSum", [x, axis], 1, [1], threads, apart, exclusive=exclusive, reverse=reverse)
    node = ops.TABLE["CumSum"].node(["x", "k"], ["y"], exclusive=exclusive, reverse=reverse)
    (wanted,) = ops.TABLE["CumSum"].evaluate(node, [x, axis], [x.dtype])
    if dtype.kind in "iu":
        np.testing.assert_array_equal(got, wanted)
    else:
        limit = {2: 1e-2, 4: 1e-5, 8: 1e-12}[dtype.itemsize]
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=limit, atol=limit * 10)


@given(SHAPES, st.sampled_from([*INTEGERS, *FLOATS, np.dtype(bool)]), SEEDS, THREADS, st.booleans())
@settings(deadline=None, max_examples=100)
def test_places_that_are_not_zero(shape, dtype, seed, threads, apart):
    x = numbers(seed, shape, np.dtype(np.int8) if dtype.kind == "b" else dtype)
    x = np.where(np.random.default_rng(seed).random(shape) < 0.5, x, x.dtype.type(0)).astype(dtype)
    equal(*run("BoundedNonZero", [x], 2, [], threads, apart))


def test_places_in_several_chunks():
    x = np.random.default_rng(0).random((3, 7, 5, 200)) < 0.3
    for threads in (1, 2):
        equal(*run("BoundedNonZero", [x], 2, [], threads))


@given(
    SEEDS, st.integers(1, 2), st.integers(1, 3), st.sampled_from((1, 5, LANES, LANES + 1, 100)), FLAG, THREADS,
    st.sampled_from((1, 3, LANES + 1, 1000)), st.sampled_from((None, 0.0, 0.3, 0.6, 1.0)),
    st.sampled_from((None, -np.inf, 0.4, 2.0, np.nan)), st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_suppression(seed, images, classes, count, center, threads, most, overlap, least, apart):
    rng = np.random.default_rng(seed)
    boxes = rng.uniform(0, 10, (images, count, 4)).astype(np.float32).round(1)  # some of no area, some reversed
    scores = rng.random((images, classes, count)).astype(np.float32).round(1)
    for array in (boxes, scores):
        array[rng.random(array.shape) < 0.02] = rng.choice([np.nan, np.inf])
    limits = [np.array([most])]
    for each in (overlap, least):
        if each is None:
            break
        limits.append(np.array([each], np.float32))
    arrays = [boxes, scores, *limits]
    with np.errstate(all="ignore"):
        equal(*run("BoundedNonMaxSuppression", arrays, 2, [2], threads, apart, center_point_box=center))


OPEN = """g (float[N,C,B] x, float[N,B,4] boxes) => (float[N,C,K] best, int64[N,C,K] at, int64[N,B] label,
        float[N,C,B] sums, int64[M,3] chosen, int64[3,P] places)
    <int64[1] axis = {2}, int64 last = {2}, int64[1] two = {2}, int64[1] end = {3}, int64[1] half = {2},
     int64[1] most = {9}, float[1] overlap = {0.4}, float[1] least = {0.5}> {
    sizes = Shape(x)
    count = Slice(sizes, two, end)
    more = Add(count, half)
    k = Div(more, half)
    best, at = TopK(x, k)
    label = ArgMax<axis = 1, keepdims = 0>(x)
    sums = CumSum(x, last)
    chosen = NonMaxSuppression(boxes, x, most, overlap, least)
    level = Mul(least, least)
    high = Greater(x, level)
    places = NonZero(high)
}"""


@pytest.mark.parametrize("sizes", (((1, 3, 5), (2, 4, 300), (1, 1, 1), (1, 40, 1000)), ((1, 40, 900), (2, 3, 7))))
@pytest.mark.parametrize("threads", (1, 2))
def test_open_sizes(sizes, threads):
    """The number of elements to find is a size too."""
    model = cpuconv.compile(parse(OPEN), threads=threads, strategy="heuristic")
    rng = np.random.default_rng(0)
    for images, classes, count in (*sizes, *sizes):
        x = rng.random((images, classes, count)).astype(np.float32)
        feed = {"x": x, "boxes": rng.uniform(0, 20, (images, count, 4)).astype(np.float32)}
        wanted = interpret(made(parse(OPEN), feed), feed)
        for name, got in model.run(feed).items():
            np.testing.assert_allclose(got, wanted[name], rtol=1e-4, err_msg=name)


def test_a_result_whose_bound_is_fed_is_computed_by_the_reference():
    text = "g (float[1,5,4] b, float[1,1,5] s, int64[1] most) => (int64[N,3] y) { y = NonMaxSuppression(b, s, most) }"
    model, rng = cpuconv.compile(parse(text), threads=1), np.random.default_rng(0)
    feed = {"b": rng.random((1, 5, 4), np.float32), "s": rng.random((1, 1, 5), np.float32)}
    for most in (0, 1, 3):
        (got,) = model.run({**feed, "most": np.array([most])}).values()
        node = ops.TABLE["NonMaxSuppression"].node(["b", "s", "m"], ["y"])
        wanted = ops.TABLE["NonMaxSuppression"].reference(node, [feed["b"], feed["s"], np.array([most])])
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("op", ("NonZero", "NonMaxSuppression"))
def test_empty_inputs(op):
    texts = {
        "NonZero": "g (float[N,3] x) => (int64[2,K] y) { y = NonZero(x) }",
        "NonMaxSuppression": "g (float[1,N,4] x, float[1,2,N] s) => (int64[K,3] y) <int64 m = {3}>"
        " { y = NonMaxSuppression(x, s, m) }",
    }
    model = cpuconv.compile(parse(texts[op]), threads=1)
    for count in (0, 2, 0):
        feed = {"x": np.ones((count, 3) if op == "NonZero" else (1, count, 4), np.float32)}
        if op != "NonZero":
            feed["s"] = np.ones((1, 2, count), np.float32)
        wanted = interpret(made(parse(texts[op]), feed), feed)
        np.testing.assert_array_equal(model.run(feed)["y"], wanted["y"])
