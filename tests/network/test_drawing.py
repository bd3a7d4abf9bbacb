"""Networks that draw random numbers: anew in every run, in an order that a seed repeats."""

from __future__ import annotations

import threading

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.quantizing.graphs.writing import proto_of  # noqa: E402
from cpuconv.reading.decoding import Metadata  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import one_node, parse  # noqa: E402

X = np.linspace(0, 1, 6000, dtype=np.float32).reshape(6, 1000)
DRAWN = {
    "RandomNormal": "RandomNormal<shape = [6, 1000]{}>()",
    "RandomUniform": "RandomUniform<shape = [6, 1000]{}>()",
    "RandomNormalLike": "RandomNormalLike<dtype = 1{}>(x)",
    "RandomUniformLike": "RandomUniformLike<dtype = 1{}>(x)",
    "Bernoulli": "Bernoulli<dtype = 1{}>(x)",
    "Dropout": "Dropout<{}>(x, ratio, training)",
}
CONSTANTS = "<float ratio = {0.25}, bool training = {1}, float two = {2}>"


def model(op: str, seed: float | None = None, rows: object = 6) -> onnx.ModelProto:
    stated = "" if seed is None else f", seed = {seed:.1f}"
    if op == "Dropout":
        stated = "" if seed is None else f"seed = {seed:.0f}"
    drawn = DRAWN[op].format(stated).replace("<>", "")
    body = f"{{ d = {drawn} y = Mul(d, two) z = Sub(y, d) }}"
    ends = f"(float[{rows},1000] x) => (float[{rows},1000] y, float[{rows},1000] z)"
    return parse(f"g {ends} {CONSTANTS} {body}")


def compiled(*args, **options) -> cpuconv.Model:
    return cpuconv.compile(model(*args), strategy="heuristic", **options)


def runs(made: cpuconv.Model, count: int = 3, x: np.ndarray = X) -> list[np.ndarray]:
    results = [made.run({"x": x}) for _ in range(count)]
    for each in results:
        np.testing.assert_array_equal(each["y"], each["z"] * 2)  # one draw a run, whoever reads it
    return [each["y"] / 2 for each in results]


def all_differ(arrays) -> bool:
    return len({array.tobytes() for array in arrays}) == len(arrays)


@pytest.mark.parametrize("op", DRAWN)
@pytest.mark.parametrize("seed", [None, 7.0])
def test_each_run_draws(op, seed):
    assert all_differ(runs(compiled(op, seed), 4))


@pytest.mark.parametrize("op", DRAWN)
@pytest.mark.parametrize("rows", [6, "N"])
def test_a_seed_repeats_the_draws_from_the_beginning(op, rows, tmp_path):
    first, second, other = compiled(op, 7.0, rows), compiled(op, 7.0, rows), compiled(op, 8.0, rows)
    expected = runs(first)
    np.testing.assert_array_equal(runs(second), expected)
    assert all_differ([*expected, *runs(other)])
    first.save(tmp_path / "model")
    np.testing.assert_array_equal(runs(cpuconv.load(tmp_path / "model")), expected)
    graph = read(model(op, 7.0, rows))  # of which every model begins anew
    for _ in range(2):
        np.testing.assert_array_equal(runs(cpuconv.compile(graph, strategy="heuristic")), expected)


def test_timing_takes_no_draws():
    timed = cpuconv.compile(model("RandomNormal", 7.0), strategy="profile", threads="auto")
    np.testing.assert_array_equal(runs(timed), runs(compiled("RandomNormal", 7.0)))


def test_draws_go_on_over_sizes():
    one, other = compiled("RandomNormalLike", 3.0, "N"), compiled("RandomNormalLike", 3.0, "N")
    long = [runs(one, 1, X[:rows])[0].ravel() for rows in (2, 5, 2, 5)]
    short = [runs(other, 1, X[:2])[0].ravel() for _ in range(4)]
    assert all(np.array_equal(a[:2000], b) for a, b in zip(long, short, strict=True))


def test_without_a_seed_models_differ_and_nodes_too():
    assert all_differ([*runs(compiled("RandomNormal")), *runs(compiled("RandomNormal"))])
    text = "g (float[2] x) => (float[] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }"
    assert cpuconv.compile(parse(text), strategy="heuristic")(np.zeros(2, np.float32)).all()


def test_threads_share_no_generator():
    made, alone = compiled("RandomNormal", 1.0), compiled("RandomNormal", 1.0)
    drawn: list[np.ndarray] = []

    def work() -> None:
        drawn.extend(runs(made, 25))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {array.tobytes() for array in drawn} == {array.tobytes() for array in runs(alone, 100)}


def test_distributions():
    normal = runs(
        cpuconv.compile(
            parse("""g (float[1] x) => (float[] y, float[] z) <float two = {2}>
        { d = RandomNormal<shape = [200000], mean = 3.0, scale = 0.5>() y = Mul(d, two) z = Sub(y, d) }""")
        ),
        1,
        X[0, :1],
    )
    assert abs(normal[0].mean() - 3) < 0.01 and abs(normal[0].std() - 0.5) < 0.01
    uniform = runs(
        cpuconv.compile(
            parse("""g (float[1] x) => (float[] y, float[] z) <float two = {2}>
        { d = RandomUniform<shape = [200000], low = -1.0, high = 3.0>() y = Mul(d, two) z = Sub(y, d) }""")
        ),
        1,
        X[0, :1],
    )
    assert -1 <= uniform[0].min() < -0.99 and 2.99 < uniform[0].max() <= 3 and abs(uniform[0].mean() - 1) < 0.02
    (ones,) = runs(compiled("Bernoulli"), 1)
    assert {*np.unique(ones)} == {0, 1} and ones[X == 0].max() == 0 and ones[X == 1].min() == 1
    assert abs(ones.mean() - 0.5) < 0.03
    (kept,) = runs(compiled("Dropout"), 1)
    assert abs((kept[X > 0] == 0).mean() - 0.25) < 0.03
    np.testing.assert_allclose(kept[kept != 0], X[kept != 0] / np.float32(0.75), rtol=1e-6)


def test_a_mask_and_what_is_dropped_belong_together():
    text = f"g (float[6,1000] x) => (float[] y, bool[] m) {CONSTANTS} {{ y, m = Dropout(x, ratio, training) }}"
    results = cpuconv.compile(parse(text), strategy="heuristic").run({"x": X + 1})
    np.testing.assert_array_equal(results["m"], results["y"] != 0)


def test_training_that_is_fed():
    text = f"g (float[6,1000] x, bool train) => (float[] y, bool[] m) {CONSTANTS} {{ y, m = Dropout(x, ratio, train) }}"
    made = cpuconv.compile(parse(text), strategy="heuristic")
    plain = made.run({"x": X, "train": np.array(False)})
    np.testing.assert_array_equal(plain["y"], X)
    assert plain["m"].all() and not made.run({"x": X, "train": np.array(True)})["m"].all()


def test_classes_by_their_logarithms():
    x = np.log(
        np.array([[0.2, 0, 0.8, 0], [0, 0, 0, 5]]), where=[[1, 0, 1, 0], [0, 0, 0, 1]], out=np.full((2, 4), -np.inf)
    )
    source, feed = one_node("Multinomial", [x.astype(np.float32)], sample_size=20000, dtype=7)
    made = cpuconv.compile(source, strategy="heuristic")
    (y,) = made.run(feed).values()
    assert y.dtype == np.int64 and y.shape == (2, 20000)
    assert {*np.unique(y[0])} == {0, 2} and abs((y[0] == 2).mean() - 0.8) < 0.02 and (y[1] == 3).all()
    assert all_differ([next(iter(made.run(feed).values())) for _ in range(3)])
    assert cpuconv.compile(one_node("Multinomial", [x])[0], strategy="heuristic").outputs[0].dtype == np.int32


@pytest.mark.parametrize("number", [10, 11, 16])
def test_types(number):
    made = cpuconv.compile(one_node("RandomNormal", [], shape=[3], dtype=number)[0], strategy="heuristic")
    assert made.run({})["y0"].dtype == onnx.helper.tensor_dtype_to_np_dtype(number)
    bits = cpuconv.compile(one_node("Bernoulli", [X[0]], dtype=9)[0], strategy="heuristic").run({"x0": X[0]})["y0"]
    assert bits.dtype == bool


def test_types_that_are_no_floats():
    with pytest.raises(SourceError, match="RandomNormalLike node 'y0' cannot take .*must be floating-point, not int64"):
        cpuconv.compile(one_node("RandomNormalLike", [np.arange(3)])[0])


@pytest.mark.parametrize("op", DRAWN)
@pytest.mark.parametrize("seed", [None, 7.0])
def test_a_graph_is_written_as_it_was_read(op, seed):
    again = proto_of(read(model(op, seed)), Metadata())
    made = cpuconv.compile(again, strategy="heuristic")
    assert all_differ(runs(made))
    if seed is not None:
        np.testing.assert_array_equal(runs(cpuconv.compile(again, strategy="heuristic")), runs(compiled(op, seed)))


@pytest.mark.parametrize("seed", [-3.0, 2.5, 1e20, np.inf, np.nan])
def test_seeds_of_any_kind(seed):
    source, _ = one_node("RandomUniform", [], shape=[50], seed=seed)
    first, second = (cpuconv.compile(source, strategy="heuristic") for _ in range(2))
    draws = [[each.run({})["y0"] for _ in range(3)] for each in (first, second)]
    np.testing.assert_array_equal(*draws)
    assert all_differ(draws[0])


def test_the_first_draw_is_that_of_onnx():
    source, _ = one_node("RandomNormal", [], shape=[50], seed=5.0, mean=1.0, scale=2.0)
    with np.errstate(all="ignore"):
        (expected,) = ReferenceEvaluator(source).run(None, {})
    np.testing.assert_allclose(cpuconv.compile(source, strategy="heuristic").run({})["y0"], expected, rtol=1e-6)


def test_what_follows_from_shapes_alone_is_still_known():
    text = "g (float[3,4] x) => (int64[2] y) { r = RandomNormalLike(x) y = Shape(r) }"
    assert cpuconv.compile(parse(text), strategy="heuristic").run({"x": X[:3, :4]})["y"].tolist() == [3, 4]


@pytest.mark.filterwarnings("ignore:.*Loop run through")
def test_draws_within_a_loop_of_constants():
    text = """g (float[1] x) => (float[] y) {
        n = Constant<value = int64 {3}>() c = Constant<value = bool {1}>() i = Constant<value = float[2] {0.0, 0.0}>()
        y = Loop(n, c, i) <body = b (int64 k, bool a, float[2] s) => (bool o, float[2] t) {
            o = Identity(a) r = RandomNormalLike(s) t = Add(s, r) }> }"""
    made = cpuconv.compile(parse(text), strategy="heuristic")
    assert all_differ([made.run({"x": X[0, :1]})["y"] for _ in range(3)])


def test_draws_within_a_branch():
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = RandomNormalLike<seed = 3.0>(x) },
                   else_branch = e () => (float[2] b) { b = Neg(x) }> }"""
    made, again = (cpuconv.compile(parse(text), strategy="heuristic") for _ in range(2))
    feed = {"x": X[0, :2], "c": np.array(True)}
    drawn = [made.run(feed)["y"] for _ in range(3)]
    assert all_differ(drawn)
    np.testing.assert_array_equal(drawn, [again.run(feed)["y"] for _ in range(3)])
