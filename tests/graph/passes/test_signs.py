"""int8 and uint8 tensors are converted to the signedness of the CPU's instructions; all results stay bit-identical."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cpuconv
from cpuconv.elements import S8, U8
from cpuconv.graph.ir import Graph
from cpuconv.graph.passes import signs
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.network.interpret import interpret
from support.graph.expressions import Expression, feed, graph, op
from support.graph.layers import array

SCALE = np.float32(0.125)


TAKEN = {U8: BY_NAME["vpmaddubsw"], S8: BY_NAME["sdot"]}
"""Products by the pixels that they take."""


@pytest.fixture(autouse=True)
def unsigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products take unsigned pixels, unless a test says otherwise."""
    monkeypatch.setattr(signs, "product_of", lambda *_: TAKEN[U8])


def signed(value: Expression, zero: int = 3, scale: object = SCALE) -> Expression:
    """Signed bytes of numbers."""
    return op.QuantizeLinear(value, scale, np.int8(zero))


def floats(value: Expression, zero: int | None = 3, scale: object = SCALE) -> Expression:
    """What such bytes mean."""
    return op.DequantizeLinear(value, scale, None if zero is None else np.int8(zero))


def bits(before: Graph, after: Graph, seed: int = 0) -> None:
    """See that both give the same bits."""
    rng = np.random.default_rng(seed)
    fed = {name: before.value(name) for name in before.inputs}
    arrays = {name: rng.normal(0, 9, value.shape).astype(value.dtype) for name, value in fed.items()}
    expected, got = interpret(before, arrays), interpret(after, arrays)
    assert [after.value(name) for name in after.outputs] == [before.value(name) for name in before.outputs]
    for name in before.outputs:
        np.testing.assert_array_equal(got[name], expected[name])


def signed_values(made: Graph) -> int:
    return sum(value.dtype == S8.dtype for value in made.values.values())


x, y = feed(2, 6, 5, 4), feed(2, 6, 5, 4)
POOLED = op.MaxPool(signed(x), kernel_shape=[2, 2], pads=[1, 0, 0, 1])
WHOLE = [
    (floats(signed(x)),),
    (floats(POOLED),),
    (floats(op.Transpose(op.Concat(POOLED, POOLED, axis=1), perm=[0, 2, 3, 1])), floats(POOLED)),
    (floats(op.QuantizeLinear(x, SCALE, np.int8(0)), None),),
    (op.DequantizeLinear(op.QuantizeLinear(x, array(6), np.arange(-3, 3, dtype=np.int8)), array(6)),),
    (op.Conv(floats(signed(x)), floats(np.ones((4, 6, 1, 1), np.int8), 0)),),
]
LEFT = [
    (signed(x),),  # the caller gets it
    (floats(POOLED), POOLED),
    (floats(op.Concat(signed(x), np.ones((2, 1, 5, 4), np.int8), axis=1)),),
    (op.ConvInteger(signed(x), np.ones((4, 6, 1, 1), np.int8)),),
    (op.Cast(signed(x), to=np.dtype(np.float32)),),
    (op.DequantizeLinear(signed(x), SCALE, op.Cast(op.ReduceMax(y, keepdims=0), to=S8.dtype)),),
]


@pytest.mark.parametrize("outputs", WHOLE)
def test_all_are_turned(outputs: tuple[Expression, ...]) -> None:
    before = graph(*outputs)
    made = signs.run(before)
    assert signed_values(before) and not signed_values(made)
    assert signs.run(made) is made
    bits(before, made)


@pytest.mark.parametrize("outputs", LEFT)
def test_what_others_see_stays(outputs: tuple[Expression, ...]) -> None:
    before = graph(*outputs)
    assert signs.run(before) is before


def test_a_branch_that_others_see_leaves_the_others_alone() -> None:
    before = graph(signed(x), floats(op.MaxPool(signed(y), kernel_shape=[2, 2])))
    made = signs.run(before)
    assert signed_values(made) == 1 and made.value("y0").dtype == S8.dtype
    bits(before, made)


def test_unsigned_bytes_become_signed_ones_where_products_take_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "product_of", lambda *_: TAKEN[S8])
    before = graph(*WHOLE[0])
    assert signs.run(before) is before
    for zero in (np.uint8(7), None):
        quantised = op.MaxPool(op.QuantizeLinear(x, SCALE, zero), kernel_shape=[2, 2], pads=[1, 0, 0, 1])
        before = graph(op.DequantizeLinear(quantised, SCALE, zero))
        made = signs.run(before)
        assert signed_values(made) == 2 and not any(value.dtype == U8.dtype for value in made.values.values())
        bits(before, made)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(-128, 127), st.integers(-128, 127), st.integers(0, 99))
def test_any_zero_points(first: int, second: int, seed: int) -> None:
    """Those of what is read may differ from those that it was given by."""
    before = graph(op.Mul(floats(signed(x, first), second), floats(signed(y, second), first)))
    bits(before, signs.run(before), seed)


def test_a_network_of_signed_bytes_runs_as_one_of_unsigned_bytes() -> None:
    import onnx.parser

    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,8,9,9] x) => (float[1,16,9,9] y)
        <float s = {0.1}, float t = {0.02}, int8 z = {-5}, int8 o = {0}> {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            v = DequantizeLinear(w, t, o)
            c = Conv <pads = [1, 1, 1, 1]> (d, v)
            r = QuantizeLinear(c, s, z)
            y = DequantizeLinear(r, s, z)
        }""")
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    fed = {"x": rng.standard_normal((1, 8, 9, 9), np.float32)}
    made, plain = cpuconv.compile(model, threads=1), cpuconv.compile(model, threads=1, skip_passes=["signs"])
    types = [{row.op: row.types for row in each.explain().operators}["QuantizedConv"] for each in (made, plain)]
    assert types == ["u8:s8:u8", "s8"]  # all of one type
    np.testing.assert_array_equal(made.run(fed)["y"], plain.run(fed)["y"])
