"""Groups of narrow types that share vectors of sums, against the oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.recipe import Candidate
from cpuconv.isa import current
from cpuconv.kernels.emit import product as products
from cpuconv.kernels.packing.packed_formats import Widened
from cpuconv.kernels.packing.word_panels import GroupPanels
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import grouped, why_not
from support import typed

ISA = current()
TYPES = (
    *("u8:s8:u8", "s8:s8:s8", "s8:s8:f32", "u8:s8:s32", "u8:s16:u8"),
    *("bf16:bf16:bf16", "bf16:bf16:f32", "f16:f16:f16"),
)
BASE = ConvProblem(2, 8, 9, 11, 8, 3, 3, pads=(1, 1, 1, 1), groups=2)


def of_groups(groups: int, cg: int, kg: int, **fields: object) -> ConvProblem:
    return replace(BASE, c=groups * cg, k=groups * kg, groups=groups, **fields)


def check(problem: ConvProblem, seed: int = 0, most: int = 3) -> bool:
    """Check the first three candidates, or only as many of them, from the `seed`-th on."""
    if why_not(grouped.SOLVER, problem, ISA) is not None:
        return False
    found = list(itertools.islice(grouped.candidates(problem, ISA), 3))
    for params in [found[(seed + at) % len(found)] for at in range(min(most, len(found)))]:
        typed.check(problem, Candidate(grouped.SOLVER, params), seed)
    return True


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("types", TYPES)
def test_every_size_of_groups(types: str) -> None:
    sizes = [(cg, kg) for cg in (1, 2, 4, 8, 16) for kg in (1, 2, 4, 8) if kg < ISA.lanes and cg * kg > 1]
    checked = [
        size
        for seed, size in enumerate(sizes)
        for groups in (3, 4 * ISA.lanes // size[1] + 1)
        if check(typed.blocked(of_groups(groups, *size), types), seed)
    ]
    assert {(2, 2)} <= set(checked)


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(
    "problem",
    [
        of_groups(9, 2, 2, stride=(2, 2)),
        of_groups(9, 2, 2, r=5, s=5, pads=(2, 2, 2, 2), residual=True, activation="silu"),
        of_groups(9, 2, 2, r=1, s=1, pads=(0, 0, 0, 0), activation="relu"),
        of_groups(9, 2, 2, r=2, s=3, pads=(0, 1, 2, 0), dilation=(2, 2)),
        of_groups(20, 2, 2, h=30, w=30, threads=2, activation=("clip", -0.5, 0.7), residual=True),
        of_groups(9, 2, 2, h=3, w=2, r=2, s=2, stride=(3, 3), pads=(7, 8, 7, 9)),
    ],
    ids=lambda problem: problem.shape_key,
)
def test_strides_padding_dilation_endings(types: str, problem: ConvProblem) -> None:
    if types.endswith("s32"):
        problem = replace(problem, activation=None, residual=False)
    assert check(typed.blocked(problem, types))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_groups(data: st.DataObject) -> None:
    draw = data.draw
    groups, cg, kg = (draw(st.sampled_from(sizes)) for sizes in ((2, 3, 7, 16, 33), (1, 2, 4, 8), (2, 4, 8)))
    problem = of_groups(
        groups, cg, kg, r=draw(st.integers(1, 5)), s=draw(st.integers(1, 5)), threads=draw(st.integers(1, 2)),
        h=draw(st.integers(5, 20)), w=draw(st.integers(5, 40)), residual=draw(st.booleans()),
        stride=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), pads=draw(st.tuples(*[st.integers(0, 2)] * 4)),
    )  # fmt: skip
    types = draw(st.sampled_from(TYPES))
    if types.endswith("s32"):
        problem = replace(problem, residual=False)
    check(typed.blocked(problem, types), draw(st.integers(0, 99)), most=1)


@pytest.mark.parametrize(
    "name", ["widened", "converted", "pairs", "vpmaddubsw", "vpmaddubsw_s8", "vpdpbusd", "vdpbf16ps"]
)
def test_products_that_are_not_the_fastest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    product = products.BY_NAME[name]
    if not products.usable(ISA, product):
        pytest.skip(f"this CPU has no {name}")
    monkeypatch.setattr(grouped, "single_product_of", lambda types, isa: product)
    for types in TYPES:
        if product.takes(Types.parse(types)):
            assert check(typed.blocked(of_groups(9, 2, 2), types))


@pytest.mark.parametrize(
    ("cg", "kg", "reason"), [(1, 1, "depthwise"), (3, 2, "evenly"), (64, 2, "evenly"), (4, ISA.lanes, "evenly")]
)
def test_grouped_words_refuse(cg: int, kg: int, reason: str) -> None:
    problem = typed.blocked(of_groups(3, cg, kg), "u8:s8:u8")
    assert reason in str(why_not(grouped.SOLVER, problem, ISA))


@pytest.mark.parametrize(
    ("name", "cg", "kg", "mixes"), [("widened", 2, 2, True), ("widened", 2, 4, False), ("bfdot", 2, 2, False)]
)
def test_halves_that_no_product_takes_whole_reach_lanes_as_floats(
    name: str, cg: int, kg: int, mixes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped, "single_product_of", lambda types, isa: products.BY_NAME[name])
    problem = typed.blocked(of_groups(9, cg, kg), "bf16:bf16:bf16")
    form = grouped.packing(problem, grouped.Params(1, 1, 0), ISA)
    assert isinstance(form, Widened if mixes else GroupPanels)
