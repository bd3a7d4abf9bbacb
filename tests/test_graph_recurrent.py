"""What is special to recurrent layers: batch-first operands, other types, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from graphs import close  # noqa: E402

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.graph.interpret import run  # noqa: E402
from cpuconv.graph.ir import Value  # noqa: E402
from cpuconv.graph.ops import TABLE  # noqa: E402

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(op: str, dtype: type = np.float32, **attributes):
    """A layer of 3 inputs and 5 states, both ways, over 4 steps and 2 sequences; its operands."""
    rng, rows = np.random.default_rng(0), GATES[op] * 5
    states = [(2, 2, 5)] * (2 if op == "LSTM" else 1)
    shapes = [(4, 2, 3), (2, rows, 3), (2, rows, 5), (2, 2 * rows), None, *states]
    arrays = [None if shape is None else rng.normal(size=shape).astype(dtype) for shape in shapes]
    names = ["" if array is None else f"x{at}" for at, array in enumerate(arrays)]
    results = ["y", "h", "c"][: 1 + len(states)]
    return TABLE[op].node(names, results, **{"direction": "bidirectional", **attributes}), arrays


@pytest.mark.parametrize("op", GATES)
def test_batch_first(op):
    node, arrays = layer(op)
    arrays[4] = np.array([4, 2], np.int32)
    types = [np.dtype(np.float32)] * len(node.outputs)
    y, *last = run(node, arrays, types)
    turned = [array.swapaxes(0, 1) if at in (0, 5, 6) else array for at, array in enumerate(arrays)]
    first, _ = layer(op, layout=1)
    got, *states = run(first, turned, types)
    close(got, y.transpose(2, 0, 1, 3))
    for state, expected in zip(states, last, strict=True):
        close(state, expected.swapaxes(0, 1))
    assert not y[2:, :, 1].any() and y[:2, :, 1].all()  # nothing behind the end of a sequence


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types(op, dtype):
    node, arrays = layer(op, dtype)
    wide = [None if array is None else array.astype(np.float64) for array in arrays]
    for got, expected in zip(run(node, arrays, [np.dtype(dtype)] * 3), run(node, wide, [None] * 3), strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-3 if dtype == np.float16 else 0)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activations": ["Sigmoid", "Tanh", "Tanh", "Relu", "Tanh", "Tanh"]}, "must have the same activations"),
        ({"activations": ["Sigmoid", "Tanh", "Sine"] * 2}, "the activations must be 3 a direction, of Sigmoid"),
        ({"activations": ["Sigmoid"]}, "the activations must be 3 a direction"),
        ({"hidden_size": 6}, "'hidden_size' must be 5, not 6"),
        ({"direction": "forward"}, r"must be of shape \(1, 20, 3\)"),
    ],
)
def test_refused(attributes, message):
    node, arrays = layer("LSTM", **attributes)
    values = [None if array is None else Value(array.shape, array.dtype) for array in arrays]
    with pytest.raises(SourceError, match=message):
        TABLE["LSTM"].infer(node, values)
