"""ONNX's Attention and RotaryEmbedding in all their forms, against ONNX's reference evaluator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx", minversion="1.23")  # earlier evaluators give NaN for queries without a key

from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import cpuconv  # noqa: E402

B, S, T, P, HEADS, SIZE, WIDTH = 2, 9, 11, 3, 4, 8, 6
ALONE = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
SHARED = {"q_num_heads": HEADS, "kv_num_heads": 2}
MASKS = ((S, T), (1, 1, S, T), (B, 1, S, T), (1, HEADS, S, T), (HEADS, S, T))


def f(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def model(op, arrays, outputs, opset, stated=True, **attributes):
    names = [f"x{at}" if array is not None else "" for at, array in enumerate(arrays)]
    kinds = [(name, array) for name, array in zip(names, arrays, strict=True) if array is not None]
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape if stated else None
        )
        for name, array in kinds
    ]
    results = [f"y{at}" for at in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph([node], "g", inputs, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), dict(kinds)


def equal(op, arrays, outputs=1, opset=23, attention=True, **attributes):
    """See that all outputs are the evaluator's, and that kernels compute the attention."""
    proto, feed = model(op, arrays, outputs, opset, **attributes)
    expected = ReferenceEvaluator(proto).run(None, feed)
    compiled = cpuconv.compile(proto.SerializeToString(), threads=1)
    for wanted, got in zip(expected, compiled.run(feed).values(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max(initial=1))
    if attention:
        assert "ScaledDotProductAttention" in str(compiled.explain())


def flat(heads=HEADS, keys=T):
    return [f(B, S, HEADS * SIZE), f(B, keys, heads * SIZE), f(B, keys, heads * WIDTH)]


def apart(heads=HEADS, keys=T):
    return [f(B, HEADS, S, SIZE), f(B, heads, keys, SIZE), f(B, heads, keys, WIDTH)]


@pytest.mark.parametrize("opset", (23, 24, 25))
@pytest.mark.parametrize("causal", (0, 1))
@pytest.mark.parametrize("scale", (None, 0.3))
def test_attention(opset, causal, scale):
    attributes = {"is_causal": causal, **({} if scale is None else {"scale": scale})}
    equal("Attention", flat(), opset=opset, **ALONE, **attributes)
    equal("Attention", apart(), opset=opset, **attributes)


def test_shared_heads():
    equal("Attention", flat(2), **SHARED)
    equal("Attention", apart(2))
    equal("Attention", [*apart(1), f(1, HEADS, S, T)])


@pytest.mark.parametrize("causal", (0, 1))
@pytest.mark.parametrize("shape", MASKS)
def test_masks(shape, causal):
    mask = f(*shape)
    equal("Attention", [*apart(), mask], is_causal=causal)
    equal("Attention", [*apart(), mask > 0.3], is_causal=causal)


@pytest.mark.parametrize("shape", ((S, T - 3), (B, 1, S, T - 1), (1, HEADS, S, 1)))
def test_masks_of_fewer_keys_hide_the_others(shape):
    mask = f(*shape)
    equal("Attention", [*apart(), mask])
    equal("Attention", [*apart(), mask > -0.5], is_causal=1)


def test_queries_without_a_key_are_zero():
    seen = np.ones((S, T), bool)
    seen[3] = False
    equal("Attention", [*apart(), seen])
    equal("Attention", [*apart(), np.where(seen, 0, -np.inf).astype(np.float32)])


@pytest.mark.parametrize("causal", (0, 1))
def test_past(causal):
    past = [f(B, HEADS, P, SIZE), f(B, HEADS, P, WIDTH)]
    equal("Attention", [*apart(), None, *past], outputs=3, is_causal=causal)
    equal("Attention", [*flat(), f(S, T + P), *past], outputs=3, is_causal=causal, **ALONE)


@pytest.mark.parametrize("lengths", ([4, 11], [9, 10], [0, 3]))
@pytest.mark.parametrize("causal", (0, 1))
def test_lengths(causal, lengths):
    equal("Attention", [*apart(), None, None, None, np.array(lengths)], opset=24, is_causal=causal)


@pytest.mark.parametrize("left, right", ((0, 0), (2, -1), (-1, 1), (3, 1)))
def test_windows(left, right):
    windows = {"left_window_size": left, "right_window_size": right}
    equal("Attention", apart(), opset=25, **windows)
    equal("Attention", [*apart(), None, f(B, HEADS, P, SIZE), f(B, HEADS, P, WIDTH)], outputs=3, opset=25, **windows)


def test_a_cap_of_scores():
    equal("Attention", apart(), attention=False, softcap=0.7)


@pytest.mark.filterwarnings("ignore::cpuconv.errors.CpuconvWarning")
def test_scores_as_an_output():
    """ONNX's evaluator computes this form."""
    proto, feed = model("Attention", apart(), 4, 23)
    expected = ReferenceEvaluator(proto).run(None, feed)
    for wanted, got in zip(expected, cpuconv.compile(proto.SerializeToString()).run(feed).values(), strict=True):
        if wanted is not None:
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("interleaved, count, positions", [*itertools.product((0, 1), (0, 4), (False, True))])
def test_rotary_embedding(interleaved, count, positions):
    pairs = (count or SIZE) // 2
    tables = [f(20, pairs), f(21, pairs)[:20]] if positions else [f(B, S, pairs), f(B, S, pairs) + 1]
    more = [np.random.default_rng(0).integers(0, 20, (B, S))] if positions else []
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": count, "attention": False}
    equal("RotaryEmbedding", [f(B, HEADS, S, SIZE), *tables, *more], **attributes)
    equal("RotaryEmbedding", [f(B, S, HEADS * SIZE), *tables, *more], num_heads=HEADS, **attributes)
