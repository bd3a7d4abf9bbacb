"""Saved models whose internal operators have operands that no kernel takes: refused, or right between guard pages."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnx")

from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.graph.ops import OWN, TABLE  # noqa: E402
from support.damage import operands  # noqa: E402
from support.damage.operands import Application  # noqa: E402
from support.graphs import Case  # noqa: E402

BYTES = np.arange(24, dtype=np.uint8).reshape(2, 12)
STACK = np.ones((4, 16, 3, 3), np.float32)
VOLUMES = [STACK, ONES_16 := np.ones(16, np.float32), ONES_16]
IMAGE, TAPS, ONES = BYTES.reshape(1, 2, 3, 4), np.ones((5, 2, 1, 1), np.int8), np.ones(12, np.float32)
F16, F32, BF16 = map(np.dtype, (np.float16, np.float32, ml_dtypes.bfloat16))
SCALES = {"x_scale": 0.1, "x_zero_point": 3, "y_scale": 0.1, "y_zero_point": 0}
FLOATS = {"x_scale": 0.1, "w_scale": 0.1, "y": F32}
LINE = "'y' must be uint8, int8 or float32"
STATES = "'h' must be float32 of shape [1,2,4]"


def lstm(lengths: type = np.int32, states: type = np.float32) -> list[np.ndarray]:
    """Operands of a QuantizedLSTM of 3 steps, 2 sequences and 4 hidden units."""
    fed, weights, vector = np.ones((3, 2, 16), np.float32), np.ones((1, 4, 16), np.int8), np.ones((1, 16), np.float32)
    return [fed, weights, vector, vector, np.array([1, 3], lengths), np.zeros((1, 2, 4), states)]


WEIGHED = {"scales": [0.1] * 7, "zero_points": [0] * 7, "score_type": BYTES.dtype, "weight_type": BYTES.dtype}
REFUSED = [  # the operator, its operands, those that it knows beforehand, its attributes, and what is said
    ("QuantizedSoftmax", [BYTES], (), {**SCALES, "y": BF16}, f"{LINE} of shape [2,12], not bfloat16[2,12]"),
    ("QuantizedSoftmax", [BYTES], (), {**SCALES, "y": F16}, f"{LINE} of shape [2,12], not float16[2,12]"),
    ("QuantizedLayerNormalization", [BYTES, ONES], (), {**SCALES, "y": F16}, f"{LINE} of shape [2,12], not float16"),
    ("QuantizedReduceMean", [BYTES, np.array([1])], (1,), {**SCALES, "y": BF16}, f"{LINE}, not bfloat16[2,1]"),
    ("Lookup", [BYTES, np.zeros(256, F32)], (1,), {}, "'table' must be uint8 or int8 of shape [256], not float32[256]"),
    ("QuantizedLinear", [BYTES, np.ones((12, 3), np.int8), None, np.ones((2, 3), np.uint8)], (1,), FLOATS,
     "'added' must be float32 of shape [2,3], not uint8[2,3]"),
    ("QuantizedLSTM", lstm(np.int8), (1, 2, 3), {}, "'lengths' must be int32 of shape [2], not int8[2]"),
    ("QuantizedLSTM", lstm(states=np.float16), (1, 2, 3), {}, f"{STATES}, not float16[1,2,4]"),
    ("QuantizedLSTM", lstm(states=np.int8), (1, 2, 3), {}, f"{STATES}, not int8[1,2,4]"),
    ("QuantizedAttention", [BYTES, BYTES.T, BYTES, np.ones((2, 2), F16)], (), {**WEIGHED, "y": F32},
     "'mask' must be float32, not float16[2,2]"),
    ("QuantizedConv", [IMAGE, TAPS, None, np.ones((1, 5, 3, 3), F32)], (1,), FLOATS,
     "'added' must be float32 of shape [1,5,3,4], not float32[1,5,3,3]"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "known", "attributes", "reason"), REFUSED)
def test_what_kernels_do_not_take_is_refused_as_it_is_read(op, arrays, known, attributes, reason):
    made = Application(op, Case(arrays, attributes, 3 if op == "QuantizedLSTM" else 1), frozenset(known))
    with pytest.raises(SourceError) as caught:
        operands.loaded(made)
    assert f"{op} node 'y0': {reason}" in str(caught.value)


ATTRIBUTES = [  # that give no result, or one of another shape than the operands have
    ("InterleaveImages", [STACK, STACK], {"axis": 1}, "the inputs must be as many images of one shape"),
    ("InterleaveImages", [STACK, STACK[:1]], {}, "the inputs must be as many images of one shape"),
    ("UnfoldImages", [STACK], {"kernel": 7, "stride": -1}, "windows of 7 of 4 images"),
    ("UnfoldImages", [STACK], {"kernel": 2, "stride": 0}, "windows of 2 of 4 images"),
    ("UnfoldImages", [STACK], {"kernel": 0}, "windows of 0 of 4 images"),
    ("VolumeNormalization", VOLUMES, {"volumes": 3}, "4 slices of 3 volumes"),
    ("VolumeNormalization", VOLUMES, {"volumes": 0}, "4 slices of 0 volumes"),
    ("ScaledDotProductAttention", [np.ones((1, 2, 3, 4, 2), np.float32), np.ones((2, 3, 2, 3), np.float32),
      np.ones((2, 3, 3, 5), np.float32)], {"perm": [0, 1, 2, 3]}, "'perm' must be the 5 axes"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attributes", "reason"), ATTRIBUTES)
def test_attributes_that_do_not_fit_the_operands_are_refused(op, arrays, attributes, reason):
    with pytest.raises(SourceError, match=f"{op} node 'y0' .*{reason}"):
        operands.loaded(Application(op, Case(arrays, attributes), frozenset(range(1, len(arrays)))))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", sorted(OWN - {"Leading"}))  # which has no kernels
def test_every_type_and_shape_of_every_operand_is_refused_or_right(op):
    compared = [operands.judge(made) for text in operands.one_by_one(op) if (made := operands.applied(text))]
    assert 0 in compared and any(compared) and len(compared) > 70


@pytest.mark.filterwarnings("ignore")
def test_changes_of_several_operands():
    for number, seed in enumerate(itertools.chain(*[operands.seeds()] * 8)):
        operands.read(operands.change(operands.change(seed, number), number + 1))


def test_every_internal_operator_is_among_the_seeds():
    assert {operands.applied(text).op for text in operands.seeds()} == {name for name, op in TABLE.items() if op.own}
