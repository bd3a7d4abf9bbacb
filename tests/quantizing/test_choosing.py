"""Which layers stay floats, and what is said of them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import cpuconv
from autotune.timing.compare import Ratio
from cpuconv.cli.main import main
from cpuconv.cli.quantized_page import page
from cpuconv.errors import ArgumentError
from cpuconv.quantizing import choosing
from cpuconv.quantizing.errors import Agreement, RelativeError
from cpuconv.quantizing.speed import Race
from support.graph.floats import feeds, network, run_all

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore:.*int8 is not faster on this machine")  # networks are tiny


def quantized(model, path, **options):
    arguments = {"threads": 1, "refuse_slower": False} | options
    return cpuconv.quantize(model, feeds(model, 16, batch=8), output=path / "q.onnx", **arguments)


def error(model, path, name) -> float:
    """Of ONNX Runtime on samples that were not seen."""
    found, written = RelativeError(), onnx.load(path / "q.onnx")
    for feed in feeds(model, 8, batch=8, seed=77):
        found.add(*({key: run_all(each, feed)[key] for key in [name]} for each in (model, written)))
    return found.value


@pytest.mark.parametrize("part", [0.8, 0.4])
def test_layers_stay_floats_until_the_tolerance_holds(part, tmp_path):
    model = network("residual")
    whole = quantized(model, tmp_path)
    assert whole.kept == () and 0 < whole.error < 0.1
    tolerance = part * whole.error
    made = quantized(model, tmp_path, tolerance=tolerance)
    assert 0 < len(made.kept) < len(made.layers) and made.error <= tolerance
    assert error(model, tmp_path, "y") <= 1.5 * tolerance
    assert {layer.why for layer in made.layers} == {"", "error"}
    ranked = sorted(made.layers, key=lambda layer: -layer.error_alone)
    fewer = [layer.name for layer in ranked[: len(made.kept) - 1]]
    ranking = quantized(model, tmp_path, keep=fewer, tolerance=1.0)  # would keep no fewer
    assert made.reached.error <= tolerance < ranking.reached.error and {*ranking.kept} == {*fewer}


def test_of_two_layers_that_err_alike_the_one_that_saves_less_time_stays_floats():
    choice = choosing.Choice(
        float32_seconds={"a": 2.0, "b": 2.0}, int8_seconds={"a": 1.9, "b": 1.0}, alone={"a": 0.1, "b": 0.1}
    )
    a, b = (SimpleNamespace(name=name) for name in "ab")
    assert choice.cost(a) > choice.cost(b)
    choice.float32_seconds = choice.int8_seconds = {}
    assert choice.cost(a) == choice.cost(b)


def test_a_metric_takes_the_place_of_the_relative_error(tmp_path):
    model, asked = network("residual"), []

    def metric(exact, rough):
        asked.append(exact.keys())
        return np.abs(exact["y"] - rough["y"]).max()

    whole = quantized(model, tmp_path, metric=metric)
    made = quantized(model, tmp_path, metric=metric, tolerance=0.7 * whole.error)
    assert made.error <= 0.7 * whole.error and made.kept and set(map(tuple, asked)) == {("y",)}


def test_so_many_layers_stay_floats(tmp_path):
    made = quantized(network("excited"), tmp_path, layers=2)
    assert len(made.kept) == 2


def test_not_all_layers_stay_floats(tmp_path):
    with pytest.raises(ArgumentError, match="'layers' must be below 6, .* not 6"):
        quantized(network("excited"), tmp_path, layers=6)
    assert not [*tmp_path.iterdir()]


def test_layers_that_bytes_do_not_make_faster_stay_floats(tmp_path, monkeypatch):
    """Time is made up: two layers are slower by bytes, and the whole is faster without them."""
    model = network("residual")
    names = [layer.name for layer in quantized(model, tmp_path).layers]
    seconds = iter([dict.fromkeys(names, 1.0), dict.fromkeys(names, 0.5) | {names[1]: 2.0, names[3]: 1.5}])
    monkeypatch.setattr(choosing, "seconds_by_name", lambda *_: next(seconds))
    monkeypatch.setattr(choosing, "race", lambda *_: Race(1.0, 0.9, Ratio(0.9, 0.8, 0.95)))
    made = quantized(model, tmp_path, refuse_slower=True)
    assert made.kept == (names[1], names[3])
    assert {layer.why for layer in made.layers} == {"", "int8 is not faster"}
    assert made.seconds is not None and made.seconds_before is not None


def test_layers_that_seem_slower_are_of_bytes_where_the_whole_is_faster_so(tmp_path, monkeypatch):
    model = network("residual")
    names = [layer.name for layer in quantized(model, tmp_path).layers]
    seconds = iter([dict.fromkeys(names, 1.0), dict.fromkeys(names, 0.5) | {names[1]: 2.0}])
    monkeypatch.setattr(choosing, "seconds_by_name", lambda *_: next(seconds))
    monkeypatch.setattr(choosing, "race", lambda *_: Race(1.0, 1.1, Ratio(1.1, 1.0, 1.2)))
    assert quantized(model, tmp_path, refuse_slower=True).kept == ()


def test_times_are_of_what_ran(tmp_path):
    made = quantized(network("residual"), tmp_path, refuse_slower=True)
    assert made.seconds > 0 and made.seconds_before > 0 and made.threads == 1
    assert sum(layer.float_seconds is not None and layer.float_seconds > 0 for layer in made.layers) >= 5


def test_channels_are_equalised_where_the_error_is_smaller_so(tmp_path):
    for seed in range(3):
        model = network("excited", seed)
        errors = {equalize: quantized(model, tmp_path, equalize=equalize).error for equalize in (True, False, None)}
        assert errors[None] <= 1.02 * min(errors.values()), errors


def test_agreement_is_of_classes():
    rows = np.float32([[1, 2, 3], [3, 2, 1], [0, 5, 1]])
    found = Agreement()
    found.add({"y": rows, "z": rows[:, :1]}, {"y": rows[:, ::-1], "z": rows[:, :1]})
    assert found.value == pytest.approx(1 / 3)
    none = Agreement()
    none.add({"y": rows[:, :, None, None] * np.ones((1, 1, 2, 2), np.float32)}, {"y": rows})
    assert none.value is None


def test_the_relative_error_is_of_all_samples_and_the_worst_output():
    found = RelativeError()
    for scale in (1.0, 3.0):
        exact = {"a": np.full(4, scale), "b": np.full(2, scale)}
        found.add(exact, {"a": exact["a"] + 0.1, "b": exact["b"] + 0.5})
    assert found.value == pytest.approx(np.sqrt(2 * 0.25 / 10))


def test_the_command(tmp_path, capsys):
    model, data = network("residual"), tmp_path / "data"
    onnx.save(model, tmp_path / "m.onnx")
    data.mkdir()
    for at, feed in enumerate(feeds(model, 3)):
        np.savez(data / f"{at}.npz", **feed)
    common = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "q.onnx"), "--data", str(data)]
    options = ["--threads", "1", "--no-timing"]
    assert main([*common, *options, "--json", "--html", str(tmp_path / "page.html")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == (tmp_path / "q.onnx").stat().st_size
    assert told["bytes_before"] == (tmp_path / "m.onnx").stat().st_size > told["bytes"]
    assert len(told["layers"]) == 6 and told["seconds"] is None
    assert main([*common, "--threads", "1", "--tolerance", "0.5", "--method", "minmax"]) == 0
    text = capsys.readouterr().out
    assert "float32" in text and "times as fast" in text and "same class" in text
    written = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Quantising of m" in written and "http" not in written.replace("http-equiv", "")


def test_wrong_options_are_named(tmp_path, capsys):
    onnx.save(network("residual"), tmp_path / "m.onnx")
    common = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "q.onnx")]
    assert main([*common, "--data", str(tmp_path)]) == 2
    assert "--data must be a folder of .npz files" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*common, "--data", str(tmp_path), "--mean", "a,b"])
    assert not (tmp_path / "q.onnx").exists()


def test_the_page_escapes_names(tmp_path):
    model = network("residual")
    model.graph.node[0].name = "<script>alert(1)</script>"
    written = page("<b>", quantized(model, tmp_path))
    assert "<script>alert" not in written and "&lt;script&gt;" in written and "<b>" not in written
