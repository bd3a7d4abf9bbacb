"""The lines that the project measures itself on, by the model's choice, against the oracle; large planes cut down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpuconv.conv.choice import auto_settings, model
from cpuconv.problem.reading import sources
from cpuconv.problem.reading.sources import Entry
from support import oracle
from support.running.processes import ROOT

CANONICAL = ROOT / "bench" / "shapes" / "canonical.txt"
ENTRIES = sources.load(str(CANONICAL), ("NCHW", "NCHW"), 1)
MOST = 20  # rows and columns of an input


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.label)
def test_line(entry: Entry):
    problem = replace(entry.problem, h=min(entry.problem.h, MOST), w=min(entry.problem.w, MOST))
    auto = auto_settings.resolve_layouts(problem, "auto", "auto", model.Limits())
    oracle.check(auto, accuracy="standard")
    if auto != problem and problem.flops < 2e8:
        oracle.check(replace(problem, residual=True), accuracy="standard")
