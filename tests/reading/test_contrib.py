"""Operators of ONNX Runtime's own domain, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.reading.contrib import CONTRIB, DOMAIN, STANDARD_DOMAIN  # noqa: E402
from support import saturation  # noqa: E402
from support.graph.contributed import FORMULAS, agree  # noqa: E402
from support.graphs import close, made, one_node, run, runtime_session  # noqa: E402

RNG = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _bytes(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype)


def _weights(*shape: int) -> np.ndarray:
    """Signed bytes whose products ONNX Runtime adds without saturation, also on CPUs without VNNI."""
    return _bytes(*shape, dtype=np.int8) // 2


def _quantised(*shape: int) -> list[np.ndarray]:
    return [_bytes(*shape), np.float32(0.04), np.uint8(120)]


TO_BYTES = [np.float32(0.1), np.uint8(100)]
X, W = _floats(2, 3, 6, 5), _floats(4, 3, 3, 3)

# operator, inputs, attributes, the positions of inputs that are constants, and how far results may be off
CASES = [
    ("FusedConv", [X, W, _floats(4)], {"activation": "Relu", "pads": [1, 1, 1, 1]}, (1, 2), 1e-5),
    ("FusedConv", [X, W], {"activation": "LeakyRelu", "activation_params": [0.2]}, (1,), 1e-5),
    ("FusedConv", [X, W], {"activation": "Clip", "activation_params": [-0.5, 0.5]}, (1,), 1e-5),
    ("FusedConv", [X, W, _floats(4), _floats(2, 4, 4, 3)], {"activation": "Relu"}, (1, 2), 1e-5),
    ("FusedGemm", [_floats(3, 4), _floats(5, 4), _floats(5)], {"activation": "Relu", "transB": 1}, (1, 2), 1e-5),
    ("FusedGemm", [_floats(3, 4), _floats(4, 5)], {"activation": "LeakyRelu", "activation_alpha": 0.2}, (1,), 1e-5),
    ("NhwcMaxPool", [_bytes(1, 5, 4, 3)], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "strides": [2, 1]}, (), 0),
    ("QuantizeLinear", [X, np.float32(0.05), np.uint8(100)], {}, (1, 2), 1),
    ("DequantizeLinear", _quantised(2, 3), {}, (1, 2), 1e-5),
    ("FusedMatMul", [_floats(2, 4, 3), _floats(2, 5, 3)], {"transB": 1, "alpha": 0.5}, (), 1e-5),
    ("Gelu", [X], {}, (), 1e-5),
    ("BiasGelu", [_floats(2, 3, 8), _floats(8)], {}, (1,), 1e-5),
    ("FastGelu", [_floats(2, 3, 8), _floats(8)], {}, (1,), 1e-5),
    ("FastGelu", [_floats(2, 3, 8)], {}, (), 1e-5),
    ("QuickGelu", [X], {"alpha": 1.5}, (), 1e-5),
    ("SkipLayerNormalization", [_floats(2, 3, 8), _floats(2, 3, 8), _floats(8), _floats(8)], {}, (2, 3), 1e-5),
    ("Attention", [_floats(2, 5, 8), _floats(8, 24), _floats(24)], {"num_heads": 2}, (1, 2), 1e-5),
    ("Attention", [_floats(2, 5, 8), _floats(8, 24)], {"num_heads": 2}, (1,), 1e-5),
    ("Attention", [_floats(2, 5, 8), _floats(8, 24), _floats(24)], {"num_heads": 2}, (), 1e-5),
    ("Attention", [_floats(2, 5, 8), _floats(8, 24)], {"num_heads": 4, "unidirectional": 1}, (), 1e-5),
    ("Attention", [_floats(2, 5, 8), _floats(8, 24), _floats(24)], {"num_heads": 2}, (1,), 1e-5),
    ("Attention", [_floats(2, 5, 8), _floats(8, 24), None, np.int32([3, 5])], {"num_heads": 2}, (1,), 1e-5),
    (
        "Attention",
        [_floats(2, 5, 8), _floats(8, 24), _floats(24), np.int32([[1, 1, 1, 0, 0], [1] * 5])],
        {"num_heads": 4, "scale": 0.3},
        (1, 2),
        1e-5,
    ),
    (
        "Attention",
        [_floats(2, 5, 8), _floats(8, 24), _floats(24), np.tril(np.ones((2, 5, 5), np.int32)), None]
        + [_floats(1, 2, 5, 5)],
        {"num_heads": 2},
        (1, 2),
        1e-5,
    ),
    (
        "QAttention",
        [_bytes(2, 5, 8), _weights(8, 24), _floats(24), np.float32(0.01), np.float32(0.02)]
        + [np.int32([[1, 1, 1, 0, 0], [1] * 5]), np.uint8(120), np.int8(0)],
        {"num_heads": 2},
        (1, 2, 3, 4, 6, 7),
        1e-5,
    ),
    (
        "QAttention",
        [_bytes(2, 5, 8), _weights(8, 24), _floats(24), np.float32(0.01)]
        + [RNG.uniform(0.01, 0.02, 24).astype(np.float32)],
        {"num_heads": 4},
        (1, 2, 3, 4),
        1e-5,
    ),
    (
        "QAttention",
        [_bytes(2, 5, 8), _weights(8, 24), _floats(24), np.float32(0.01), np.float32(0.02)]
        + [None, np.uint8(120), np.int8(0)],
        {"num_heads": 2},
        (),
        1e-5,
    ),
    ("QLinearAdd", [*_quantised(2, 3), *_quantised(2, 3), *TO_BYTES], {}, (), 1),
    ("QLinearMul", [*_quantised(2, 3), *_quantised(1, 3), *TO_BYTES], {}, (), 1),
    ("QLinearSigmoid", [*_quantised(2, 3), np.float32(1 / 255), np.uint8(0)], {}, (1, 2, 3, 4), 1),
    ("QLinearLeakyRelu", [*_quantised(2, 3), *TO_BYTES], {"alpha": 0.1}, (1, 2, 3, 4), 1),
    ("QLinearGlobalAveragePool", [*_quantised(2, 3, 4, 4), *TO_BYTES], {}, (1, 2, 3, 4), 1),
    ("QLinearAveragePool", [*_quantised(2, 3, 4, 4), *TO_BYTES], {"kernel_shape": [2, 2]}, (1, 2, 3, 4), 1),
    ("QLinearSoftmax", [*_quantised(2, 3, 5), np.float32(1 / 255), np.uint8(0)], {"opset": 13, "axis": 1}, (1, 2), 1),
    ("QLinearSoftmax", [*_quantised(2, 5), np.float32(1 / 255), np.uint8(0)], {"opset": 12, "axis": 1}, (1, 2), 1),
    ("QLinearSoftmax", [*_quantised(2, 3, 4), np.float32(1 / 255), np.uint8(0)], {"opset": 12, "axis": 1}, (1, 2), 1),
    ("QLinearSoftmax", [*_quantised(2, 3, 4), np.float32(1 / 255), np.uint8(0)], {"opset": 12, "axis": -1}, (1, 2), 1),
    (
        "QLinearWhere",
        [_bytes(2, 3) > 128, *_quantised(2, 3), *_quantised(2, 3), *TO_BYTES],
        {},
        (2, 3, 5, 6, 7, 8),
        1,
    ),
    (
        "QLinearMatMul",
        [*_quantised(3, 4), _bytes(4, 5), np.float32([0.02]), np.uint8([110]), np.float32(0.3), np.uint8(90)],
        {},
        (1, 2, 3, 4, 5, 6, 7),
        1,
    ),
    (
        "QLinearConv",
        [
            *_quantised(1, 3, 6, 5),
            _weights(4, 3, 3, 3),
            _floats(4) ** 2 / 50,
            np.zeros(4, np.int8),
            np.float32(0.8),
            np.uint8(90),
            np.arange(4, dtype=np.int32) * 1000,
        ],
        {"pads": [1, 1, 1, 1]},
        range(1, 9),
        1,
    ),
    (
        "QLinearConv",
        [
            *_quantised(1, 6, 5, 3),
            _weights(4, 3, 3, 3),
            np.float32(0.01),
            np.int8(0),
            np.float32(0.8),
            np.uint8(90),
        ],
        {"channels_last": 1},
        range(1, 8),
        1,
    ),
    (
        "QLinearAveragePool",
        [*_quantised(2, 4, 4, 3), *TO_BYTES],
        {"kernel_shape": [2, 2], "channels_last": 1},
        range(1, 5),
        1,
    ),
    ("QLinearConcat", [*TO_BYTES, *_quantised(2, 3), *_quantised(2, 4)], {"axis": 1}, (0, 1, 3, 4, 6, 7), 1),
    (
        "QGemm",
        [*_quantised(3, 4), _bytes(4, 5), _floats(5) ** 2, np.full(5, 7, np.uint8), _bytes(5).astype(np.int32)],
        {},
        (1, 2, 3, 4, 5, 6),
        1e-5,
    ),
    ("QGemm", [*_quantised(3, 4), *_quantised(5, 4), None, *TO_BYTES], {"transB": 1}, (1, 2, 3, 4, 5, 7, 8), 1),
    (
        "MatMulIntegerToFloat",
        [
            _bytes(3, 4),
            _bytes(4, 5),
            np.float32(0.1),
            _floats(5) ** 2,
            np.uint8(9),
            np.full(5, 7, np.uint8),
            _floats(5),
        ],
        {},
        (1, 2, 3, 4, 5, 6),
        1e-5,
    ),
    (
        "DynamicQuantizeMatMul",
        [_floats(3, 4), _bytes(4, 5), np.float32([0.02]), np.uint8([128]), _floats(5)],
        {},
        (1, 2, 3, 4),
        1e-5,
    ),
    *[
        (
            "DynamicQuantizeLSTM",
            [_floats(5, 2, 4), _bytes(2, 4, 12), _bytes(2, 3, 12), _floats(2, 24), None, None, None, None]
            + [np.float32([0.01, 0.02]), np.uint8([128, 120]), np.float32([0.02, 0.01]), np.uint8([128, zero])],
            {"direction": "bidirectional", "hidden_size": 3},
            (1, 2, 3, 8, 9, 10, 11),
            limit,
        )
        for zero, limit in ((128, 1e-2), (130, 1e-2))  # of the state
    ],
]


def test_attention_without_a_bias_that_onnx_runtime_asks_for():
    arrays = [_bytes(2, 5, 8), _weights(8, 24), _floats(24) * 0, np.float32(0.01), np.float32(0.02)]
    expected = run(*one_node("QAttention", arrays, 1, 17, (1, 2), DOMAIN, num_heads=2))[0]
    for fixed in ((), (1,)):
        model = one_node("QAttention", [*arrays[:2], None, *arrays[3:]], 1, 17, fixed, DOMAIN, num_heads=2)
        np.testing.assert_allclose(run(*model)[0], expected, rtol=1e-5)


def test_a_mask_of_another_form_is_refused():
    """Ends and starts of what is seen: of two sequences four numbers."""
    arrays = [_floats(1, 5, 8), _floats(8, 24), None, np.int32([3, 1])]
    with pytest.raises(SourceError, match="node 'y0'"):
        run(*one_node("Attention", arrays, 1, 17, (1,), DOMAIN, num_heads=2))


@pytest.mark.parametrize("mask", (np.int32([3, 5]), np.int32([[1, 1, 0, 1, 0], [1] * 5])))
def test_masks_of_a_rank_that_the_model_does_not_state(mask):
    """As ONNX Runtime's optimiser writes the mask of a BERT: counts of visible tokens, or a flag for each."""
    x, w = _floats(2, 5, 8), _floats(8, 24)
    bias = np.zeros(24, np.float32)
    expected = run(*one_node("Attention", [x, w, bias, mask], 1, 17, (1, 2), DOMAIN, num_heads=2))[0]
    model, fed = one_node("Attention", [x, w, bias, mask], 1, 17, (1, 2), DOMAIN, num_heads=2)
    name, model.graph.node[0].input[3] = model.graph.node[0].input[3], "mask"
    model.graph.node.insert(0, onnx.helper.make_node("Abs", [name], ["mask"]))
    np.testing.assert_allclose(run(model, fed)[0], expected, rtol=1e-5)


def test_every_operator_has_a_case():
    formulas = {case.op for case in FORMULAS}
    assert CONTRIB.keys() | STANDARD_DOMAIN.keys() == {case[0] for case in CASES} | formulas | {"QLinearReduceMean"}


@pytest.mark.parametrize("case", [case for case in FORMULAS if case.served], ids=lambda case: case.op)
def test_formulas_are_those_of_onnx_runtime(case):
    model, feed = case.model()
    agree(runtime_session(runtime, model).run(None, feed), case)


def _signed(arrays: list) -> bool:
    return any(array is not None and array.dtype == np.int8 for array in arrays)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "fixed", "limit", "bits"),
    [(*case, bits) for case in CASES for bits in ((7, 8) if _signed(case[1]) else (8,))],
)
def test_as_onnx_runtime(op, arrays, attributes, fixed, limit, bits):
    if _signed(arrays):
        saturation.need(bits)
        signed = [each is not None and each.dtype == np.int8 for each in arrays]
        arrays = [saturation.narrowed(each, bits) if is_ else each for each, is_ in zip(arrays, signed, strict=True)]
    model, feed = one_node(op, arrays, 1, 17, fixed, "" if op == "QLinearMatMul" else DOMAIN, **attributes)
    (expected,) = runtime_session(runtime, model).run(None, feed)
    (got,) = run(model, feed)
    if expected.dtype.kind == "f":
        close(got, expected, limit)
    else:
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert np.abs(got.astype(int) - expected.astype(int)).max() <= limit
    assert not any(node.semantics for node in made(model, feed).nodes)


@pytest.mark.parametrize(("axes", "keepdims"), [([1, 2], 0), ([-1], 1), (None, 1)])
def test_means_of_bytes(axes, keepdims):
    """ONNX Runtime has no kernel of it on a CPU."""
    x, scale, zero = _quantised(2, 3, 5)
    attributes = {"keepdims": keepdims} | ({} if axes is None else {"axes": axes})
    model, feed = one_node("QLinearReduceMean", [x, scale, zero, *TO_BYTES], 1, 17, range(1, 5), DOMAIN, **attributes)
    mean = ((x.astype(np.float64) - zero) * scale).mean(axis=None if axes is None else tuple(axes), keepdims=keepdims)
    (got,) = run(model, feed)
    expected = np.rint(mean / TO_BYTES[0]) + TO_BYTES[1]
    assert got.shape == expected.shape and np.abs(got - expected).max() <= 1
