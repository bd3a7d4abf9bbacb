"""Convolutions of bytes over padding by a zero point that is found while the network runs: the same sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import TABLE
from cpuconv.graph.passes import integers, pads
from cpuconv.graph.passes.nonnegative import never_negative
from cpuconv.network.interpret import interpret
from support.graph.draws import GENERATORS
from support.graph.expressions import Expression, feed, graph, op
from support.graph.layers import array
from support.graph.quantised import _some as some

FLOAT, BYTE = np.dtype(np.float32), np.dtype(np.uint8)
Line = tuple[str, Sequence[str], Sequence[str], Mapping[str, object]]


def network(x: np.ndarray, lines: Sequence[Line], constants: Mapping[str, np.ndarray], *more: str) -> Graph:
    """A graph of one input x and the outputs y and `more`, of operators in order."""
    nodes, values = [], {"x": Value(x.shape, x.dtype)}
    for name, inputs, outputs, attributes in lines:
        node = TABLE[name].node(list(inputs), list(outputs), outputs[0], **attributes)
        known = [
            None if not each else Value.of(constants[each]) if each in constants else values[each] for each in inputs
        ]
        values |= dict(zip(outputs, TABLE[name].infer(node, known), strict=True))
        nodes.append(node)
    return Graph(("x",), ("y", *more), tuple(nodes), dict(constants), values)


def rewritten(before: Graph) -> Graph:
    made = before
    for run in (pads.run, integers.run):
        made = run(made)
    return made


def exact(before: Graph, after: Graph, x: np.ndarray) -> None:
    expected, got = interpret(before, {"x": x}), interpret(after, {"x": x})
    for name in before.outputs:
        np.testing.assert_array_equal(got[name], expected[name])


def padding(near: Sequence[int], far: Sequence[int]) -> np.ndarray:
    return np.array([0, 0, *near, 0, 0, *far])


SPAN: Line = ("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"], {})
PADDED: Line = ("Pad", ["q", "pads", "zero"], ["padded"], {})
SUMS: Line = ("ConvInteger", ["padded", "w", "zero", "w_zero"], ["sums"], {})
FLOATS: Line = ("Cast", ["sums"], ["y"], {"to": FLOAT})


@st.composite
def drawn(draw):
    """A network, its input, and whether the input of its bytes can be negative."""
    rng, rank, groups = draw(GENERATORS), draw(st.integers(1, 2)), draw(st.sampled_from((1, 2, 3)))
    each, outputs, w_type = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from((np.uint8, np.int8)))
    kernel, strides, gaps = ([draw(st.integers(1, most)) for _ in range(rank)] for most in (3, 2, 2))
    around = [[draw(st.integers(0, 2)) for _ in range(rank)] for _ in range(4)]
    x = rng.normal(draw(st.sampled_from((-3.0, 0.0, 3.0))), 2, (2, groups * each, *[6] * rank)).astype(FLOAT)
    w = some(rng, (groups * outputs, each, *kernel), np.dtype(w_type))
    points = (np.zeros((), w.dtype), some(rng, (), w.dtype), some(rng, (len(w),), w.dtype))
    constants = {"w": w, "w_zero": draw(st.sampled_from(points)), "pads": padding(*around[:2])}
    constants |= {"outer": padding(*around[2:])}
    attributes = {"group": groups, "strides": strides, "dilations": gaps, "pads": [*around[1], *around[2]]}
    positive, outer = draw(st.booleans()), draw(st.booleans())
    source = "floats" if positive else "x"
    lines: list[Line] = [("Relu", ["x"], ["floats"], {})] if positive else []
    if outer:
        lines.append(("Pad", [source, "outer"], ["wide"], {}))
    lines += [(SPAN[0], ["wide" if outer else source], *SPAN[2:]), PADDED, (*SUMS[:3], attributes), FLOATS]
    return network(x, lines, constants), x, positive


@settings(max_examples=150, deadline=None)
@given(drawn())
def test_any_padding_by_the_zero_point_goes_into_the_convolution(case):
    before, x, positive = case
    made = rewritten(before)
    exact(before, made, x)
    kinds = [node.op for node in made.nodes]
    assert not {"Pad", "ConvInteger"} & {*kinds}
    if positive:
        assert "QuantizedConv" in kinds  # no map of what lies over the input, by which others read more
        assert made.nodes[kinds.index("QuantizedConv")]["x_zero_point"] == 0
    assert "QuantizedConv" in kinds or before.constants["w"].shape[1] == 1


X = np.random.default_rng(5).normal(1, 2, (2, 6, 5, 4)).astype(FLOAT)
PARTS = {"w": some(np.random.default_rng(6), (4, 6, 3, 3), np.dtype(np.int8)), "w_zero": np.zeros((), np.int8)}
PARTS |= {"pads": padding([1, 1], [1, 1]), "more": padding([0, 1], [1, 0])}


AROUND: Line = ("Pad", ["x", "pads"], ["wide"], {})
WIDE: Line = (SPAN[0], ["wide"], *SPAN[2:])
OF_WIDE: Line = (SUMS[0], ["q", *SUMS[1][1:]], *SUMS[2:])
CHANNEL = {"pads": np.array([0, 1, 0, 0, 0, 0, 0, 0]), "w": np.repeat(PARTS["w"], 7, 1)[:, ::6]}
OTHERS = {
    "zero": ([SPAN, ("Pad", ["q", "pads"], ["padded"], {}), SUMS, FLOATS], {}, ()),
    "another number": ([SPAN, ("Pad", ["q", "pads", "two"], ["padded"], {}), SUMS, FLOATS], {"two": np.uint8(2)}, ()),
    "no zero point": ([SPAN, PADDED, (SUMS[0], ["padded", "w"], *SUMS[2:]), FLOATS], {}, ()),
    "edges": ([SPAN, (*PADDED[:3], {"mode": "edge"}), SUMS, FLOATS], {}, ()),
    "inwards": ([SPAN, PADDED, SUMS, FLOATS], {"pads": padding([1, -1], [1, 1])}, ()),
    "channels": ([SPAN, PADDED, SUMS, FLOATS], CHANNEL, ()),
    "ones": ([("Pad", ["x", "pads", "one"], ["wide"], {}), WIDE, OF_WIDE, FLOATS], {"one": np.float32(1)}, ()),
    "bytes that others read": ([AROUND, WIDE, OF_WIDE, FLOATS], {}, ("q",)),
}


@pytest.mark.parametrize(("lines", "constants", "more"), OTHERS.values(), ids=OTHERS)
def test_other_padding_stays(lines, constants, more):
    before = network(X, lines, PARTS | constants, *more)
    made = rewritten(before)
    assert "Pad" in [node.op for node in made.nodes]
    exact(before, made, X)


@pytest.mark.parametrize("zero", [0, 7, 255])
def test_a_zero_point_that_is_known(zero):
    constants = PARTS | {"zero": np.uint8(zero), "same": np.full((1,), zero, np.uint8)}
    lines: list[Line] = [(*PADDED[:1], ["x", "pads", "same"], *PADDED[2:]), SUMS, FLOATS]
    x = some(np.random.default_rng(1), (2, 6, 5, 4), BYTE)
    before = network(x, lines, constants)
    made = rewritten(before)
    assert made.nodes[0].op == "QuantizedConv" and made.nodes[0]["x_zero_point"] == zero
    exact(before, made, x)


x, y = feed(2, 6, 5, 4), feed(2, 6, 5, 4)


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (x, False),
        (op.Relu(x), True),
        (op.Clip(x, 0.0, 6.0), True),
        (op.Clip(x, 0.5), True),
        (op.Clip(x, -0.5, 6.0), False),
        (op.Clip(x, None, 6.0), False),
        (op.Clip(x, 0.0, -1.0), False),  # -1 everywhere
        (op.MaxPool(op.Relu(x), kernel_shape=[3, 3], pads=[1, 1, 1, 1]), True),
        (op.MaxPool(op.Relu(x), kernel_shape=[2, 2], pads=[2, 0, 0, 0]), False),  # minus infinity
        (op.AveragePool(op.Sigmoid(x), kernel_shape=[2, 2]), True),
        (op.Concat(op.Relu(x), op.Exp(y), axis=1), True),
        (op.Concat(op.Relu(x), y, axis=1), False),
        (op.Relu(x) + op.Relu(y), True),
        (op.Relu(x) + y, False),
        (op.Relu(x) - op.Relu(y), False),
        (op.Relu(x) * array(6, 1, 1), True),
        (op.Relu(x) * -array(6, 1, 1), False),
        (op.Transpose(op.Reshape(op.Relu(x), [2, 6, 20]), perm=[0, 2, 1]), True),
        (op.Tanh(op.Relu(x)), False),  # nothing says so of Tanh
    ],
)
def test_what_is_known_never_to_be_negative(value: Expression, known: bool):
    made = graph(value)
    assert never_negative(made, "y0") == known
    rng = np.random.default_rng(0)
    fed = {name: rng.normal(0, 3, made.value(name).shape).astype(FLOAT) for name in made.inputs}
    assert not known or (interpret(made, fed)["y0"] >= 0).all()


# --- as files have it -----------------------------------------------------------------------------------------------

INNER = """g (float[N,{c},H,W] x) => (float[] y) {{
    {before}
    q, scale, zero = DynamicQuantizeLinear({source})
    {padded}
    sums = ConvInteger<{attributes}>({bytes}, w, zero, w_zero)
    f = Cast<to = 1>(sums)
    factor = Mul(scale, w_scale)
    scaled = Mul(f, factor)
    y = Add(scaled, bias)
}}"""
FORMS = {
    "the convolution's own": {"attributes": "pads = [1, 0, 2, 1]"},
    "of bytes": {"padded": "padded = Pad(q, pads, zero)", "bytes": "padded"},
    "of pooled bytes": {
        "padded": "pooled = MaxPool<kernel_shape = [2, 2]>(q) padded = Pad(pooled, pads, zero)",
        "bytes": "padded",
    },
    "of floats": {"before": "wide = Pad(x, pads)", "source": "wide"},
    "of positive floats": {"before": "floats = Relu(x) wide = Pad(floats, pads)", "source": "wide"},
}


@pytest.mark.parametrize("groups", [1, 3, 9])
@pytest.mark.parametrize(("w_type", "w_zero"), [(np.int8, "none"), (np.uint8, "one"), (np.int8, "many")])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_files_run_by_kernels(form, w_type, w_zero, groups):
    pytest.importorskip("onnx")
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    from support.graphs import parse

    rng, w_type = np.random.default_rng(groups), np.dtype(w_type)
    w = some(rng, (18, 9 // groups, 3, 3), w_type)
    zeros = {"none": np.zeros((), w_type), "one": some(rng, (), w_type), "many": some(rng, (18,), w_type)}
    per = rng.uniform(0.001, 0.02, (18, 1, 1) if w_zero == "many" else ()).astype(FLOAT)
    own = {"before": "", "source": "x", "padded": "", "bytes": "q", "attributes": "strides = [1, 2]"} | form
    text = INNER.format(c=9, **own).replace("<strides", f"<group = {groups}, strides")
    model = parse(text.replace("<pads", f"<group = {groups}, pads"))
    bias = rng.normal(size=(18, 1, 1)).astype(FLOAT)
    constants = {"w": w, "w_zero": zeros[w_zero], "w_scale": per, "bias": bias, "pads": padding([1, 0], [2, 1])}
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(each, name) for name, each in constants.items() if name in read
    )
    made, reference = cpuconv.compile(model, strategy="heuristic"), ReferenceEvaluator(model)
    for shape in ((1, 9, 9, 8), (3, 9, 6, 11)):
        x = rng.normal(0.5, 1, shape).astype(FLOAT)
        (got,), (expected,) = made.run({"x": x}).values(), reference.run(None, {"x": x})
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert not [line for line in str(made.explain()).splitlines() if "NumPy" in line]
