"""Images that overlap, as the depth slices of windows of a volume do."""

from __future__ import annotations

from dataclasses import replace

import pytest

import layouts
from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import tiled_call
from support import oracle
from support.guarded import END, START

LANES = current().lanes
BLOCKED = layouts.blocked(LANES).name
pytestmark = pytest.mark.usefixtures("small_work_is_shared")


@pytest.mark.parametrize(
    ("channels", "kernel", "layout"),
    [(3 * LANES, 3, BLOCKED), (2 * LANES, 1, BLOCKED), (6, 3, "NCHW"), (3 * LANES, 1, "NCHW")],
)
def test_images_overlap(channels, kernel, layout, monkeypatch):
    """As the depth slices of windows do, by a half or two thirds of their channels; Winograd and FFT share them."""
    monkeypatch.setattr(tiled_call, "shares_slices", lambda *_: True)
    shape = (24, channels, 7, 8, LANES, kernel, kernel)
    problem = ConvProblem(*shape, pads=(kernel // 2,) * 4, in_layout=layout, out_layout=BLOCKED)
    parts = 2 if channels % 3 else 3
    for solver in oracle.SOLVERS:
        if solver.applicable(problem, current()) is None and (found := [*solver.candidates(problem, current())]):
            oracle.check_apart(problem, Candidate(solver, found[0]), edge=END, parts=parts)
            oracle.check_apart(replace(problem, threads=2), Candidate(solver, found[-1]), edge=START, parts=parts)
