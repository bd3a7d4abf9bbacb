"""Elementwise functions of two operands behind the operator that computes one: numbers, vectors and tensors."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402

import cpuconv  # noqa: E402
from support.graphs import close, run  # noqa: E402

IMAGE, ROWS, STEPS = (1, 8, 5, 5), (3, 8), (4, 1, 2, 8)
HOSTS = {  # name: nodes from x to y, the shapes of x and y, and those of constants
    "Conv": ("c = Conv <pads = [1, 1, 1, 1]> (x, w)", IMAGE, IMAGE, (8, 8, 3, 3)),
    "pointwise Conv": ("c = Conv (x, w)", IMAGE, IMAGE, (8, 8, 1, 1)),
    "depthwise Conv": ("c = Conv <group = 8, pads = [1, 1, 1, 1]> (x, w)", IMAGE, IMAGE, (8, 1, 3, 3)),
    "ConvTranspose": ("c = ConvTranspose <pads = [1, 1, 1, 1]> (x, w)", IMAGE, IMAGE, (8, 8, 3, 3)),
    "Gemm": ("c = Gemm (x, w)", ROWS, ROWS, (8, 8)),
    "MatMul": ("c = MatMul (x, w)", ROWS, ROWS, (8, 8)),
    "MatMul of two tensors": ("t = Transpose (x) s = MatMul (t, x) c = MatMul (x, s)", ROWS, ROWS, None),
    "AveragePool": ("c = AveragePool <kernel_shape = [2, 2]> (x)", (1, 8, 6, 6), IMAGE, None),
    "LayerNormalization": ("c = LayerNormalization (x, w)", ROWS, ROWS, (8,)),
    "LSTM": ("c = LSTM <hidden_size = 8> (x, w, w)", (4, 2, 8), STEPS, (1, 32, 8)),
}
QUANTISED = ("Conv", "pointwise Conv", "depthwise Conv", "ConvTranspose", "Gemm", "MatMul")
FUNCTIONS = ("Max", "Min", "Add", "Sub", "Mul", "Div", "Pow", "PRelu")
SOURCES = ("stated", "fed", "computed")
SHAPES = {"number": lambda shape: (), "one": lambda shape: (1,), "last": lambda shape: shape[-1:],
          "channel": lambda shape: (8, 1, 1) if shape == IMAGE else (8,),
          "tensor": lambda shape: shape}  # fmt: skip
PAIRS = [(source, of) for source in SOURCES for of in SHAPES]
TWICE = ("Max", "Min", "Mul", "Add")
ENDS = ("", "stated", "fed", "computed")


class _Branches:
    """A model in which every function has a host of its own."""

    def __init__(self, host: str, quantised: bool) -> None:
        self.text, self.input, self.shape, weights = HOSTS[host]
        self.quantised, self.weighted = quantised, weights is not None
        self.rng = np.random.default_rng(1)
        self.nodes, self.constants, self.feed, self.outputs = [], [], {}, []
        if weights is not None:
            self.weights(self.numbers(weights))

    def numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.rng.uniform(-1, 1, shape).astype(np.float32)

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, array: np.ndarray) -> None:
        if self.quantised:
            self.constant("scale", np.float32(1 / 64))
            self.constant("zero", np.int8(0))
            self.constant("integers", np.rint(array * 64).astype(np.int8))
        self.constant("w", array)

    def node(self, op: str, *inputs: str, output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def hosted(self, name: str) -> str:
        """The output of a host of its own, of an input of its own: equal nodes would become one of many readers."""
        read = {"x": f"{name}.x", "w": "w"}
        self.feed[read["x"]] = self.numbers(self.input)
        if self.quantised:
            whole = self.node("QuantizeLinear", read["x"], "scale", "zero", output=f"{name}.whole")
            read = {
                each: self.node("DequantizeLinear", integers, "scale", "zero", output=f"{name}.real {each}")
                for each, integers in (("x", whole), ("w", "integers"))
            }
        parsed = _parsed(self.text)
        own = {output: f"{name}.{output}" for node in parsed for output in node.output}
        for node in parsed:
            node.input[:] = [own.get(each, read.get(each, each)) for each in node.input]
            node.output[:] = [own[each] for each in node.output]
        self.nodes += parsed
        return own["c"]

    def operand(self, name: str, source: str, shape: tuple[int, ...], least: float = -1) -> str:
        array = np.asarray(self.rng.uniform(least, 1, shape), np.float32)
        if source == "stated":
            return self.constant(name, array)
        self.feed[name] = array
        return (
            name
            if source == "fed"
            else self.node("Abs", self.node("Neg", name, output=f"{name}.n"), output=f"{name}.a")
        )

    def model(self):
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in self.feed.items()
        ]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "g", infos, results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def check(self) -> None:
        model = self.model()
        got = cpuconv.compile(model, threads=1).run(self.feed)
        for name, expected in zip(self.outputs, run(model, self.feed), strict=True):
            try:
                close(got[name], expected)
            except AssertionError as error:
                raise AssertionError(name) from error


def _parsed(text: str) -> list:
    return list(parser.parse_graph(f"g (float[1] x, float[1] w) => (float[1] c) {{ {text} }}").node)


CASES = [(host, False) for host in HOSTS] + [(host, True) for host in QUANTISED]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("host", "quantised"), CASES, ids=[f"{'int8 ' * of}{host}" for host, of in CASES])
def test_functions_of_two(host, quantised):
    made = _Branches(host, quantised)
    for function in FUNCTIONS:
        for source, of in PAIRS:
            for turned in (False, True):
                if turned and (function in ("Div", "Pow", "PRelu") or of == "tensor"):
                    continue  # by numbers near 0; a slope that is larger than what it is a slope of is refused
                name = f"{function} {source} {of}{' turned' * turned}"
                shape = SHAPES[of](made.shape)
                other = made.operand(f"{name}.o", source, shape, 0.5 if function in ("Div", "Pow") else -1)
                own = made.hosted(name)
                own = made.node("Abs", own, output=f"{name}.positive") if function == "Pow" else own
                made.outputs.append(made.node(function, *((other, own) if turned else (own, other)), output=name))
    made.check()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("host", "quantised"), CASES, ids=[f"{'int8 ' * of}{host}" for host, of in CASES])
def test_ends_of_clip_and_operands_that_are_one(host, quantised):
    made = _Branches(host, quantised)
    for low in ENDS:
        for high in ENDS:
            name = f"Clip {low or '-'} {high or '-'}"
            ends = [
                each and made.operand(f"{name}.{end}", each, (), 0.0) for end, each in (("low", low), ("high", high))
            ]
            made.outputs.append(made.node("Clip", made.hosted(name), *ends, output=name))
    for function in TWICE:
        own = made.hosted(function)
        made.outputs.append(made.node(function, own, own, output=function))
    made.check()
