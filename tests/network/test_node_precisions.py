"""Precisions of single nodes: what is kept in float32, or alone in bfloat16, is so, however the network is made."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.cli.main import main  # noqa: E402
from cpuconv.elements import BF16  # noqa: E402
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning  # noqa: E402
from cpuconv.graph import passes  # noqa: E402
from support.graphs import parse  # noqa: E402

SHAPE = (1, 64, 28, 28)
NARROW = {"precision": "bfloat16", "strategy": "heuristic", "threads": 1}
WIDE = {"precision": "float32", "strategy": "heuristic", "threads": 1}
TEXT = """g (float[N,64,H,28] x) => (float[N,64,H,28] y)
<float[64,64,3,3] w1, float[64,64,3,3] w2, float[64,64,3,3] w3, float[64,64,1,1] w4, float[64] scale, float[64] shift,
 float[64] mean, float[64] spread> {
    [first] a = Conv<pads = [1, 1, 1, 1]>(x, w1)
    [rectified] b = Relu(a)
    [second] c = Conv<pads = [1, 1, 1, 1]>(b, w2)
    [normal] d = BatchNormalization(c, scale, shift, mean, spread)
    [sum] e = Add(d, b)
    [third] f = Conv<pads = [1, 1, 1, 1]>(e, w3)
    [swish] g = Sigmoid(f)
    [swished] h = Mul(f, g)
    [last] y = Conv(h, w4)
}"""


def network() -> onnx.ModelProto:
    """Three convolutions that bfloat16 is faster for, and one behind them."""
    import ml_dtypes

    rng, model = np.random.default_rng(0), parse(TEXT)
    sizes = {name: (64, 64, 3, 3) for name in ("w1", "w2", "w3")} | {"w4": (64, 64, 1, 1)}
    for name, shape in sizes.items():
        # numbers of bfloat16: rounding weights changes none
        array = (rng.standard_normal(shape) / np.sqrt(64 * shape[-1] ** 2)).astype(ml_dtypes.bfloat16)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    for name in ("scale", "shift", "mean", "spread"):
        array = rng.uniform(0.5, 1.5, 64).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


MODEL = network()


def x_of(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)}


def types(model: cpuconv.Model) -> dict[str, str]:
    """The types of each convolution and other node of the model, by name."""
    return {row.name: row.types for row in model.explain().operators if row.op != "Copy"}


def rounds(model: cpuconv.Model) -> set[str]:
    """The convolutions that read or write bfloat16."""
    named = ("first", "second", "third", "last")
    return {name for name, each in types(model).items() if name in named and BF16.name in each}


def compiled(each: dict[str, str] | None = None, shape=SHAPE, **options) -> cpuconv.Model:
    return cpuconv.compile(MODEL, input_shapes={"x": shape}, node_precisions=each, **{**NARROW, **options})


needs_bfloat16 = pytest.mark.skipif(
    "second" not in rounds(compiled()), reason="bfloat16 is not faster on this CPU, by the models"
)


@needs_bfloat16
def test_a_convolution_kept_in_float32_is_so():
    assert {"first", "second", "third"} <= rounds(compiled())
    kept = compiled({"second": "float32"})
    assert types(kept)["second"] == "f32" and {"first", "third"} <= rounds(kept)


@needs_bfloat16
def test_one_convolution_alone_in_bfloat16_is_so():
    assert rounds(compiled({"second": "bfloat16"}, precision="float32")) <= {"second"}


@needs_bfloat16
@pytest.mark.parametrize("part", ["normal", "sum"])
def test_what_is_computed_together_takes_the_strictest_precision(part):
    """The convolution, its normalisation and the sum behind it are one operator."""
    assert types(compiled({part: "float32"}))["second"] == "f32"
    each = {"second": "bfloat16", part: "bfloat16"}
    rest = {name: "bfloat16" for name in ("normal", "sum") if name != part}
    assert rounds(compiled(each, precision="float32")) == set()
    assert rounds(compiled(each | rest, precision="float32")) <= {"second"}


def test_all_nodes_in_float32_is_float32_and_all_in_bfloat16_is_bfloat16():
    names, feed = [node.name for node in MODEL.graph.node], x_of(*SHAPE)
    for stated, other in ((NARROW, "float32"), (WIDE, "bfloat16")):
        kept = compiled(dict.fromkeys(names, other), **stated)
        plain = compiled(precision=other)
        assert types(kept) == types(plain)
        np.testing.assert_array_equal(kept.run(feed)["y"], plain.run(feed)["y"])


@needs_bfloat16
@pytest.mark.parametrize("name", ["first", "second", "third"])
def test_the_results_are_those_of_that_rounding(name):
    """One convolution rounds what it reads; whatever else is in bfloat16, the error is at most that of all of them."""
    feed = x_of(*SHAPE)
    right, all_ = compiled(precision="float32").run(feed)["y"], compiled().run(feed)["y"]
    without = compiled({name: "float32"}).run(feed)["y"]
    assert 0 < np.linalg.norm(without - right) < 1.05 * np.linalg.norm(all_ - right) < 0.02 * np.linalg.norm(right)


def test_a_network_whose_other_nodes_are_float32_ends_as_that_does():
    """Kept are all that round: nothing else differs from float32."""
    rounding = [name for name, each in types(compiled()).items() if BF16.name in each]
    parts = {"second": ("normal", "sum"), "first": ("rectified",), "third": ("swish", "swished")}
    each = {name: "float32" for kept in rounding for name in (kept, *parts.get(kept, ()))}
    feed = x_of(*SHAPE)
    np.testing.assert_allclose(
        compiled(each).run(feed)["y"], compiled(precision="float32").run(feed)["y"], rtol=1e-4, atol=1e-4
    )


@needs_bfloat16
@pytest.mark.parametrize("skipped", passes.NAMES)
def test_every_rewrite_left_out(skipped):
    kept = compiled({"second": "float32"}, skip_passes=(skipped,))
    assert types(kept)["second"] == "f32" and "third" in rounds(kept)


@needs_bfloat16
def test_saved_and_loaded_and_other_sizes(tmp_path):
    """Of open sizes and of fixed ones; what another precision is stated for has no other ones."""
    path = tmp_path / "m.cpuconv"
    for shape in (None, {"x": SHAPE}):
        kept = cpuconv.compile(MODEL, input_shapes=shape, node_precisions={"second": "float32"}, **NARROW)
        right = kept.run(x_of(*SHAPE))["y"]
        kept.save(path)
        loaded = cpuconv.load(path)
        np.testing.assert_array_equal(loaded.run(x_of(*SHAPE))["y"], right)
        assert types(loaded) == types(kept) and types(loaded)["second"] == "f32"
        with pytest.warns(CpuconvWarning, match="nodes of other precisions=1"):
            again = cpuconv.load(path, precision="bfloat16")
        again.run(x_of(*SHAPE))
        assert "second" in rounds(again)
        if shape is None:
            for other in ((1, 64, 40, 28), (3, 64, 15, 28)):
                np.testing.assert_array_equal(loaded.run(x_of(*other))["y"], kept.run(x_of(*other))["y"])
                assert types(loaded)["second"] == "f32" and rounds(loaded)


@needs_bfloat16
def test_equal_nodes_that_become_one_take_the_strictest_precision():
    text = TEXT.replace("[third]", "[twin] t = Conv<pads = [1, 1, 1, 1]>(x, w1) [mixed] m = Add(e, t) [third]")
    model = parse(text.replace("(e, w3)", "(m, w3)"))
    model.graph.initializer.extend(MODEL.graph.initializer)
    for each, expected in (({}, False), ({"twin": "float32"}, True), ({"first": "float32"}, True)):
        made = cpuconv.compile(model, input_shapes={"x": SHAPE}, node_precisions=each, **NARROW)
        found = types(made)
        assert (found["first"] == "f32") == expected and "twin" not in found


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=r"'node_precisions\['second'\]' must be one of float32, bfloat16, not 'x'"):
        compiled({"second": "x"})
    with pytest.raises(
        ArgumentError, match="'node_precisions' must be a dict whose keys are node names .* not one with 'nobody'"
    ):
        compiled({"nobody": "float32"})
    with pytest.raises(ArgumentTypeError, match="'node_precisions' must be a dict"):
        compiled("second")


@needs_bfloat16
def test_the_command(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    onnx.save(MODEL, path)
    stated = ["--shape", "x=1x64x28x28", "--strategy", "heuristic", "--threads", "1", "--precision", "bfloat16"]
    assert main(["explain", str(path), *stated, "--node-precision", "second=float32"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("second ")]
    assert " f32 " in line
    with pytest.raises(SystemExit):
        main(["explain", str(path), *stated, "--node-precision", "second=half"])
    assert "must be NAME=float32|bfloat16" in capsys.readouterr().err
