"""What GEMM tiles prefetch of the weights of their panel, and of the planes of the next one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpuconv.isa import current
from cpuconv.kernels.binding.steps import MicroRef, Operand, Operands, Ref, Space
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import planar, pointwise
from cpuconv.solvers.shared.base import contiguous
from support import typed

ISA = current()


def tile(solver, problem: ConvProblem, **params: int) -> GemmTile:
    """That of the solver's first candidate."""
    chosen = replace(next(iter(solver.candidates(problem, ISA))), **params)
    x = Operand(Ref("x"), contiguous(problem.in_layout, problem.in_shape))
    y = Operand(Ref("y"), contiguous(problem.out_layout, problem.out_shape))
    (step,) = solver.bind(problem, chosen, ISA, Space(), Operands(x, y))
    gemm = step.args["gemm"]
    assert isinstance(gemm, MicroRef)
    return gemm.tile


@pytest.mark.parametrize("images", (1, 2))
def test_weights_that_one_tile_meets_are_one_stream(images: int) -> None:
    """Those that many tiles meet, and that do not stay in L1, are prefetched."""
    for width, streamed in ((1, False), (64, True)):
        problem = ConvProblem.parse(f"mb{images}ic4096ih1iw{width}oc{8 * ISA.lanes}kh1")
        assert tile(pointwise.SOLVER, typed.blocked(problem, "f32:f32:f32")).stream is streamed


@pytest.mark.parametrize(
    ("side", "kernels", "lines"),
    [(64, 1, 6), (60, 1, 1), (64, 2, 3), (64, 3, 2), (64, 9, 1)],  # planes of 60x60 are 14,400 bytes apart
)
def test_tiles_fetch_six_lines_of_planes_that_are_pages_apart(side: int, kernels: int, lines: int) -> None:
    problem = ConvProblem.parse(f"ic8ih{side}oc{kernels}kh1")
    assert tile(planar.SOLVER, problem, n=1, packed=0).fetch == lines
