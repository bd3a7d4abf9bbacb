"""A model's own functions: inlined as the package onnx inlines them."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import inliner, parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.protos import wire  # noqa: E402
from cpuconv.protos.inlining import inlined  # noqa: E402
from cpuconv.protos.messages import ModelProto  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402

HEAD = '<ir_version: 8, opset_import: ["": 17, "own": 1]>'
FUNCTIONS = {
    "values have names of their own": """
        g (float[3] x) => (float[3] y) { t = own.f(x) z = own.f(t) y = Add(t, z) }
        <domain: "own", opset_import: ["": 17]> f (a) => (y) { t = Neg(a) x = Abs(t) y = Add(x, t) }""",
    "functions within functions": """
        g (float[3] x) => (float[3] y) { y = own.outer(x) }
        <domain: "own", opset_import: ["": 17, "own": 1]> outer (a) => (b) { c = own.inner(a) b = own.inner(c) }
        <domain: "own", opset_import: ["": 17]> inner (a) => (b) { c = Exp(a) b = Sub(c, a) }""",
    "attributes that are given and left out": """
        g (float[2,3] x) => (float[2,3] y) { t = own.f <axis = 0, alpha = 2.0> (x) y = own.f <axis = 1> (t) }
        <domain: "own", opset_import: ["": 17]> f <axis, alpha> (a) => (b)
        { c = Softmax <axis: int = @axis> (a) b = LeakyRelu <alpha: float = @alpha> (c) }""",
    "an input that is left out": """
        g (float[3] x, float m) => (float[3] y) { y = own.f(x, , m) }
        <domain: "own", opset_import: ["": 17]> f (a, low, high) => (b) { b = Clip(a, low, high) }""",
    "the last inputs are left out": """
        g (float[3] x) => (float[3] y) { y = own.f(x) }
        <domain: "own", opset_import: ["": 17]> f (a, low, high) => (b) { b = Clip(a, low, high) }""",
    "several outputs, of which one is not asked for": """
        g (float[3] x) => (float[3] y) { , y = own.f(x) }
        <domain: "own", opset_import: ["": 17]> f (a) => (b, c) { b = Neg(a) c = Abs(b) }""",
    "an output that is an input": """
        g (float[3] x) => (float[3] y) { t, y = own.f(x) }
        <domain: "own", opset_import: ["": 17]> f (a) => (a, b) { b = Neg(a) }""",
    "branches within a function": """
        g (float[3] x, bool c) => (float[3] y) { t = own.f(x, c) y = Add(t, x) }
        <domain: "own", opset_import: ["": 17]> f (a, c) => (y) { t = Neg(a) y = If (c) <
        then_branch = g1 () => (y1) { x = Abs(t) y1 = Add(x, a) }, else_branch = g2 () => (y2) { y2 = Mul(t, a) }> }""",
    "calls within branches": """
        g (float[3] x, bool c) => (float[3] y) { y = If (c) <
        then_branch = g1 () => (float[3] y1) { y1 = own.f(x) }, else_branch = g2 () => (float[3] y2) { y2 = Abs(x) }> }
        <domain: "own", opset_import: ["": 17]> f (a) => (b) { t = Exp(a) b = Neg(t) }""",
}
EVALUATED = [FUNCTIONS["an output that is an input"]]  # which the package inlines to a name that nothing gives
FEED = {"x": np.float32([1, -2, 3]), "m": np.array(0.5, np.float32)}


def feeds(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    names = [entry.name for entry in model.graph.input]
    rank = len(model.graph.input[0].type.tensor_type.shape.dim)
    x = FEED["x"] if rank == 1 else np.stack([FEED["x"], -FEED["x"]])
    known = {**FEED, "x": x}
    return [{name: known[name] for name in names if name != "c"} | (
        {"c": np.array(flag)} if "c" in names else {}) for flag in (True, False)]  # fmt: skip


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_what_is_inlined_means_the_same(text: str) -> None:
    model = parser.parse_model(HEAD + text)
    graph = inlined(wire.decode(model.SerializeToString(), ModelProto))
    made = onnx.ModelProto(ir_version=8, opset_import=model.opset_import)
    made.graph.ParseFromString(wire.encode(graph))
    onnx.checker.check_model(made, full_check=True)  # names are assigned once, domains are known
    assert all(node.domain != "own" for node in made.graph.node)
    theirs = model if text in EVALUATED else inliner.inline_local_functions(model)
    for feed in feeds(model):
        for one, other in zip(
            ReferenceEvaluator(made).run(None, feed), ReferenceEvaluator(theirs).run(None, feed), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_an_attribute_that_is_not_given_has_the_function_s_value() -> None:
    model = parser.parse_model(
        HEAD
        + """g (float[3] x) => (float[3] y) { t = own.f(x) y = own.f <alpha = 0.25> (t) }
        <domain: "own", opset_import: ["": 17]> f <alpha: float = 0.75> (a) => (b)
        { b = LeakyRelu <alpha: float = @alpha> (a) }"""
    )
    assert [node.attributes["alpha"] for node in read(model).nodes] == [0.75, 0.25]


def test_a_function_of_another_opset_is_refused() -> None:
    model = parser.parse_model(
        HEAD + 'g (float[3] x) => (float[3] y) { y = own.f(x) } <domain: "own", opset_import: ["": 13]>'
        " f (a) => (b) { b = Neg(a) }"
    )
    with pytest.raises(
        SourceError, match="the function 'f' must be of opset 17 of the domain '', as the model is, not 13"
    ):
        read(model)


def test_a_model_without_functions_is_as_it_is() -> None:
    model = wire.decode(
        parser.parse_model(HEAD + "g (float[3] x) => (float[3] y) { y = Neg(x) }").SerializeToString(), ModelProto
    )
    assert inlined(model) is model.graph
