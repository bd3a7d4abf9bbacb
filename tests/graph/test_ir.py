"""Graphs: order, checks, questions, rewrites and text."""

from __future__ import annotations

import numpy as np
import pytest

from cpuconv.errors import ArgumentError, SourceError
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops import TABLE
from cpuconv.network.interpret import interpret
from cpuconv.network.sizes.specialise import specialise

F32 = np.dtype(np.float32)
X = {"x": Value((2, 3), F32)}


def node(op: str, inputs: str, output: str, **attributes: object) -> Node:
    return TABLE[op].node(inputs.split(), output.split(), **attributes)


def graph(*nodes: Node, outputs: str = "y", inputs: str = "x", **constants: np.ndarray) -> Graph:
    return Graph(inputs.split(), outputs.split(), nodes, constants, X)


def test_nodes_come_in_an_order_in_which_they_can_run():
    made = graph(node("Add", "a b", "y"), node("Relu", "a", "b"), node("Neg", "x", "a"))
    assert [each.op for each in made.nodes] == ["Neg", "Relu", "Add"]


def test_questions():
    made = graph(node("Neg", "x", "a"), node("Mul", "a a", "b"), node("Add", "a c", "y"), c=np.float32([1, 2, 3]))
    assert made.producer("a") is made.nodes[0] and made.producer("x") is None and made.producer("c") is None
    assert [user.op for user in made.users("a")] == ["Mul", "Add"] and made.users("y") == ()
    assert made.value("x") == Value((2, 3), F32) and made.value("a") == Value()
    assert made.value("c") == Value((3,), F32) and made.value("c").array is made.constants["c"]
    assert [each.op for each in made.live().nodes] == ["Neg", "Add"]
    assert made.live().constants.keys() == {"c"}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", "x", "y"), node("Neg", "x", "y")], "'y' twice"),
        ([node("Relu", "x", "x"), node("Neg", "x", "y")], "'x' twice"),
        ([node("Relu", "z", "y")], "Relu node 'y' reads 'z', which nothing"),
        ([node("Relu", "x", "z")], "output 'y' is defined by nothing"),
        ([node("Add", "x b", "y"), node("Neg", "y", "b")], "cycle: Add node 'y'"),
        ([node("Relu", "y", "y")], "cycle: Relu node 'y'"),
    ],
)
def test_errors_name_the_value(nodes, message):
    with pytest.raises(SourceError, match=message):
        graph(*nodes)


def test_a_node_has_every_attribute_and_no_other():
    assert dict(node("LeakyRelu", "x", "y").attributes) == {"alpha": 0.01}
    assert node("Softmax", "x", "y", axis=1)["axis"] == 1
    with pytest.raises(ArgumentError, match=r"those of LeakyRelu \(alpha\), not beta"):
        node("LeakyRelu", "x", "y", beta=1.0)
    with pytest.raises(ArgumentError, match=r"those of Concat \(axis\), not none"):
        node("Concat", "x x", "y")


def test_replaced_nodes_give_an_equal_graph():
    before = graph(node("Neg", "x", "a"), node("Mul", "a two", "b"), node("Relu", "b", "y"), two=np.float32(2))
    after = before.replaced(
        before.nodes[:2], [node("Mul", "x minus", "b")], {"minus": np.float32(-2)}, {"b": Value((2, 3), F32)}
    ).live()
    assert [each.op for each in after.nodes] == ["Mul", "Relu"] and after.constants.keys() == {"minus"}
    feed = {"x": np.float32([[1, -2, 3], [4, 5, -6]])}
    np.testing.assert_array_equal(interpret(specialise(after), feed)["y"], interpret(specialise(before), feed)["y"])


def test_text():
    made = specialise(
        graph(node("Reshape", "x shape", "a"), node("LeakyRelu", "a", "y"), shape=np.array([3, -1]), unused=np.zeros(9))
    )
    assert str(made).splitlines() == [
        "graph(x: float32[2,3]) -> (y: float32[3,2])",
        "  a: float32[3,2] = Reshape(x, [3, -1]) allowzero=0",
        "  y: float32[3,2] = LeakyRelu(a) alpha=0.01",
    ]
    assert str(Value(("N", None, 3), F32)) == "float32[N,?,3]" and str(Value()) == "?[…]"


def test_nothing_can_be_changed():
    made = graph(node("Relu", "x", "y"))
    with pytest.raises(TypeError):
        made.constants["z"] = np.zeros(1)
    with pytest.raises(TypeError):
        made.nodes[0].attributes["z"] = 1
    with pytest.raises(AttributeError):
        made.outputs = ()
