"""The benchmark of plans: ratios, the sum of the layers, and what is left, of a small network."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from autotune.machine.device import fingerprint  # noqa: E402
from autotune.machine.roofline import Level, Roofs  # noqa: E402
from autotune.store.rows import COLD  # noqa: E402
from autotune.store.store import Store  # noqa: E402
from bench import plans  # noqa: E402
from bench.networks import Network, __main__, problem  # noqa: E402
from cpuconv.conv.choice.target import Target  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.network.selection.layout import lay_out  # noqa: E402
from cpuconv.network.sizes.prepared import Rewriting, prepared  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from cpuconv.tuning.workload import workload  # noqa: E402
from support.graphs import parse  # noqa: E402
from support.tuner.stored import row  # noqa: E402

TEXT = """g (float[N,20,9,9] x) => (float[N,5] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    b = Softmax<axis = 3>(a)
    c = Flatten(b)
    y = Gemm(c, v)
}"""
SIZES = {"w": (20, 20, 3, 3), "v": (20 * 9 * 9, 5)}
SHAPES = {"x": (1, 20, 9, 9)}
READING = Level("memory", math.inf, 1e-3)  # GB/s


def small(inputs: object) -> onnx.ModelProto:
    model, rng = parse(TEXT), np.random.default_rng(0)
    for name, size in SIZES.items():
        array = rng.standard_normal(size, np.float32) / 10
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.fixture
def folder(tmp_path: Path, our_store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    network = Network("small", SHAPES, small, {"numpy": "numpy"})
    for room in (problem, __main__):
        monkeypatch.setattr(room, "networks", lambda: {"small": network})
    monkeypatch.setattr(plans, "roofs", lambda threads: Roofs(1.0, 1.0, (READING,)))
    assert __main__.main([str(tmp_path)]) == 0
    return tmp_path


def told(folder: Path, *options: str) -> dict:
    words = [str(folder), "--threads", "1", "--seconds", "0.02", "--json", str(folder / "told.json"), *options]
    assert plans.main(words) == 0
    (line,) = json.loads((folder / "told.json").read_text())
    return line


def tune(store: Store, folder: Path, seconds: float) -> None:
    """Store that each convolution takes so long."""
    target = Target(current(), 1, "cached")
    network_plan = lay_out(prepared(read(folder / "small.onnx"), SHAPES, Rewriting()).graph, target)
    problems = [asked for each in network_plan.nodes if (asked := plans.problem_of(each)) is not None]
    assert len(problems) == 1
    for asked in problems:
        candidate = workload.candidates(asked.key, "quick")[0][0]
        sources = workload.sources_of(candidate.name)
        blank = {"device": fingerprint().key, "problem": asked.key, "sources": sources, "state": "ok"}
        store.put([row(candidate.name, seconds, weights=COLD, **blank)])


def test_ways_are_compared_with_the_plan(folder, capsys):
    line = told(folder, "--ways", "untuned,greedy,dense")
    assert line["plan"] == "cheapest" and line["seconds"] > 0 and line["layers"] is None
    assert {*line["ways"]} == {"untuned", "greedy", "dense"}
    centre, low, high = line["ways"]["untuned"]
    assert 0 < low <= centre <= high
    assert {"Softmax", "Linear"} <= {op for op, _ in line["others"]} and "Conv" not in dict(line["others"])
    printed = capsys.readouterr().out
    assert "small" in printed and "greedy ÷ plan: geometric mean" in printed


def test_layers_alone_are_stored_times_and_weights_read(folder, our_store):
    tune(our_store, folder, 2e-3)
    line = told(folder, "--ways", "greedy")
    alone = 2e-3 + 4 * math.prod(SIZES["v"]) / 1e6
    assert line["layers"] == pytest.approx(line["seconds"] / alone, rel=0.02)  # a bias may be read too
