"""Products of two operands of a run in bfloat16: against float64, of numbers that bfloat16 holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpuconv.conv.choice.activation_products import Narrowed, kinds
from cpuconv.elements import from_bfloat16, to_bfloat16
from cpuconv.graph.ops import TABLE, matrix
from cpuconv.isa import current
from cpuconv.kernels.binding.tensor_view import DENSE, STRIDED
from cpuconv.kernels.products import matmul_pairs
from support.graph import lowered
from support.running.sharing import small_work_is_shared

LANES = current().lanes
KIND = matmul_pairs.bf16_instruction(current())
ROUNDED = Narrowed((KIND.name,)) if KIND else None
SIZES = [  # stack of each operand, rows, depth, columns
    ((), (), 2, 1, 2),
    ((), (), 3, 2 * LANES + 1, LANES - 1),
    ((2, 3), (2, 3), 17, LANES, 3 * LANES + 5),
    ((5,), (), 40, 6 * LANES, 4 * LANES),
    ((2,), (2,), 13, 2 * LANES + 3, 9 * LANES + 1),
    ((1, 4), (3, 1), 31, 7, 5),
]


def operands(a_stack, b_stack, rows, depth, columns):
    rng = np.random.default_rng(rows + depth)
    made = rng.standard_normal((*a_stack, rows, depth)), rng.standard_normal((*b_stack, depth, columns))
    return [from_bfloat16(to_bfloat16(array.astype(np.float32))).reshape(array.shape) for array in made]


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("right", (DENSE, STRIDED), ids=("rows side by side", "columns side by side"))
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes[2:])))
def test_products(sizes, right, threads, monkeypatch):
    arrays, made = operands(*sizes), []
    node = TABLE["MatMul"].node(["a", "b"], ["y"])
    (offer,) = lowered.offers(node, arrays)
    offer = replace(offer, inputs=(DENSE, right), detail=ROUNDED)
    call = matrix.bf16_matmul_step
    monkeypatch.setattr(matrix, "bf16_matmul_step", lambda *args: made.append(call(*args)) or made[-1])
    here = matmul_pairs.machine()
    for l2 in (here.l2, 4 << 10):  # all panels at once, and a few
        monkeypatch.setattr(matmul_pairs, "machine", lambda l2=l2: replace(here, l2=l2))
        with small_work_is_shared():
            assert lowered.check(node, arrays, (), threads, right == DENSE, made=[offer]) == 1
    assert (KIND is None or made) and None not in made


def test_what_does_not_lie_so_is_multiplied_as_floats():
    arrays = operands((2,), (2,), 9, 20, 11)
    node = TABLE["MatMul"].node(["a", "b"], ["y"])
    (offer,) = lowered.offers(node, arrays)
    assert offer.inputs == (STRIDED, STRIDED)
    assert lowered.check(node, arrays, made=[replace(offer, detail=ROUNDED)]) == 1


def test_it_is_taken_where_the_model_finds_it_faster(monkeypatch):
    arrays = operands((4,), (4,), 200, 64, 200)
    node = TABLE["MatMul"].node(["a", "b"], ["y"])
    for precision in ("float32", "bfloat16"):
        able = len([*kinds(lowered.target(precision=precision), 64)]) > 1
        for halves in (1e-9, 1.0):
            monkeypatch.setattr(matmul_pairs, "seconds", lambda *_, halves=halves: halves)
            (offer,) = lowered.offers(node, arrays, precision=precision)
            assert (offer.detail is not None) == (able and halves < 1)
            assert offer.seconds < 1
