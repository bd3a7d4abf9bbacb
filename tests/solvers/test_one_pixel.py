"""Convolutions of bytes with one or two pixels an image: weights are compact where `vpmaddubsw` multiplies bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cpuconv
from cpuconv.isa import current
from cpuconv.kernels.emit.product import FEW, of_few, product_of
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import TABLE, why_not
from cpuconv.solvers.shared import words
from cpuconv.solvers.shared.solver import Solver
from support import typed
from support.typed import blocked as in_blocks

TYPED = [solver for solver in TABLE if solver.low_precision]
TYPES = ("u8:s8:u8", "s8:s8:s8", "u8:s8:s32", "s8:s8:f32")


def shapes() -> list[str]:
    """Around the ends of blocks of channels: rows of a matrix, kernels as large as the plane, groups."""
    lanes = current().lanes
    return [
        f"ic{4 * lanes - 1}ih1oc{2 * lanes + 1}kh1",
        f"ic{8 * lanes + 5}ih1oc{lanes - 1}kh1",
        f"ic1ih1oc{4 * lanes}kh1",
        f"ic{4 * lanes + 4}ih1oc{8 * lanes}kh1",
        f"ic{4 * lanes + 3}ih3oc{3 * lanes}kh3",
        "ic3ih7oc33kh7",
        f"g2ic{8 * lanes}ih3oc{8 * lanes}kh3",
        f"ic{2 * lanes}ih2oc{5 * lanes + 2}kh3ph1sh2",
        f"mb3ic{4 * lanes + 1}ih1oc{3 * lanes - 1}kh1",
        f"ic{8 * lanes + 3}ih1iw2oc{4 * lanes + 1}kh1",
        f"mb2ic{5 * lanes}ih4iw3oc{2 * lanes + 3}kh3ph0",
    ]


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.name)
def test_every_solver(solver: Solver, types: str) -> None:
    count = 0
    for seed, text in enumerate(shapes()):
        plain = ConvProblem.parse(f"{text} --dt={types}")
        last = replace(plain, in_layout="NHWC", out_layout="NHWC")
        for problem in (plain, last, in_blocks(plain, types)):
            assert problem.oh * problem.ow <= FEW
            if why_not(solver, problem, current()) is None:
                typed.check_first(solver, problem, 2, seed)
                count += 1
    assert count or solver.name not in ("pointwise", "direct", "channels_last")


@pytest.mark.parametrize("types", ("u8:s8:u8", "s8:s8:s8"))
def test_weights_take_a_byte_each_where_few_pixels_meet_them(types: str) -> None:
    product = product_of(Types.parse(types), current())
    assert product is not None
    few, more = (ConvProblem.parse(f"mb2ic64ih1iw{n}oc64kh1 --dt={types}") for n in (FEW, FEW + 1))
    assert words.product(few, current()) == of_few(product)
    assert words.product(more, current()) == product
    if product.flipped:
        assert 2 * words.packing(few, current(), 1).size == words.packing(more, current(), 1).size


@pytest.mark.parametrize("x", (0, 255, 127, 128, -128, -1))
def test_ends_of_both_types(x: int) -> None:
    """Products of pairs that leave 16 bits, and the byte that has no magnitude among signed ones."""
    pixels = np.full((1, 70, 1, 1), x, np.int8 if x < 0 else np.uint8)
    w = np.array([-128, 127, -127, -1, 0, 1], np.int8).reshape(-1, 1, 1, 1).repeat(70, 1)
    plan = cpuconv.plan(pixels.shape, w, x_dtype=pixels.dtype, y_dtype="int32")
    np.testing.assert_array_equal(plan(pixels)[0, :, 0, 0], 70 * x * w[:, 0, 0, 0].astype(np.int32))
