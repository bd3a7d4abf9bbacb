"""Conversions that are folded into the first layer: equal to those before it."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import cpuconv
from cpuconv.conv.choice.target import PRECISION_BF16, Target
from cpuconv.errors import ArgumentError
from cpuconv.images.folding import folded
from cpuconv.isa import current
from cpuconv.reading.onnx_reader import read
from support.graph.floats import with_weights
from support.graphs import parse
from support.machines import AVX2, ZEN4
from support.pictures import converter, random

QUANTISED = """g (float[1,3,16,18] x) => (float[1,8,8,9] y) <float s = {{ {step} }}, {dtype} z = {{ {zero} }}> {{
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    y = Conv<pads = [1,1,1,1], strides = [2,2]>(d, w)
}}"""
FLOAT = """g (float[1,3,16,18] x) => (float[1,8,{size}] y) {{ y = Conv<pads = [{pad},{pad},{pad},{pad}]>(x, w, b) }}"""
IMAGENET = cpuconv.Image.imagenet(shorter=20)
WEIGHTS = {"w": (8, 3, 3, 3), "b": (8,)}


@pytest.mark.parametrize("dtype, zero", [("uint8", 117), ("int8", -11)])
def test_quantised_inputs_are_written_as_integers(dtype, zero, tmp_path):
    source = with_weights(parse(QUANTISED.format(step=0.0193, dtype=dtype, zero=zero), 17), WEIGHTS)
    model = cpuconv.compile(source, images={"x": IMAGENET}, threads=1)
    plain = cpuconv.compile(source, threads=1).with_images({"x": IMAGENET})
    assert model.inputs[0].dtype.itemsize == 1 and plain.inputs[0].dtype == np.float32
    assert "QuantizeLinear" not in {line.split()[1] for line in str(model.explain()).splitlines() if " " in line}
    model.save(tmp_path / "model")
    saved = cpuconv.load(tmp_path / "model")
    for seed in range(3):
        picture = random(30, 40, 3, seed=seed)
        for each in (model, saved):
            np.testing.assert_array_equal(each(picture), plain(picture))
    with pytest.raises(ArgumentError, match="'images' must be left out"):
        saved.with_images({"x": cpuconv.Image.yolo()})
    model.run(model.pictures.examples())


def test_casts_of_pixels_are_left_out():
    text = (
        FLOAT.replace("y = Conv", "c = Cast<to = 1>(x) y = Conv")
        .replace("(x, w", "(c, w")
        .replace("float[1,3", "uint8[1,3")
    )
    source, picture = with_weights(parse(text.format(pad=1, size="16,18"), 17), WEIGHTS), random(30, 40, 3)
    for image, dtype in ((cpuconv.Image(scale=1), "float32"), (cpuconv.Image(scale=0.5), "uint8")):
        model = cpuconv.compile(source, images={"x": image}, threads=1)
        assert model.inputs[0].dtype == dtype
        plain = cpuconv.compile(source, threads=1).with_images({"x": image})
        np.testing.assert_array_equal(model(picture), plain(picture))


@pytest.mark.parametrize("step, fill", [(2 / 255, 114), (4 / 255, 114), (1 / 255, 0.5)])
def test_ties_are_rounded_by_the_network(step, fill):
    """Where pixels or the fill value are halves of a step, float32 decides: the network keeps its QuantizeLinear."""
    graph = read(with_weights(parse(QUANTISED.format(step=step, dtype="uint8", zero=3), 17), WEIGHTS))
    assert folded(graph, {"x": cpuconv.Image.yolo(fill=fill)}, Target(current(), 1)) == (graph, {})


@pytest.mark.parametrize(
    "pad, image, raw", [(0, IMAGENET, True), (1, IMAGENET, False), (1, cpuconv.Image.yolo(), True)]
)
def test_bfloat16_inputs(pad, image, raw):
    """Scale and mean are in the weights where no padding is read; pixels then lose nothing by bfloat16."""
    source = with_weights(parse(FLOAT.format(pad=pad, size="16,18" if pad else "14,16"), 17), WEIGHTS)
    graph, picture = read(source), random(30, 40, 3)
    target = Target(ZEN4, 1, precision=PRECISION_BF16)
    made, numbers = folded(graph, {"x": image}, target)
    assert (numbers["x"] == ((1.0, 0.0),) * 3) == raw
    array = converter((16, 18), image)(picture).array
    expected = cpuconv.compile(source, threads=1)(array)
    given = converter((16, 18), replace(image, mean=0, scale=1))(picture).array if raw else array
    actual = cpuconv.compile(made, threads=1)(given.astype(ml_dtypes.bfloat16))
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert error < (1e-5 if raw else 2**-8)
    for other in (replace(target, isa=AVX2), replace(target, node_precisions={"y": "float32"}), target.at("float32")):
        assert folded(graph, {"x": image}, other) == (graph, {})
    whole = cpuconv.compile(source, threads=1, precision="bfloat16", images={"x": image})(picture)
    assert np.abs(whole - expected).max() / np.abs(expected).max() < 0.02
