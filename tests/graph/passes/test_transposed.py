"""Transposed convolutions as convolutions: the same result, by the references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import TABLE
from cpuconv.graph.passes import transposed
from cpuconv.network.interpret import interpret
from support.graph.draws import GENERATORS, numbers


def network(x, weight, bias=None, **attributes) -> Graph:
    """One transposed convolution with constant weights."""
    node = TABLE["ConvTranspose"].node(["x", "w", *(["b"] if bias is not None else [])], ["y"], "up", **attributes)
    constants = {"w": weight} | ({} if bias is None else {"b": bias})
    known = [Value(x.shape, x.dtype), *map(Value.of, constants.values())]
    (y,) = TABLE["ConvTranspose"].infer(node, known)
    return Graph(("x",), ("y",), (node,), constants, {"x": known[0], "y": y})


def same(graph: Graph, x: np.ndarray) -> Graph:
    """The rewritten graph, which gives what the graph gave."""
    made = transposed.run(graph)
    (before,), (after,) = interpret(graph, {"x": x}, wide=True).values(), interpret(made, {"x": x}, wide=True).values()
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12 * max(1, np.abs(before).max(initial=0)))
    assert made.value("y") == graph.value("y")
    return made


@st.composite
def drawn(draw):
    """Weights, input and attributes of any rank."""
    rng, rank, groups = draw(GENERATORS), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, strides, sizes = ([draw(st.integers(1, most)) for _ in range(rank)] for most in (5, 4, 4))
    dilations = [draw(st.integers(1, 3)) for _ in range(rank)]
    attributes = {"strides": strides, "group": groups, "dilations": dilations}
    padding = draw(st.sampled_from(("none", "pads", "shape", "SAME_UPPER", "SAME_LOWER")))
    if padding == "pads":
        attributes["output_padding"] = [draw(st.integers(0, step - 1)) for step in strides]
        full = [
            (size - 1) * step + (taps - 1) * gap + 1 + more
            for size, step, taps, gap, more in zip(
                sizes, strides, kernel, dilations, attributes["output_padding"], strict=True
            )
        ]
        near = [draw(st.integers(0, size - 1)) for size in full]
        attributes["pads"] = [*near, *(draw(st.integers(0, a - b - 1)) for a, b in zip(full, near, strict=True))]
    elif padding == "shape":
        attributes["output_shape"] = [draw(st.integers(1, 24)) for _ in range(rank)]
    elif padding != "none":
        attributes["auto_pad"] = padding
    x = numbers(rng, (draw(st.integers(1, 2)), draw(st.integers(1, 2)) * groups, *sizes))
    weight = numbers(rng, (x.shape[1], draw(st.integers(1, 3)), *kernel))
    bias = numbers(rng, (weight.shape[1] * groups,)) if draw(st.booleans()) else None
    return network(x, weight, bias, **attributes), x


@settings(max_examples=200)
@given(drawn())
def test_any_attributes(case):
    made = same(*case)
    assert "ConvTranspose" not in [node.op for node in made.nodes]


@pytest.mark.parametrize(
    ("taps", "stride", "pads", "ops"),
    [
        (3, 1, [1, 1, 1, 1], ["Conv"]),
        (2, 2, None, ["Conv", "DepthToSpace"]),
        (3, 2, [1, 1, 0, 0], ["Conv", "DepthToSpace"]),
        (4, 2, [1, 1, 1, 1], ["Conv", "DepthToSpace", "Slice"]),
    ],
)
def test_no_more_nodes_than_needed(taps, stride, pads, ops):
    rng = np.random.default_rng(0)
    x, weight = numbers(rng, (2, 3, 5, 4)), numbers(rng, (3, 4, taps, taps))
    made = same(network(x, weight, strides=[stride, stride], pads=pads), x)
    assert [node.op for node in made.nodes] == ops


@pytest.mark.parametrize("apart", [False, True])
def test_weights_are_moved_not_changed(apart):
    weight = numbers(np.random.default_rng(0), (6, 2, 4, 4))
    axes = [transposed.Axis.of(3, 4, 2, 0, 8)] * 2
    moved = transposed.phases(weight, 1 if apart else 2, axes, apart)
    np.testing.assert_array_equal(np.sort(moved, axis=None), np.sort(weight, axis=None))


def test_what_is_left():
    rng = np.random.default_rng(0)
    x, weight = numbers(rng, (1, 2, 5, 4)), numbers(rng, (2, 4, 3, 3))
    known = network(x, weight)
    fed = Graph(("x", "w"), ("y",), known.nodes, {}, {**known.values, "w": Value(weight.shape, weight.dtype)})
    assert transposed.run(fed) is fed


@pytest.mark.parametrize("stride, taps, gap", [(1, 3, 2), (2, 3, 1)])
def test_dilated_taps_are_zeros_between_unless_the_convolution_can_leave_them_out(stride, taps, gap):
    rng = np.random.default_rng(0)
    x, weight = numbers(rng, (1, 2, 5, 4)), numbers(rng, (2, 4, 3, 3))
    made = same(network(x, weight, dilations=[2, 2], strides=[stride, stride]), x)
    (conv,) = (node for node in made.nodes if node.op == "Conv")
    assert conv["kernel_shape"] == [taps, taps] and conv["dilations"] == [gap, gap]
