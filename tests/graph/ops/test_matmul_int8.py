"""Products of two tensors of bytes of a run: every bit, for all ways in which they lie, and the loop's machine code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.mca.assembly import loops, vector_spills
from cpuconv.elements import U8
from cpuconv.graph.ops import TABLE
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Ref, Space
from cpuconv.kernels.binding.tensor_view import DENSE, STRIDED, TensorView
from cpuconv.kernels.emit.product import as_seen, pair_product
from cpuconv.kernels.products import matmul_pairs
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.products.matmul_int8 import MOST, Scales, int8_matmul_steps
from support.graph import lowered
from support.running.sharing import small_work_is_shared

LANES = current().lanes
SIZES = [  # stack of each operand, rows, depth, columns
    ((), (), 2, 1, 2),
    ((2, 3), (2, 3), 17, LANES, 3 * LANES + 5),
    ((5,), (), 40, 6 * LANES + 3, 4 * LANES),
    ((1, 4), (3, 1), 31, 7, 1),
]
NUMBERS = {"a_scale": 0.03, "a_zero_point": 100, "b_scale": 0.02, "b_zero_point": 7, "y_zero_point": 90}


def node(y, **changed):
    scale = None if y == np.float32 else 0.9
    return TABLE["QuantizedMatMul"].node(["a", "b"], ["y"], **NUMBERS, y=np.dtype(y), y_scale=scale, **changed)


def some(shape, dtype):
    ends = np.iinfo(dtype)
    return np.random.default_rng(len(shape)).integers(ends.min, ends.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("right", (DENSE, STRIDED), ids=("rows side by side", "columns side by side"))
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes[2:])))
def test_products(sizes, right, monkeypatch):
    a_stack, b_stack, rows, depth, columns = sizes
    here = matmul_pairs.machine()
    for threads, l2, dtypes, y in (
        (1, here.l2, (np.uint8, np.uint8), np.uint8),
        (2, 4 << 10, (np.uint8, np.int8), np.float32),
    ):
        arrays = [some((*a_stack, rows, depth), dtypes[0]), some((*b_stack, depth, columns), dtypes[1])]
        monkeypatch.setattr(matmul_pairs, "machine", lambda l2=l2: replace(here, l2=l2))
        (offer,) = lowered.offers(node(y), arrays)
        with small_work_is_shared():
            assert lowered.check(node(y), arrays, (), threads, made=[replace(offer, inputs=(DENSE, right))]) == 1


def test_what_has_nothing_side_by_side_is_copied_before():
    shape = 2, 9, 20
    apart = TensorView(Ref("a"), shape, (720, 40, 2), 1, np.dtype(np.uint8))
    dense = TensorView.plain(Ref("b"), (2, 20, 11), np.dtype(np.uint8))
    y = TensorView.plain(Ref("y"), (2, 9, 11), np.dtype(np.uint8))
    for a, steps in ((apart, 2), (TensorView.plain(Ref("a"), shape, np.dtype(np.uint8)), 1)):
        assert len(int8_matmul_steps(lowered.target(), Space(), a, dense, y, Scales(1, 2, 0.5))) == steps


def test_sums_that_no_int32_holds_are_not_offered():
    for depth, offered in ((MOST, 1), (MOST + 1, 0)):
        arrays = [np.zeros((1, depth), np.uint8), np.zeros((depth, 1), np.uint8)]
        assert len(lowered.offers(node(np.uint8), arrays)) == offered


@pytest.mark.skipif(current().name not in ("avx2", "avx512"), reason="no instruction adds two products of int16")
def test_sums_stay_in_registers():
    isa = current()
    product = pair_product(isa)
    for v, n in enumerate(as_seen(isa, product).pixels, 1):
        kind = {"product": product.name, "x": product.x, "y": U8}
        found = loops(gemm_strip.assembly(GemmTile(isa.lanes, v, 1, n, 4, 128, 0, planar=True, tail=1, **kind)))
        body = max(found, key=lambda lines: sum(product.name in line for line in lines))
        assert sum(product.name in line for line in body) == 4 * v * n
        assert not vector_spills(body), (v, n)
