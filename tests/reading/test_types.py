"""Element types of a model's nodes: those that ONNX does not allow are refused as the model is read."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx")

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402

LAYER = "float[3,2,4] x, float[1,{rows},4] w, float[1,{rows},5] r"
LENGTHS = [
    ("LSTM", 20, "uint8"), ("GRU", 15, "int8"), ("RNN", 5, "bool"), ("LSTM", 20, "int64"), ("RNN", 5, "float"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "rows", "dtype"), LENGTHS)
@pytest.mark.parametrize("fed", [True, False])
def test_lengths_of_sequences_are_int32(op, rows, dtype, fed):
    """Stated for an input, or following from the node that gives them."""
    layer, named = LAYER.format(rows=rows), {"float": "float32"}.get(dtype, dtype)
    number = {"uint8": 2, "int8": 3, "bool": 9, "int64": 7, "float": 1}[dtype]
    given = f"{dtype}[2] n" if fed else "int32[2] m"
    cast = "" if fed else f"n = Cast<to = {number}>(m)"
    made = parse(f"g ({layer}, {given}) => (float[] y) {{ {cast} y = {op}<hidden_size = 5>(x, w, r, , n) }}")
    with pytest.raises(SourceError, match=f"{op} node 'y': the input 'n' must be int32, not {named}"):
        read(made)


BRANCHES = """g (bool[2] x, bool c) => (float[] y) {
    y = If(c) <then_branch = t () => (float[2] a) { a = Erf(x) }, else_branch = e () => (float[2] b) { b = Erf(x) }>
}"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (int64[2] x) => (float[] y) { y = Sigmoid(x) }", "float32, float16, float64 or bfloat16, not int64"),
        ("g (float[2] x, int32[1] k) => (float[] y, int64[] i) { y, i = TopK(x, k) }", "'k' must be int64, not int32"),
        ("g (float[2] x, uint8[1] s) => (float[] y) { y = Slice(x, s, s) }", "'s' must be int32 or int64, not uint8"),
        ("g (float[2] x, int32[1] s) => (float[] y) { y = Reshape(x, s) }", "'s' must be int64, not int32"),
        ("g (float[2] x, int32[2] z) => (bool[] y) { y = Less(x, z) }", "'z' must be float32 as 'x' is, not int32"),
        ("g (float[2] x) => (float[] y) { a = Shape(x) y = Concat<axis = 0>(x, a) }", "'a' must be float32 as 'x' is"),
        (BRANCHES, "Erf node 'a': the input 'x' must be float32.*, not bool"),
        ("g (float[2] x, float[2] c) => (float[] y) { y = Where(c, x, x) }", "'c' must be bool, not float32"),
    ],
)  # fmt: skip
def test_types_that_an_operator_does_not_take(text, message):
    with pytest.raises(SourceError, match=message):
        read(parse(text))


def test_types_that_are_not_known_are_not_judged():
    """What an operator of another domain gives."""
    made = parse("g (float[2,4] x, float[2,4] z) => (int64[] y) { a = Identity(x) y = Shape(a) }")
    del made.graph.node[0]
    made.graph.node.insert(0, onnx.helper.make_node("QuickGelu", ["x"], ["a"], domain="com.microsoft"))
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    assert read(made).nodes


def test_types_that_later_versions_of_an_operator_take():
    """Exporters write Conv of bfloat16 in opsets older than 22."""
    assert read(parse("g (bfloat16[1,2,3,3] x, bfloat16[4,2,1,1] w) => (bfloat16[] y) { y = Conv(x, w) }", 17)).nodes
