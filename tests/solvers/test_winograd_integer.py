"""Winograd in int16: transforms as integers, the sums that are exact, and inputs and weights that are the worst."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import layouts
from bench.mca.assembly import hot_loop, vector_spills
from cpuconv.conv.choice.model import Choice, Limits
from cpuconv.conv.epilogue_block import Numbers
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import S8, S16, S32
from cpuconv.isa import current
from cpuconv.kernels.emit import product
from cpuconv.kernels.packing.transformed_words import TransformedWords
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.problem import reference
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import why_not, winograd_integer
from support import oracle, typed

pytestmark = pytest.mark.exhaustive

ISA = current()
LANES = ISA.lanes
HALF = 1 << 15
AXES = [(a - r + 1, r) for a in winograd_integer.POINTS for r in range(2, a)]
KERNELS = [(3, 3), (2, 2), (4, 4), (3, 1), (1, 5), (5, 3), (2, 4), (1, 7), (7, 1), (6, 1)]
LOST = {4: 1, 5: 1, 6: 1, 8: 3}  # bits of 32, by the input tile size of an axis
TYPES = ["u8:s8:s32", "s8:s8:s32", "u8:s16:s32"]
CHANNELS = [(4 * LANES, 4 * LANES), (2 * LANES - 1, LANES), (4 * LANES + 1, 2 * LANES + 3), (3, 5 * LANES)]
SQUARE = ConvProblem(1, 3, 8, 8, LANES, 3, 3)


def kernels_of(r: int, s: int, types: str) -> ConvProblem:
    return typed.blocked(replace(SQUARE, h=12, w=12, r=r, s=s), types)


def test_transforms_give_a_multiple_of_each_sum_exactly() -> None:
    rng = np.random.default_rng(0)
    for m, r in AXES:
        axis = winograd_integer.axis(m, r)
        x, w = rng.integers(-9, 9, m + r - 1), rng.integers(-9, 9, r)
        products = np.array(axis.scale) * (np.array(axis.g) @ w) * (axis.whole_b @ x)
        np.testing.assert_array_equal(np.array(axis.a) @ products, axis.multiple * np.correlate(x, w, "valid"))
        bits = LOST[m + r - 1]
        assert axis.multiple % (2 << bits) == 1 << bits


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("r, s", KERNELS)
def test_no_transform_leaves_int16(r: int, s: int, types: str) -> None:
    problem = kernels_of(r, s, types)
    limits = {"u8": (0, 255), "s8": (-128, 127), "s16": (-255, 255)}
    ranges = limits[problem.types.x.name], limits[problem.types.w.name]
    for form in winograd_integer.forms_of(problem):
        whole = np.kron(form.axes[0].whole_b, form.axes[1].whole_b), np.kron(np.array(form.g[0]), np.array(form.g[1]))
        for matrix, (least, most) in zip(whole, ranges, strict=True):
            for sign in (1, -1):
                assert (np.where(sign * matrix > 0, most, least) * matrix * sign).sum(1).max() < HALF


@pytest.mark.parametrize("text", TYPES)
@pytest.mark.parametrize("c, k", CHANNELS)
@pytest.mark.parametrize("size", [(8, 9), (7, 8), (9, 7)])
def test_edges(text: str, c: int, k: int, size: tuple[int, int]) -> None:
    problem = typed.blocked(replace(SQUARE, n=2, c=c, k=k, h=size[0], w=size[1], pads=(1, 1, 1, 1)), text)
    for v, n in itertools.product((1, 2), (1, 5)):
        for rows, cols in ((4, 4), (2, 3)):
            params = winograd_integer.Params(rows, cols, v if k > LANES else 1, n, 7, 1)
            typed.check(problem, Candidate(winograd_integer.SOLVER, params), seed=v)


@pytest.mark.parametrize("text", ["u8:s8:u8", "s8:s8:s8", "u8:s8:f32", "u8:s16:u8", "s8:s8:s32"])
@pytest.mark.parametrize("r, s", KERNELS)
def test_every_form(text: str, r: int, s: int) -> None:
    sums = text.endswith("s32")
    problem = replace(
        SQUARE, c=2 * LANES + 5, k=2 * LANES + 5, h=11, w=13, r=r, s=s, pads=(r // 2, r // 2, s // 2, s // 2)
    )
    problem = typed.blocked(replace(problem, residual=not sums, activation=None if sums else ("relu",)), text)
    forms = winograd_integer.forms_of(problem)
    assert bool(forms) == ((r, s, problem.types.w) != (4, 4, S16))  # whose weights do not fit
    for form in forms:
        params = winograd_integer.Params(*form.size, 1, 4, 9, 1)
        typed.check(problem, Candidate(winograd_integer.SOLVER, params))


@pytest.mark.parametrize(
    "problem",
    [
        replace(SQUARE, n=2, c=8 * LANES, k=8 * LANES, groups=2, pads=(1, 1, 1, 1)),
        replace(SQUARE, dilation=(2, 3), h=15, w=17, pads=(2, 2, 3, 3)),
        replace(SQUARE, c=40, k=4 * LANES + 1, threads=2, h=30, w=30),
        replace(SQUARE, n=0),
    ],
    ids=lambda problem: problem.shape_key,
)
def test_what_the_solver_lists(problem: ConvProblem) -> None:
    problem = typed.blocked(problem, "u8:s8:u8")
    assert why_not(winograd_integer.SOLVER, problem, ISA) is None
    for params in itertools.islice(winograd_integer.candidates(problem, ISA), 6):
        typed.check(problem, Candidate(winograd_integer.SOLVER, params))


def sums_of(problem: ConvProblem, params: winograd_integer.Params, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What the kernels give of logical x and w, as int32."""
    candidate = Candidate(winograd_integer.SOLVER, params)
    packed, choice = candidate.packing(problem).pack(w), Choice(candidate, "named")
    plan = Plan(problem, choice, Limits("fast"), packed, None, oracle.Spoilt(), Numbers.of(w, None))
    return layouts.to_nchw(plan(layouts.from_nchw(x, problem.in_layout)), problem.out_layout, problem.k)


def expected_sums(problem: ConvProblem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = reference.conv2d(layouts.from_nchw(x, problem.in_layout), w, None, problem)
    return layouts.to_nchw(y, problem.out_layout, problem.k)


@pytest.mark.parametrize("text", TYPES)
@pytest.mark.parametrize("r, s", KERNELS)
def test_the_worst_inputs_meet_the_worst_weights(text: str, r: int, s: int) -> None:
    """Of each component, the images and filters that make it the largest and the least, each image with each filter."""
    for form in winograd_integer.forms_of(kernels_of(r, s, text)):
        b = np.kron(form.axes[0].whole_b, form.axes[1].whole_b).reshape(-1, *form.outer)
        g = np.kron(np.array(form.g[0]), np.array(form.g[1])).reshape(-1, r, s)
        images, filters = np.concatenate([b, -b]) > 0, np.concatenate([g, -g]) > 0
        channels, (high, wide) = 3, form.outer
        problem = ConvProblem(len(images), channels, high, wide, len(filters), r, s)
        problem = typed.blocked(problem, text)
        low, most = {"u8": (0, 255), "s8": (-128, 127)}[problem.types.x.name]
        w_low, w_most = {"s8": (-128, 127), "s16": (-255, 255)}[problem.types.w.name]
        x = np.where(images, most, low)[:, None].repeat(channels, 1).astype(problem.types.x.dtype)
        w = np.where(filters, w_most, w_low)[:, None].repeat(channels, 1).astype(problem.types.w.dtype)
        y = sums_of(problem, winograd_integer.Params(*form.size, 1, 3, 100, 1), x, w)
        np.testing.assert_array_equal(y, expected_sums(problem, x, w))


@pytest.mark.parametrize("text", TYPES)
def test_sums_as_large_as_any_that_are_taken(text: str) -> None:
    problem = typed.blocked(replace(SQUARE, h=7, w=7), text)
    largest, least = winograd_integer.LARGEST, -128 if problem.types.w == S8 else -255
    most = ((1 << 29) - 1) // (largest[problem.types.x] * largest[problem.types.w] * 9)
    problem = replace(problem, c=most)
    assert winograd_integer.most_sum(problem) >= (1 << 29) * 0.999
    assert why_not(winograd_integer.SOLVER, problem, ISA) is None
    assert "no transform of a 3x3 kernel is exact" in str(
        why_not(winograd_integer.SOLVER, replace(problem, c=most + 1), ISA)
    )
    low, high = (0, 255) if problem.types.x.name == "u8" else (-128, 127)
    x, w = np.full(problem.in_shape, low or high), np.full(problem.weight_shape, least)
    w[::2] = -least - (problem.types.w == S8)
    x, w = x.astype(problem.types.x.dtype), w.astype(problem.types.w.dtype)
    y = sums_of(problem, winograd_integer.Params(4, 4, 1, 4, 4, 1), x, w)
    np.testing.assert_array_equal(y, expected_sums(problem, x, w))
    assert np.abs(y.astype(np.int64)).max() > (1 << 28)


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("k, c", [(3 * LANES, 4), (2 * LANES + 1, 5), (5 * LANES - 3, 1)])
def test_packed_weights(v: int, k: int, c: int) -> None:
    problem = typed.blocked(replace(SQUARE, groups=2, c=8 * LANES * c, k=4 * LANES * v), "u8:s8:u8")
    if v != 2:
        problem = typed.blocked(replace(SQUARE, c=c, k=k), "u8:s8:u8")
    params = winograd_integer.Params(4, 3, v, 4, 4, 1)
    packing = winograd_integer.packing(problem, params, ISA)
    assert isinstance(packing, TransformedWords)
    w = np.random.default_rng(v).integers(-128, 128, problem.weight_shape).astype(np.int8)
    packed = packing.pack(np.asfortranarray(w))
    assert packed.nbytes == packing.size
    form = winograd_integer.form(problem, (4, 3))
    assert form is not None
    planes = np.einsum("ar,kcrs,bs->abkc", np.array(form.g[0]), w.astype(np.int64), np.array(form.g[1]))
    planes = planes.reshape(form.planes, problem.k, problem.cg)
    words, vectors = -(-problem.cg // 2), -(-problem.kg // LANES)
    found = packed.view(np.int16).reshape(problem.groups, form.planes, -1, words, v, LANES, 2)
    for group, panel, word, j, lane, half in np.ndindex(problem.groups, found.shape[2], words, v, LANES, 2):
        filter_ = (min(panel * v, vectors - v) + j) * LANES + lane
        channel = 2 * word + half
        there = filter_ < problem.kg and channel < problem.cg
        value = planes[:, group * problem.kg + filter_, channel] if there else 0
        assert (found[group, :, panel, word, j, lane, half] == value).all()


def test_products_of_pairs_are_one_instruction_where_the_cpu_has_it() -> None:
    names = {each.name for each in product.PAIRS if product.usable(ISA, each)}
    assert product.pair_product(ISA).name == ("vpdpwssd" if "vpdpwssd" in names else "pmaddwd")


@pytest.mark.skipif(ISA.name != "avx2", reason="with 32 registers some of the largest tiles spill")
@pytest.mark.parametrize(("v", "n"), [*enumerate(ISA.pixels, 1)])
def test_sums_of_pairs_stay_in_registers(v: int, n: int) -> None:
    tile = GemmTile(LANES, v, 1, n, LANES, LANES, LANES, stream=True, fetch=1, has_epilogue=False, product="pmaddwd")
    body = hot_loop(gemm_strip.assembly(replace(tile, x=S16, y=S32)))
    assert sum("vpmaddwd" in line for line in body) == v * n * LANES
    assert not vector_spills(body)


@pytest.mark.parametrize(
    "problem, reason",
    [
        (replace(SQUARE, types=Types.parse("bf16")), "its operands are bytes, not bf16:bf16:bf16"),
        (SQUARE, "its operands are bytes, not f32:f32:f32"),
        (typed.blocked(replace(SQUARE, r=1, s=1), "u8:s8:u8"), "the kernel is 1x1"),
        (typed.blocked(replace(SQUARE, stride=(2, 1)), "u8:s8:u8"), "the stride is (2, 1)"),
        (typed.blocked(replace(SQUARE, r=8), "u8:s8:u8"), "the kernel is 8x3, more than 7 in an axis"),
        (typed.blocked(replace(SQUARE, r=7), "u8:s8:u8"), "no transform of a 7x3 kernel is exact"),
        (typed.blocked(replace(SQUARE, r=5, s=5), "u8:s8:u8"), "no transform of a 5x5 kernel is exact"),
    ],
)
def test_what_is_not_taken(problem: ConvProblem, reason: str) -> None:
    assert str(winograd_integer.applicable(problem, ISA)).startswith(reason)
