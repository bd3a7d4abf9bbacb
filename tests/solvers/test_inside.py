"""Kernel rows that meet padding alone are left out of sums of floats of 16 bits."""

from __future__ import annotations

import pytest

from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.elements import BF16
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import direct
from cpuconv.solvers.shared import blocked, geometry, segments
from support import typed

BLOCK = current().block(BF16)


def problem_of(text: str, types: str = "bf16:bf16:bf16") -> ConvProblem:
    return typed.blocked(ConvProblem.parse(text), types)


SHAPES = ["ih7kh3ph1", "ih9kh5ph2sh2", "ih9kh3ph4dh3", "ih5kh3ph3", "ih2iw7kh7ph3", "ih6kh3kw1ph1pw0"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows, types", [(1, "bf16:bf16:bf16"), (2, "bf16:bf16:bf16"), (2, "f16:f16:f16")])
def test_sums_without_padding_are_right(shape: str, rows: int, types: str) -> None:
    problem = problem_of(f"mb2ic{2 * BLOCK}oc{BLOCK + 3}{shape}", types)
    for block in (1, 3):
        typed.check(problem, Candidate(direct.SOLVER, geometry.Params(1, rows, min(4, problem.ow), block)), rows)


def test_a_panel_in_parts_leaves_rows_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "_PART_SHARE", 0.002)  # of L2
    problem = problem_of(f"ic{8 * BLOCK}ih5oc{2 * BLOCK}kh3ph1")
    candidate = Candidate(direct.SOLVER, geometry.Params(2, 1, 3, 5))
    parts = assemble(problem, candidate).steps[0].args["parts"]
    assert isinstance(parts, int) and parts > 1
    typed.check(problem, candidate)


@pytest.mark.parametrize("row, met", [(0, 2), (1, 3), (5, 3), (6, 2)])
def test_rows_that_a_tile_meets(row: int, met: int) -> None:
    problem = problem_of(f"ic{BLOCK}ih7oc{BLOCK}kh3ph1")
    assert segments.rows_met(problem, row, 1) == met
    assert segments.rows_met(problem, min(row, 5), 2) == 3
    assert segments.share(problem, 1) == pytest.approx(19 / 21)


def test_integers_are_multiplied_with_padding() -> None:
    problem = ConvProblem.parse(f"ic{4 * BLOCK}ih7oc{BLOCK}kh3ph1")
    sizes = geometry.geometry(typed.blocked(problem, "u8:s8:u8"), current())
    assert not sizes.rows_first
    bfloat16 = problem_of(f"ic{BLOCK}ih7oc{BLOCK}kh3ph1")
    found = geometry.geometry(bfloat16, current())
    assert found.rows_first or found.product.paired
