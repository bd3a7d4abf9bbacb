"""Layers in the form that int8 kernels need: the same results, and all of them quantisable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import TABLE
from cpuconv.network.interpret import interpret
from cpuconv.network.sizes.specialise import specialise
from cpuconv.quantizing.graphs import plain
from cpuconv.quantizing.graphs.quantizable import layer_of, layers_of
from cpuconv.reading.onnx_reader import read
from support.graph.draws import GENERATORS, numbers
from support.graph.floats import check_int8_layers, with_weights
from support.graphs import parse


def network(op, arrays, known, **attributes) -> Graph:
    """One node whose first input is fed, and those that `known` leaves out."""
    names = [f"x{at}" for at in range(len(arrays))]
    node = TABLE[op].node(names, ["y"], "product", **attributes)
    constants = {name: array for name, array in zip(names, arrays, strict=True) if name in known}
    values = {name: Value(array.shape, array.dtype) for name, array in zip(names, arrays, strict=True)}
    (values["y"],) = TABLE[op].infer(node, list(map(Value.of, arrays)))
    inputs = tuple(name for name in names if name not in constants)
    return Graph(inputs, ("y",), (node,), constants, {name: values[name] for name in (*inputs, "y")})


def same(graph: Graph, arrays) -> Graph:
    """The graph in plain form, whose nodes with constant weights are layers all."""
    made = plain.run(graph)
    feed = {f"x{at}": array for at, array in enumerate(arrays) if f"x{at}" in graph.inputs}
    (before,), (after,) = interpret(graph, feed, wide=True).values(), interpret(made, feed, wide=True).values()
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * max(1, np.abs(before).max(initial=0)))
    assert len(layers_of(made)) == 1
    assert plain.run(made) is made
    return made


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rng=GENERATORS, turned=st.tuples(st.integers(0, 1), st.integers(0, 1)))
def test_gemm_of_any_factors_and_biases(data, rng, turned):
    m, k, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    factors = {name: data.draw(st.sampled_from((0.0, 0.5, 1.0, -3.0))) for name in ("alpha", "beta")}
    shapes = [(k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)]
    bias = data.draw(st.sampled_from((None, (), (1,), (n,), (1, n), (m, 1), (m, n))))
    known = {"x1"} | ({"x2"} if data.draw(st.booleans()) else set())
    arrays = [numbers(rng, shape) for shape in (*shapes, *([] if bias is None else [bias]))]
    made = same(network("Gemm", arrays, known, transA=turned[0], transB=turned[1], **factors), arrays)
    (gemm,) = (node for node in made.nodes if node.op == "Gemm")
    assert gemm["alpha"] == 1 and not gemm["transA"] and gemm["transB"] == turned[1]


@settings(max_examples=30, deadline=None)
@given(rng=GENERATORS, ones=st.integers(0, 2), more=st.integers(0, 2))
def test_matrices_with_axes_of_one(rng, ones, more):
    arrays = [numbers(rng, (*(2, 3, 2)[: ones + more], 4, 5)), numbers(rng, (*[1] * ones, 5, 3))]
    made = same(network("MatMul", arrays, {"x1"}), arrays)
    (layer,) = layers_of(made)
    assert layer.weight.shape == (5, 3)


@settings(max_examples=30, deadline=None)
@given(rng=GENERATORS, op=st.sampled_from(("Conv", "ConvTranspose")), rank=st.integers(1, 2), groups=st.integers(1, 2))
def test_biases_that_are_computed(rng, op, rank, groups):
    weight = (4, 3) if op == "Conv" else (3 * groups, 4 // groups)
    arrays = [numbers(rng, (2, 3 * groups, *[5] * rank)), numbers(rng, (*weight, *[3] * rank)), numbers(rng, (4,))]
    made = same(network(op, arrays, {"x1"}, group=groups), arrays)
    assert [node.op for node in made.nodes] == ["Reshape", op, "Add"] or [node.op for node in made.nodes] == [
        op, "Reshape", "Add",
    ]  # fmt: skip


def test_what_has_matrices_of_several_is_no_product():
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (2, 4, 5)), numbers(rng, (2, 5, 3))]
    graph = network("MatMul", arrays, {"x1"})
    assert plain.run(graph) is graph and layer_of(graph, graph.nodes[0]) is None


NETWORK = (
    """g (float[N,8,5,5] x, float[8] s) => (float[5,N] y) {
    a = ConvTranspose<group=2>(x, w1, b1)
    r = Relu(a)
    b = ConvTranspose<dilations=[2,2], group=8, pads=[1,1,1,1]>(r, w2, s)
    c = ConvTranspose<dilations=[2,1], strides=[2,1]>(b, w3)
    d = Conv(c, w4, s)
    m = GlobalAveragePool(d)
    f = Flatten(m)
    g1 = Gemm<alpha=0.5, beta=2.0>(f, w5, b5)
    h = MatMul(g1, w6)
    t = Transpose<perm=[1,0]>(h)
    u = Gemm<transA=1, transB=1, alpha=2.0>(t, w7)
    v = Transpose<perm=[1,0]>(u)
    y = Identity(v)
}""",
    {
        "w1": (8, 4, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "w3": (8, 8, 2, 2), "w4": (8, 8, 1, 1), "w5": (8, 9),
        "b5": (9,), "w6": (9, 7), "w7": (5, 7),
    },
)  # fmt: skip


def test_all_become_layers_that_compute_with_integers(tmp_path):
    source = with_weights(parse(NETWORK[0]), NETWORK[1])
    rng = np.random.default_rng(1)
    samples = [{"x": numbers(rng, (4, 8, 5, 5)), "s": numbers(rng, (8,)) / np.float32(4)} for _ in range(6)]
    made = cpuconv.quantize(source, samples, output=tmp_path / "q.onnx", threads=1, refuse_slower=False)
    assert len(made.layers) == 7 and not made.kept
    check_int8_layers(source, tmp_path / "q.onnx", samples[0])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_softmax_of_the_last_axis_has_no_flatten(axis):
    text = f"g (float[N,3,M] x) => (float[N,3,M] y) {{ a = Relu(x) y = Softmax<axis={axis}>(a) }}"
    graph = read(parse(text, 11))
    assert (len(graph.nodes) == 2) == (axis == -1)  # the rank of a is unknown
    known = {name: Value((None,) * 3, np.dtype(np.float32)) for name in "ay"}
    made = plain.run(replace(graph, values={**graph.values, **known}))
    assert [node.op for node in made.live().nodes] == ["Relu", "Softmax"] or axis in (0, 1)
    for shape in ((2, 3, 5), (0, 3, 5), (2, 3, 0)):  # empty tensors as well
        feed = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        (before,), (after,) = (interpret(specialise(each, {"x": shape}), feed).values() for each in (graph, made))
        assert before.shape == shape
        np.testing.assert_array_equal(before, after)
