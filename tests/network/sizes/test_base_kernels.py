"""Where no kernel is at hand, `compile` has those that a network of open sizes calls at usual sizes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from autotune.interpreter import python  # noqa: E402
from cpuconv.network.sizes import base_kernels  # noqa: E402
from cpuconv.runtime.code import together  # noqa: E402
from support.graphs import parse, programs_of  # noqa: E402

RUN = """
import numpy as np, onnx, cpuconv
from cpuconv.runtime.code.cache import Statistics
text = '''<ir_version: 8, opset_import: ["" : 17]> g (float[1,16,H,W] x, float[32,16,1,1] w) => (float[1,P,Q,R] y) {
    y = Conv(x, w)
}'''
made = onnx.parser.parse_model(text)
del made.graph.input[1]
made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((32, 16, 1, 1), np.float32), "w"))
model = cpuconv.compile(made, threads=1)
early = Statistics.compiled
for high, wide in ((320, 320), (311, 247), (300, 400)):
    y = model(np.ones((1, 16, high, wide), np.float32))
    assert y.shape == (1, 32, high, wide) and (y == 16).all()
print(early, Statistics.compiled - early)
"""


def test_a_first_run_finds_its_kernels(tmp_path: Path) -> None:
    environ = {**os.environ, "CPUCONV_CACHE_DIR": str(tmp_path), together.VARIABLE: "1"}
    counts = []
    for _ in range(2):
        done = subprocess.run(python("-c", RUN), env=environ, capture_output=True, text=True, timeout=600)
        assert not done.returncode, done.stderr
        counts.append([int(word) for word in done.stdout.split()])
    (early, later), again = counts
    assert early > 2 and later <= 2, "but for the two kernels that tell what weights are"
    assert again == [0, 0]


@pytest.fixture
def builder(here):
    text = "g (float[N,4,H,W] x) => (float[N,4,P,Q] y) { y = Sigmoid(x) }"
    return programs_of(cpuconv.compile(parse(text), threads=1)).builder


def test_the_first_usual_size_that_a_network_takes_counts(builder):
    asked: list[object] = []

    def kernels(shapes):
        asked.append(shapes)
        if len(asked) < 3:
            raise cpuconv.ArgumentError("too large")
        return []

    base_kernels.compile_base([*builder.definition.inputs.values()], kernels)
    assert asked == [((1, 4, size, size),) for size in base_kernels.USUAL_SIZES]


def test_what_is_laid_out_for_usual_sizes_is_no_choice_of_the_network(builder):
    called = builder.kernels(((1, 4, 32, 32),))
    assert called and not builder.choices
