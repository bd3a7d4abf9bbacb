"""ConvInteger of groups by the kernels of bytes: the sums of NumPy's integers, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import TABLE
from cpuconv.graph.passes import integers
from cpuconv.network.interpret import interpret
from support.graph.draws import GENERATORS
from support.graph.quantised import _some as some

FLOAT = np.dtype(np.float32)


def network(x, w, zero, w_zero, **attributes) -> Graph:
    """Sums of a convolution of bytes, as floats."""
    constants = {"w": w} | ({} if w_zero is None else {"w_zero": w_zero})
    names = ["x", "w", "" if zero is None else "zero", *(["w_zero"] if w_zero is not None else [])]
    node = TABLE["ConvInteger"].node(names, ["sums"], "product", **attributes)
    fed = {"x": x} | ({} if zero is None else {"zero": zero})
    values = {name: Value(array.shape, array.dtype) for name, array in fed.items()}
    known = [Value.of(fed[name]) if name in fed else Value.of(constants[name]) if name else None for name in names]
    (values["sums"],) = TABLE["ConvInteger"].infer(node, known)
    values["y"] = Value(values["sums"].shape, FLOAT)
    cast = TABLE["Cast"].node(["sums"], ["y"], "floats", to=FLOAT)
    return Graph(tuple(fed), ("y",), (node, cast), constants, values)


@st.composite
def drawn(draw):
    """Operands and attributes: of 1 group or more, and depthwise."""
    rng, rank, groups = draw(GENERATORS), draw(st.integers(1, 2)), draw(st.sampled_from((1, 2, 3, 5)))
    each, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, strides, gaps = ([draw(st.integers(1, most)) for _ in range(rank)] for most in (3, 2, 2))
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    x = some(rng, (2, groups * each, *[7] * rank), np.dtype(draw(st.sampled_from((np.uint8, np.int8)))))
    w_type = np.dtype(draw(st.sampled_from((np.uint8, np.int8))))
    w = some(rng, (groups * outputs, each, *kernel), w_type)
    zero = some(rng, (), x.dtype) if draw(st.booleans()) else None
    points = [None, np.asarray(128 if w_type == np.uint8 else 0, w_type), some(rng, (len(w),), w_type)]
    w_zero = draw(st.sampled_from(points))
    attributes = {"group": groups, "strides": strides, "dilations": gaps, "pads": pads}
    return network(x, w, zero, w_zero, **attributes), {"x": x} | ({} if zero is None else {"zero": zero})


@settings(max_examples=150, deadline=None)
@given(drawn())
def test_any_sums_are_exact(case):
    graph, feed = case
    made = integers.run(graph)
    assert "ConvInteger" not in [node.op for node in made.nodes]
    (before,), (after,) = interpret(graph, feed).values(), interpret(made, feed).values()
    np.testing.assert_array_equal(after, before)


CASES = {
    "depthwise": ((1, 24, 9, 9), (24, 1, 3, 3), {"group": 24}),
    "depthwise, over padding": ((2, 24, 9, 9), (24, 1, 5, 5), {"pads": [2, 2, 2, 2], "group": 24, "strides": [2, 2]}),
    "groups of 4": ((1, 16, 9, 9), (32, 4, 3, 3), {"pads": [1, 1, 1, 1], "group": 4}),
    "groups, dilated": ((1, 12, 9, 9), (6, 4, 3, 3), {"pads": [2, 1, 0, 1], "group": 3, "dilations": [2, 1]}),
    "lines": ((2, 16, 20), (16, 2, 3), {"pads": [1, 1], "group": 8}),
}


@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels_give_the_same_bits(case, x_type):
    import onnx
    from onnx import helper, numpy_helper

    (shape, w_shape, attributes), rng = case, np.random.default_rng(0)
    dtype = np.dtype(x_type)
    x, zero, w = some(rng, shape, dtype), some(rng, (), dtype), some(rng, w_shape, np.dtype(np.int8))
    kinds = [helper.np_dtype_to_tensor_dtype(dtype)] * 2
    nodes = [
        helper.make_node("ConvInteger", ["x", "w", "zero"], ["sums"], **attributes),
        helper.make_node("Cast", ["sums"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    inputs = [
        helper.make_tensor_value_info(name, kind, array.shape)
        for name, kind, array in zip(("x", "zero"), kinds, (x, zero), strict=True)
    ]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = cpuconv.compile(model, strategy="heuristic", threads=1)
    ops = [row["op"] for row in compiled.explain().to_dict()["operators"]]
    by_floats = w_shape[1] == 1 and "pads" in attributes
    assert {"Conv", "QuantizedConv", "ConvInteger"} & {*ops} == {"Conv" if by_floats else "QuantizedConv"}
    exact = interpret(network(x, w, zero, None, **attributes), {"x": x, "zero": zero})["y"]
    np.testing.assert_array_equal(compiled.run({"x": x, "zero": zero})["y"], exact)
