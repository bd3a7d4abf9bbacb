"""Groups of narrow types that share channel blocks: read in words and in vectors of transforms, stored in vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.recipe import Candidate
from cpuconv.elements import U8
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import direct, pointwise, why_not, winograd, winograd_integer
from cpuconv.solvers.shared import segments, words
from support import typed

LANES, BLOCK = current().lanes, current().block(U8)
TYPES = ("u8:s8:u8", "s8:s8:f32", "bf16:bf16:bf16", "bf16:bf16:f32")
SOLVERS = (direct, pointwise, winograd, winograd_integer)


def run(problem: ConvProblem, types: str, seed: int) -> dict[str, int]:
    """The best and the last candidate of each solver against the oracle; how many of each took it."""
    typed_problem = typed.blocked(problem, types)
    counts = {}
    for solver in SOLVERS:
        if why_not(solver, typed_problem, current()) is None:
            found = list(solver.candidates(typed_problem, current()))
            for params in dict.fromkeys((found[0], found[-1])):
                typed.check(typed_problem, Candidate(solver, params), seed)
            counts[solver.NAME] = len(found)
    return counts


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("words_of_a_group", [1, 3, LANES // 2, LANES + 1, LANES + LANES // 2])
@pytest.mark.parametrize("shape", ["ih7kh1", "ih9iw13kh3ph1", "ih8iw11kh3sh2ph1", "ih12kh3kw2dh1ph2"])
def test_groups_that_start_within_blocks(types: str, words_of_a_group: int, shape: str) -> None:
    for seed, (groups, vectors) in enumerate(((2, 1), (3, 3))):
        cg, kg = 8 * words_of_a_group, vectors * LANES
        problem = ConvProblem.parse(f"mb2g{groups}ic{groups * cg}oc{groups * kg}{shape}", residual=bool(seed))
        assert run(problem, types, seed)["direct"]


@pytest.mark.parametrize("types", TYPES)
def test_transforms_of_groups_that_share_blocks(types: str) -> None:
    cg = 3 * LANES * (2 if types[1] == "8" else 1)
    problem = ConvProblem.parse(f"mb2g3ic{3 * cg}ih11iw9oc{3 * 5 * LANES}kh3ph1", residual=True, activation="relu")
    assert {"winograd", "winograd_integer"} & run(problem, types, 1).keys()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_groups(data: st.DataObject) -> None:
    draw, groups = data.draw, data.draw(st.sampled_from((2, 3, 5, 8)))
    problem = ConvProblem(
        n=draw(st.integers(1, 2)), c=groups * draw(st.integers(2, 40)), h=draw(st.integers(5, 12)),
        w=draw(st.integers(5, 30)), k=groups * draw(st.sampled_from((1, 3, 8, LANES, 3 * LANES))),
        r=draw(st.integers(1, 5)), s=draw(st.integers(1, 5)), groups=groups, threads=draw(st.integers(1, 2)),
        stride=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), residual=draw(st.booleans()),
        pads=draw(st.tuples(*[st.integers(0, 2)] * 4)),
    )  # fmt: skip
    assert run(problem, draw(st.sampled_from(TYPES)), draw(st.integers(0, 99)))


def test_no_group_is_multiplied_with_the_channels_of_another() -> None:
    problem = typed.blocked(ConvProblem.parse(f"g2ic{BLOCK + BLOCK // 2}ih9oc{2 * BLOCK}kh3ph1"), "u8:s8:u8")
    seen = words.in_words(problem)
    assert segments.share_blocks(seen, current())
    assert segments.segment(seen, current()) == (LANES // 4, 0)
    alone = replace(problem, groups=1)
    params = next(iter(direct.candidates(problem, current())))
    assert 2 * direct.packing(problem, params, current()).size == direct.packing(alone, params, current()).size
