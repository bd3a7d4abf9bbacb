"""Rows of bfloat16 and of bytes times a matrix, in place: by words on vectors and in tile registers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.kernels.emit.product import product_of
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import channels_last, why_not
from support import typed

ISA = current()
TYPES = (
    *("bf16:bf16:f32", "bf16:bf16:bf16", "f16:f16:f16"),
    *("u8:s8:s32", "u8:s8:u8", "u8:s8:f32", "s8:s8:s8", "s8:s8:f32"),
)
WORDS = [types for types in TYPES if (product := product_of(Types.parse(types), ISA)) and not product.matrix]


def problem(types: str, rows: int, depth: int = 1, columns: int = 1, **more: object) -> ConvProblem:
    """Depth and columns in whole blocks."""
    made = Types.parse(types)
    c, k = depth * ISA.block(made.x), columns * ISA.block(made.y)
    return ConvProblem(1, c, 1, rows, k, 1, 1, in_layout="NHWC", out_layout="NHWC", types=made, **more)


def _no_residual_of_sums(types: str, more: dict[str, object]) -> dict[str, object]:
    return {} if types.endswith("s32") and "residual" in more else more


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_work_is_shared")
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("rows", [1, 7, 16, 17, 32, 33])
@pytest.mark.parametrize("more", [{}, {"residual": True, "activation": "gelu"}, {"threads": 2, "n": 2, "h": 3}])
def test_rows_depths_and_columns(types, rows, more):
    more = _no_residual_of_sums(types, more)
    for depth, columns in ((1, 1), (3, 5)):
        made = replace(problem(types, rows, depth, columns), **more)
        assert why_not(channels_last.SOLVER, made, ISA) is None
        for params in itertools.islice(channels_last.candidates(made, ISA), 2):
            typed.check(made, Candidate(channels_last.SOLVER, params))


@pytest.mark.parametrize("types", WORDS)
@pytest.mark.parametrize("words", [1, ISA.lanes + 1])
def test_depths_that_fill_words_only(types, words):
    """Nothing behind a row is read: what does not fill a vector of words is a segment of its own."""
    made = problem(types, 13, columns=2)
    each = 4 // made.types.x.bytes * product_of(made.types, ISA).words_at_once(ISA.lanes)
    made = replace(made, c=words * each)
    assert why_not(channels_last.SOLVER, made, ISA) is None
    for params in itertools.islice(channels_last.candidates(made, ISA), 2):
        typed.check(made, Candidate(channels_last.SOLVER, params))


def test_what_does_not_fill_vectors_is_refused_in_words():
    made = problem("bf16:bf16:f32", 5)
    assert "input channels do not fill" in (why_not(channels_last.SOLVER, replace(made, c=made.c + 1), ISA) or "")
    assert "output channels" in (why_not(channels_last.SOLVER, replace(made, k=made.k + 1), ISA) or "")
    assert "channels last in and out" in (why_not(channels_last.SOLVER, replace(made, out_layout="NCHW"), ISA) or "")
