"""Compiled networks on arrays of callers that end at memory nobody may touch, and begin behind such memory."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import cpuconv  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402
from cpuconv.network.model import Model  # noqa: E402
from support import oracle  # noqa: E402
from support.graph.cases import CASES  # noqa: E402
from support.graph.random_networks import known_networks  # noqa: E402
from support.graphs import one_node, parse  # noqa: E402
from support.guarded import EDGES, named, only, place  # noqa: E402

NATIVE = [name for name, op in TABLE.items() if op.offers and onnx.defs.has(name)]


def check(model: Model, feed: dict[str, np.ndarray], about: object) -> None:
    """The same bits as from arrays and into arrays that lie anywhere; nothing around these is written to."""
    expected = model.run(feed)
    for edge in EDGES:
        placed = {name: place(np.asarray(array), edge) for name, array in feed.items()}
        out = {name: place(np.zeros(array.shape, array.dtype), edge) for name, array in expected.items()}
        before = {name: array.copy() for name, array in placed.items()}
        with only(*placed.values(), *out.values()):
            named(about, lambda placed=placed, out=out: model.run(placed, out=out))
        for name, array in expected.items():
            np.testing.assert_array_equal(out[name], array, err_msg=f"{about}: {name}, arrays at their {edge}")
        for name, array in before.items():
            np.testing.assert_array_equal(placed[name], array, err_msg=f"{about}: {name} was written to")


@settings(max_examples=30)
@given(known_networks)
def test_a_random_network(drawn):
    model, feed = drawn
    check(cpuconv.compile(model.SerializeToString(), threads=oracle.THREADS, strategy="heuristic"), feed, "a network")


@pytest.mark.parametrize("op", NATIVE)
@settings(max_examples=6)
@given(data=st.data())
def test_an_operator(op, data):
    case = data.draw(CASES[op])
    source, feed = one_node(op, case.arrays, case.outputs, fixed=TABLE[op].parameters, **case.attributes)
    check(cpuconv.compile(source, threads=1, strategy="heuristic"), feed, f"{op} {dict(case.attributes)}")


def test_inputs_of_any_strides():
    model = cpuconv.compile(parse("g (float[2,5,6,7] x) => (float[2,5,6,7] y) { y = Sigmoid(x) }"))
    whole = np.random.default_rng(0).standard_normal((4, 10, 12, 14), np.float32)
    check(model, {"x": whole[::2, ::-2, ::2, 1::2]}, "strides")
