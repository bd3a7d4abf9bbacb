"""Modelled time of a network on an Arm board."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench import arm_model
from bench.mca import cores

SIZES = 1, 64, 64, 64  # of input and output
MULTIPLY_ADDS = 64 * 64 * 64 * 64


def test_a_convolution_takes_more_than_its_multiply_adds(tmp_path):
    try:
        cores.tool()
    except cores.Unavailable as missing:
        pytest.skip(str(missing))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]
    ports = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, SIZES)] for name in "xy")
    weights = numpy_helper.from_array(np.ones((64, 64, 1, 1), np.float32), "w")
    model = helper.make_model(helper.make_graph(nodes, "conv", *ports, [weights]), ir_version=8)
    (path := tmp_path / "conv.onnx").write_bytes(model.SerializeToString())
    board = arm_model.BOARDS["pi5"]
    one, four = arm_model.modelled(board, [path], (1, 4))
    least = MULTIPLY_ADDS / (8 * board.clock)
    assert least < arm_model.total(one["parts"]) < 3 * least
    assert arm_model.total(four["parts"]) < 0.5 * arm_model.total(one["parts"])
    assert 0 < one["parts"][arm_model.FUNCTIONS] < one["parts"]["Conv"] - least


def test_float16_takes_less(tmp_path):
    try:
        cores.tool()
    except cores.Unavailable as missing:
        pytest.skip(str(missing))
    nodes = []
    for at in range(8):
        nodes.append(helper.make_node("Conv", [f"x{at}", "w"], [f"c{at}"]))
        nodes.append(helper.make_node("Sigmoid", [f"c{at}"], [f"s{at}"]))
        nodes.append(helper.make_node("Mul", [f"c{at}", f"s{at}"], [f"x{at + 1}"]))
    ports = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, SIZES)] for name in ("x0", "x8"))
    weights = numpy_helper.from_array(np.ones((64, 64, 1, 1), np.float32), "w")
    model = helper.make_model(helper.make_graph(nodes, "convs", *ports, [weights]), ir_version=8)
    (path := tmp_path / "convs.onnx").write_bytes(model.SerializeToString())
    (whole,), (half,) = (
        arm_model.modelled(arm_model.BOARDS["pi5"], [path], (1,), precision) for precision in ("float32", "float16")
    )
    assert arm_model.total(half["parts"]) < 0.65 * arm_model.total(whole["parts"])
    assert 0 < half["parts"][arm_model.FUNCTIONS] < 0.6 * whole["parts"][arm_model.FUNCTIONS]
