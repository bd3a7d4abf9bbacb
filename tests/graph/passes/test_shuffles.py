"""Channel shuffles as picks of channels: the same elements, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import TABLE
from cpuconv.graph.passes import views
from cpuconv.network.interpret import interpret


def network(shape, split, perm, end) -> Graph:
    """Reshape, Transpose, Reshape."""
    constants = {"split": np.array(split), "end": np.array(end)}
    nodes = (
        TABLE["Reshape"].node(["x", "split"], ["parts"]),
        TABLE["Transpose"].node(["parts"], ["turned"], perm=perm),
        TABLE["Reshape"].node(["turned", "end"], ["y"]),
    )
    values = {"x": Value(shape, np.dtype(np.float32))}
    for node in nodes:
        inputs = [Value.of(constants[name]) if name in constants else values[name] for name in node.inputs]
        values[node.outputs[0]] = TABLE[node.op].infer(node, inputs)[0]
    return Graph(("x",), ("y",), nodes, constants, values)


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@given(st.data())
def test_channels_come_in_the_same_order(data):
    sizes = st.integers(1, 4)
    batch, parts = data.draw(sizes), data.draw(st.lists(sizes, min_size=2, max_size=4))
    plane = data.draw(st.lists(sizes, min_size=1, max_size=2))
    axes = [0, *data.draw(st.permutations(range(1, len(parts) + 1)))]
    axes += range(len(axes), len(axes) + len(plane))
    shape = (batch, int(np.prod(parts)), *plane)
    graph = network(shape, [batch, *parts, *plane], axes, shape)
    made = views.shuffles(graph)
    assert operators(made) == ["Gather"]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_array_equal(interpret(made, {"x": x})["y"], interpret(graph, {"x": x})["y"])


@pytest.mark.parametrize(
    ("shape", "split", "perm", "end"),
    [
        ((2, 6, 3, 4), (2, 2, 3, 3, 4), [1, 0, 2, 3, 4], (2, 6, 3, 4)),  # images move
        ((2, 6, 3, 4), (2, 2, 3, 3, 4), [0, 2, 1, 4, 3], (2, 6, 3, 4)),  # planes are turned
        ((2, 6, 3, 4), (2, 2, 3, 3, 4), [0, 2, 1, 3, 4], (2, 3, 6, 4)),  # the end is another shape
        ((1, 8, 2, 2), (1, 2, 2, 2, 2, 2), [0, 1, 4, 2, 5, 3], (1, 2, 4, 4)),  # channels become pixels
        ((2, 3, 4, 6), (2, 3, 4, 2, 3), [0, 1, 2, 4, 3], (2, 3, 4, 6)),  # pixels change places
        ((4, 6), (4, 2, 3), [0, 2, 1], (4, 6)),  # a matrix
    ],
)
def test_other_turns_stay(shape, split, perm, end):
    assert operators(views.shuffles(network(shape, split, perm, end))) == ["Reshape", "Transpose", "Reshape"]


def test_what_others_read_of_it_stays():
    shape = (2, 6, 3, 4)
    graph = replace(network(shape, (2, 2, 3, 3, 4), [0, 2, 1, 3, 4], shape), outputs=("y", "turned"))
    assert sorted(operators(views.shuffles(graph))) == ["Gather", "Reshape", "Transpose"]
