"""`precision="auto"`: the tolerance holds on feeds that were not seen, and the report says what was chosen."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from bench.networks import networks as known_networks  # noqa: E402
from bench.networks.model import batched, resize  # noqa: E402
from cpuconv.api.precision import feeds_of  # noqa: E402
from cpuconv.cli.main import main  # noqa: E402
from cpuconv.elements import BF16  # noqa: E402
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvWarning, SourceError  # noqa: E402
from cpuconv.network.precision import automatic  # noqa: E402
from cpuconv.network.precision.errors import relative_rms  # noqa: E402
from cpuconv.network.precision.sample_groups import SampleGroup  # noqa: E402
from cpuconv.network.selection.decisions import name_of  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402

AUTO = {"precision": "auto", "strategy": "heuristic", "threads": 1}
WIDE, NARROW = ({"precision": each, "strategy": "heuristic", "threads": 1} for each in ("float32", "bfloat16"))
CHANNELS = 128
SHAPE = (1, CHANNELS, 28, 28)
DEPTH = 5
BEYOND = 1.5  # times the tolerance, on feeds that were not seen


def network(depth: int = DEPTH, channels: int = CHANNELS) -> onnx.ModelProto:
    """Convolutions that bfloat16 is faster for, of errors that differ: every other one is added with a small weight."""
    lines = ["a0 = Relu(x)"]
    for at in range(depth):
        lines.append(f"[conv{at}] b{at} = Conv(a{at}, w{at}) [relu{at}] c{at} = Relu(b{at})")
        lines.append(f"[scale{at}] d{at} = Mul(c{at}, s{at}) [add{at}] a{at + 1} = Add(d{at}, a{at})")
    lines.append(f"[last] y = Conv(a{depth}, v)")
    constants = "".join(f"float[{channels},{channels},1,1] w{at}, float[1] s{at}, " for at in range(depth))
    ends = f"(float[N,{channels},H,28] x) => (float[N,{channels},H,28] y)"
    text = f"g {ends} <{constants}float[{channels},{channels},1,1] v> {{ {' '.join(lines)} }}"
    rng = np.random.default_rng(0)
    shapes = {f"w{at}": (channels, channels, 1, 1) for at in range(depth)} | {"v": (channels, channels, 1, 1)}
    arrays = {name: rng.standard_normal(size) / math.sqrt(channels * size[-1] ** 2) for name, size in shapes.items()}
    arrays |= {f"s{at}": np.array([1.0 if at % 2 else 0.03]) for at in range(depth)}
    return parse(text, **{name: array.astype(np.float32) for name, array in arrays.items()})


MODEL = network()


def feeds(count: int, first: int = 0, shape=SHAPE) -> list[dict[str, np.ndarray]]:
    """Draws of one distribution."""
    return [
        {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
        for seed in range(first, first + count)
    ]


def error(model: cpuconv.Model, source, unseen) -> float:
    right = cpuconv.compile(source, **WIDE)
    return max(relative_rms(right.run(feed), model.run(feed)) for feed in unseen)


def rounds(model: cpuconv.Model) -> bool:
    return any(BF16.name in row.types for row in model.explain().operators)


needs_bfloat16 = pytest.mark.skipif(
    not rounds(cpuconv.compile(MODEL, input_shapes={"x": SHAPE}, **NARROW)),
    reason="bfloat16 is not faster on this CPU, by the models",
)


@needs_bfloat16
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 1.5])
def test_the_tolerance_holds_on_feeds_that_were_not_seen(share, monkeypatch):
    """For shares of the error of bfloat16; times are those of the models, so that mixtures are chosen."""
    _by_the_models(monkeypatch)
    whole = error(cpuconv.compile(MODEL, **NARROW), MODEL, feeds(3))
    tolerance = share * whole
    made = cpuconv.compile(MODEL, tolerance=tolerance, samples=feeds(3), **AUTO)
    told = made.precision_table()
    assert told.error <= tolerance
    assert error(made, MODEL, feeds(3)) == pytest.approx(told.error, rel=1e-3)
    assert error(made, MODEL, feeds(6, first=100)) <= BEYOND * tolerance
    alone = [row for row in told.rows if row.error is not None and row.step_seconds < 0 and row.step_error <= tolerance]
    mixed = told.chosen == "mixed" or (told.chosen == "float32" and not alone)  # where none that is faster fits
    assert told.chosen == "bfloat16" if share > 1.1 else mixed
    assert rounds(made) == (told.chosen != "float32")


def _by_the_models(monkeypatch):
    monkeypatch.setattr(SampleGroup, "beyond_models", lambda self, target, packed: {})
    monkeypatch.setattr(automatic, "race", lambda runners: [each.seconds for each in runners])


@needs_bfloat16
def test_an_operator_that_is_measured_to_be_slower_stays_float32_though_all_are_within(monkeypatch):
    def beyond(self, target, packed):
        names = [name_of(node) for node in self.graph.nodes if "conv1" in node.parts or node.origin == "conv1"]
        assert len(names) == 1
        return dict.fromkeys(names, float(target.precision == "bfloat16"))

    monkeypatch.setattr(SampleGroup, "beyond_models", beyond)
    monkeypatch.setattr(automatic, "race", lambda runners: [3.0, 2.0, 1.0][: len(runners)])
    tolerance = 1.5 * error(cpuconv.compile(MODEL, **NARROW), MODEL, feeds(3))
    made = cpuconv.compile(MODEL, tolerance=tolerance, samples=feeds(3), **AUTO)
    told = made.precision_table()
    assert told.chosen == "mixed" and told.error <= tolerance
    rounding = {row.name: row.precision for row in told.rows if row.op == "Conv"}
    assert rounding.pop("conv1") == "float32" and "bfloat16" in rounding.values()
    assert error(made, MODEL, feeds(6, first=100)) <= BEYOND * tolerance


@needs_bfloat16
def test_a_tolerance_that_nothing_is_within_is_float32():
    made = cpuconv.compile(MODEL, tolerance=1e-7, samples=feeds(1), **AUTO)
    (feed,) = feeds(1, first=9)
    np.testing.assert_array_equal(made.run(feed)["y"], cpuconv.compile(MODEL, **WIDE).run(feed)["y"])
    table = made.precision_table()
    assert table.chosen == "float32" and not rounds(made)
    (first, *_) = (row for row in table.rows if row.error is not None)
    assert first.error > 1e-7 and f"≥{first.error:.2g}" in str(table)


@pytest.mark.parametrize("name", ["squeezenet"])
def test_a_real_network(name):
    network = known_networks()[name]
    if missing := network.missing():
        pytest.skip(missing)
    inputs = network.small or network.inputs
    model = network.make(inputs)
    resize(model, batched(inputs, 1))
    drawn = [network.feed(batched(inputs, 1), seed) for seed in range(6)]
    for tolerance in (5e-4, 2e-3):
        made = cpuconv.compile(model, tolerance=tolerance, samples=drawn[:3], **AUTO)
        assert made.precision_table().error <= tolerance
        assert error(made, model, drawn[3:]) <= BEYOND * tolerance


@needs_bfloat16
def test_saved_and_loaded_and_other_sizes(tmp_path, monkeypatch):
    _by_the_models(monkeypatch)
    whole = error(cpuconv.compile(MODEL, **NARROW), MODEL, feeds(2))
    made = cpuconv.compile(MODEL, tolerance=0.6 * whole, samples=feeds(2), **AUTO)
    (feed,) = feeds(1, first=5)
    right = made.run(feed)["y"]
    made.save(tmp_path / "m.cpuconv")
    loaded = cpuconv.load(tmp_path / "m.cpuconv")
    np.testing.assert_array_equal(loaded.run(feed)["y"], right)
    (other,) = feeds(1, shape=(2, CHANNELS, 17, 28))
    np.testing.assert_array_equal(loaded.run(other)["y"], made.run(other)["y"])
    assert relative_rms(cpuconv.compile(MODEL, **WIDE).run(other), made.run(other)) <= BEYOND * 0.6 * whole


def test_samples_of_several_sizes_and_arrays_alone():
    samples = [*feeds(1), *(feed["x"] for feed in feeds(2, shape=(2, CHANNELS, 9, 28)))]
    made = cpuconv.compile(MODEL, tolerance=0.05, samples=samples, **AUTO)
    assert made.precision_table().error <= 0.05
    assert made(samples[1]).shape == (2, CHANNELS, 9, 28)


@needs_bfloat16
def test_a_metric_takes_the_place_of_relative_rms():
    asked = []

    def metric(reference, outputs) -> float:
        asked.append(relative_rms(reference, outputs))
        return 0.0

    made = cpuconv.compile(MODEL, tolerance=1e-6, samples=feeds(1), metric=metric, **AUTO)
    assert made.precision_table().error == 0.0 and max(asked) > 1e-6
    for wrong in ("large", -1.0, None):
        with pytest.raises(ArgumentError, match="'metric' must be a function that returns a number"):
            cpuconv.compile(MODEL, samples=feeds(1), metric=lambda reference, outputs, wrong=wrong: wrong, **AUTO)
    nowhere = cpuconv.compile(MODEL, samples=feeds(1), metric=lambda reference, outputs: math.nan, **AUTO)
    assert nowhere.precision_table().chosen == "float32"


@needs_bfloat16
def test_the_table_and_progress(monkeypatch):
    _by_the_models(monkeypatch)
    whole, told = error(cpuconv.compile(MODEL, **NARROW), MODEL, feeds(1)), []
    made = cpuconv.compile(
        MODEL, tolerance=0.6 * whole, samples=feeds(1), progress=lambda *state: told.append(state), **AUTO
    )
    table = made.precision_table()
    rows = {row.name: row for row in table.rows if row.op == "Conv"}
    assert {*rows} == {*(f"conv{at}" for at in range(DEPTH)), "last"}
    rounding = [row for row in rows.values() if row.precision == "bfloat16"]
    assert rounding and len(rounding) < len(rows)
    for row in rounding:
        assert row.error > 0 and row.step_seconds >= 0 and row.step_error <= table.error
    for row in rows.values():
        assert (BF16.name in row.types) == (row.precision == "bfloat16")
        if row.precision == "float32" and row.error is not None:
            assert row.step_error >= table.error
    assert json.loads(json.dumps(table.to_dict()))["chosen"] == table.chosen == "mixed"
    text = str(table)
    assert "conv1" in text and "other precision" in text and table.chosen in text
    assert {"errors of operators", "timing"} <= {what for what, _, _ in told}
    assert all(0 <= done <= total for _, done, total in told)


def test_integers_stay_integers():
    """Those of a quantised network, whatever is chosen."""
    text = """g (float[1,32,16,16] x) => (float[1,32,16,16] y)
    <float s = {0.02}, uint8 z = {128}, int8[32,32,3,3] w, float ws = {0.01}, int8 wz = {0}> {
        a = QuantizeLinear(x, s, z)
        b = DequantizeLinear(a, s, z)
        c = DequantizeLinear(w, ws, wz)
        [conv] d = Conv<pads = [1, 1, 1, 1]>(b, c)
        e = QuantizeLinear(d, s, z)
        y = DequantizeLinear(e, s, z)
    }"""
    model = parse(text, w=np.random.default_rng(0).integers(-9, 9, (32, 32, 3, 3)).astype(np.int8))
    made = cpuconv.compile(model, samples=feeds(1, shape=(1, 32, 16, 16)), **AUTO)
    (conv,) = [row for row in made.explain().operators if "Conv" in row.op]
    assert conv.types == "u8:s8:u8"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({}, ArgumentError, "'samples' must be a list of feeds"),
        ({"samples": []}, ArgumentError, "'samples' must be one feed or more, not none"),
        ({"samples": feeds(1)[0]}, ArgumentTypeError, "'samples' must be a list of feeds"),
        ({"samples": 3}, ArgumentTypeError, "'samples' must be a list of feeds"),
        ({"samples": "nowhere.npz"}, ArgumentError, "'samples' must be an .npz file"),
        ({"samples": [{"z": 1}]}, ArgumentError, r"samples\[0\]: .*'feed' must be arrays for x, not one for 'z'"),
        (
            {"samples": [{"x": np.ones((1, 9, 28, 28), "f")}]},
            ArgumentError,
            r"samples\[0\].*of a shape that fits",
        ),
        ({"samples": [{"x": np.ones((1, CHANNELS, 28), "f")}]}, ArgumentError, r"samples\[0\].*of rank 4"),
        ({"samples": feeds(1), "tolerance": 0}, ArgumentError, "'tolerance' must be a finite number above 0, not 0"),
        ({"samples": feeds(1), "tolerance": math.nan}, ArgumentError, "'tolerance' must be a finite number above 0"),
        ({"samples": feeds(1), "tolerance": math.inf}, ArgumentError, "'tolerance' must be a finite number above 0"),
        ({"samples": feeds(1), "tolerance": "1"}, ArgumentTypeError, "'tolerance' must be a number above 0, not '1'"),
        ({"samples": [{"x": np.ones((1, CHANNELS, 28, 28))}]}, ArgumentTypeError, r"samples\[0\].*of dtype float32"),
        ({"samples": feeds(1), "metric": 3}, ArgumentTypeError, "'metric' must be a callable"),
        ({"samples": feeds(1), "progress": 3}, ArgumentTypeError, "'progress' must be a callable of what is done"),
        ({"samples": feeds(1), "node_precisions": {}}, ArgumentError, "'node_precisions' must be left out where"),
        ({"precision": "bfloat16", "tolerance": 0.1}, ArgumentError, "'tolerance' must be left out where precision"),
        ({"precision": "float32", "samples": []}, ArgumentError, "'samples' must be left out where precision"),
    ],
)
def test_wrong_arguments(options, kind, words):
    with pytest.raises(kind, match=words):
        cpuconv.compile(MODEL, **{**AUTO, **options})


def test_what_cannot_choose_names_what_does(tmp_path):
    onnx.save(MODEL, tmp_path / "m.onnx")
    made = cpuconv.compile(MODEL, input_shapes={"x": SHAPE}, **WIDE)
    made.save(tmp_path / "m.cpuconv")
    options = cpuconv.SessionOptions()
    options.add_session_config_entry("session.cpuconv.precision", "auto")
    for path in (tmp_path / "m.onnx", tmp_path / "m.cpuconv"):
        with pytest.raises(ArgumentError, match="cpuconv.compile chooses precisions, by samples"):
            cpuconv.InferenceSession(str(path), options)
    with pytest.raises(ArgumentError, match="'key' must be session.cpuconv.precision, of those"):
        options.add_session_config_entry("session.cpuconv.precison", "auto")
    with pytest.raises(SourceError, match="precision='auto', to have a table"):
        made.precision_table()


def test_samples_of_files_and_the_commands(tmp_path, capsys):
    path, drawn = tmp_path / "m.onnx", feeds(3)
    onnx.save(MODEL, path)
    folder, stacked, odd = tmp_path / "samples", tmp_path / "stack.npz", tmp_path / "odd.npz"
    folder.mkdir()
    for at, feed in enumerate(drawn):
        np.savez(folder / f"{at}.npz", **feed)
    np.savez(stacked, x=np.stack([feed["x"] for feed in drawn]))
    np.savez(odd, other=drawn[0]["x"])
    assert [len(feeds_of(str(each), read(path))) for each in (folder, stacked, odd)] == [3, 3, 1]
    stated = [
        str(path),
        "--shape",
        f"x=1x{CHANNELS}x28x28",
        "--strategy",
        "heuristic",
        "--threads",
        "1",
        "--precision",
        "auto",
    ]
    for command in (["explain", "--json"], ["compile", "-o", str(tmp_path / "m.cpuconv")], ["run"]):
        name, *more = command
        assert main([name, *stated, "--tolerance", "0.05", "--samples", str(folder), *more]) == 0
        told = capsys.readouterr().out
        if name == "explain":
            table = json.loads(told)["precision_table"]
            assert table["tolerance"] == 0.05 and table["error"] <= 0.05 and table["rows"]
    assert main(["explain", *stated, "--samples", str(stacked)]) == 0
    assert "other precision" in capsys.readouterr().out
    assert main(["explain", *stated]) == 2
    assert "--samples must be a list of feeds" in capsys.readouterr().err
    assert main(["explain", *stated[:-1], "bfloat16", "--tolerance", "0.1"]) == 2
    assert "--tolerance must be left out where --precision is not auto" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "m.cpuconv"), "--precision", "auto", "--samples", str(folder)]) == 2
    assert "cpuconv.compile chooses precisions" in capsys.readouterr().err


def test_one_sample_warns_that_it_tells_nothing_of_others() -> None:
    model = parse("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }")
    feed = {"x": np.ones((1, 4), np.float32)}
    with pytest.warns(CpuconvWarning, match="precision='auto': measured on 1 sample: by how much others err"):
        cpuconv.compile(model, samples=[feed], **AUTO)
