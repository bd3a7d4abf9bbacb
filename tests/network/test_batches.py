"""Models of any batch: `compile(..., batches=...)`, split and padded, opened where 1 is written, refused by name."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.api import throughput  # noqa: E402
from cpuconv.network.batched_model import Splitting  # noqa: E402
from cpuconv.network.saved.container import Blocks  # noqa: E402
from cpuconv.network.sizes.batches import Batches  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402

OPTIONS: dict = {"threads": 1, "strategy": "heuristic"}
RNG = np.random.default_rng(0)

BODY = """({0} x, float[1,6] z) => (float[1,5] y, float[1,6] both, float[2] own)
    <float[48,5] v, int64[2] s={{1,-1}}, float[2] c={{1,2}}> {{
    flat = Reshape(x, s)
    y = MatMul(flat, v)
    both = Relu(z)
    own = Neg(c)
}}"""
WEIGHTS = RNG.normal(size=(48, 5)).astype(np.float32)


def proto(size: str = "1") -> onnx.ModelProto:
    """A model of two inputs, and an output that no input reaches; the batch of `x` is `size`."""
    text = "g " + BODY.format(f"float[{size},3,4,4]")
    return parse(text if size == "1" else text.replace("float[1,", "float[N,").replace("{1,-1}", "{0,-1}"), v=WEIGHTS)


@pytest.fixture(scope="module", params=["1", "N"])
def model(request) -> cpuconv.Model:
    return cpuconv.compile(proto(request.param), batches=(4, 1, 2), **OPTIONS)


def feed_of(items: int) -> dict[str, np.ndarray]:
    return {name: RNG.normal(size=(items, *rest)).astype(np.float32) for name, rest in (("x", (3, 4, 4)), ("z", (6,)))}


def expected(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    flat = feed["x"].reshape(len(feed["x"]), 48)
    own = np.array([-1, -2], np.float32)
    return {"y": flat.astype(float) @ WEIGHTS, "both": np.maximum(feed["z"], 0), "own": own}


def check(outputs: Mapping[str, np.ndarray], feed: Mapping[str, np.ndarray]) -> None:
    right = expected(feed)
    assert [*outputs] == [*right]
    for name, array in outputs.items():
        np.testing.assert_allclose(array, right[name], rtol=1e-4, atol=1e-4)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_branches_that_inputs_decide(tmp_path) -> None:
    """Each batch size has a model per branch, and no times where it is loaded with other options."""
    branches = "then_branch = t () => (float a) { a = Neg(p) }, else_branch = e () => (float b) { b = Abs(p) }"
    text = f"g (float[1,3] x, bool c) => (float[1,3] y) <float p = {{2}}> {{ f = If (c) <{branches}> y = Mul(x, f) }}"
    made = cpuconv.compile(parse(text), batches=(1, 2), **OPTIONS)
    made.set_seconds({1: 1.0, 2: 1.5})
    x = RNG.normal(size=(3, 3)).astype(np.float32)
    for chosen, factor in ((True, -2), (False, 2)):
        np.testing.assert_array_equal(made.run({"x": x, "c": np.array(chosen)})["y"], factor * x)
    assert made.stats().programs == 4
    made.save(tmp_path / "net.cpuconv")
    loaded = cpuconv.load(tmp_path / "net.cpuconv", accuracy="fast")
    np.testing.assert_array_equal(loaded.run({"x": x, "c": np.array(False)})["y"], 2 * x)


def test_any_batch(model) -> None:
    assert sorted(model.batches) == [1, 2, 4] and all(seconds > 0 for seconds in model.batches.values())
    assert model.inputs[0].shape[1:] == (3, 4, 4) and isinstance(model.inputs[0].shape[0], str)
    for seconds in ({1: 1.0, 2: 1.9, 4: 3.0}, {1: 1.0, 2: 1.0, 4: 1.0}, {1: 1.0, 2: 9.0, 4: 99.0}):
        model.set_seconds(seconds)
        for items in (0, 1, 3, 4, 5, 11):
            feed = feed_of(items)
            check(model.run(feed), feed)


def test_arrays_of_the_caller(model) -> None:
    model.set_seconds({1: 3.0, 2: 3.5, 4: 4.0})
    feed = feed_of(7)
    out = {"y": np.empty((7, 5), np.float32), "own": np.empty(2, np.float32)}
    outputs = model.run({"x": feed["x"].astype(np.float64), "z": feed["z"][:, ::-1]}, out, convert=True)
    assert outputs["y"] is out["y"] and outputs["own"] is out["own"]
    check(outputs, {"x": feed["x"], "z": feed["z"][:, ::-1]})
    with pytest.raises(cpuconv.ArgumentError, match="separate memory"):
        model.run(feed, {"both": feed["z"]})
    with pytest.raises(cpuconv.ArgumentError, match=r"'feed\['z'\]' must be .*\[7,6\], not \(6, 6\)"):
        model.run({"x": feed["x"], "z": feed["z"][:6]})
    with pytest.raises(cpuconv.ArgumentError, match="feed"):
        model.run({"x": feed["x"][:, :2], "z": feed["z"]})
    with pytest.raises(cpuconv.RunStopped):
        model.run(feed, stop=lambda: True)


def test_the_other_calls(model) -> None:
    assert model.nbytes > 0 and model.has_run and model.explain().to_dict()
    assert model.profile(feed_of(2), 1).to_dict()
    with pytest.raises(cpuconv.ArgumentError, match="batch of 1, 2, 4"):
        model.profile(feed_of(3))
    again = pickle.loads(pickle.dumps(cpuconv.compile(proto().SerializeToString(), batches=[2], **OPTIONS)))
    feed = feed_of(3)
    check(again.run(feed), feed)


def test_saved_batches(model, tmp_path) -> None:
    """A loaded model has the sizes, their times and the bits of the saved one; so has one that is saved again."""
    path, again = tmp_path / "net.cpuconv", tmp_path / "again.cpuconv"
    model.set_seconds({1: 1.0, 2: 1.5, 4: 9.0})
    model.save(path)
    loaded = cpuconv.load(path)
    assert loaded.batches == model.batches and loaded.inputs == model.inputs and loaded.outputs == model.outputs
    for each in (loaded, pickle.loads(pickle.dumps(loaded))):
        for items in (0, 1, 4, 7):
            feed = feed_of(items)
            outputs = each.run(feed)
            check(outputs, feed)
            for name, array in model.run(feed).items():
                np.testing.assert_array_equal(array, outputs[name])
    loaded.save(again)
    reloaded = cpuconv.load(again)
    assert reloaded.batches == model.batches
    check(reloaded.run(feed), feed)
    assert path.stat().st_size < 3 * WEIGHTS.nbytes + 30_000  # one copy of the weights, and its packed forms
    with pytest.raises(cpuconv.ArgumentError, match="'input_shapes'"):
        cpuconv.load(path, input_shapes={"x": (1, 3, 4, 4)})
    with pytest.warns(cpuconv.CpuconvWarning, match="accuracy"):
        other = cpuconv.load(path, accuracy="exact")
    assert other.batches != model.batches  # measured again
    feed = feed_of(3)
    check(other.run(feed), feed)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", [[1, 1.0], [3, 1.0], [4, 1.0]]),
        ("seconds", [[1, 1.0], [2, -1.0], [4, 1.0]]),
        ("seconds", [[1, 1.0], [4, 1.0]]),
        ("inputs", ["w"]),
        ("inputs", []),
        ("outputs", ["x"]),
        ("outputs", ["y", "x"]),
        ("others", [{}, {}]),
        ("others", 1),
    ],
)
def test_damaged_batches_are_refused(model, tmp_path, key: str, value: object) -> None:
    blocks = Blocks()
    header = model._header(blocks)
    header["batches"][key] = value
    blocks.write(tmp_path / "net.cpuconv", header)
    with pytest.raises(cpuconv.SourceError, match=r"net\.cpuconv"):
        cpuconv.load(tmp_path / "net.cpuconv")


def test_map_runs_several_feeds_at_a_time(model) -> None:
    model.set_seconds({1: 3.0, 2: 3.5, 4: 4.0})
    feeds = [feed_of(1 + at % 2) for at in range(10)]
    before = model.stats().runs
    for outputs, feed in zip(cpuconv.map(model, feeds, streams=2), feeds, strict=True):
        check(outputs, feed)
    assert model.stats().runs == before + 3
    wrong = {"x": feeds[0]["x"][:, :2], "z": feeds[0]["z"]}
    with pytest.warns(cpuconv.CpuconvWarning, match="input 5 failed: .*'x'"):
        results = [*cpuconv.map(model, [*feeds[:5], wrong, *feeds[6:]])]
    for at, (result, feed) in enumerate(zip(results, feeds, strict=True)):
        if at == 5:
            assert isinstance(result, cpuconv.Failed) and result.index == 5
        else:
            check(result, feed)
    mixed = {"x": feeds[0]["x"], "z": feeds[1]["z"]}  # 1 and 2 items
    with pytest.warns(cpuconv.CpuconvWarning, match="input 0 failed: .*'z'"):
        results = [*cpuconv.map(model, [mixed, *feeds[1:3]])]
    assert isinstance(results[0], cpuconv.Failed) and isinstance(results[1], dict)


def test_throughput_measures_batches(monkeypatch) -> None:
    def runs_per_second(queue: cpuconv.Queue, feed: Mapping[str, np.ndarray], seconds: float) -> float:
        return {1: 10.0, 2: 8.0}[len(feed["x"])]

    monkeypatch.setattr(throughput, "_runs_per_second", runs_per_second)
    made = cpuconv.compile(proto(), batches=(1, 2), hint="throughput", **OPTIONS)
    assert made.batches == {1: made.streams / 10, 2: made.streams / 8}
    feed = feed_of(3)
    check(made.run(feed), feed)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(1, 9), st.floats(0.1, 9), min_size=1), st.integers(0, 30))
def test_the_split_takes_the_least_time(seconds: dict[int, float], items: int) -> None:
    sizes = Splitting(seconds)(items)
    best = [0.0] + [np.inf] * items
    for count in range(1, items + 1):
        best[count] = min(own + best[max(0, count - size)] for size, own in seconds.items())
    assert sum(sizes) >= items > sum(sizes[:-1]) or (items == 0 and sizes == [min(seconds)])
    assert not items or sum(seconds[size] for size in sizes) == pytest.approx(best[items])


# --- opening ----------------------------------------------------------------------------------------------------------

OPENED = {
    "attention with the batch second": """(float[1,3,4] x) => (float[1,3,4] y)
        <int64[3] a={3,2,2}, int64[3] b={3,1,4}> {
        t = Transpose<perm = [1, 0, 2]>(x)
        r = Reshape(t, a)
        h = Transpose<perm = [1, 0, 2]>(r)
        k = Transpose<perm = [0, 2, 1]>(h)
        s = MatMul(h, k)
        p = Softmax<axis = -1>(s)
        q = MatMul(p, h)
        back = Transpose<perm = [1, 0, 2]>(q)
        m = Reshape(back, b)
        y = Transpose<perm = [1, 0, 2]>(m)
    }""",
    "a class token and stated sizes": """(float[1,2,3] x) => (float[1,3,6] y)
        <float[1,1,3] token={1,2,3}, int64[4] sizes={1,1,3,6}> {
        c = Concat<axis = 1>(token, x)
        u = Unsqueeze(c, one)
        r = Resize<mode = "nearest">(u, , , sizes)
        y = Squeeze(r, one)
    }""",
    "states of one item": """(float[1,2,3] x) => (float[1,2,2] y) <float[1,1,2] h={1,2}> {
        s = Transpose<perm = [1, 0, 2]>(x)
        _, last = RNN<hidden_size = 2>(s, w, r, , , h)
        both = Concat<axis = 0>(last, last)
        y = Transpose<perm = [1, 0, 2]>(both)
    }""",
}
MORE = {"one": np.array([1]), "w": RNG.normal(size=(1, 2, 3)).astype(np.float32), "r": np.ones((1, 2, 2), np.float32)}


@pytest.mark.parametrize("name", OPENED)
def test_a_batch_of_1_is_opened(name: str) -> None:
    made = parse(
        "g " + OPENED[name],
        **{key: array for key, array in MORE.items() if f", {key})" in OPENED[name] or f", {key}," in OPENED[name]},
    )
    alone = cpuconv.compile(made, **OPTIONS)
    model = cpuconv.compile(made, batches=(3,), **OPTIONS)
    x = RNG.normal(size=(5, *alone.inputs[0].shape[1:])).astype(np.float32)
    np.testing.assert_allclose(model(x), np.concatenate([alone(x[at : at + 1]) for at in range(5)]), atol=1e-5)


REFUSED = {
    "mean": ("(float[1,4] x) => (float[1,4] y) { m = ReduceMean<axes = [0]>(x) y = Add(x, m) }", "ReduceMean node"),
    "open": ("(float[N,4] x) => (float[N,4] y) { m = ReduceMean<axes = [0]>(x) y = Add(x, m) }", "ReduceMean node"),
    "softmax": ("(float[1,4] x) => (float[1,4] y) { y = Softmax<axis = 0>(x) }", "output 'y'"),
    "place": (
        "(float[1,4] x) => (float[1,4] y) <int64[1,1] i={0}, float[1,4] u={1,2,3,4}> { y = ScatterND(x, i, u) }",
        "output 'y'",
    ),
    "dynamic": (
        "(float[1,4] x) => (float[1,4] y) { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }",
        "DynamicQuantizeLinear node",
    ),
    "squeeze": ("(float[1,4] x) => (float[4] y) <int64[1] a={0}> { y = Squeeze(x, a) }", "Squeeze node"),
    "first": ("(float[1,4] x) => (float[4] y) <int64 a={0}> { y = Gather<axis = 0>(x, a) }", "Gather node"),
    "elements": ("(float[1,4] x) => (int64[2,M] y) { y = NonZero(x) }", "NonZero node"),
    "second": ("(float[1,4] x) => (float[4,1] y) { y = Transpose<perm = [1, 0]>(x) }", "output 'y'"),
    "no batch": ("(float[3,4] x) => (float[3,4] y) { y = Relu(x) }", "no input"),
    "sizes": ("(float[N,M] x) => (float[N,M] y) { y = Relu(x) }", "'input_shapes'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_forbids_batches_is_named(name: str) -> None:
    text, word = REFUSED[name]
    with pytest.raises(cpuconv.ArgumentError, match=word):
        cpuconv.compile(parse("g " + text), batches=(2, 3), **OPTIONS)


def test_wrong_batches() -> None:
    for batches in ((), (0,), (2, 2), (1.5,), 4, (True,)):
        with pytest.raises(cpuconv.ArgumentError, match="'batches'"):
            cpuconv.compile(proto(), batches=batches, **OPTIONS)
    with pytest.raises(cpuconv.ArgumentError, match="'input_shapes'"):
        cpuconv.compile(proto(), batches=(2,), input_shapes={"w": (2, 3)}, **OPTIONS)


def test_stated_sizes_and_constants_are_kept() -> None:
    graph = read(parse("g (float[N,M] x) => (float[N,M] y) <float[1,1] c={2}> { y = Mul(x, c) }"))
    opened = Batches(graph, {"x": (7, 3)})
    assert opened.at(4).shapes == {"x": (4, 3)} and opened.outputs == ("y",) and opened.at(4).graph is graph
