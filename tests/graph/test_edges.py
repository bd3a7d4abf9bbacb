"""Compiled networks where it is easy to go wrong: what is not finite, memory, parts that lie apart, models at fault."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError, SourceError
from cpuconv.graph.ir import Graph
from cpuconv.reading import onnx_reader
from cpuconv.reading.onnx_reader import read
from support import oracle
from support.graphs import close, normal, parse, run
from support.running.callers import at_once

BLOCK = """g (float[{n},3,12,10] x) => (float[{n},24,12,10] y) {{
    a = Conv<pads = [1, 1, 1, 1]>(x, w1)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1]>(b, w2, b2)
    d = Add(c, b)
    e = Relu(d)
    f = Conv(e, w3)
    p = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(f)
    q = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>(e)
    y = Concat<axis = 1>(q, p)
}}"""


def block(n: int | str) -> onnx.ModelProto:
    """A network of a residual block, poolings and a concatenation, with random weights."""
    rng = np.random.default_rng(3)
    weights = {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "b2": (16,), "w3": (8, 16, 1, 1)}
    return parse(BLOCK.format(n=n), **{name: array / 4 for name, array in normal(rng, weights).items()})


def image(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 3, 12, 10)).astype(np.float32)


# --- callers --------------------------------------------------------------------------------------------------------


def test_eight_callers_of_a_model_on_two_threads():
    model = cpuconv.compile(block("N"), threads=oracle.THREADS, strategy="heuristic")
    feeds = [{"x": image(1 + at % 3, at)} for at in range(8)]
    alone = [model.run(feed)["y"] for feed in feeds]
    close(alone[2], run(block("N"), feeds[2], wide=True)[0].astype(np.float32))
    right = []

    def go(at: int) -> None:
        out = np.empty_like(alone[at])
        for turn in range(25):
            got = model.run(feeds[at], {"y": out} if turn % 2 else None)["y"]
            right.append(np.array_equal(got, alone[at]))

    at_once(8, go)
    assert len(right) == 8 * 25 and all(right)


def test_a_model_made_in_one_thread_runs_in_another():
    found = {}

    def make() -> None:
        found["model"] = cpuconv.compile(block(1), threads=oracle.THREADS, strategy="heuristic")
        found["there"] = found["model"](image(1))

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    np.testing.assert_array_equal(found["model"](image(1)), found["there"])


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("accuracy", ["exact", "standard"])
def test_what_is_not_finite_reaches_what_is_computed_from_it(accuracy: str, strange: float):
    """Exactly that where convolutions are exact; with Winograd also what shares a tile with it, but no other image."""
    source, x = block(2), image(2)
    model = cpuconv.compile(source, strategy="heuristic", accuracy=accuracy)
    before = model(x)
    x[1, 1, 5, 4] = strange
    with np.errstate(invalid="ignore"):
        (expected,) = run(source, {"x": x}, wide=True)
    got = model(x)
    assert not np.isfinite(expected).all() and np.isfinite(expected[1]).any()
    np.testing.assert_array_equal(got[0], before[0])
    if accuracy == "exact":
        close(got, expected.astype(np.float32))
    else:
        assert not np.isfinite(got[~np.isfinite(expected)]).any()


def test_denormals_are_numbers():
    model = parse("""g (float[1,2,6,6] x) => (float[1,2,6,6] y, float[1,3,6,6] z)
                     <float[3,2,1,1] w = {1, 2, 3, 4, 5, 6}> {
        a = Relu(x)
        y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)
        big = Constant<value = float {1e38}>()
        b = Mul(a, big)
        z = Conv(b, w)
    }""")
    x = image(1)[:, :2, :6, :6] * np.float32(1e-40)
    y, z = cpuconv.compile(model, strategy="heuristic").run({"x": x}).values()
    expected = run(model, {"x": x}, wide=True)
    np.testing.assert_array_equal(y, expected[0].astype(np.float32))
    assert y.max() > 0 and z.max() > 0.01
    close(z, expected[1].astype(np.float32))


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref]:
    """What is alive of the constants of the models that are read."""
    found: list[weakref.ref] = []

    def remembering(source: object) -> Graph:
        graph = read(source)
        found.extend(map(weakref.ref, graph.constants.values()))
        return graph

    monkeypatch.setattr(onnx_reader, "read", remembering)
    return found


def test_raw_weights_are_not_kept_beside_packed_ones(raw, tmp_path: Path):
    onnx.save(block(1), tmp_path / "block.onnx")
    model = cpuconv.compile(tmp_path / "block.onnx", strategy="heuristic", threads=1)
    gc.collect()
    alive = [array for each in raw if (array := each()) is not None]
    assert len(raw) == 4 and [array.shape for array in alive] == []
    close(model(image(1)), run(block(1), {"x": image(1)})[0])


def test_raw_weights_live_on_where_sizes_are_open(raw):
    model = cpuconv.compile(block("N"), strategy="heuristic", threads=1)
    for n in (1, 3, 2):
        close(model(image(n)), run(block("N"), {"x": image(n)})[0])
    gc.collect()
    assert all(each() is not None for each in raw)


# --- parts that lie apart -------------------------------------------------------------------------------------------

APART = {
    "flatten": ("float[3,80] z", "z = Flatten(a)"),
    "squeeze": ("float[3,5,16] z", "s = Constant<value = int64[3] {3, 5, 16}>() z = Reshape(a, s)"),
    "merged": ("float[15,4,4] z", "s = Constant<value = int64[3] {15, 4, 4}>() z = Reshape(a, s)"),
    "chain": ("float[15,16] z", "s = Constant<value = int64[2] {15, 16}>() f = Flatten(a) z = Reshape(f, s)"),
    "turned": ("float[4,4,5,3] z", "z = Transpose<perm = [3, 2, 1, 0]>(a)"),
    "sliced": ("float[3,2,4,4] z", "o = Constant<value = int64[1] {1}>() t = Constant<value = int64[1] {3}>() "
               "z = Slice(a, o, t, o)"),
}  # fmt: skip


@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
@pytest.mark.parametrize("reader", APART)
def test_a_part_of_a_concatenation_that_is_viewed(reader: str, threads: int):
    """The images of a part lie apart, which no view of merged axes can express."""
    kind, nodes = APART[reader]
    model = parse(f"""g (float[3,5,4,4] x) => (float[3,10,4,4] y, {kind}) {{
        a = Relu(x)
        b = Exp(x)
        c = Concat<axis = 1>(a, b)
        y = Sigmoid(c)
        {nodes.replace("z =", "v =", 1)}
        z = Neg(v)
    }}""")
    x = np.random.default_rng(0).standard_normal((3, 5, 4, 4)).astype(np.float32)
    made = cpuconv.compile(model, strategy="heuristic", threads=threads)
    for got, expected in zip(made.run({"x": x}).values(), run(model, {"x": x}, wide=True), strict=True):
        close(got, expected.astype(np.float32))


def test_a_squeezed_part_of_a_concatenation():
    model = parse("""g (float[3,5,1,4] x) => (float[3,10,1,4] y, float[3,5,4] z) {
        a = Relu(x)
        b = Exp(x)
        c = Concat<axis = 1>(a, b)
        y = Sigmoid(c)
        two = Constant<value = int64[1] {2}>()
        s = Squeeze(a, two)
        z = Neg(s)
    }""")
    x = np.random.default_rng(0).standard_normal((3, 5, 1, 4)).astype(np.float32)
    for got, expected in zip(
        cpuconv.compile(model, strategy="heuristic").run({"x": x}).values(), run(model, {"x": x}), strict=True
    ):
        close(got, expected)


# --- what is wrong --------------------------------------------------------------------------------------------------

WINDOW = """g (float[N,3,H,8] x) => (float[N,5,M,8] y) {
    a = Conv<pads = [0, 1, 0, 1]>(x, w)
    y = Relu(a)
}"""


def window() -> onnx.ModelProto:
    return parse(WINDOW, w=np.ones((5, 3, 3, 3), np.float32))


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        (3, ArgumentTypeError, "'source' must be a path, bytes or an onnx.ModelProto, not an int"),
        ("nowhere.onnx", SourceError, r"'nowhere\.onnx' must be an ONNX file that can be read"),
        (block(1).SerializeToString()[:-30], SourceError, "must be a whole ONNX model"),
        (parse("g (float[3] x) => (float[3] y) { y = Add(x, z) z = Neg(y) }"), SourceError, "g: .*cycle: Add node 'y'"),
        (parse("g (float[3] x) => (float[3] y) { y = Add(x, z) }"), SourceError, "Add node 'y' reads 'z', which"),
        (
            parse("g (float[3] x, int64[3] z) => (float[3] y) { y = Add(x, z) }"),
            SourceError,
            "Add node 'y'.*must be float32 as",
        ),
        (parse("g (float[3] x) => (float[3] y) { y = Rlu(x) }"), SourceError, "there is no operator 'Rlu'"),
        (parse("g (string[3] x) => (string[3] y) { y = Identity(x) }"), SourceError, "input 'x' must be a tensor of"),
    ],
)
def test_models_that_compile_refuses(source: object, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        cpuconv.compile(source)


@pytest.mark.parametrize(
    ("shapes", "error", "said"),
    [
        ("x", ArgumentTypeError, "'input_shapes' must be a dict of shapes by input name, not a str"),
        ({"x": 3}, ArgumentTypeError, r"'input_shapes\['x'\]' must be a sequence of integers, not 3"),
        ({"x": (1.0, 3, 5, 8)}, ArgumentTypeError, r"'input_shapes\['x'\]' must be a sequence of integers, not \(1.0"),
        ({"x": (-1, 3, 5, 8)}, ArgumentError, r"'input_shapes\['x'\]' must be a shape that fits"),
        ({"x": (1, 3, 5)}, ArgumentError, r"'input_shapes\['x'\]' must be a shape that fits"),
        ({"z": (1,)}, ArgumentError, r"'input_shapes' must be shapes of inputs \(x\), not one of 'z'"),
        ({"x": (1, 3, 1, 8)}, SourceError, r"Conv node 'a' cannot take inputs float32\[1,3,1,8\]"),
    ],
)
def test_shapes_that_compile_refuses(shapes: object, error: type[Exception], said: str):
    with pytest.raises(error, match=said):
        cpuconv.compile(window(), input_shapes=shapes)


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        ([[1.0]], ArgumentTypeError, r"'feed\['x'\]' must be a NumPy array.*not a list"),
        (None, ArgumentTypeError, r"'feed\['x'\]' must be a NumPy array"),
        (np.float32(1), ArgumentError, r"'feed\['x'\]' must be of rank 4, not of rank 0"),
        (np.zeros((1, 3, 5, 8), ">f4"), ArgumentTypeError, r"'feed\['x'\]' must be float32 in native byte order"),
        (np.zeros((1, 3, 5, 8), np.float16), ArgumentTypeError, r"'feed\['x'\]' must be of dtype float32"),
        (np.zeros((1, 3, 1, 8), np.float32), SourceError, r"Conv node 'a' cannot take inputs float32\[1,3,1,8\]"),
    ],
)
def test_arrays_that_run_refuses(x: object, error: type[Exception], said: str):
    model = cpuconv.compile(window(), strategy="heuristic")
    with pytest.raises(error, match=said):
        model.run({"x": x})
    assert model(np.ones((1, 3, 3, 8), np.float32))[0, 0, 0, 3] == 27  # none of this harms the next run


def test_inputs_whose_sizes_contradict_one_another():
    model = cpuconv.compile(parse("g (float[N,3] a, float[N,3] b) => (float[N,3] y) { y = Add(a, b) }"))
    with pytest.raises(ArgumentError, match=r"'feed\['b'\]' must be a shape that fits float32\[N,3\] where {'N': 1}"):
        model.run({"a": np.zeros((1, 3), np.float32), "b": np.zeros((2, 3), np.float32)})


def test_outputs_need_memory_of_their_own():
    model = cpuconv.compile(parse("g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Relu(x) z = Neg(x) }"))
    x, both = np.ones((2, 3), np.float32), np.zeros(9, np.float32)
    first, second = both[:6].reshape(2, 3), both[3:].reshape(2, 3)
    with pytest.raises(ArgumentError, match=r"out\['z'\]' must be separate memory, not memory that out\['y'\]"):
        model.run({"x": x}, {"y": first, "z": second})
    with pytest.raises(ArgumentTypeError, match="'out' must be a dict of arrays by output name, not a list"):
        model.run({"x": x}, [first])
    assert not both.any()
