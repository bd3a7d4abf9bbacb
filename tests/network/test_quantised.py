"""Networks between QuantizeLinear and DequantizeLinear: each step within one unit of ONNX Runtime's for its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from support import saturation  # noqa: E402
from support.graphs import runtime_session  # noqa: E402

LANES = current().lanes
SPACE = 6, 5


@dataclass
class Tensor:
    """Bytes of a network: their name, type, shape, scale and zero point."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    scale: float
    zero: int


@dataclass
class Network:
    """Steps from bytes to bytes, each computed on floats; its first tensor is fed."""

    draw: st.DrawFn
    tensors: list[Tensor] = field(default_factory=list)
    steps: list[tuple[list[onnx.NodeProto], list[Tensor], Tensor]] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.draw(st.integers(0, 2**16)))
        self.dtype = np.dtype(self.draw(st.sampled_from((np.uint8, np.int8))))
        self.bits = self.draw(st.sampled_from(saturation.widths())) if self.dtype == np.uint8 else 8
        channels = self.draw(st.sampled_from((3, LANES, 2 * LANES + 3, 4 * LANES, 4 * LANES + 8)))
        self.tensors.append(self.tensor((1, channels, *SPACE)))

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        """A new one."""
        low = np.iinfo(self.dtype).min
        zero = low + self.draw(st.sampled_from((0, 3, 128)))
        return Tensor(f"t{len(self.tensors)}", self.dtype, shape, float(np.float32(self.rng.uniform(0.01, 0.2))), zero)

    def weights(self, *shape: int) -> np.ndarray:
        return saturation.narrowed(self.rng.integers(-127, 128, shape, np.int8), self.bits)

    def constant(self, array: np.ndarray) -> str:
        self.constants[f"c{len(self.constants)}"] = array
        return f"c{len(self.constants) - 1}"

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """The name of an operator's result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def floats(self, tensor: Tensor) -> str:
        numbers = self.constant(np.float32(tensor.scale)), self.constant(np.array(tensor.zero, tensor.dtype))
        return self.node("DequantizeLinear", tensor.name, *numbers)

    def step(self, *read: Tensor, op, shape: tuple[int, ...]) -> None:
        """One step more: what `op` makes of floats."""
        start, y = len(self.nodes), self.tensor(shape)
        result = op(*map(self.floats, read))
        numbers = self.constant(np.float32(y.scale)), self.constant(np.array(y.zero, y.dtype))
        self.nodes.append(helper.make_node("QuantizeLinear", [result, *numbers], [y.name]))
        self.tensors.append(y)
        self.steps.append((self.nodes[start:], list(read), y))

    def pick(self, shape: tuple[int, ...] | None = None) -> Tensor:
        """An image, of that shape."""
        images = [each for each in self.tensors if len(each.shape) == 4]
        return self.draw(st.sampled_from([each for each in images if shape in (None, each.shape)]))

    # the steps
    def conv(self) -> None:
        x = self.pick()
        n, c, *space = x.shape
        groups = c if self.draw(st.booleans()) and c >= LANES else 1
        k = c if groups > 1 else self.draw(st.sampled_from((LANES, 3 * LANES + 4, 4 * LANES)))
        taps = self.draw(st.sampled_from((1, 3)))
        parts = (k,) if self.draw(st.booleans()) else ()
        w = self.weights(k, c // groups, taps, taps)
        scale = self.rng.uniform(0.001, 0.01, parts).astype(np.float32)
        bias = self.rng.integers(-3000, 3000, k, np.int32)

        def op(floats: str) -> str:
            zeros = np.zeros(parts, np.int8), np.zeros(parts, np.int32)
            unit = np.float32(x.scale) * scale
            weights = self.node("DequantizeLinear", *map(self.constant, (w, scale, zeros[0])), axis=0)
            added = self.node("DequantizeLinear", *map(self.constant, (bias, unit, zeros[1])), axis=0)
            y = self.node("Conv", floats, weights, added, group=groups, pads=[taps // 2] * 4)
            after = self.draw(st.sampled_from((None, "Relu", "HardSwish", "Sigmoid")))
            return self.node(after, y) if after else y

        self.step(x, op=op, shape=(n, k, *space))

    def dense(self) -> None:
        """A product of the planes of an image with a matrix."""
        x = self.pick()
        rows, depth, columns = x.shape[1], int(np.prod(x.shape[2:])), self.draw(st.sampled_from((5, LANES, 4 * LANES)))
        shape = self.constant(np.int64([rows, depth]))
        self.step(x, op=lambda a: self.node("Reshape", a, shape), shape=(rows, depth))
        flat, parts = self.tensors[-1], (columns,) if self.draw(st.booleans()) else ()
        w = self.weights(depth, columns)
        scale, zero = self.rng.uniform(0.001, 0.01, parts).astype(np.float32), np.zeros(parts, np.int8)
        bias, unit = self.rng.integers(-3000, 3000, columns, np.int32), np.float32(flat.scale) * scale
        turned, biased = self.draw(st.booleans()), self.draw(st.booleans())

        def op(floats: str) -> str:
            numbers = map(self.constant, (w.T.copy() if turned else w, scale, zero))
            weights = self.node("DequantizeLinear", *numbers, axis=0 if turned else 1)
            if not turned:
                y = self.node("MatMul", floats, weights)
                added = self.constant((bias * unit).astype(np.float32))
                return self.node("Add", *([added, y] if columns > 5 else [y, added])) if biased else y
            numbers = map(self.constant, (bias, unit, zero.astype(np.int32)))
            return self.node("Gemm", floats, weights, self.node("DequantizeLinear", *numbers, axis=0), transB=1)

        self.step(flat, op=op, shape=(rows, columns))

    def attend(self) -> None:
        """A product of two images, the second perhaps transposed as floats."""
        x = self.pick()
        y = self.pick(x.shape)
        n, c, h, _ = x.shape
        planes, columns, shape = [0, 1, 2, 3], [0, 1, 3, 2], (n, c, h, h)
        if self.draw(st.booleans()):  # matrices of channels, a row of the image each
            planes, columns, shape = [0, 2, 1, 3], [0, 2, 3, 1], (n, h, c, c)

        def op(a: str, b: str) -> str:
            return self.node("MatMul", self.node("Transpose", a, perm=planes), self.node("Transpose", b, perm=columns))

        self.step(x, y, op=op, shape=shape)

    def add(self) -> None:
        x = self.pick()
        y = self.pick(x.shape)
        relu = self.draw(st.booleans())
        self.step(
            x,
            y,
            op=lambda a, b: self.node("Relu", self.node("Add", a, b)) if relu else self.node("Add", a, b),
            shape=x.shape,
        )

    def gate(self) -> None:
        x = self.pick()
        if self.draw(st.booleans()):
            self.step(x, op=lambda a: self.node("Mul", a, self.node("Sigmoid", a)), shape=x.shape)
        else:
            self.step(x, op=lambda a: self.node("Sigmoid", a), shape=x.shape)
            self.step(x, self.tensors[-1], op=lambda a, b: self.node("Mul", a, b), shape=x.shape)

    def excite(self) -> None:
        x = self.pick()
        mean = (*x.shape[:2], 1, 1)
        self.step(x, op=lambda a: self.node("GlobalAveragePool", a), shape=mean)
        self.step(x, self.tensors[-1], op=lambda a, b: self.node("Mul", a, b), shape=x.shape)

    def concat(self) -> None:
        x = self.pick()
        y = self.draw(
            st.sampled_from([each for each in self.tensors if len(each.shape) == 4 and each.shape[2:] == x.shape[2:]])
        )
        shape = (1, x.shape[1] + y.shape[1], *x.shape[2:])
        self.step(x, y, op=lambda a, b: self.node("Concat", a, b, axis=1), shape=shape)

    def swap(self) -> None:
        """Halves of channels change places."""
        x = self.pick()
        sizes = [x.shape[1] // 2, x.shape[1] - x.shape[1] // 2]

        def op(floats: str) -> str:
            halves = [f"{floats}.{at}" for at in range(2)]
            self.nodes.append(helper.make_node("Split", [floats, self.constant(np.int64(sizes))], halves, axis=1))
            return self.node("Concat", *halves[::-1], axis=1)

        self.step(x, op=op, shape=x.shape)

    def pool(self) -> None:
        x = self.pick()
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        name = self.draw(st.sampled_from(("MaxPool", "AveragePool")))
        if name == "AveragePool":
            window["count_include_pad"] = self.draw(st.sampled_from((0, 1)))
        self.step(x, op=lambda a: self.node(name, a, **window), shape=x.shape)

    def larger(self) -> None:
        x = self.pick()
        scales = self.constant(np.float32([1, 1, 2, 2]))
        shape = (*x.shape[:2], *(2 * size for size in x.shape[2:]))
        if max(shape[2:]) < 30:
            mode = self.draw(st.sampled_from(("nearest", "linear")))
            self.step(x, op=lambda a: self.node("Resize", a, "", scales, mode=mode), shape=shape)

    def pad(self) -> None:
        x = self.pick()
        pads = self.constant(np.int64([0, 0, 1, 0, 0, 0, 2, 1]))
        number = [self.constant(np.float32(x.scale * 3))] if self.draw(st.booleans()) else []
        mode = "constant" if number else self.draw(st.sampled_from(("constant", "edge", "reflect")))
        shape = (*x.shape[:2], x.shape[2] + 3, x.shape[3] + 1)
        self.step(x, op=lambda a: self.node("Pad", a, pads, *number, mode=mode), shape=shape)

    def transposed(self) -> None:
        x = self.pick()
        if max(x.shape[2:]) > 15:
            return
        step, groups = self.draw(st.sampled_from((1, 2))), self.draw(st.sampled_from((1, 1, x.shape[1])))
        each = 1 if groups > 1 else self.draw(st.sampled_from((5, LANES, 4 * LANES)))
        taps = self.draw(st.sampled_from((step, step + 1, 2 * step)))
        w = self.weights(x.shape[1], each, taps, taps)
        parts = (each,) if self.draw(st.booleans()) else ()
        scale, zero = self.rng.uniform(0.001, 0.01, parts).astype(np.float32), np.zeros(parts, np.int8)
        bias = self.rng.normal(size=each * groups).astype(np.float32)

        def op(floats: str) -> str:
            weights = self.node("DequantizeLinear", *map(self.constant, (w, scale, zero)), axis=1)
            return self.node("ConvTranspose", floats, weights, self.constant(bias), strides=[step] * 2, group=groups)

        space = [(size - 1) * step + taps for size in x.shape[2:]]
        self.step(x, op=op, shape=(1, each * groups, *space))

    # models
    def model(self, nodes: list[onnx.NodeProto], inputs: list[Tensor], outputs: list[Tensor]) -> onnx.ModelProto:
        def infos(tensors: list[Tensor]) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(each.name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
                for each in {each.name: each for each in tensors}.values()
            ]

        read = {name for node in nodes for name in node.input}
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items() if name in read]
        graph = helper.make_graph(nodes, "quantised", infos(inputs), infos(outputs), weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@st.composite
def networks(draw):
    made = Network(draw)
    for name in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=5)):
        getattr(made, name)()
    return made


STEPS = ("conv", "conv", "conv", "dense", "attend", "add", "gate", "excite", "concat", "swap", "pool", "larger")
STEPS += ("larger", "pad", "transposed")


def _check(made: Network) -> None:
    first, *others = made.tensors
    low, high = np.iinfo(first.dtype).min, np.iinfo(first.dtype).max
    x = made.rng.integers(low, high, first.shape, first.dtype, endpoint=True)
    whole = made.model(made.nodes, [first], others)
    compiled = cpuconv.compile(whole, strategy="heuristic", threads=1)
    floats = {"AveragePool", "Conv", "ConvTranspose", "Gemm", "Linear", "MatMul"}
    assert not floats & {each["op"] for each in compiled.explain().to_dict()["operators"]}
    found = {first.name: x} | dict(compiled.run({first.name: x}))
    for nodes, read, y in made.steps:
        model = made.model(nodes, read, [y])
        feed = {each.name: found[each.name] for each in read}
        (wanted,) = runtime_session(runtime, model).run(None, feed)
        assert (found[y.name].dtype, found[y.name].shape) == (wanted.dtype, wanted.shape)
        apart = np.abs(found[y.name].astype(int) - wanted.astype(int))
        kinds = [node.op_type for node in nodes]
        assert apart.max() <= 1 and np.mean(apart) < 0.02, (kinds, read, y, apart.max(), np.mean(apart))


def test_padding_by_the_zero_point_goes_into_the_convolution():
    """A Pad of the same scale, as exporters write it before a convolution of stride 2."""
    x = np.random.default_rng(0).integers(0, 256, (1, 8, 9, 9), np.uint8)
    for number, left in ((0.0, False), (0.1, True)):
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["f"]),
            helper.make_node("Pad", ["f", "pads", "number"], ["p"]),
            helper.make_node("QuantizeLinear", ["p", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["g"]),
            helper.make_node("DequantizeLinear", ["w", "scale", "none"], ["v"]),
            helper.make_node("Conv", ["g", "v"], ["c"], strides=[2, 2]),
            helper.make_node("QuantizeLinear", ["c", "large", "zero"], ["y"]),
        ]
        w = np.random.default_rng(1).integers(-9, 10, (4, 8, 3, 3), np.int8)
        arrays = {"scale": np.float32(0.1), "zero": np.uint8(99), "none": np.int8(0), "large": np.float32(3.7), "w": w}
        arrays |= {"pads": np.int64([0, 0, 0, 0, 0, 0, 1, 1]), "number": np.float32(number)}
        tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
        ends = [
            helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape)
            for name, shape in (("x", x.shape), ("y", (1, 4, 4, 4)))
        ]
        graph = helper.make_graph(nodes, "padded", ends[:1], ends[1:], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        compiled = cpuconv.compile(model, strategy="heuristic", threads=1)
        assert ("Pad" in {each["op"] for each in compiled.explain().to_dict()["operators"]}) == left
        y = compiled.run({"x": x})["y"].astype(int)
        (wanted,) = runtime_session(runtime, model).run(None, {"x": x})
        assert np.abs(y - wanted).max() <= 1


@pytest.mark.parametrize("dtype", (np.uint8, np.int8))
@pytest.mark.parametrize("fine", (0.8, 1.5, 3.0))
@pytest.mark.parametrize("op", ("MatMul", "Conv"))
def test_a_bias_behind_bytes(op, fine, dtype, tmp_path):
    """Rounded once in place of twice, cut off where bytes between are; not where steps between are coarse."""
    rng, low = np.random.default_rng(0), np.iinfo(dtype).min
    w = saturation.narrowed(rng.integers(-127, 128, (24, 40) if op == "MatMul" else (40, 24, 1, 1), np.int8), 7)
    added = rng.normal(0, 4, 40).astype(np.float32).reshape(-1, *[1] * (w.ndim - 2))
    x = rng.integers(low, low + 256, (1, 24, 5, 24)).astype(dtype)
    arrays = {"w": w, "added": added, "x_scale": np.float32(0.05), "w_scale": np.float32(0.02), "zero": np.int8(0)}
    arrays |= {"s": np.float32(0.1 * fine), "z": dtype(low + 140), "t": np.float32(0.1), "u": dtype(low + 100)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "u"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "zero"], ["v"]),
        helper.make_node(op, ["f", "v"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["g"]),
        helper.make_node("Add", ["added", "g"], ["sum"]),
        helper.make_node("QuantizeLinear", ["sum", "t", "u"], ["y"]),
    ]
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    ends = [helper.make_tensor_value_info(name, element, shape) for name, shape in (("x", x.shape), ("y", None))]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "biased", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = cpuconv.compile(model, strategy="heuristic", threads=1)
    product = "QuantizedLinear" if op == "MatMul" else "QuantizedConv"
    kinds = {each["op"] for each in compiled.explain().to_dict()["operators"]} - {"Copy"}
    assert kinds == ({product} if fine < 1.9 else {product, "Elementwise"})
    compiled.save(tmp_path / "biased.cpuconv")
    loaded = cpuconv.load(tmp_path / "biased.cpuconv")
    y = compiled.run({"x": x})["y"]
    assert (loaded.run({"x": x})["y"] == y).all()
    (wanted,) = runtime_session(runtime, model).run(None, {"x": x})
    assert (wanted == wanted.max()).mean() > 0.01 or fine < 1  # bytes between are cut off
    apart = np.abs(y.astype(int) - wanted)
    assert np.mean(apart) < 0.02 if fine > 1.9 else apart.max() <= 1  # one of coarse steps is several


@pytest.mark.parametrize(("dtype", "weights"), [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize(
    ("attributes", "kernel", "groups"),
    [
        ({"pads": [1, 1, 1, 1, 1, 1]}, (3, 3, 3), 1),
        ({"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 2, 0]}, (3, 3, 3), 1),
        ({"dilations": [2, 1, 2], "pads": [3, 0, 0, 2, 0, 0]}, (3, 1, 2), 1),
        ({"pads": [0, 1, 1, 0, 1, 1]}, (1, 3, 3), 6),
        ({"pads": [1, 1, 1, 1, 1, 1]}, (3, 3, 3), 2),
        ({"pads": [1, 1, 1, 1, 1, 1], "strides": [1, 2, 2]}, (3, 3, 3), 6),
    ],
)
def test_convolutions_of_volumes(attributes, kernel, groups, dtype, weights):
    """Around volumes is the zero point; where convolutions of images are added up, they give floats."""
    rng, low = np.random.default_rng(0), np.iinfo(dtype).min
    x = rng.integers(low, low + 256, (2, 6, 5, 4, 6)).astype(dtype)
    arrays = {"w": saturation.narrowed(rng.integers(-127, 128, (6, 6 // groups, *kernel), np.int8), 7)}
    arrays |= {"scale": np.float32(0.1), "zero": dtype(low + 77), "large": np.float32(2), "middle": dtype(low + 130)}
    if weights == np.uint8:
        arrays["w"] = (arrays["w"].astype(int) + 128).astype(weights)
    arrays |= {"scales": np.linspace(0.01, 0.02, 6, dtype=np.float32)}
    arrays["middles"] = np.full(6, 128 if weights == np.uint8 else 0, weights)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "scales", "middles"], ["v"], axis=0),
        helper.make_node("Conv", ["f", "v"], ["c"], group=groups, **attributes),
        helper.make_node("QuantizeLinear", ["c", "large", "middle"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    ends = [helper.make_tensor_value_info(name, element, shape) for name, shape in (("x", x.shape), ("y", None))]
    graph = helper.make_graph(nodes, "volumes", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = cpuconv.compile(model, strategy="heuristic", threads=1)
    found = {each["op"] for each in compiled.explain().to_dict()["operators"]}
    of_sums = set() if groups == 1 or kernel[0] == 1 else {"QuantizeLinear"}
    assert found & {"Conv", "QuantizedConv", "DequantizeLinear", "QuantizeLinear"} == {"QuantizedConv"} | of_sums
    y = compiled.run({"x": x})["y"].astype(int)
    (wanted,) = runtime_session(runtime, model).run(None, {"x": x})
    assert y.shape == wanted.shape and np.abs(y - wanted).max() <= 1 and np.ptp(y) > 20


@settings(max_examples=12, deadline=None)
@given(networks())
def test_every_step_of_random_networks(made):
    _check(made)
