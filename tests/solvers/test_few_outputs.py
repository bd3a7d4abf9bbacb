"""Convolutions of bytes to few output channels, whose lanes are input channels or pixels, against the oracle."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

import cpuconv
from bench.mca.assembly import loops, vector_spills
from cpuconv.conv.choice.model import Limits, search
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.elements import S8, U8
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import MicroRef
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.packing.folded_words import FoldedWords
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import folded, plane_words, why_not
from cpuconv.solvers.shared.solver import Solver
from support import typed

ISA = current()
BLOCK, LANES = ISA.block(U8), ISA.lanes
LAYOUTS = {
    folded.SOLVER: (typed.blocked(ConvProblem(1, 1, 1, 1, 1, 1, 1), "u8:s8:u8").in_layout, "NHWC"),
    plane_words.SOLVER: ("NCHW",),
}
TYPES = ("u8:s8:u8", "s8:s8:s8", "s8:s8:f32", "u8:s16:u8")
MORE = ({"activation": ("silu",), "residual": True}, {"threads": 2}, {"activation": ("relu",)}, {})
_PRODUCT = re.compile("vpdpbusd|vpmaddubsw")

EDGES = [
    f"ic{BLOCK}ih1iw{BLOCK}oc1kh1",
    f"mb2ic{BLOCK + 1}ih3iw{BLOCK + 1}oc3kh1",
    f"ic{BLOCK - 1}ih5iw{BLOCK}oc{LANES}kh1",
    f"mb2ic{3 * BLOCK + 3}ih4iw{BLOCK - 1}oc2kh1",
    f"ic5ih7iw{2 * BLOCK + 3}oc1kh1",
    f"ic{BLOCK + 3}ih7iw{LANES}oc2kh3ph1",
    f"mb2ic3ih6iw{2 * LANES + 1}oc1kh3ph1",
    f"ic{BLOCK - 2}ih9iw{3 * LANES}oc4kh3ph0",
    f"ic{BLOCK}ih9iw{5 * LANES}oc2kh3ph1sh2dh1",
    f"ic2ih1iw{LANES + 6}oc1kh1kw7ph0pw3",
]


def made(solver: Solver, text: str, types: str = "u8:s8:u8") -> ConvProblem:
    """The problem in the solver's first layout."""
    return replace(ConvProblem.parse(text), types=Types.parse(types), in_layout=LAYOUTS[solver][0])


@pytest.mark.parametrize("solver", LAYOUTS, ids=lambda solver: solver.name)
def test_edges_of_tiles(solver: Solver) -> None:
    able = [text for text in EDGES if why_not(solver, made(solver, text), ISA) is None]
    assert len(able) >= 5
    layouts = list(itertools.product(LAYOUTS[solver], ("NCHW", "NHWC")))
    for seed, text in enumerate(able):
        source, target = layouts[seed % len(layouts)]
        problem = made(solver, text, TYPES[seed % 3 if seed < 6 else 3])
        typed.check_first(solver, replace(problem, in_layout=source, out_layout=target, **MORE[seed % 4]), seed=seed)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"k": LANES + 1}, "output channels"),
        ({"groups": 2, "k": 2}, "groups|all channels"),
        ({"w": LANES - 1, "h": 1}, "does not fill"),
        ({"types": Types.parse("bf16")}, "integers"),
    ],
)
def test_what_is_refused_is_said(changes, reason):
    for solver in LAYOUTS:
        problem = replace(made(solver, f"ic{BLOCK}ih1iw{4 * BLOCK}oc1kh1"), **changes)
        assert re.search(reason, str(why_not(solver, problem, ISA)))


@pytest.mark.parametrize(("product", "lanes", "copies"), [("vpdpbusd", 4, 1), ("pairs", 4, 1), ("vpdpbusd", 1, 4)])
def test_packed_words(product, lanes, copies):
    weight = np.random.default_rng(0).integers(-128, 128, (4, 21, 2, 3)).astype(np.int8)
    form = FoldedWords(lanes, 2, 4, 21, 2, 3, 4, product, S8, copies)
    packed = form.pack(weight)
    assert packed.nbytes == form.size == 2 * form.tile
    parts, blocks = BY_NAME[product].parts, -(-21 // (4 * lanes))
    found = packed.view(BY_NAME[product].packed.dtype).reshape(2, 2, 3, blocks, 2, parts, lanes, copies, -1)
    for k, c, r, s in np.ndindex(4, blocks * 4 * lanes, 2, 3):
        block, lane, element = c // (4 * lanes), c // 4 % lanes, c % 4
        expected = weight[k, c, r, s] if c < 21 else 0
        assert (found[k // 2, r, s, block, k % 2, element % parts, lane, :, element // parts] == expected).all()


@pytest.mark.skipif(ISA.name not in ("avx512", "avx2"), reason="read from machine code for AVX")
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("solver", LAYOUTS, ids=lambda solver: solver.name)
def test_sums_stay_in_registers(solver: Solver, k: int) -> None:
    problem = made(solver, f"ic{4 * BLOCK}ih{BLOCK}oc{k}kh1")
    for params in solver.candidates(problem, ISA):
        (step,) = assemble(problem, Candidate(solver, params)).steps
        strip = step.args["strip"]
        assert isinstance(strip, MicroRef)
        inner = [loop for loop in loops(strip.kernel.assembly(strip.tile)) if any(map(_PRODUCT.match, loop))]
        assert inner
        for loop in inner:  # of four channels, a constant is read again
            assert len(vector_spills(loop)) <= (k == 4), params


@pytest.mark.parametrize("x", (0, 255, 127, 128, -128, -1))
@pytest.mark.parametrize("solver", LAYOUTS, ids=lambda solver: solver.name)
def test_ends_of_both_types(solver: Solver, x: int) -> None:
    """Products of pairs that leave 16 bits, and the byte that has no magnitude among signed ones."""
    w = np.array([-128, 127, -127, -1], np.int8).reshape(-1, 1, 1, 1).repeat(70, 1)
    pixels = np.full((1, 70, 1, 4 * LANES), x, np.int8 if x < 0 else np.uint8)
    plan = cpuconv.plan(pixels.shape, w, x_dtype=pixels.dtype, y_dtype="int32", algorithm=solver.name)
    assert plan.algorithm.startswith(solver.name)
    expected = np.broadcast_to(70 * x * w[:, 0].astype(np.int32), (4, 1, 4 * LANES))
    np.testing.assert_array_equal(plan(pixels)[0], expected)


@pytest.mark.skipif(ISA.name not in ("avx512", "avx2"), reason="measured with AVX2")
@pytest.mark.parametrize("solver", LAYOUTS, ids=lambda solver: solver.name)
def test_the_model_takes_it_for_one_output_channel_and_not_for_many(solver: Solver) -> None:
    for k, taken in ((1, True), (2 * BLOCK, False)):
        found = search(made(solver, f"ic{2 * BLOCK}ih64oc{k}kh1"), Limits("fast"))
        assert found is not None and (found.candidate.solver is solver) == taken, k
