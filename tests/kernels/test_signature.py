"""What kernels are said to take and give: the texts, what fits them, and what is said of what does not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cpuconv.errors import SourceError
from cpuconv.graph.ir import Value
from cpuconv.graph.ops import OWN, TABLE
from cpuconv.kernels.binding.signature import forms, mismatch

WORDS = ("any", "known", "number")
LAYER = "x: float32 (S B 4DH), r: int8 (D H 4H), lengths?: int32 (B), h?: float32 (D B H) -> y: float32 (S D B H)"
ADD = "x*: float32|number ~(S...) -> y: float32 (S...)"
CAST = "x: any (S...) -> y: =x (S...); x: float32 (S...) -> y: float16|bfloat16 (S...)"
JOIN = "x: any, others*: =x -> y: =x"


def values(*texts: str | None) -> list[Value | None]:
    """Values such as ``float32[2,3]``; a constant where an exclamation mark comes first."""
    made: list[Value | None] = []
    for text in texts:
        if text is None:
            made.append(None)
            continue
        name, _, sizes = text.strip("!]").partition("[")
        shape = tuple(int(size) for size in sizes.split(",") if size)
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        made.append(Value.of(np.zeros(shape, dtype)) if text[0] == "!" else Value(shape, dtype))
    return made


@pytest.mark.parametrize(
    ("text", "inputs", "outputs"),
    [
        (LAYER, ["float32[5,2,24]", "int8[2,3,12]"], ["float32[5,2,2,3]"]),
        (LAYER, ["float32[5,2,24]", "int8[2,3,12]", "int32[2]", "float32[2,2,3]"], ["float32[5,2,2,3]"]),
        (LAYER, ["float32[5,2,24]", "int8[2,3,12]", None, "float32[2,2,3]"], [None]),
        (ADD, ["float32[2,3]"], ["float32[2,3]"]),
        (ADD, ["float32[3]", "float32[2,1]", "!int64[1]", None], ["float32[2,3]"]),
        (CAST, ["int64[2]"], ["int64[2]"]),
        (CAST, ["float32[]"], ["bfloat16[]"]),
        (JOIN, ["int8[2]", "int8[3]"], ["int8[5]"]),
        (JOIN, ["int8[2]"], ["int8[2]"]),
    ],
)
def test_what_fits(text, inputs, outputs):
    assert mismatch(text, values(*inputs), values(*outputs)) is None


X, R, Y = "float32[5,2,24]", "int8[2,3,12]", "float32[5,2,2,3]"
NUMBER = "'x' must be float32 or one constant number that broadcasts to [2,3], not "


@pytest.mark.parametrize(
    ("text", "inputs", "output", "reason"),
    [
        (LAYER, [X], Y, "'r' must be given"),
        (LAYER, [X, R, "int8[2]"], None, "'lengths' must be int32 of shape [2], not int8[2]"),
        (LAYER, ["float32[5,2,23]", R], None, "'x' must be float32 of shape [5,2,24], not float32[5,2,23]"),
        (LAYER, [X, "int8[2,3,11]"], None, "'r' must be int8 of shape [2,3,12], not int8[2,3,11]"),
        (LAYER, ["float32[5,2]", R], None, "'x' must be float32 of shape [S,B,24], not float32[5,2]"),
        (LAYER, [X, R], "float16[5,2,2,3]", "'y' must be float32 of shape [5,2,2,3], not float16[5,2,2,3]"),
        (LAYER, [X, R, None, None, X], None, "there must be no more than 4 operands"),
        (ADD, ["float32[2,3]", "int64[1]"], "float32[2,3]", NUMBER + "int64[1]"),
        (ADD, ["float32[2,3]", "float32[2]"], "float32[2,3]", NUMBER + "float32[2]"),
        (CAST, ["float64[2]"], "float32[2]", "'x' must be float32 of shape [2], not float64[2]"),
        (JOIN, ["int8[2]", "uint8[3]"], "int8[5]", "'others' must be int8, not uint8[3]"),
    ],
)
def test_what_does_not_fit_is_named(text, inputs, output, reason):
    assert mismatch(text, values(*inputs), values(output)) == reason


@pytest.mark.parametrize("text", ["x float32 -> y: float32", "x: float32", "x: float32 -> y: float32 (N", "-> "])
def test_what_is_no_signature(text):
    with pytest.raises((ValueError, TypeError)):
        forms(text)


def test_operators_with_kernels_state_what_they_take():
    for name, op in TABLE.items():
        assert bool(op.signature) == (op.lower is not None or op.own), name
        for form in forms(op.signature) if op.signature else ():
            every = form.inputs + form.outputs
            named, shapes = {each.name for each in every}, [each.shape for each in every if each.shape]
            bound = {word[0] for shape in shapes if not shape.broadcasts for word in shape.words if len(word) in (1, 4)}
            assert {letter for shape in shapes for letter in "".join(shape.words) if letter.isalpha()} <= bound, name
            for each in every:
                assert each.types and {word[1:] for word in each.types if word[0] == "="} <= named, name
                assert len(each.dtypes) == sum(word[0] != "=" and word not in WORDS for word in each.types), name


def test_operators_of_our_own_refuse_what_their_kernels_do_not_take():
    assert len(OWN) > 10
    node = TABLE["Lookup"].node(["x", "table"], ["y"])
    with pytest.raises(
        SourceError, match=r"Lookup node 'y': 'table' must be uint8 or int8 of shape \[256\], not float32\[256\]"
    ):
        TABLE["Lookup"].infer(node, values("uint8[4]", "float32[256]"))
