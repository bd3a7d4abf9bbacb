"""Random networks of usual components: stems, stages of equal blocks, pooling, heads.

Packs have their kernels, so that most kernels of other networks are in a pack, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
SIZES = ((224, 224),) * 6 + (
    (192, 192),
    (256, 256),
    (320, 320),
    (384, 384),
    (160, 160),
    (128, 128),
    (240, 320),
    (48, 320),
)
WIDTHS = (16, 24, 32, 40, 48, 64)  # channels of the first stage
ACTIVATIONS = ("Relu",) * 6 + ("Relu6",) * 2 + ("HardSwish",) * 2 + ("Silu",) * 3 + ("LeakyRelu", "Gelu", "Sigmoid")
KERNELS = (3, 3, 3, 5, 7)  # kernel sizes of depthwise convolutions
CLASSES = (10, 100, 365, 1000, 1000)
_DEPTH = (1, 3)  # range of the blocks per stage
_STAGES = (3, 4)
_MAX_CHANNELS = 1024


def drawn(number: int, seed: int) -> onnx.ModelProto:
    """Draw the network with a number, equal for equal seeds."""
    return _Drawing(random.Random(f"{seed} {number}")).network()


def _eight(channels: float) -> int:
    return max(8, int(channels / 8 + 0.5) * 8)


class _Drawing:
    """A network under construction: nodes, weights, and the channels of its values."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.weights = rng, np.random.default_rng(rng.randrange(1 << 30))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.channels = {"x": 3}
        self.activation = rng.choice(ACTIVATIONS)

    def network(self) -> onnx.ModelProto:
        """Draw stem, stages and head, and return the model."""
        rng = self.rng
        high, wide = rng.choice(SIZES)
        block = rng.choice(BLOCKS)
        width = rng.choice(WIDTHS)
        first = rng.choice((3, 3, 7))
        value = self.conv("x", width, first, stride=2)
        if first == 7 or rng.random() < 0.3:
            value = self.pool(value)
        for stage in range(rng.randint(*_STAGES)):
            channels = min(_MAX_CHANNELS, _eight(width * 2**stage * rng.choice((1, 1, 1, 1.5))))
            value = block(self, value, channels, 2 if stage else 1)
            for _ in range(rng.randint(*_DEPTH) - 1):
                value = block(self, value, channels, 1)
        value = rng.choice((self.classes, self.classes, self.classes, self.maps))(value)
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, high, wide))]
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            inputs,
            [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])

    # -- nodes

    def node(self, kind: str, *inputs: str, channels: int, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        self.channels[name] = channels
        return name

    def constant(self, array: np.ndarray | float) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, np.float32)
        return name

    def noise(self, *shape: int) -> str:
        return self.constant(self.weights.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:])))

    def conv(self, x: str, k: int, size: int, *, stride: int = 1, groups: int = 1, act: str | None = "") -> str:
        c, pad = self.channels[x], size // 2
        given = x, self.noise(k, c // groups, size, size), self.noise(k, 1)
        self.constants[given[2]] = self.constants[given[2]].reshape(k)
        value = self.node(
            "Conv",
            *given,
            channels=k,
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[pad] * 4,
            group=groups,
        )
        return self.act(value, self.activation if act == "" else act)

    def act(self, x: str, name: str | None) -> str:
        c = self.channels[x]
        if name is None:
            return x
        if name == "Relu6":
            return self.node("Clip", x, self.constant(0.0), self.constant(6.0), channels=c)
        if name == "Silu":
            return self.node("Mul", x, self.node("Sigmoid", x, channels=c), channels=c)
        if name == "Gelu":
            scaled = self.node("Div", x, self.constant(np.sqrt(2.0)), channels=c)
            erf = self.node("Add", self.node("Erf", scaled, channels=c), self.constant(1.0), channels=c)
            return self.node("Mul", self.node("Mul", x, erf, channels=c), self.constant(0.5), channels=c)
        return self.node(name, x, channels=c)

    def add(self, x: str, y: str, act: str | None = None) -> str:
        return self.act(self.node("Add", x, y, channels=self.channels[x]), act)

    def pool(self, x: str, kind: str = "") -> str:
        size = self.rng.choice((2, 3))
        kind = kind or self.rng.choice(("MaxPool", "MaxPool", "AveragePool"))
        pads = [size // 2] * 4 if size == 3 else [0] * 4
        return self.node(kind, x, channels=self.channels[x], kernel_shape=[size] * 2, strides=[2, 2], pads=pads)

    def gate(self, x: str) -> str:
        """Add squeeze and excitation."""
        c = self.channels[x]
        mean = self.node("GlobalAveragePool", x, channels=c)
        less = self.conv(mean, _eight(c / 4), 1, act="Relu")
        return self.node("Mul", x, self.conv(less, c, 1, act=self.rng.choice(("Sigmoid", "HardSigmoid"))), channels=c)

    # -- heads

    def classes(self, x: str) -> str:
        if self.rng.random() < 0.3:
            x = self.conv(x, min(1280, 2 * self.channels[x]), 1)
        c, k = self.channels[x], self.rng.choice(CLASSES)
        flat = self.node("Flatten", self.node("GlobalAveragePool", x, channels=c), channels=c)
        value = self.node("Gemm", flat, self.noise(k, c), self.constant(np.zeros(k)), channels=k, transB=1)
        return self.node("Softmax", value, channels=k) if self.rng.random() < 0.4 else value

    def maps(self, x: str) -> str:
        """Add a head for segmentation or detection, with upsampled maps."""
        for _ in range(2):
            c = self.channels[x]
            scales = self.constant(np.array([1, 1, 2, 2]))
            mode = self.rng.choice(("nearest", "linear"))
            x = self.node("Resize", x, "", scales, channels=c, mode=mode, coordinate_transformation_mode="asymmetric")
            x = self.conv(x, _eight(c / 2), 3)
        return self.conv(x, self.rng.choice((1, 2, 21)), 1, act=self.rng.choice(("Sigmoid", None)))


def _plain(net: _Drawing, x: str, k: int, stride: int) -> str:
    return net.conv(net.pool(x, "MaxPool") if stride == 2 else x, k, 3)


def _shortcut(net: _Drawing, x: str, k: int, stride: int) -> str:
    return x if (net.channels[x], stride) == (k, 1) else net.conv(x, k, 1, stride=stride, act=None)


def _basic(net: _Drawing, x: str, k: int, stride: int) -> str:
    value = net.conv(net.conv(x, k, 3, stride=stride), k, 3, act=None)
    return net.add(value, _shortcut(net, x, k, stride), net.activation)


def _bottleneck(net: _Drawing, x: str, k: int, stride: int) -> str:
    middle, wide = k, min(2048, 4 * k) if net.rng.random() < 0.5 else k
    groups = net.rng.choice((1, 1, 1, middle // 8))
    value = net.conv(net.conv(x, middle, 1), middle, 3, stride=stride, groups=groups)
    value = net.gate(value) if groups > 1 else value
    return net.add(net.conv(value, wide, 1, act=None), _shortcut(net, x, wide, stride), net.activation)


def _inverted(net: _Drawing, x: str, k: int, stride: int) -> str:
    wide = min(_MAX_CHANNELS, _eight(net.channels[x] * net.rng.choice((1, 3, 4, 6))))
    value = net.conv(x, wide, 1)
    value = net.conv(value, wide, net.rng.choice(KERNELS[:4]), stride=stride, groups=wide)
    value = net.gate(value) if net.rng.random() < 0.4 else value
    value = net.conv(value, k, 1, act=None)
    return net.add(value, x) if (net.channels[x], stride) == (k, 1) else value


def _separable(net: _Drawing, x: str, k: int, stride: int) -> str:
    c = net.channels[x]
    return net.conv(net.conv(x, c, net.rng.choice(KERNELS), stride=stride, groups=c), k, 1)


def _branches(net: _Drawing, x: str, k: int, stride: int) -> str:
    x = net.pool(x) if stride == 2 else x
    one, three = net.conv(x, _eight(k / 4), 1), net.conv(net.conv(x, _eight(k / 4), 1), _eight(k / 2), 3)
    parts: Sequence[str] = (one, three)
    if net.rng.random() < 0.5:
        parts = (*parts, net.conv(net.conv(x, _eight(k / 8), 1), _eight(k / 4), 5))
    return net.node("Concat", *parts, channels=sum(net.channels[each] for each in parts), axis=1)


def _dense(net: _Drawing, x: str, k: int, stride: int) -> str:
    x = net.pool(net.conv(x, k, 1), "AveragePool") if stride == 2 else x
    for _ in range(2):
        new = net.conv(net.conv(x, 4 * 32, 1), 32, 3)
        x = net.node("Concat", x, new, channels=net.channels[x] + 32, axis=1)
    return x


Block = Callable[[_Drawing, str, int, int], str]
BLOCKS: tuple[Block, ...] = (
    _plain,
    _basic,
    _bottleneck,
    _bottleneck,
    _inverted,
    _inverted,
    _inverted,
    _separable,
    _branches,
    _dense,
)
