"""`compile` makes a program for usual sizes of a network whose sizes are open, and has its kernels."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from baselib.interpreter import python  # noqa: E402
from cpuconv.conv import session  # noqa: E402
from cpuconv.conv.session import Session  # noqa: E402
from cpuconv.network import compiling  # noqa: E402
from cpuconv.network.compiling import _prepare  # noqa: E402
from cpuconv.network.program_builder import Key  # noqa: E402
from cpuconv.network.sizes.usual_sizes import USUAL_SIZES, usual_shapes  # noqa: E402
from cpuconv.network.templating.classes import class_of  # noqa: E402
from cpuconv.runtime.code import parallel_compile  # noqa: E402
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
    environ = {**os.environ, "CPUCONV_CACHE_DIR": str(tmp_path), parallel_compile.VARIABLE: "1"}
    counts = []
    for _ in range(2):
        done = subprocess.run(python("-c", RUN), env=environ, capture_output=True, text=True, timeout=600)
        assert not done.returncode, done.stderr
        counts.append([int(word) for word in done.stdout.split()])
    (early, later), again = counts
    assert early > 2 and not later
    assert again == [0, 0]


SIGMOID = "g (float[N,4,H,W] x) => (float[N,4,P,Q] y) { y = Sigmoid(x) }"
MULTIPLES_OF_7 = """g (float[N,4,H,W] x) => (float[N,4,P,Q] y) <int64[4] halves = {0, -1, 7, 8}> {
    a = Reshape(x, halves)
    y = Sigmoid(a)
}"""


@pytest.fixture
def builder(here):
    return programs_of(cpuconv.compile(parse(SIGMOID), threads=1)).builder


def test_usual_sizes_that_a_network_takes_are_tried_in_turn(builder, monkeypatch):
    inputs, built = [*builder.definition.inputs.values()], []

    def build(key, arrays):
        built.append(key.shapes[0][2])
        if len(built) == 1:
            raise cpuconv.SourceError("too large for the memory")

    assert not [*usual_shapes(inputs, lambda shapes: False)]
    assert [*usual_shapes(inputs, lambda shapes: True)] == [((1, 4, size, size),) for size in USUAL_SIZES]
    monkeypatch.setattr(builder, "fits", lambda shapes: shapes[0][2] != USUAL_SIZES[1])
    monkeypatch.setattr(builder, "has_stored_layout", lambda shapes: False)
    monkeypatch.setattr(builder, "build", build)
    _prepare(builder)
    assert built == [USUAL_SIZES[0], USUAL_SIZES[2]]


def test_a_run_of_a_usual_size_makes_no_template(builder, monkeypatch):
    _prepare(builder)
    assert len(builder._templates) == 1
    monkeypatch.setattr(builder._templates, "add", lambda *_: pytest.fail("a template was made"))
    for size in (USUAL_SIZES[0], USUAL_SIZES[0] + 9):
        builder.build(Key(((1, 4, size, size),)), {})


def test_a_program_is_made_once_on_a_machine(builder, monkeypatch, tmp_path):
    monkeypatch.setattr(session, "current", Session(tables=tmp_path, persistent=True))
    monkeypatch.setenv("CPUCONV_CACHE_DIR", str(tmp_path))
    counts = []
    for _ in range(2):
        made = programs_of(cpuconv.compile(parse(SIGMOID), threads=1)).builder
        _prepare(made)
        counts.append(len(made._templates))
    assert counts == [1, 0]


def test_a_layout_without_kernels_does_not_count(builder, monkeypatch):
    """The folder of kernels was deleted, or a saved model comes to another machine."""
    kernels = []
    monkeypatch.setattr(builder, "has_stored_layout", lambda shapes: True)
    _prepare(builder)
    monkeypatch.setattr(builder.definition, "saved", object())
    _prepare(builder)
    assert not len(builder._templates)
    monkeypatch.setattr(builder.definition, "saved", None)
    monkeypatch.setattr(compiling, "is_cache_empty", lambda: True)
    monkeypatch.setattr(builder, "kernels", lambda shapes: kernels.append(shapes) or [])
    _prepare(builder)
    assert kernels and len(builder._templates) == 1


def test_a_loaded_model_has_kernels_where_there_are_none(here, monkeypatch, tmp_path):
    model, prepared = cpuconv.compile(parse(SIGMOID), threads=1), []
    model.save(tmp_path / "model.cpuconv")
    monkeypatch.setattr(compiling, "_prepare", prepared.append)
    loaded = cpuconv.load(tmp_path / "model.cpuconv", threads=1)
    assert prepared == [programs_of(loaded).builder]
    monkeypatch.setattr(compiling, "is_cache_empty", lambda: True)
    _prepare(programs_of(loaded).builder)
    assert len(programs_of(loaded).builder._templates) == 1


def test_nothing_is_made_where_candidates_would_be_timed(here):
    made = programs_of(cpuconv.compile(parse(SIGMOID), threads=1, strategy="profile")).builder
    _prepare(made)
    assert not len(made._templates)


def test_a_wrong_feed_does_not_represent_its_class(here):
    """Of sizes that the network cannot have. Without a representative, the first size would decide for its class."""
    model = cpuconv.compile(parse(MULTIPLES_OF_7), threads=1)
    with pytest.raises(cpuconv.CpuconvError):
        model(np.ones((1, 4, 305, 31), np.float32))
    for size in (280, 287, 294):
        assert model(np.ones((1, 4, size, 28), np.float32)).shape[2:] == (7, 8)
    builder = programs_of(model).builder
    assert builder.fits(builder._representative(class_of(((1, 4, 280, 28),))))
