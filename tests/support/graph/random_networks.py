"""Random networks: convolutions, poolings, joins and views in any order, with outputs anywhere."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from support.graph.cases import drawn

_CHANNELS = (1, 3, 7, 8, 15, 16, 17, 24, 32, 33)
_STEPS = (
    "conv", "conv", "conv", "relu", "sigmoid", "add", "scale", "concat", "concat", "pool", "split", "slice", "turn",
    "attend", "pad", "flatten", "squeeze", "reshape", "group", "softmax",
)  # fmt: skip


class _Builder:
    """A network under construction: values of rank 4 by name, with their shapes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values: dict[str, tuple[int, ...]] = {}
        self.vectors: dict[str, tuple[int, ...]] = {}

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"node {name}", **attributes))
        (self.values if len(shape) == 4 else self.vectors)[name] = shape
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def pick(self) -> str:
        return self.draw(st.sampled_from(list(self.values)))

    def alike(self, name: str, axes: tuple[int, ...]) -> str:
        """A value whose sizes along these axes are those of another."""
        own = self.values[name]
        return self.draw(st.sampled_from([o for o, s in self.values.items() if all(s[a] == own[a] for a in axes)]))

    # one method a step
    def conv(self) -> None:
        x = self.pick()
        n, c, h, w = self.values[x]
        k, size = self.draw(st.sampled_from(_CHANNELS)), self.draw(st.sampled_from((1, 3)))
        weight = self.rng.standard_normal((k, c, size, size)) / np.sqrt(c * size * size)
        inputs = [x, self.constant(weight.astype(np.float32))]
        if self.draw(st.booleans()):
            inputs.append(self.constant(self.rng.standard_normal(k).astype(np.float32)))
        self.add("Conv", inputs, (n, k, h, w), pads=[size // 2] * 4)

    def relu(self) -> None:
        x = self.pick()
        self.add("Relu", [x], self.values[x])

    def sigmoid(self) -> None:
        x = self.pick()
        self.add("Sigmoid", [x], self.values[x])

    def add_(self) -> None:
        x = self.pick()
        self.add("Add", [x, self.alike(x, (0, 1, 2, 3))], self.values[x])

    def scale(self) -> None:
        x = self.pick()
        c = self.values[x][1]
        factor = self.constant(self.rng.standard_normal((1, c, 1, 1)).astype(np.float32))
        self.add("Mul", [x, factor], self.values[x])

    def concat(self) -> None:
        x = self.pick()
        parts = [x] + [self.alike(x, (0, 2, 3)) for _ in range(self.draw(st.integers(1, 2)))]
        n, _, h, w = self.values[x]
        self.add("Concat", parts, (n, sum(self.values[part][1] for part in parts), h, w), axis=1)

    def pool(self) -> None:
        x = self.pick()
        kind = self.draw(st.sampled_from(("MaxPool", "AveragePool")))
        self.add(kind, [x], self.values[x], kernel_shape=[3, 3], pads=[1] * 4)

    def split(self) -> None:
        x = self.pick()
        n, c, h, w = self.values[x]
        at = self.draw(st.integers(1, c))
        if at == c:
            return
        sizes = self.constant(np.array([at, c - at], np.int64))
        names = [f"v{len(self.nodes)}a", f"v{len(self.nodes)}b"]
        self.nodes.append(helper.make_node("Split", [x, sizes], names, axis=1))
        self.values |= {names[0]: (n, at, h, w), names[1]: (n, c - at, h, w)}

    def slice(self) -> None:
        x = self.pick()
        n, c, h, w = self.values[x]
        first = self.draw(st.sampled_from([at for at in (0, 8, 16) if at < c]))
        ends = [self.constant(np.array([value], np.int64)) for value in (first, c, 1)]
        self.add("Slice", [x, *ends], (n, c - first, h, w))

    def turn(self) -> None:
        x = self.pick()
        n, c, h, w = self.values[x]
        self.add("Transpose", [x], (n, c, w, h), perm=[0, 1, 3, 2])

    def attend(self) -> None:
        x = self.pick()
        n, c, _, _ = self.values[x]
        mean = self.add("GlobalAveragePool", [x], (n, c, 1, 1))
        gate = self.add("Sigmoid", [mean], (n, c, 1, 1))
        self.add("Mul", [x, gate], self.values[x])

    def pad(self) -> None:
        x = self.pick()
        n, c, h, w = self.values[x]
        if h > 12:
            return
        ends = self.constant(np.array([0, 0, 0, 1, 0, 0, 1, 0], np.int64))
        self.add("Pad", [x, ends], (n, c, h + 1, w + 1))

    def flatten(self) -> None:
        x = self.pick()
        n, c, h, w = self.values[x]
        self.add("Flatten", [x], (n, c * h * w))

    def squeeze(self) -> None:
        """A column without its axis, and back."""
        x = self.pick()
        n, c, h, w = self.values[x]
        ends = [self.constant(np.array([value], np.int64)) for value in (w - 1, w, 3)]
        column = self.add("Slice", [x, *ends], (n, c, h, 1))
        axis = self.constant(np.array([3], np.int64))
        line = self.add("Squeeze", [column, axis], (n, c, h))
        if self.draw(st.booleans()):
            line = self.add("Relu", [line], (n, c, h))
        self.add("Unsqueeze", [line, axis], (n, c, h, 1))

    def reshape(self) -> None:
        """Axes that merge, the first one among them."""
        x = self.pick()
        n, c, h, w = self.values[x]
        shape = self.draw(st.sampled_from(((n * c, h, w, 1), (n, 1, c * h, w), (n, c, h * w, 1), (n, h, c, w))))
        self.add("Reshape", [x, self.constant(np.array(shape, np.int64))], shape)

    def group(self) -> None:
        """Channels in groups, one of them taken out."""
        x = self.pick()
        n, c, h, w = self.values[x]
        if c % 2:
            return
        shape = self.constant(np.array((n, 2, c // 2, h * w), np.int64))
        halves = self.add("Reshape", [x, shape], (n, 2, c // 2, h * w))
        ends = [self.constant(np.array([value], np.int64)) for value in (1, 2, 1)]
        self.add("Slice", [halves, *ends], (n, 1, c // 2, h * w))

    def softmax(self) -> None:
        x = self.pick()
        self.add("Softmax", [x], self.values[x], axis=self.draw(st.sampled_from((1, 3))))


@st.composite
def networks(draw: st.DrawFn, most: int = 10) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model and a feed."""
    made = _Builder(draw)
    shape = draw(st.sampled_from((1, 1, 2, 3))), draw(st.sampled_from(_CHANNELS)), draw(st.integers(3, 9)), 6
    made.values["x"] = shape
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=1, max_size=most)):
        getattr(made, "add_" if step == "add" else step)()
    known = made.values | made.vectors
    last = list(known)[-1]
    more = draw(st.lists(st.sampled_from(list(known)), max_size=2))
    outputs = list(dict.fromkeys([last, *more]))
    graph = helper.make_graph(
        [*made.nodes, *(helper.make_node("Identity", [name], [f"out {name}"]) for name in outputs)],
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"out {name}", TensorProto.FLOAT, known[name]) for name in outputs],
        made.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": made.rng.standard_normal(shape).astype(np.float32)}


KNOWN = 40


@functools.cache
def _known() -> list[tuple[onnx.ModelProto, dict[str, np.ndarray]]]:
    return drawn(networks(), KNOWN)


known_networks = st.deferred(lambda: st.sampled_from(_known()))
"""Those whose results are tested (`@seed(1)` of as many examples), for tests of all else: their kernels are shared."""
