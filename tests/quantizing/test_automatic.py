"""`precision="auto"` with bytes: chosen where they pay and the error allows, else left out with the reason."""

from __future__ import annotations

import json

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from autotune.timing.compare import Ratio  # noqa: E402
from cpuconv.errors import ArgumentError  # noqa: E402
from cpuconv.network.precision import automatic  # noqa: E402
from cpuconv.network.precision.errors import relative_rms  # noqa: E402
from cpuconv.network.precision.trials import Measured  # noqa: E402
from cpuconv.quantizing.automatic import int8_candidate  # noqa: E402
from cpuconv.quantizing.speed import Race  # noqa: E402
from support.graph.floats import feeds, network  # noqa: E402
from support.graphs import normal, parse  # noqa: E402

AUTO = {"precision": "auto", "threads": 1}
BEYOND = 1.5  # times the tolerance, on feeds that were not seen
MODEL = network("residual")
SAMPLES = feeds(MODEL, int8_candidate.NEEDED, batch=16)
UNSEEN = feeds(MODEL, 8, batch=8, seed=77)
LOOSE = 0.5
SMALL = parse(
    "g (float[1,3,3,3] x) => (float[1,3,3,3] y) <float[3,3,1,1] w> { y = Conv(x, w) }",
    w=np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1),
)


@pytest.fixture
def faster(monkeypatch):
    """int8 is faster, whatever the machine: a quarter more gain for each layer than for the one before."""

    def timed(made, choice, feed, precision):
        names = [layer.name for layer in made.layers]
        choice.float32_seconds = {name: 1.0 + 1.25**at for at, name in enumerate(names)}
        choice.int8_seconds = dict.fromkeys(names, 1.0)
        return choice

    monkeypatch.setattr(int8_candidate, "exclude_slower", timed)
    monkeypatch.setattr(int8_candidate, "race", lambda first, second, feed: Race(2.0, 1.0, Ratio(0.5, 0.4, 0.6)))
    monkeypatch.setattr(automatic, "race", lambda runners: [1.0 / (1 + at) for at in range(len(runners))])


@pytest.fixture
def alone(faster, monkeypatch):
    """And nothing else rounds, which takes most of the time."""
    monkeypatch.setattr(Measured, "count", property(lambda self: 0))


def compiled(model=MODEL, samples=SAMPLES, tolerance=LOOSE, **options):
    return cpuconv.compile(model, samples=samples, tolerance=tolerance, **AUTO, **options)


def error(made, model, given) -> float:
    right = cpuconv.compile(model, threads=1)
    return max(relative_rms(right.run(feed), made.run(feed)) for feed in given)


def precisions_of_layers(made) -> dict[str, str]:
    """The precision of each quantisable layer."""
    kinds = ("Conv", "QuantizedConv", "Gemm", "Linear", "QuantizedLinear")
    return {row.name: row.precision for row in made.precision_table().rows if row.op in kinds}


def test_bytes_are_chosen_as_far_as_the_tolerance_allows(alone, tmp_path):
    whole = compiled()
    table = whole.precision_table()
    assert table.chosen.startswith("int8") and {"float32", "int8"} <= table.seconds.keys() and not table.left_out
    assert 0.3 * table.error <= error(whole, MODEL, SAMPLES) <= table.error  # ranges follow from them
    assert set(precisions_of_layers(whole).values()) == {"int8"}
    assert all("f32" in row.types for row in table.rows if row.op == "Elementwise")  # the sum is of a convolution
    tolerance = 0.7 * table.errors["int8"]
    part = compiled(tolerance=tolerance)
    assert {"int8", "float32"} == {*precisions_of_layers(part).values()} - {"bfloat16"}
    rows = [
        row for row in part.precision_table().rows if row.precision == "int8" and row.name in precisions_of_layers(part)
    ]
    assert part.precision_table().error <= tolerance and sum(row.error**2 for row in rows) <= tolerance**2
    assert error(part, MODEL, UNSEEN) <= BEYOND * tolerance
    part.save(tmp_path / "m.cpuconv")
    loaded, (other,) = cpuconv.load(tmp_path / "m.cpuconv"), feeds(MODEL, 1, batch=3, seed=5)
    for feed in (UNSEEN[0], other):  # the second of a size that was not among the samples
        np.testing.assert_array_equal(loaded.run(feed)["y"], part.run(feed)["y"])
    assert error(part, MODEL, [other]) <= BEYOND * tolerance


def varied(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Feeds that differ in contrast, as pictures do."""
    scales = np.exp(0.2 * np.random.default_rng(seed + 500).standard_normal(count))
    drawn = feeds(MODEL, count, batch=8, seed=seed)
    return [{"x": feed["x"] * np.float32(scale)} for feed, scale in zip(drawn, scales, strict=True)]


def test_feeds_that_differ_more_than_the_samples_keep_to_the_tolerance(alone):
    """One of them errs by 3.2 times the tolerance where bytes end at what was seen: channels' means lie beyond it."""
    tolerance = 0.012
    made = compiled(samples=varied(int8_candidate.NEEDED, 2), tolerance=tolerance)
    assert list(precisions_of_layers(made).values()).count("int8") == 5
    assert error(made, MODEL, varied(16, 77)) <= BEYOND * tolerance


def test_samples_that_jump_say_that_others_will(alone):
    """Of eight errors one is within the tolerance by little, the rest are small: others would exceed 1.5 times it."""
    right = cpuconv.compile(MODEL, threads=1).run(SAMPLES[5])["y"]

    def metric(reference, outputs) -> float:
        same = np.array_equal(reference["y"], outputs["y"])
        return 0.0 if same else 0.3 if np.array_equal(reference["y"], right) else 0.01

    left_out = compiled(metric=metric, tolerance=0.31).precision_table().left_out["int8"]
    assert left_out == int8_candidate.NOT_FASTER
    assert compiled(metric=metric, tolerance=0.45).precision_table().chosen.startswith("int8")


def test_the_table_says_what_bytes_cost_and_save(alone):
    told = []
    made = compiled(progress=lambda *state: told.append(state))
    table = made.precision_table()
    rows = [row for row in table.rows if row.name in precisions_of_layers(made)]
    assert all(row.error > 0 and row.step_seconds > 0 and row.step_error <= table.error for row in rows)
    assert all("u8" in row.types or "s8" in row.types for row in table.rows if row.precision == "int8")
    assert json.loads(json.dumps(table.to_dict()))["errors"]["int8"] == table.errors["int8"]
    assert f"int8 {1e3 * table.seconds['int8']:.3f} ms, error {table.errors['int8']:.2g}" in str(table)
    assert {"observing tensors", "measuring errors of layers", "timing"} <= {what for what, _, _ in told}


def test_a_tolerance_that_no_layer_is_within_leaves_bytes_out(alone):
    made = compiled(tolerance=1e-6)
    table = made.precision_table()
    assert table.left_out["int8"].startswith("one layer alone errs by") and "int8" not in table.seconds
    assert f"left out: int8, {table.left_out['int8']}" in str(table)
    assert "int8" not in precisions_of_layers(made).values()


def test_bytes_that_are_not_faster_are_left_out(alone, monkeypatch):
    monkeypatch.setattr(int8_candidate, "race", lambda first, second, feed: Race(1.0, 1.1, Ratio(1.1, 1.05, 1.2)))
    table = compiled().precision_table()
    assert table.left_out["int8"] == "it is not faster on this machine: 1100.000 ms, and float32 takes 1000.000 ms"


def test_bytes_must_be_clearly_faster_than_what_loses_no_digits(alone, monkeypatch):
    for gain, chosen in ((0.995, "float32"), (0.9, "int8")):
        monkeypatch.setattr(automatic, "race", lambda runners, gain=gain: [1.0, *[2.0] * (len(runners) - 2), gain])
        assert compiled().precision_table().chosen.startswith(chosen)


def test_a_metric_is_the_worst_of_all_samples(alone):
    """Of bytes too: a mean would be within."""
    right = cpuconv.compile(MODEL, threads=1).run(SAMPLES[5])["y"]

    def metric(reference, outputs) -> float:
        return float(np.array_equal(reference["y"], right) and not np.array_equal(outputs["y"], right))

    assert "one layer alone errs by 1" in compiled(metric=metric).precision_table().left_out["int8"]
    zero = compiled(tolerance=1e-9, metric=lambda reference, outputs: 0.0)
    assert zero.precision_table().chosen.startswith("int8") and zero.precision_table().error == 0
    with pytest.raises(ArgumentError, match="'metric' must be a function that returns a number"):
        compiled(metric=lambda reference, outputs: "large")


QUANTISED = """g (float[N,4,6,6] x) => (float[N,4,6,6] y) <float s = {0.05}, uint8 z = {128}> {
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    y = Relu(b)
}"""
NOTHING = "g (float[N,4,6,6] x) => (float[N,4,6,6] y) { y = Relu(x) }"
NOT_FINITE = "g (float[N,4,6,6] x) => (float[N,4,6,6] y) { a = Conv(x, w) b = Log(a) y = Conv(b, w) }"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (QUANTISED, "it is quantised already"),
        (NOTHING, "has no convolution, Gemm or MatMul"),
        (NOT_FINITE, "must be of finite numbers"),
    ],
)
def test_networks_that_bytes_are_left_out_of(text, reason, alone):
    model = parse(text, **(normal(np.random.default_rng(0), {"w": (4, 4, 1, 1)}) if "w)" in text else {}))
    samples = [{"x": feed["x"][:2, :1, :6, :6].repeat(4, 1)} for feed in SAMPLES]
    made = compiled(model, samples)
    assert reason in made.precision_table().left_out["int8"]
    assert made.run(samples[0])["y"].shape == (2, 4, 6, 6)


def test_a_layer_whose_input_has_few_values_stays_float(alone):
    """Others lie outside of their range too often: on unseen feeds a tensor of 18 values was off by 0.08."""
    # The last layer reads 20 values of each image; four samples count.
    fewer = feeds(MODEL, int8_candidate.NEEDED, batch=8)
    precisions = precisions_of_layers(compiled(samples=fewer))
    assert precisions.pop("y") != "int8" and set(precisions.values()) == {"int8"}
    one = [{"x": feed["x"][:1]} for feed in fewer]
    made = compiled(samples=[{"x": feed["x"][:, :, :3, :3].copy()} for feed in one], model=SMALL)
    assert made.precision_table().left_out["int8"] == "no layer reads 1000 values on 4 samples"


def test_too_few_samples_leave_bytes_out(alone):
    table = compiled(samples=SAMPLES[:-1]).precision_table()
    assert table.left_out == {"int8": "8 samples are needed, not 7"}


@pytest.mark.parametrize("name", ["excited", "branches"])
def test_several_inputs_and_outputs_and_bodies(name, faster):
    if name == "excited":
        model = network(name)
        samples = feeds(model, int8_candidate.NEEDED)
    else:
        model = parse("""g (float[N,4,6,6] x, float[N,4,6,6] z, bool c) => (float[N,4,6,6] y, int64[N,1,6,6] i) {
            a = Conv(x, w)
            r = Relu(a)
            b = Add(r, z)
            d = If(c) <
                then_branch = t () => (float[N,4,6,6] p) { p = Mul(b, b) },
                else_branch = e () => (float[N,4,6,6] q) { q = Conv(b, w) }
            >
            y = Conv(d, w)
            i = ArgMax<axis=1>(y)
        }""")
        rng = np.random.default_rng(0)
        weight = (rng.standard_normal((4, 4, 1, 1)) / 2).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        samples = [
            {key: rng.standard_normal((2, 4, 6, 6)).astype(np.float32) for key in "xz"} | {"c": np.array(at % 2 == 0)}
            for at in range(int8_candidate.NEEDED)
        ]
    made = compiled(
        model,
        samples,
        metric=lambda reference, outputs: relative_rms(*({"y": each["y"]} for each in (reference, outputs))),
    )
    table = made.precision_table()
    assert table.chosen.startswith("int8") and "int8" in {row.precision for row in table.rows}
    assert {key: array.shape for key, array in made.run(samples[1]).items()} == {
        key: array.shape for key, array in cpuconv.compile(model, threads=1).run(samples[1]).items()
    }
