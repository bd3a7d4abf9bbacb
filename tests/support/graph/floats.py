"""Networks of float32 with random weights, to be quantised, and what one of bytes is cut into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import cpuconv
from support.graphs import parse

RESIDUAL = (
    """g (float[N,3,12,12] x) => (float[N,7] y) {
    a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w1, b1)
    n = BatchNormalization(a, scale, shift, mean, var)
    r = Relu(n)
    c = Conv<pads=[1,1,1,1]>(r, w2, b2)
    d = Conv<pads=[1,1,1,1], group=16>(r, w3)
    s = Add(c, d)
    t = Relu(s)
    e = Conv(t, w4, b4)
    f = Conv<pads=[1,1,1,1]>(t, w5, b5)
    g1 = Relu(e)
    h = LeakyRelu<alpha=0.1>(f)
    j = Concat<axis=1>(g1, h)
    p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(j)
    i = AveragePool<kernel_shape=[2,2]>(p)
    k = GlobalAveragePool(i)
    l = Flatten(k)
    y = Gemm<transB=1>(l, w6, b6)
}""",
    {
        "w1": (16, 3, 3, 3), "b1": (16,), "scale": (16,), "shift": (16,), "mean": (16,), "var": (16,),
        "w2": (16, 16, 3, 3), "b2": (16,), "w3": (16, 1, 3, 3), "w4": (8, 16, 1, 1), "b4": (8,), "w5": (12, 16, 3, 3),
        "b5": (12,), "w6": (7, 20), "b6": (7,),
    },
)  # fmt: skip
EXCITED = (
    """g (float[N,8,9,9] x) => (float[N,6,10,10] y, float[N,16] z) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    b = Sigmoid(a)
    c = Mul(a, b)
    m = GlobalAveragePool(c)
    s = Conv(m, w2, b2)
    t = Relu(s)
    u = Conv(t, w3, b3)
    v = HardSigmoid(u)
    e = Mul(c, v)
    k = Conv<strides=[2,2], pads=[1,1,1,1]>(e, w4, b4)
    l = Clip(k, zero, six)
    o = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(l, none, twice)
    y = Conv(o, w5, b5)
    q = Flatten(v)
    r = MatMul(q, w6)
    z = HardSwish(r)
}""",
    {
        "w1": (16, 8, 3, 3), "b1": (16,), "w2": (4, 16, 1, 1), "b2": (4,), "w3": (16, 4, 1, 1), "b3": (16,),
        "w4": (8, 16, 3, 3), "b4": (8,), "w5": (6, 8, 1, 1), "b5": (6,), "w6": (16, 16),
    },
)  # fmt: skip
DECODER = (
    """g (float[N,6,7,7] x) => (float[N,5] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1, b1)
    r = Relu(a)
    u = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(r, w2, b2)
    t = Relu(u)
    s = Softmax<axis=1>(t)
    c = ConvTranspose(s, w3)
    e = Add(c, t)
    h = HardSwish(e)
    m = ReduceMean<axes=[3]>(h)
    f = Flatten(m)
    y = Gemm(f, w4, b4)
}""",
    {"w1": (12, 6, 3, 3), "b1": (12,), "w2": (12, 8, 4, 4), "b2": (8,), "w3": (8, 8, 1, 1), "w4": (112, 5), "b4": (5,)},
)
NETWORKS = {"residual": RESIDUAL, "excited": EXCITED, "decoder": DECODER}


def network(name: str, seed: int = 0) -> onnx.ModelProto:
    """One of them."""
    text, weights = NETWORKS[name]
    return with_weights(parse(text, 17), weights, seed)


def with_weights(model: onnx.ModelProto, weights: Mapping[str, tuple[int, ...]], seed: int = 0) -> onnx.ModelProto:
    """A model with random weights of these shapes, and a few constants by the names that they have."""
    rng = np.random.default_rng(seed)
    arrays = {
        "zero": np.float32(0),
        "six": np.float32(6),
        "none": np.zeros(0, np.float32),
        "twice": np.float32([1, 1, 2, 2]),
    }
    for key, shape in weights.items():
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 16
        arrays[key] = (rng.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)
        if key == "var":
            arrays[key] = rng.uniform(0.5, 2, shape).astype(np.float32)
    read = {key for node in model.graph.node for key in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in arrays.items() if key in read)
    return model


def feeds(model: onnx.ModelProto, count: int, batch: int = 2, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Samples as images are: planes of some mean, which is bounded, and noise."""
    rng, (info,) = np.random.default_rng(seed), model.graph.input
    shape = [batch, *(dim.dim_value for dim in info.type.tensor_type.shape.dim[1:])]
    planes = (*shape[:2], *[1] * (len(shape) - 2))
    return [
        {info.name: (rng.standard_normal(shape) + rng.uniform(-2, 2, planes)).astype(np.float32)} for _ in range(count)
    ]


def steps(
    model: onnx.ModelProto, feed: Mapping[str, np.ndarray]
) -> list[tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    """What lies before each QuantizeLinear, up to the bytes that it computes from, as models; and these bytes."""
    import onnxruntime

    makers = {output: node for node in model.graph.node for output in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    wholes = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    given = _run(onnxruntime, model, [node.output[0] for node in wholes], feed) | dict(feed)
    found = []
    for whole in wholes:
        nodes, read, left = [], {}, [whole.output[0]]
        while left:
            name = left.pop()
            if name in read or name in constants or not name:
                continue
            if name in given and name != whole.output[0]:
                read[name] = given[name]
                continue
            node = makers[name]
            if node not in nodes:
                nodes.append(node)
                left += node.input
        nodes = [node for node in model.graph.node if node in nodes]
        inputs = [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in read.items()
        ]
        dtype = helper.np_dtype_to_tensor_dtype(given[whole.output[0]].dtype)
        outputs = [helper.make_tensor_value_info(whole.output[0], dtype, None)]
        used = {key for node in nodes for key in node.input}
        tensors = [tensor for key, tensor in constants.items() if key in used]
        graph = helper.make_graph(nodes, "step", inputs, outputs, tensors)
        part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        found.append((part, read))
    return found


def _info(name, dtype, shape):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def _run(onnxruntime, model, names, feed):
    """Inner tensors of a model by ONNX Runtime, nothing fused."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(list(names), dict(feed)), strict=True))


def run_all(model: onnx.ModelProto, feed: Mapping[str, np.ndarray], *, fused: bool = True) -> dict[str, np.ndarray]:
    """The outputs of a model by ONNX Runtime."""
    import onnxruntime

    if not fused:
        return _run(onnxruntime, model, [info.name for info in model.graph.output], feed)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [info.name for info in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def check_int8_layers(source: onnx.ModelProto, path: Path, feed: Mapping[str, np.ndarray]) -> None:
    """Check the file that `quantize` made of a float32 network: no layer computes in float32, its output y is near
    that of the network and that of ONNX Runtime, and each int8 tensor is within one unit of ONNX Runtime's.
    """
    model = onnx.load(path)
    compiled = cpuconv.compile(model, threads=1, input_shapes={name: array.shape for name, array in feed.items()})
    left = {row["op"] for row in compiled.explain().to_dict()["operators"]}
    assert not left & {"Conv", "ConvTranspose", "Gemm", "Linear", "MatMul"}, left
    exact, theirs, ours = run_all(source, feed)["y"], run_all(model, feed)["y"], compiled.run(feed)["y"]
    assert np.linalg.norm(ours - exact) < 0.05 * np.linalg.norm(exact)
    assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(exact)
    for part, given in steps(model, feed):
        (expected,) = run_all(part, given, fused=False).values()
        (result,) = cpuconv.compile(part, threads=1).run(given).values()
        assert np.abs(result.astype(int) - expected).max() <= 1, part.graph.output[0].name
