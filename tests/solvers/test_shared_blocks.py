"""Groups of narrow types that share channel blocks: read in words and in vectors of transforms, stored in vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.elements import U8
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import direct, pointwise, why_not, winograd, winograd_integer
from cpuconv.solvers.shared import blocked, geometry, spans, words
from support import typed

LANES, BLOCK = current().lanes, current().block(U8)
TYPES = ("u8:s8:u8", "s8:s8:f32", "bf16:bf16:bf16", "bf16:bf16:f32", "f16:f16:f16")
SOLVERS = (direct.SOLVER, pointwise.SOLVER, winograd.SOLVER, winograd_integer.SOLVER)


def run(problem: ConvProblem, types: str, seed: int, most: int = 2) -> dict[str, int]:
    """The best and the last candidate of each solver against the oracle, or one by `seed`; how many of each took it."""
    typed_problem = typed.blocked(problem, types)
    counts = {}
    for solver in SOLVERS:
        if why_not(solver, typed_problem, current()) is None:
            found = list(solver.candidates(typed_problem, current()))
            for params in dict.fromkeys((found[0], found[-1]) if most > 1 else (found[-(seed % 2)],)):
                typed.check(typed_problem, Candidate(solver, params), seed)
            counts[solver.name] = len(found)
    return counts


@pytest.mark.exhaustive(5)
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
    assert run(problem, draw(st.sampled_from(TYPES)), draw(st.integers(0, 99)), most=1)


def test_no_group_is_multiplied_with_the_channels_of_another() -> None:
    problem = typed.blocked(ConvProblem.parse(f"g2ic{BLOCK + BLOCK // 2}ih9oc{2 * BLOCK}kh3ph1"), "u8:s8:u8")
    found = spans.spans(problem, current(), 1)
    assert found is not None and found.segment == LANES // 4
    half = 3 * LANES // 4
    assert found.words == (half,) * (2 * BLOCK // LANES)
    assert found.first == (0,) * (BLOCK // LANES) + (half,) * (BLOCK // LANES)
    alone = replace(problem, groups=1)
    params = next(iter(direct.candidates(problem, current())))
    assert 2 * direct.packing(problem, params, current()).size == direct.packing(alone, params, current()).size


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("groups, cg, kg", [(4, 41, 21), (3, 7, LANES + 1), (5, 3, 2), (2, 2 * BLOCK, 5), (7, 1, 3)])
def test_groups_that_share_words_and_vectors_of_sums(types: str, groups: int, cg: int, kg: int) -> None:
    for seed, shape in enumerate(("ih7kh1", "ih9iw13kh3ph1", "ih8iw11kh3sh2ph1")):
        problem = ConvProblem.parse(f"mb2g{groups}ic{groups * cg}oc{groups * kg}{shape}", residual=bool(seed))
        assert {"direct"} <= run(problem, types, seed).keys()


def test_panels_read_the_channels_of_their_groups_alone() -> None:
    problem = typed.blocked(ConvProblem.parse("g4ic656ih9oc84kh5ph2"), "u8:s8:u8")
    found = spans.spans(problem, current(), 1)
    assert found is not None
    for panel, (first, count) in enumerate(zip(found.first, found.words, strict=True)):
        channels = range(panel * LANES, min(84, (panel + 1) * LANES))
        groups = {channel // 21 for channel in channels}
        assert first <= min(groups) * 41 < first + found.segment
        assert first + count - found.segment < (max(groups) + 1) * 41 <= first + count


@pytest.mark.parametrize("types", TYPES)
def test_sums_of_a_last_panel_that_is_not_full_wait_between_parts(types: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel whose weights do not stay in L2 is summed in parts; the last one has fewer vectors of sums."""
    monkeypatch.setattr(blocked, "_PART_SHARE", 0.002)  # of L2
    problem = typed.blocked(ConvProblem.parse(f"ic{4 * BLOCK}ih5iw13oc{9 * LANES}kh3ph1"), types)
    wide = max(words.vector_counts(problem, current()) or ())
    params = geometry.Params(wide, 1, 4 if wide < 4 else 3, 5)
    candidate = Candidate(direct.SOLVER, params)
    parts = assemble(problem, candidate).steps[0].args["parts"]
    assert isinstance(parts, int) and parts > 1
    typed.check(problem, candidate, 1)


def test_groups_of_one_block_are_read_in_one_segment() -> None:
    problem = typed.blocked(ConvProblem.parse("g2ic12ih9oc14kh5ph2"), "u8:s8:u8")
    found = spans.spans(problem, current(), 1)
    assert found is not None and set(found.words) == {found.segment} == {3}
    typed.check(problem, Candidate(direct.SOLVER, next(iter(direct.candidates(problem, current())))))
