"""Graphs that templates give for other sizes: the same as rewriting gives, for every size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from bench.plans import opened
from cpuconv.errors import SourceError
from cpuconv.graph.ir import Graph
from cpuconv.network.definition import Definition
from cpuconv.network.sizes import graph_templates
from cpuconv.network.sizes.prepared import prepared
from cpuconv.reading.onnx_reader import read
from support.graph.random_networks import known_networks
from support.graphs import definition_of, normal, parse

RNG = np.random.default_rng(0)
SIDES = st.integers(1, 24)


def _with_weights(text: str, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    return parse(text, 18, **normal(RNG, shapes))


MODELS = {
    "rows of pixels": _with_weights(
        """g (float[N,3,H,W] x) => (float[A,B,C] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
            int64[1] rest = {-1}, int64[1] eight = {8}, float[1] half = {0.5}> {
            c = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w)
            r = Relu(c)
            t = Transpose<perm = [0, 2, 3, 1]>(r)
            s = Shape(t)
            i = Cast<to = 6>(s)
            n = Slice(i, zero, one)
            k = Cast<to = 7>(n)
            to = Concat<axis = 0>(k, rest, eight)
            z = Reshape(t, to)
            m = Mul(z, half)
            y = Softmax(m)
        }""",
        {"w": (8, 3, 3, 3)},
    ),
    "parts of a plane": _with_weights(
        """g (float[N,2,H,W] x) => (float[N,2,P,Q] y, float[N,2,H,R] z) <int64[2] begins = {0, -9},
            int64[2] ends = {12, 99}, int64[2] axes = {2, 3}, float[4] scales = {1, 1, 2, 1.5},
            int64[8] pads = {0, 0, 0, 0, 0, 0, 0, 0}> {
            p = Pad(x, pads)
            s = Slice(p, begins, ends, axes)
            y = Resize(s, , scales)
            a, b = Split<axis = 3, num_outputs = 2>(p)
            z = Relu(a)
        }""",
        {},
    ),
    "halves that meet": _with_weights(
        """g (float[N,4,H,W] x, float[M,4,P,Q] v) => (float[A,B,C,D] y) {
            a = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)
            b = AveragePool<kernel_shape = [3, 3], auto_pad = "SAME_UPPER", strides = [2, 2]>(v)
            s = Add(a, b)
            y = Mul(s, s)
        }""",
        {},
    ),
    "picked sizes": _with_weights(
        """g (float[N,4,H,W] x) => (float[A,B,C,D,E] y) <int64 at = {2}, int64[1] zero = {0}, int64[1] n = {1},
            int64[1] c = {2}, int64 two = {2}> {
            s = Shape(x)
            h = Gather(s, at)
            g = Add(h, h)
            d = Mul(h, two)
            q = Sub(d, g)
            e = Add(q, h)
            u = Unsqueeze(e, zero)
            to = Concat<axis = 0>(n, c, u, c, n)
            f = Reshape(x, to)
            y = Relu(f)
        }""",
        {},
    ),
}


def _definition(model: onnx.ModelProto) -> Definition:
    return definition_of(cpuconv.compile(model, strategy="heuristic", threads=1))


def _outcome(make) -> str:
    """A graph as text, every constant included, or what hinders it."""
    try:
        graph: Graph = make().graph
    except SourceError as error:
        return f"SourceError: {error}"
    constants = {name: (array.dtype, array.shape, array.tobytes()) for name, array in graph.constants.items()}
    parts = [(node.parts, node.origin) for node in graph.nodes]
    return f"{graph}\n{dict(graph.values)}\n{constants}\n{parts}"


def _plain(definition: Definition, shapes) -> str:
    named = dict(zip(definition.inputs, shapes, strict=True))
    return _outcome(lambda: prepared(definition.graph, named, definition.settings.rewriting, noted=False))


def _by_template(definition: Definition, shapes) -> str:
    return _outcome(lambda: definition.prepared(shapes, {}, noted=False)[0])


@pytest.mark.parametrize("name", MODELS)
def test_a_template_gives_what_rewriting_gives(name):
    definition = _definition(MODELS[name])

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 3), SIDES, SIDES, st.booleans())
    def check(n, h, w, alike):
        channels = [value.shape[1] for value in definition.inputs.values()]
        sizes = [(h, w), (h, w) if alike else (w, h)]
        shapes = tuple((n, c, *plane) for c, plane in zip(channels, sizes, strict=False))
        assert _by_template(definition, shapes) == _plain(definition, shapes)

    check()


@settings(max_examples=30, deadline=None)
@given(known_networks, st.lists(st.tuples(st.integers(1, 2), SIDES, SIDES), min_size=2, max_size=4))
def test_templates_of_random_networks(made, sizes):
    first = read(made[0])
    definition = definition_of(cpuconv.compile(opened(first), strategy="heuristic", threads=1))
    stated = tuple(first.value(name).shape for name in first.inputs)
    for shapes in (stated, *(tuple((n, shape[1], h, w) for shape in stated) for n, h, w in sizes), stated):
        assert _by_template(definition, shapes) == _plain(definition, shapes)


def test_sizes_alike_need_one_template_and_no_rewriting(monkeypatch):
    definition = _definition(MODELS["rows of pixels"])
    asked = []
    monkeypatch.setattr("cpuconv.network.definition.prepared", lambda *a, **o: asked.append(a) or prepared(*a, **o))
    for width in (20, 24, 30, 31, 77):
        definition.prepared(((1, 3, 16, width),), {}, noted=False)
    assert len(asked) == len(definition.templates) == 1


def test_templates_are_few():
    model = parse(
        """g (float[N,C,H,W] x) => (float[A,B] y) <int64[4] ends = {1, 2, 3, 40}, int64[4] zeros = {0, 0, 0, 0}> {
            s = Slice(x, zeros, ends)
            y = Flatten(s)
        }"""
    )
    definition = _definition(model)
    for width in range(1, 3 * graph_templates.MAX_TEMPLATES):
        for height in (1, 2, 3, 4):
            shapes = ((1, height, height, width),)
            assert _by_template(definition, shapes) == _plain(definition, shapes)
    assert 1 < len(definition.templates) <= graph_templates.MAX_TEMPLATES


def test_what_a_template_cannot_hold_is_rewritten_each_time(monkeypatch):
    """A node that hides a size where nobody would look."""
    definition = _definition(MODELS["rows of pixels"])
    whole = graph_templates.GraphTemplate.__init__

    def hiding(self, graph, trace, given):
        graph.nodes[0].__dict__["attributes"] = {"hidden": {"deep": trace.inputs[-1]}}
        whole(self, graph, trace, given)

    monkeypatch.setattr(graph_templates.GraphTemplate, "__init__", hiding)
    for width in (20, 24):
        shapes = ((1, 3, 16, width),)
        assert _by_template(definition, shapes) == _plain(definition, shapes)
    assert not len(definition.templates)


def test_constants_that_were_made_last():
    """They are read-only; what lies in memory of others is copied, a file's or a caller's is left as it is."""
    whole, mine, file = np.zeros(64, np.float32), np.ones(8, np.float32), np.frombuffer(bytes(32), np.float32)
    made, shared = np.arange(8, dtype=np.float32), np.frombuffer(whole.data[8:16], np.float32)
    given = Graph((), ("a",), (), {"a": mine, "b": file})
    graph = graph_templates.lasting(Graph((), ("a",), (), {"a": mine, "b": file, "c": made[2:], "d": shared}), given)
    assert graph.constants["a"] is mine and mine.flags.writeable and graph.constants["b"] is file
    assert not made.flags.writeable and not graph.constants["c"].flags.writeable
    copy = graph.constants["d"]
    assert not np.shares_memory(copy, whole) and not copy.flags.writeable and whole.flags.writeable
    np.testing.assert_array_equal(copy, shared)
