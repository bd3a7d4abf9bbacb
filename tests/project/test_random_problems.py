"""The script that judges random problems: what it draws, and what it says of those that fail."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace

import numpy as np
import pytest
import random_problems as script

from cpuconv.isa import current
from support import random_problems as problems


@pytest.mark.parametrize("family", problems.FAMILIES)
def test_a_number_is_a_problem_and_other_layouts_have_its_geometry(family: str) -> None:
    for number in range(30):
        drawn = [problems.draw(family, layout, 3, number) for layout in ("NCHW8c", "NHWC", "NHWC")]
        assert drawn[1].problem == drawn[2].problem
        np.testing.assert_array_equal(drawn[1].given.x, drawn[2].given.x)
        assert [each.problem.in_layout for each in drawn] == ["NCHW8c", "NHWC", "NHWC"]
        first, other = (each.problem for each in drawn[:2])
        assert (first.c, first.k, first.h, first.pads) == (other.c, other.k, other.h, other.pads)
        chosen = problems.candidates(drawn[0], 3, number, 2)
        assert chosen == problems.candidates(drawn[0], 3, number, 2) and chosen
        assert len({each.solver for each in chosen}) == len(chosen)


def test_what_is_drawn_is_wide() -> None:
    """Types, endings, groups, zero points and scales, all of them in a run."""
    drawn = [problems.draw("int8", "NCHW", 1, number) for number in range(500)]
    types = {str(each.problem.types) for each in drawn}
    assert {f"{x}:{w}:{y}" for x in ("u8", "s8") for w in ("s8", "s16") for y in ("u8", "s8", "f32", "s32")} <= types
    assert {each.problem.residual for each in drawn} == {True, False}
    assert len({each.problem.activation for each in drawn}) >= 6
    assert any(each.problem.groups == each.problem.c > 1 for each in drawn)
    assert any(1 < each.problem.groups < each.problem.c for each in drawn)
    assert any(max(each.problem.dilation) > 1 for each in drawn) and any(min(each.problem.pads) > 0 for each in drawn)
    scales = [each.given.scales for each in drawn if each.given.scales is not None]
    assert len({each.x_zero_point for each in scales}) > 100
    assert min(each.x_scale for each in scales) < 1e-15 and max(each.x_scale for each in scales) > 1e15
    kinds = {None if each.given.bias is None else each.given.bias.dtype.name for each in drawn}
    assert kinds == {None, "int32", "float32"}


def test_a_few_problems(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--types", "int8", "--layouts", "NCHW8c", "--count", "2", "--first", "4", "--json", "-"]
    assert script.main(asked) == 0
    told = capsys.readouterr().out
    (found,) = (runs := json.loads(told[told.index("{") :]))["runs"]
    assert (runs["isa"], runs["seed"]) == (current().name, 1)
    assert (found["types"], found["layout"], found["problems"], found["failed"]) == ("int8", "NCHW8c", 2, [])
    assert found["plans"] == sum(found["solvers"].values()) == 3  # one of them by the model


def test_what_fails_is_told_by_a_command_that_tries_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(drawn: problems.Drawn, candidate: object) -> object:
        if drawn.problem == problems.draw("int8", "NHWC", 5, 2).problem:
            raise AssertionError("one unit apart")
        return SimpleNamespace(algorithm="direct()")

    monkeypatch.setattr(problems, "check", wrong)
    assert script.main(["--types", "int8", "--layouts", "NHWC", "--count", "4", "--seed", "5"]) == 1
    first, _, said, last = capsys.readouterr().out.splitlines()
    assert said == "AssertionError: one unit apart" and "4 problems, 4 plans as expected, 1 not" in last
    assert script.main(shlex.split(first)[2:]) == 1
    with pytest.raises(SystemExit):
        script.main(["--types", "float128"])
    assert "argument --types: must be among int8,bf16,f16, not 'float128'" in capsys.readouterr().err
