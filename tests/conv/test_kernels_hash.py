"""Rows of other sources: which are current, and that none makes anything be assembled that no solver lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.store.rows import Row
from cpuconv.conv import session
from cpuconv.conv.choice import model, tuned
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.kernels_hash import kernels_hash
from cpuconv.problem.problem import ConvProblem

PROBLEM = ConvProblem(1, 16, 9, 10, 16, 3, 3, pads=(1, 1, 1, 1))


@pytest.fixture
def row() -> Row:
    """A row of other sources, of the kernels of today."""
    candidate = model.by_model(PROBLEM, Limits(), "direct(")
    kernels = kernels_hash(PROBLEM, candidate)
    return Row(session.current.device, PROBLEM.key, str(candidate), "other sources", "ok", kernels=kernels)


def test_a_row_of_the_same_kernels_is_current(row: Row) -> None:
    assert row.kernels and tuned.same_kernels(row)
    assert not tuned.same_kernels(row._replace(kernels="0" * 16))
    assert not tuned.same_kernels(row._replace(kernels=""))
    assert not tuned.same_kernels(row._replace(device="another"))


def test_another_problem_has_other_kernels(row: Row) -> None:
    wider = replace(PROBLEM, k=48)
    assert not tuned.same_kernels(row._replace(problem=wider.key))


@pytest.mark.parametrize(
    "change",
    [
        {"candidate": "direct(v=100000000,rows=1,cols=6,block=15)"},
        {"candidate": "direct(v=-1,rows=1,cols=6,block=15)"},
        {"candidate": "nothing(v=1)"},
        {"candidate": "amx(v=1"},
        {"problem": "network 0123456789abcdef threads=1"},
        {"problem": ""},
    ],
)
def test_what_no_solver_lists_is_not_assembled(row: Row, monkeypatch: pytest.MonkeyPatch, change) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it is assembled")

    monkeypatch.setattr(tuned, "kernels_hash", refuse)
    with pytest.raises(AssertionError, match="it is assembled"):
        tuned.same_kernels(row)
    assert not tuned.same_kernels(row._replace(**change))
