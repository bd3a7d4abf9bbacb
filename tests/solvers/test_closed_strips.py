"""Strips of the closed set against the float64 oracle, of every solver that calls GEMM strips."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.mca.assembly import count_fma, hot_loop, vector_spills
from cpuconv.conv.choice.model import Choice, Limits, ranking
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate, in_closed_set
from cpuconv.isa import current
from cpuconv.kernels.products.closed.closed_strip import closed_strip
from cpuconv.kernels.products.closed.closed_tile import LINES, MATRIX, PIXELS, PLANES, ClosedTile
from cpuconv.kernels.products.tiling import closed_columns
from cpuconv.problem.problem import ConvProblem
from support import oracle, typed
from support.asm import needs_fma
from support.typed import blocked

ISA = current()
FLOATS = ("pointwise", "direct", "winograd", "fft", "channels_last")
SOLVERS = {
    "f32": (*FLOATS, "first_layer", "im2col", "planar"),
    "bf16:bf16:bf16": (*FLOATS, "row_patches", "patches"),
    **dict.fromkeys(("u8:s8:u8", "s8:s8:s8", "u8:s8:f32", "u8:s8:s32"), ("direct", "patches", "winograd_integer")),
}
CASES = [(types, solver) for types, solvers in SOLVERS.items() for solver in solvers]
ACTIVATIONS = (None, ("relu",), ("clip", -0.5, 0.75), ("relu6",), ("silu",), ("hardswish",), ("leaky_relu", 0.125),
               ("sigmoid",), ("tanh",), ("gelu",), ("gelu_tanh",), ("hardsigmoid",))  # fmt: skip


def candidates(problem: ConvProblem, solver: str, most: int = 1) -> list[Candidate]:
    """A few candidates of the set, from the whole list."""
    found = [each.candidate for each in ranking(problem, solver, closed=True)]
    found = [each for each in found if in_closed_set(problem, each)]
    return found[:: max(1, len(found) // most)][:most]


def problems() -> list[ConvProblem]:
    """Around the ends of blocks and tiles: channels, widths, kernels, strides, groups and images."""
    block, widest = ISA.lanes, ISA.pixels[1]
    texts = [
        f"ic{block}ih3iw{widest}oc{2 * block}kh1",
        f"ic{block + 3}ih3iw{widest + 1}oc{block + 5}kh1",
        f"ic{2 * block - 1}ih5iw{widest - 1}oc{3 * block - 2}kh3ph1",
        f"ic{5 * block}ih4iw1oc{4 * block}kh3ph1",
        f"mb2ic{block - 2}ih9oc{block}kh5ph2sh2",
        f"ic3ih13iw21oc{2 * block + 1}kh3ph1sh2",
        f"ic5ih9iw17oc{block}kh3ph2dh1",
        f"mb2g2ic{8 * block}ih6oc{8 * block}kh1",
        f"ic{4 * block}ih12iw11oc{4 * block}kh3ph1",
        "ic1ih6iw40oc1kh1",
    ]
    return [ConvProblem.parse(text) for text in texts]


def check(problem: ConvProblem, solver: str, seed: int) -> int:
    """Candidates of a solver against the oracle, at guarded pages; gives how many."""
    found = candidates(problem, solver)
    for candidate in found:
        given = typed.operands(problem, seed)
        packed = candidate.packing(problem).pack(given.w.view(problem.types.w.dtype))
        numbers = typed.Numbers.of(given.w, given.scales) if problem.types.sum.integer else None
        limits = Limits("fast", closed=True)
        made = Plan(problem, Choice(candidate, "named"), limits, packed, given.bias, oracle.Spoilt(), numbers)
        typed.judge(made, given)
    return len(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("types", "solver"), CASES)
def test_strips_of_the_set_are_right(types: str, solver: str) -> None:
    count = 0
    for seed, plain in enumerate(problems()):
        problem = plain if solver in ("im2col", "planar") and seed % 2 else blocked(plain, types)
        if solver == "channels_last":
            problem = replace(problem, in_layout="NHWC", out_layout="NHWC")
        if not types.endswith("s32"):
            problem = replace(problem, activation=ACTIVATIONS[seed % len(ACTIVATIONS)], residual=seed % 3 == 0)
        count += check(problem, solver, seed)
    if not count:
        pytest.skip(f"{solver} has no strips of the closed set for {types} on this CPU")


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_every_activation_with_and_without_residual(activation) -> None:
    for types in ("f32", "bf16:bf16:bf16", "u8:s8:u8"):
        for residual in (False, True):
            text = f"ic{ISA.lanes}ih3iw{ISA.pixels[1] + 1}oc{2 * ISA.lanes - 3}kh1"
            problem = blocked(ConvProblem.parse(text, activation=activation, residual=residual), types)
            check(problem, "pointwise", 1)


def test_fewer_vectors_have_the_columns_of_more() -> None:
    """A last panel of planes has fewer vectors and as many columns."""
    columns = [set(closed_columns(ISA, v)) for v in range(1, len(ISA.pixels) + 1)]
    assert all(more <= fewer for fewer, more in zip(columns, columns[1:], strict=False))
    assert all(1 in each for each in columns)


@needs_fma
@pytest.mark.parametrize("form", (PIXELS, LINES, MATRIX, PLANES) if ISA.registers == 32 else (MATRIX,))
def test_sums_stay_in_registers(form: str) -> None:
    """A turn of the hot loop is one scalar: an FMA for each vector of sums, and none of them goes to memory.

    With fewer registers, and so fewer sums, the loops of activations have more FMAs than that of a scalar.
    """
    for v in range(1, len(ISA.pixels) + 1):
        tile = ClosedTile(form, ISA.lanes, v, closed_columns(ISA, v)[-1])
        body = hot_loop(closed_strip.assembly(tile))
        assert count_fma(body) == tile.sums, tile
        assert not vector_spills(body), tile
