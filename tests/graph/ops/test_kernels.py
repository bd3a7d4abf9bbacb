"""Every operator that has kernels against its reference, in every layout that it offers."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cpuconv.conv.choice.target import PRECISION_BF16, PRECISION_F16, PRECISION_F32, has_float16_sums  # noqa: E402
from cpuconv.elements import BF16, F16, Element, round_to, to_float32  # noqa: E402
from cpuconv.graph import ops  # noqa: E402
from cpuconv.kernels.binding.tensor_view import narrow_element  # noqa: E402
from support.graph import lowered  # noqa: E402
from support.graph.cases import CASES, KNOWN, TOLERANCES  # noqa: E402
from support.graph.lowered import small_work_is_shared  # noqa: E402, F401

THREADS = st.sampled_from((1, 2))
GATES = ("Gelu",)  # their errors are relative to x: far out on the negative side, terms cancel
SUMS = ("ReduceMean", "ReduceSum")  # whose rounding errors follow their terms, which may cancel
TOGETHER = ("UnfoldImages",)  # their images are contiguous
NATIVE = [name for name, op in ops.TABLE.items() if op.offers]
NARROW = (
    *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Concat", "Resize"),
    *("Add", "Mul", "Sum", "Relu", "Clip", "Sigmoid", "HardSwish", "PRelu", "Exp", "Elementwise"),
    *("LayerNormalization", "InstanceNormalization", "Softmax", "LogSoftmax", "ReduceMean", "ReduceMax"),
    *("VolumeNormalization", "UnfoldImages", "InterleaveImages"),
    *("Reshape", "Transpose", "Identity", "Expand", "Slice", "Split", "Gather", "Copy", "Pad", "Where"),
)
IN_HALVES = ("Add", "Clip", "HardSwish", "MaxPool", "GlobalMaxPool", "AveragePool", "Sum", "PRelu", "Sigmoid", "Exp")
ELEMENTS = {PRECISION_BF16: BF16, PRECISION_F16: F16}


@pytest.mark.parametrize("op", NATIVE)
def test_offers(op):
    """Random operands; some have no offer, but not all."""
    assert any(found(op, PRECISION_F32))


@pytest.mark.parametrize("op", NARROW)
def test_offers_in_bfloat16(op):
    """The same of operands that bfloat16 holds: some are stored so."""
    assert any(found(op, PRECISION_BF16))


@pytest.mark.skipif(not has_float16_sums(), reason="this CPU does not add float16")
@pytest.mark.parametrize("op", IN_HALVES)
def test_offers_in_float16(op):
    """The same of float16; a single operation is rounded once."""
    assert any(found(op, PRECISION_F16))


def found(op: str, precision: str) -> list[int]:
    """How many offers random operands have, each of which was compared with the reference."""
    row, offers, element = ops.TABLE[op], [], ELEMENTS.get(precision)

    @settings(max_examples=20)
    @given(data=st.data())
    def some(data):
        case = data.draw(CASES[op])
        if element:
            case = case._replace(arrays=[_narrow(array, element) for array in case.arrays])
        free = [at for at in range(1, len(case.arrays)) if at not in row.parameters]
        known = {*data.draw(st.sets(st.sampled_from(free)))} if free else set()
        known.update(at for at in (*row.parameters, *KNOWN.get(op, ())) if at < len(case.arrays))
        names = ["" if array is None else f"x{at}" for at, array in enumerate(case.arrays)]
        attributes = dict(case.attributes)
        if "to" in attributes:  # a type, as the reader has it
            attributes["to"] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))
        node = row.node(names, [f"y{at}" for at in range(case.outputs)], **attributes)
        options = TOLERANCES.get(op, {})
        if precision == PRECISION_F16 and op in ("Sigmoid", "HardSwish"):
            options = {"tolerance": 3e-3}
        if op in (*GATES, *SUMS):
            options = {"tolerance": 1e-6, "least": float(np.abs(case.arrays[0]).max(initial=1e-30))}
        drawn = data.draw(THREADS), op not in TOGETHER and data.draw(st.booleans())
        made = lowered.offers(node, case.arrays, sorted(known), drawn[0], precision)
        if element:
            made = [offer for offer in made if narrow_element((*offer.inputs, *offer.outputs))]
        offers.append(lowered.check(node, case.arrays, sorted(known), *drawn, made=made, **options))

    some()
    return offers


def _narrow(array: np.ndarray | None, element: Element) -> np.ndarray | None:
    """Floats rounded to a 16-bit type."""
    if array is None or array.dtype != np.float32:
        return array
    return to_float32(round_to(array, element), element).reshape(array.shape)
