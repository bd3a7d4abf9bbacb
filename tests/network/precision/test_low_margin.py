"""What undecided inputs err by: measured on samples whose outputs are sure."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.network.precision import automatic  # noqa: E402
from cpuconv.network.precision.errors import relative_rms  # noqa: E402
from cpuconv.network.precision.low_margin import Logits, LowMargin, logits_of  # noqa: E402
from cpuconv.network.precision.prediction_bound import UNSEEN_FACTOR  # noqa: E402
from cpuconv.network.precision.trials import Measured  # noqa: E402
from cpuconv.quantizing.automatic import int8_candidate  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402

ENDS = {
    "y = Softmax<axis=1>(c)": [Logits("c", 1)],
    "s = Softmax<axis=1>(c) t = Flatten(s) y = Transpose(t)": [Logits("c", 1)],
    "y = Sigmoid(c)": [Logits("c", None)],
    "s = Sigmoid(c) y = Mul(s, c)": [],
    "y = LogSoftmax(c)": [],
    "y = Identity(c)": [],
}


@pytest.mark.parametrize("end", ENDS)
def test_logits_are_those_that_probabilities_are_made_of(end):
    graph = read(parse(f"g (float[2,5,4,4] x) => (float y) {{ c = Relu(x) {end} }}"))
    assert list(logits_of(graph)) == ENDS[end]


MANY, QUANTILE = 1000, 1.96  # samples that are alike; of a normal distribution, 95% are nearer to its mean


def error_of(logits: np.ndarray, wrong: np.ndarray, function) -> float:
    """Of probabilities, relative."""
    return relative_rms({"y": function(logits)}, {"y": function(logits + wrong)})


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("size", [0.01, 0.5, 2.0])
def test_a_sure_sample_says_what_an_undecided_one_errs_by(size):
    wrong = size * np.float64([[0.3, -0.4, 9.0]])  # the third class is impossible
    sure, undecided = np.float64([[12.0, 1.0, -80.0]]), np.float64([[4.0, 4.0, -80.0]])
    told = LowMargin([Logits("c", -1)])
    for _ in range(MANY):
        told.add({"c": sure}, {"c": sure + wrong})
    assert told.value == pytest.approx(error_of(undecided, QUANTILE * wrong, softmax) / UNSEEN_FACTOR, rel=0.003)
    assert error_of(sure, wrong, softmax) < 0.01 * told.value


def test_of_several_rows_one_is_undecided():
    rows = np.tile(np.float64([[9.0, 0.0]]), (4, 1))
    told = LowMargin([Logits("c", 1)])
    for _ in range(MANY):
        told.add({"c": rows}, {"c": rows + [0.2, 0.0]})
    undecided = rows.copy()
    undecided[2] = 0.0
    assert told.value == pytest.approx(
        error_of(undecided, np.float64([0.2 * QUANTILE, 0.0]), softmax) / UNSEEN_FACTOR, rel=0.01
    )


def test_a_sigmoid_is_of_two_classes():
    told = LowMargin([Logits("c", None)])
    for _ in range(MANY):
        told.add({"c": np.float64([-7.0])}, {"c": np.float64([-7.2])})
    assert told.value == pytest.approx(np.tanh(0.1 * QUANTILE) / UNSEEN_FACTOR, rel=0.003)


def test_of_undecided_inputs_one_in_twenty_errs_by_more():
    rng = np.random.default_rng(0)
    beyond = []
    for _ in range(2000):
        told, wrong = LowMargin([Logits("c", 1)]), 0.1 * rng.standard_normal((9, 2))
        for each in wrong[1:]:
            told.add({"c": np.float64([[9.0, 0.0]])}, {"c": np.float64([[9.0, 0.0]]) + each})
        beyond.append(error_of(np.zeros((1, 2)), wrong[:1], softmax) > UNSEEN_FACTOR * told.value)
    assert 0.04 < np.mean(beyond) < 0.06


def test_what_says_nothing_is_left_out():
    told = LowMargin([Logits("c", 1), Logits("d", 1)])
    never = np.float64([[3.0, -np.inf, -np.inf]])
    told.add({"c": np.zeros((2, 1)), "d": never}, {"c": np.ones((2, 1)), "d": never})
    assert told.value == 0.0 and LowMargin([]).value == 0.0


CLASSES = parse(
    """g (float[N,3,8,8] x) => (float[N,2] y) <float[8,3,3,3] w1, float[8,8,3,3] w2, float[8,2] w3, float[2] b> {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    r = Relu(a)
    c = Conv<strides=[2,2]>(r, w2)
    d = Relu(c)
    p = GlobalAveragePool(d)
    f = Flatten(p)
    m = MatMul(f, w3)
    l = Add(m, b)
    y = Softmax<axis=1>(l)
}"""
)
SPREAD = 15.0  # of logits: most inputs are sure
DRAWS = 4


@pytest.fixture(scope="module")
def classifier():
    """A classifier, draws of 16 inputs that it is sure of, and 40 that it is not."""
    rng = np.random.default_rng(3)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 2), "b": (2,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) / 5 for name, shape in shapes.items()}
    drawn = rng.standard_normal((600, 3, 8, 8)).astype(np.float32)

    def made() -> onnx.ModelProto:
        model = onnx.ModelProto.FromString(CLASSES.SerializeToString())
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
        return model

    y = cpuconv.compile(made(), threads=1).run({"x": drawn})["y"].astype(np.float64)
    apart = np.log(y[:, 0] / y[:, 1])
    factor = SPREAD / apart.std()
    arrays["w3"] *= np.float32(factor)
    arrays["b"] = np.float32(factor) * (arrays["b"] - np.float32([apart.mean(), 0]))
    y = cpuconv.compile(made(), threads=1).run({"x": drawn})["y"].astype(np.float64)
    apart = np.abs(np.log(np.maximum(y[:, 0], 1e-30) / np.maximum(y[:, 1], 1e-30)))
    sure, undecided = ([{"x": each[None]} for each in drawn[part]] for part in (apart > 8, np.argsort(apart)[:40]))
    return made(), [sure[at : at + 16] for at in range(0, 16 * DRAWS, 16)], undecided


def test_a_tolerance_holds_for_undecided_inputs_where_all_samples_are_sure(classifier, tmp_path):
    """All of it in bytes is within by what samples err by, and far outside on others."""
    model, (samples, *_), others = classifier
    exact, file = cpuconv.compile(model, threads=1), tmp_path / "q.onnx"

    def quantized(**options) -> tuple[int, float, float]:
        """Layers of floats, and errors: the largest of samples, and what 95 in 100 of the others stay within."""
        kept = len(cpuconv.quantize(model, samples, output=file, refuse_slower=False, threads=1, **options).kept)
        made = cpuconv.compile(file, threads=1)
        seen, unseen = (
            [relative_rms(exact.run(feed), made.run(feed)) for feed in feeds] for feeds in (samples, others)
        )
        return kept, max(seen), float(np.quantile(unseen, 0.95))

    kept, seen, unseen = quantized()
    tolerance = unseen / 2
    assert kept == 0 and seen < 0.1 * tolerance  # judged by samples alone, it would do
    kept, _, unseen = quantized(tolerance=tolerance)
    assert kept > 0 and unseen <= UNSEEN_FACTOR * tolerance


def test_auto_keeps_to_it_as_well(classifier, monkeypatch):
    """What the table says is what undecided inputs need, not what the samples err by."""
    monkeypatch.setattr(int8_candidate, "exclude_slower", lambda made, choice, feed, precision: choice)
    monkeypatch.setattr(int8_candidate, "_check_faster", lambda *given: None)
    monkeypatch.setattr(Measured, "count", property(lambda self: 0))
    monkeypatch.setattr(automatic, "race", lambda runners: [1.0 / (1 + at) for at in range(len(runners))])
    model, draws, others = classifier
    options = {"precision": "auto", "threads": 1}
    exact, beyond = cpuconv.compile(model, threads=1), []
    for samples in draws:
        made = cpuconv.compile(model, tolerance=0.9, samples=samples, **options)
        table = made.precision_table()
        assert table.chosen.startswith("int8")
        assert max(relative_rms(exact.run(feed), made.run(feed)) for feed in samples) < 0.01 * table.error
        unseen = np.array([relative_rms(exact.run(feed), made.run(feed)) for feed in others])
        assert 0.1 * np.quantile(unseen, 0.9) < table.error
        beyond.append(unseen > UNSEEN_FACTOR * table.error)
    assert np.mean(beyond) <= 0.1  # 5 in 100 are an average over draws of samples
    mine = cpuconv.compile(
        model, tolerance=0.9, metric=lambda right, got: relative_rms(right, got), samples=samples, **options
    )
    assert mine.precision_table().error < 0.1 * table.error  # what a metric says is left alone
