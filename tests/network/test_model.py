"""`compile` and the model that it gives: results, what callers may hand over, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, seed, settings

import cpuconv
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, SourceError
from support import oracle
from support.graph.random_networks import KNOWN, networks
from support.graphs import close, parse, run
from support.running.callers import at_once

TEXT = """g (float[N,3,H,8] x) => (float[N,K,H,8] y) {
    w = Constant<value = float[5,3,1,1] {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>()
    a = Conv(x, w)
    y = Relu(a)
}"""


def _model(text: str = TEXT, **options) -> tuple[onnx.ModelProto, cpuconv.Model]:
    model = parse(text)
    return model, cpuconv.compile(model, strategy="heuristic", **options)


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@seed(1)
@settings(max_examples=KNOWN)
@given(networks())
def test_a_random_network(drawn):
    model, feed = drawn
    made = cpuconv.compile(model.SerializeToString(), threads=oracle.THREADS, strategy="heuristic")
    first, second = made.run(feed), made.run(feed)
    for got, again, expected in zip(first.values(), second.values(), run(model, feed, wide=True), strict=True):
        close(got, expected.astype(np.float32))
        np.testing.assert_array_equal(got, again)


def test_sizes_are_bound_at_the_first_run_and_may_change():
    model, made = _model()
    assert [port.shape for port in made.inputs] == [("N", 3, "H", 8)]
    for shape in ((1, 3, 4, 8), (3, 3, 7, 8), (1, 3, 4, 8)):
        feed = {"x": _x(*shape)}
        close(made.run(feed)["y"], run(model, feed)[0])
    close(made(_x(2, 3, 5, 8)), run(model, {"x": _x(2, 3, 5, 8)})[0])


def test_sizes_stated_beforehand_hold():
    _, made = _model(input_shapes={"x": (1, 3, 4, 8)})
    assert made.inputs[0].shape == (1, 3, 4, 8) and made.outputs[0].shape == (1, 5, 4, 8)
    with pytest.raises(ArgumentError, match=r"feed\['x'\].*\(1, 3, 4, 8\).*\(1, 3, 5, 8\)"):
        made(_x(1, 3, 5, 8))


def test_results_go_into_given_arrays():
    model, made = _model()
    x, y = _x(1, 3, 4, 8), np.full((1, 5, 4, 8), np.nan, np.float32)
    assert made.run({"x": x}, out={"y": y})["y"] is y
    close(y, run(model, {"x": x})[0])


def test_inputs_of_any_strides_are_left_as_they_are():
    model, made = _model()
    whole = _x(2, 3, 8, 16)
    x, before = whole[:, :, ::2, ::-2], whole.copy()
    close(made(x), run(model, {"x": np.ascontiguousarray(x)})[0])
    np.testing.assert_array_equal(whole, before)


def test_outputs_that_are_inputs_constants_and_views():
    model, made = _model("""g (float[2,3,4,4] x) => (float[2,3,4,4] same, float[2] fixed, float[2,48] flat,
                                                    float[2,48] again, float[2,4,4,3] turned) {
        same = Identity(x)
        fixed = Constant<value = float[2] {1.5, 2.5}>()
        r = Relu(x)
        flat = Flatten(r)
        again = Identity(flat)
        turned = Transpose<perm = [0, 2, 3, 1]>(r)
    }""")
    x = _x(2, 3, 4, 4)
    got = made.run({"x": x})
    for array, expected in zip(got.values(), run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(array, expected)
    arrays = [x, *got.values()]
    assert not any(np.may_share_memory(a, b) for at, a in enumerate(arrays) for b in arrays[:at])


def test_eight_threads_at_once():
    model, made = _model()
    feeds = [{"x": _x(1, 3, 4 + at % 2, 8) * (at + 1)} for at in range(8)]
    expected = [run(model, feed)[0] for feed in feeds]

    def call(at: int) -> None:
        for _ in range(50):
            np.testing.assert_allclose(made.run(feeds[at])["y"], expected[at], rtol=1e-5, atol=1e-5)

    at_once(8, call)


@pytest.mark.parametrize(
    ("feed", "error", "said"),
    [
        ({}, ArgumentError, "feed.*without 'x'"),
        ({"x": _x(1, 3, 4, 8), "z": _x(1)}, ArgumentError, "feed.*one for 'z'"),
        ({"x": _x(3, 4, 8)}, ArgumentError, "of rank 4, not of rank 3"),
        ({"x": _x(1, 2, 4, 8)}, ArgumentError, "fits.*N,3,H,8"),
        ({"x": _x(1, 3, 4, 8).astype(np.float64)}, ArgumentTypeError, "float32"),
        ([_x(1, 3, 4, 8)], ArgumentTypeError, "a dict"),
    ],
)
def test_feeds_that_do_not_fit(feed, error, said):
    _, made = _model()
    with pytest.raises(error, match=said):
        made.run(feed)


@pytest.mark.parametrize(
    ("out", "error", "said"),
    [
        ({"z": _x(1)}, ArgumentError, "one for 'z'"),
        ({"y": _x(1, 5, 4, 7)}, ArgumentError, "of shape"),
        ({"y": _x(1, 5, 8, 4).swapaxes(2, 3)}, ArgumentError, "C-contiguous"),
        ({"y": np.zeros((1, 5, 4, 8))}, ArgumentTypeError, "float32"),
    ],
)
def test_outputs_that_do_not_fit(out, error, said):
    _, made = _model()
    with pytest.raises(error, match=said):
        made.run({"x": _x(1, 3, 4, 8)}, out=out)


def test_an_output_may_not_overlap_an_input():
    _, made = _model("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    x = _x(2, 3)
    with pytest.raises(ArgumentError, match=r"out\['y'\].*separate memory"):
        made.run({"x": x}, out={"y": x})


def test_arguments_of_compile():
    model = parse(TEXT)
    for options, said in (
        ({"strategy": "fastest"}, "strategy"),
        ({"accuracy": "low"}, "accuracy"),
        ({"threads": 0}, "threads"),
        ({"input_shapes": {"z": (1,)}}, "input_shapes"),
        ({"skip_passes": ["none"]}, "skip_passes"),
    ):
        with pytest.raises(ArgumentError, match=said):
            cpuconv.compile(model, **options)
    with pytest.raises(SourceError, match=r"missing\.onnx"):
        cpuconv.compile("missing.onnx")


def test_explain_says_what_became_of_a_network():
    _, made = _model()
    with pytest.raises(SourceError, match="input_shapes"):
        made.explain()
    made(_x(1, 3, 4, 8))
    told = made.explain()
    assert [row.op for row in told.operators][0] == "Conv"
    assert told.operators[0].algorithm and told.operators[0].decided_by == "model"
    assert told.constant_bytes > 0 and "Conv" in str(told) and told.to_dict()["name"] == "g"


def test_explain_counts_what_was_fused():
    path = "encoder/" * 20
    _, made = _model(f"""g (float[1,3,4,8] x) => (float[1,5,4,8] y, int64[1,3,4,8] i, float[1,5,4,8] z)
        <float[5,3,1,1] w = {{{", ".join(map(str, range(15)))}}}, float[5] b = {{1, 2, 3, 4, 5}}> {{
        ["{path}conv"] a = Conv(x, w)
        ["{path}relu"] y = Relu(a)
        c = Conv(x, w, b)
        d = Sigmoid(c)
        e = Mul(c, d)
        z = Add(e, y)
        i = Cast<to = 7>(x)
    }}""")
    told = made.explain()
    assert ("epilogues", "1 Relu and 1 Swish into Conv") in told.summary
    assert ("formulas", "Sigmoid, Mul became Swish 'e'") in told.made
    assert ("epilogues", f"Conv '{path}conv', Relu '{path}relu' became Conv '{path}conv'.") in told.rewrites
    (first,) = (row for row in told.operators if row.name == f"{path}conv")
    assert first.op == "Conv"
    printed = str(told)
    assert path in printed and "…" not in printed.split("rewrite")[0]  # in full where there is no terminal
    fitted = told.text(80)
    assert max(map(len, fitted.splitlines())) <= 80 and path not in fitted and "…" in fitted
    assert "runs by NumPy reference: 1 Cast" in printed and "evaluator" not in printed
    assert told.raw_bytes == 4 * (15 + 5) and f"{told.constant_bytes / 1e6:.2f} MB packed" in printed


def test_explain_names_what_the_evaluator_runs():
    with pytest.warns(CpuconvWarning, match="Sinh"):
        _, made = _model("g (float[2,3] x) => (float[2,3] y) { a = Sinh(x) y = Relu(a) }")
    assert {row.op: row.algorithm for row in made.explain().operators} == {"Sinh": "evaluator", "Relu": ""}
    assert "runs by ONNX's reference evaluator, which is slow: 1 Sinh" in str(made.explain())


def test_profile_times_each_operator():
    _, made = _model()
    told = made.profile({"x": _x(1, 3, 4, 8)}, runs=3)
    assert told.rows[0].op == "Conv" and told.rows[0].gflops > 0
    assert sum(row.share for row in told.rows) == pytest.approx(1)
    assert told.seconds > 0 and "whole run" in str(told)
    with pytest.raises(ArgumentError, match="runs"):
        made.profile({"x": _x(1, 3, 4, 8)}, runs=0)


def test_a_constant_that_a_rewrite_uncovers_is_not_looked_at_in_place():
    model = parse(
        """g (float[2,3] x) => (float[3,2] y) <float[2,3] c = {1, 2, 3, 4, 5, 6}> {
            like = CastLike(c, x)
            turned = Transpose(like)
            other = Transpose(x)
            y = Sub(turned, other)
        }"""
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(cpuconv.compile(model)(x), np.ones((3, 2), np.float32))


@pytest.mark.parametrize(
    "activation",
    [
        "Relu", "Sigmoid", "Tanh", "HardSwish", "Swish <alpha = 1.0>", "LeakyRelu <alpha = -0.3>",
        "HardSigmoid <alpha = 0.16666667, beta = 0.5>", "Gelu", 'Gelu <approximate = "tanh">',
    ],
)  # fmt: skip
def test_an_activation_gives_the_same_bits_alone_and_behind_a_convolution(activation):
    weight = np.random.default_rng(0).standard_normal((19, 5, 1, 1), np.float32)
    model = parse(
        f"g (float[1,5,7,9] x) => (float[1,19,7,9] y) {{ c = Conv(x, w) y = {activation} (c) }}", 24, w=weight
    )
    x = np.random.default_rng(1).standard_normal((1, 5, 7, 9), np.float32)
    x[0, :, 0, :3] = 0.0
    fused, apart = (
        cpuconv.compile(model, threads=1, strategy="heuristic", skip_passes=skip)(x) for skip in ((), ("epilogues",))
    )
    np.testing.assert_array_equal(fused.view(np.uint32), apart.view(np.uint32))
