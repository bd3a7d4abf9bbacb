"""Small networks whose files are damaged: convolutions, computed shapes, loops and branches of constants."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.graphs import parse

CONVOLUTIONS = """g (float[1,3,9,8] x) => (float[] y, float[] z) {
    a = Conv<pads = [1, 1, 1, 1], kernel_shape = [3, 3]>(x, w, b)
    n = BatchNormalization<epsilon = 0.001>(a, b, b, b, v)
    r = Clip(n, low, high)
    p = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(r)
    s, t = Split<axis = 1>(p, halves)
    q = Concat<axis = 1>(t, s)
    u = Resize<mode = "nearest">(q, , , sizes)
    i = Reshape(u, shape)
    y = Softmax<axis = 2>(i)
    g = GlobalAveragePool(p)
    f = Flatten(g)
    z = Gemm<transB = 1>(f, m, c)
}"""
SHAPES = """g (float[N,3,H,8] x) => (float[] y) {
    s = Shape(x)
    n = Gather<axis = 0>(s, zero)
    k = Concat<axis = 0>(n, rest)
    r = Reshape(x, k)
    e = Transpose<perm = [0, 2, 1]>(r)
    o = ReduceMean<axes = [0]>(e)
    d = Slice(o, starts, ends, axes)
    m = Pad(d, pads)
    y = Sigmoid(m)
}"""


def damageable() -> list[onnx.ModelProto]:
    rng = np.random.default_rng(0)
    weights = {"w": (6, 3, 3, 3), "b": (6,), "v": (6,), "m": (4, 6), "c": (4,)}
    first = parse(
        CONVOLUTIONS,
        **{name: np.abs(rng.standard_normal(shape)).astype(np.float32) for name, shape in weights.items()},
        low=np.float32(0), high=np.float32(6), halves=np.array([2, 4]), sizes=np.array([1, 6, 8, 7]),
        shape=np.array([1, 6, -1]),
    )  # fmt: skip
    second = parse(
        SHAPES, zero=np.array([0]), rest=np.array([3, -1]), starts=np.array([1]), ends=np.array([9]),
        axes=np.array([0]), pads=np.array([1, 0, 0, 1]),
    )  # fmt: skip
    return [first, second]


def _loop(body: list[onnx.NodeProto], constants: dict[str, object]) -> onnx.NodeProto:
    """y = `body`, which makes `w` of `v`, from `a` on: `m` times, without it while `t` holds."""
    named = {"i": (TensorProto.INT64, []), "c": (TensorProto.BOOL, []), "v": (TensorProto.FLOAT, None)}
    inputs = [helper.make_tensor_value_info(name, *stated) for name, stated in named.items()]
    outputs = [
        helper.make_tensor_value_info("again", TensorProto.BOOL, []),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph([helper.make_node("Identity", ["c"], ["again"]), *body], "body", inputs, outputs)
    return helper.make_node("Loop", ["m" if "m" in constants else "", "t", "a"], ["y"], body=graph)


def looping(op: str, operands: int, within: int = 0, **constants: object) -> onnx.ModelProto:
    """A network that is such a Loop, in others if need be, of constants."""
    constants = {"t": np.array(True), "a": np.ones(2, np.float32), **constants}
    attributes = {"axis": 0} if op == "Concat" else {}
    node = _loop([helper.make_node(op, ["v"] * operands, ["w"], **attributes)], constants)
    for _ in range(within):
        node.output[0], node.input[2] = "w", "v"
        node = _loop([node], constants)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", [], [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def nested(depth: int) -> onnx.ModelProto:
    """An If within an If, in one branch of each."""
    last = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "b", [], [onnx.ValueInfoProto(name="n")])
    inner = last
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["n"], then_branch=inner, else_branch=last)
        inner = helper.make_graph([node], "b", [], [onnx.ValueInfoProto(name="n")])
    inner.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]))
    inner.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    return helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
