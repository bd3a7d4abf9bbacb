"""float32 by products of bfloat16 parts: the parts of all numbers, errors by depth, and what is not finite."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

import cpuconv
from cpuconv.conv.choice import model
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import F32, IN_PARTS, PART_STEP, from_bfloat16, split_to_bfloat16
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.copies.rounding import RoundTile, round_rows
from cpuconv.problem import reference
from cpuconv.problem.arrays import address
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import split_bf16, winograd_split
from cpuconv.solvers.shared import winograd_tiles
from cpuconv.solvers.shared.split_products import ERROR
from cpuconv.symbolic.sizes import is_symbolic
from support import machines, oracle

ISA = current()
ROWS = ConvProblem(1, 64, 1, 33, 48, 1, 1, in_layout="NHWC", out_layout="NHWC")
PADDED = ConvProblem(1, 64, 6, 9, 32, 3, 3, pads=(1, 1, 1, 1), in_layout="NCHW16c", out_layout="NCHW16c")
ON_AMX = pytest.mark.skipif(split_bf16.applicable(ROWS, ISA) is not None, reason="multiplies bfloat16 on AMX")
PRODUCTS = pytest.mark.parametrize("products", [3, 6])
SPECIAL = np.array(
    [0, 1, 0x7FFFFF, 0x800000, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F7F8000, 0x7F800000, 0x7F800001, 0x7FC00000],
    np.uint32,
)  # subnormal, ties, the largest numbers, infinity, NaN


def some(problem: ConvProblem, products: int, slices: int = 1) -> list[Candidate]:
    """The first and the last candidate of so many products and slices."""
    found = [each for each in split_bf16.candidates(problem, ISA) if (each.products, each.slices) == (products, slices)]
    return [Candidate(split_bf16.SOLVER, params) for params in (found[0], found[-1])]


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_all_numbers(parts):
    """The kernel's parts are those of NumPy, to the last bit, and no more than float32 needs."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 2001, np.uint32)
    numbers = np.concatenate([SPECIAL, SPECIAL | np.uint32(1 << 31), bits]).view(np.float32)
    numbers = np.resize(numbers, (len(numbers) // ISA.lanes, ISA.lanes))
    rows, element = np.zeros((len(numbers), parts, PART_STEP // 2), np.uint16), IN_PARTS[parts]
    joined = np.zeros_like(numbers)
    for source, target, ends in ((numbers, rows, (F32, element)), (rows, joined, (element, F32))):
        function = round_rows.entry(RoundTile(ISA.lanes, *ends)).function(ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6))
        steps = source.strides[0], target.strides[0]
        function(address(source), steps[0], ISA.lanes, len(numbers), address(target), steps[1])
    numbers, joined, expected = numbers.ravel(), joined.ravel(), np.stack(split_to_bfloat16(numbers.ravel(), parts))
    found = rows[:, :, : ISA.lanes].swapaxes(0, 1).reshape(parts, -1)
    nan = np.isnan(numbers)
    np.testing.assert_array_equal(found[:, ~nan], expected[:, ~nan])
    each, finite = from_bfloat16(found), np.isfinite(numbers)
    assert np.isfinite(each[:, finite]).all() and not each[:-1, ~finite].any()
    np.testing.assert_array_equal(each[-1, ~finite], numbers[~finite])
    normal = finite & (np.abs(numbers) > 2.0**-100)
    left = np.abs(each[:, normal].astype(np.float64).sum(0) - numbers[normal])
    assert (left <= np.abs(numbers[normal]) * (2.0**-16 if parts == 2 else 0)).all()
    np.testing.assert_array_equal(joined[normal], each[:, normal].sum(0))
    np.testing.assert_array_equal(joined[~finite], numbers[~finite])


@ON_AMX
@PRODUCTS
@pytest.mark.parametrize("depth", [64, 576, 4608])
def test_error_and_equal_bits(depth, products):
    problem = PADDED if depth == 576 else replace(ROWS, c=depth)
    given = oracle.operands(problem, bias=False)
    first, last = (oracle.run(oracle.plan(problem, given, each), given) for each in some(problem, products))
    np.testing.assert_array_equal(first, last)
    error = reference.relative_error(first, reference.conv2d(given.x, given.w, None, problem))
    sums = {64: 2e-7, 576: 5e-7, 4608: 1.2e-6}[depth]  # measured: decision 31
    assert error <= {3: ERROR[3] + sums, 6: sums}[products]


@ON_AMX
@PRODUCTS
def test_every_form(products):
    problems = (
        replace(ROWS, n=5, w=1),
        replace(ROWS, c=37, k=32, stride=(1, 2), residual=True, activation="silu"),
        replace(PADDED, c=41, k=37, stride=(2, 1), pads=(2, 1, 0, 2), dilation=(1, 2), activation="relu"),
        replace(PADDED, n=2, c=16, s=5, in_layout="NCHW", residual=True, threads=oracle.THREADS),
        replace(PADDED, w=40, pads=(0, 9, 9, 0), stride=(3, 3), out_layout="NHWC"),
        replace(PADDED, c=96, k=48, groups=3, n=2, threads=oracle.THREADS),
        replace(ROWS, c=64, k=64, groups=8, in_layout="NCHW16c", residual=True),  # of 8 channels: four groups are one
    )
    for seed, problem in enumerate(problems):
        for candidate in some(problem, products):
            oracle.check(problem, candidate, seed=seed)
            least = split_bf16.bound(problem, machine())
            assert 0 < least <= split_bf16.cost(problem, candidate.params, machine()).estimate
    oracle.check_apart(replace(PADDED, n=3, k=37, residual=True), candidate=some(PADDED, products)[0])


@ON_AMX
def test_slices():
    """Each adds to what those before it stored; the last one ends the sums."""
    problem = replace(ROWS, c=200, residual=True, activation="relu", threads=oracle.THREADS)
    (candidate, _) = some(problem, 3)
    oracle.check(problem, replace(candidate, params=replace(candidate.params, slices=3)))


@ON_AMX
@PRODUCTS
def test_winograd(products):
    """Errors are at most the stated ones; candidates of one tile size give equal bits."""
    problems = (
        replace(PADDED, h=11, k=37, n=2, residual=True, activation="relu", threads=oracle.THREADS),
        replace(PADDED, c=96, k=96, h=7, w=8, groups=3, dilation=(2, 1), pads=(2, 2, 1, 1)),
    )
    for seed, problem in enumerate(problems):
        found = [each for each in winograd_split.candidates(problem, ISA) if each.products == products]
        first = found[0]
        last = next(each for each in found[::-1] if (each.rows, each.cols) == (first.rows, first.cols))
        given = oracle.operands(problem, seed=seed)
        candidates = (Candidate(winograd_split.SOLVER, params) for params in (first, last))
        results = [oracle.run(oracle.plan(problem, given, each), given) for each in candidates]
        np.testing.assert_array_equal(*results)
        expected = reference.conv2d(given.x, given.w, given.bias, problem, given.residual)
        error = reference.relative_error(results[0], expected)
        assert error <= winograd_tiles.error(problem, (first.rows, first.cols), ERROR[products])
        least = winograd_split.bound(problem, machine())
        assert 0 < least <= min(winograd_split.cost(problem, each, machine()).estimate for each in found)
    assert "32" in winograd_split.applicable(replace(PADDED, c=48), ISA)


@ON_AMX
@PRODUCTS
@pytest.mark.parametrize("problem", [ROWS, PADDED], ids=["rows", "padded"])
def test_what_is_not_finite_or_largest(problem, products):
    """NaN and infinities reach the outputs of float32; the largest numbers do not overflow."""
    given = oracle.operands(problem)
    flat, largest = given.x.reshape(-1), np.finfo(np.float32).max
    flat[7], flat[70], flat[-900], flat[1200], flat[1201] = np.nan, np.inf, -np.inf, largest, 1e-40
    given.w[...] *= np.float32(2.0**-20)
    given.w[0, 0, problem.r // 2, problem.s // 2] = np.inf  # a tap that reads no padding
    y = oracle.run(oracle.plan(problem, given, some(problem, products)[0]), given)
    expected = reference.conv2d(given.x, given.w, given.bias, problem)
    assert not np.isfinite(expected).all() and np.isfinite(expected).any()
    oracle.expect(y, expected, "exact", problem.out_layout, problem.k)


@ON_AMX
def test_chosen_by_the_model_and_explained(monkeypatch):
    """Where products bind; the template of a program serves any number of rows."""
    with machines.simulating(machines.MACHINES["xeon-amx"]):
        ranked = [each.candidate for each in model.ranking(replace(ROWS, c=96, k=384, w=3136))]
        sliced = model.ranking(replace(ROWS, c=3072, k=768, w=197), "split_bf16")[0].candidate
        assert sliced.params.slices > 1
    for accuracy, products in (("standard", 3), ("exact", 6)):
        best = next(each for each in ranked if model.Limits(accuracy).admits_accuracy(each.accuracy))
        assert best.solver is split_bf16.SOLVER and best.params.products == products
    bound: list[ConvProblem] = []

    def bind(problem, *more):
        bound.append(problem)
        return split_bf16.bind(problem, *more)

    monkeypatch.setattr(model, "TABLE", (replace(split_bf16.SOLVER, bind=bind),))
    weight = oracle.normal((64, 48))
    graphs = pytest.importorskip("support.graphs")
    graph = "g (float[rows, 64] x) => (float[rows, 48] y) { y = MatMul(x, w) }"
    network = cpuconv.compile(graphs.parse(graph, w=weight), threads=oracle.THREADS)
    for count in (2, 9, 31, 32, 47, 61, 3):
        x = oracle.normal((count, 64), count)
        (y,) = network.run({"x": x}).values()
        expected = x.astype(np.float64) @ weight
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert any(is_symbolic(problem.w) for problem in bound)
    assert "f32, 3 products of bfloat16" in str(network.explain())
