"""Convolutions of bfloat16 and of integers by every solver that takes them, against the oracle."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
import layouts
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import BF16, F32, U8, rounded
from cpuconv.isa import current
from cpuconv.isa.features import tiles_granted
from cpuconv.problem import reference
from cpuconv.problem.error_bound import error_bound
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.problem.types import Types
from cpuconv.solvers import TABLE, why_not
from cpuconv.solvers.shared import blocked
from support.quantized import operands

TYPED = [solver for solver in TABLE if getattr(solver, "TYPED", False)]
INTEGERS = ("u8:s8:u8", "s8:s8:s8", "u8:s8:s32", "s8:s8:f32", "u8:s8:s8")
FLOATS = ("bf16:bf16:bf16", "bf16:bf16:f32")
_EACH = 3  # candidates of a solver


def in_blocks(problem: ConvProblem) -> ConvProblem:
    """The problem with both activations in channel blocks of their elements."""
    x, y = (blocked.layout(current(), element) for element in (problem.types.x, problem.types.y))
    return replace(problem, in_layout=x, out_layout=y)


def some(solver: ModuleType, problem: ConvProblem) -> list[Candidate]:
    """A few candidates, from all of the list."""
    found = [Candidate(solver, params) for params in solver.candidates(problem, current())]
    return found[:: max(1, len(found) // _EACH)][:_EACH]


def planned(problem: ConvProblem, w: np.ndarray, bias: Any, candidate: Candidate, scales: Any = None) -> cpuconv.Plan:
    """A plan of one candidate, as users make it."""
    (top, bottom, left, right), names = problem.pads, {"s8": "int8", "u8": "uint8", "s32": "int32", "f32": "float32"}
    integers = problem.types.sum.integer
    y_dtype = "bfloat16" if problem.types.y == BF16 else names[problem.types.y.name]
    return cpuconv.plan(
        problem.in_shape, w, bias, problem.stride, ((top, bottom), (left, right)), problem.dilation, problem.groups,
        activation=problem.activation, residual=problem.residual, in_layout=problem.in_layout,
        out_layout=problem.out_layout, threads=problem.threads, algorithm=str(candidate), y_dtype=y_dtype,
        x_dtype=names[problem.types.x.name] if integers else None, quantization=scales,
    )  # fmt: skip


def check_integers(problem: ConvProblem, solver: ModuleType, seed: int, w_type: str = "s8") -> int:
    """Run some candidates of a solver on random integers; gives how many."""
    given_ = operands(problem, seed, w_type)
    expected = reference.conv2d(given_.x, given_.w, given_.bias, problem, given_.residual, given_.scales)
    candidates = some(solver, problem)
    for candidate in candidates:
        plan = planned(problem, given_.w, given_.bias, candidate, given_.scales)
        y = plan(given_.x, residual=given_.residual)
        np.testing.assert_array_equal(y, expected, err_msg=f"{problem}: {candidate}")
    return len(candidates)


def check_floats(problem: ConvProblem, solver: ModuleType, seed: int) -> int:
    """The same on random bfloat16."""
    rng = np.random.default_rng(seed)

    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return rounded(rng.standard_normal(shape).astype(np.float32)).reshape(shape)

    x = layouts.from_nchw(normal(problem.in_shape), problem.in_layout)
    w, bias = normal(problem.weight_shape), rng.standard_normal(problem.k).astype(np.float32)
    drawn = normal(problem.out_shape) if problem.types.y == BF16 else rng.standard_normal(problem.out_shape)
    residual = None
    if problem.residual:
        residual = layouts.from_nchw(drawn.astype(problem.types.y.dtype), problem.out_layout)
    expected = reference.conv2d(x, w, bias, problem, residual)
    bound = error_bound(x, w, bias, problem, residual)
    bfloat = ml_dtypes.bfloat16
    given_ = None if residual is None else residual if problem.types.y == F32 else residual.view(bfloat)
    candidates = some(solver, problem)
    for candidate in candidates:
        y = planned(problem, w.view(bfloat), bias, candidate)(x.view(bfloat), residual=given_)
        error = np.abs(y.astype(np.float64) - expected)
        assert (error <= bound).all(), (
            f"{problem}: {candidate}: {(error / np.maximum(bound, 1e-30)).max()} of the bound"
        )
    return len(candidates)


def check(problem: ConvProblem, solver: ModuleType, seed: int) -> int:
    """Run some candidates of a solver, if it takes the problem, against the oracle."""
    if why_not(solver, problem, current()) is not None:
        return 0
    return (check_integers if problem.types.sum.integer else check_floats)(problem, solver, seed)


def edges() -> list[str]:
    """Problems around the ends of blocks, tiles and registers, as benchdnn writes them."""
    block = current().block(U8)
    channels = (1, 3, block - 1, block, block + 1, 2 * block + 5)
    shapes = [f"ic{c}ih7oc{k}kh1" for c, k in zip(channels, channels[::-1], strict=True)]
    shapes += [f"ic{c}ih9iw7oc{k}kh3ph1" for c, k in zip(channels, channels[::-1], strict=True)]
    return [
        *shapes,
        f"mb2ic{block}ih12oc{block}kh3ph1sh2",
        f"mb2g2ic{2 * block}ih8oc{2 * block}kh3ph1",
        f"ic{block + 4}ih17iw33oc40kh3ph1",
        f"ic{block}ih13oc{block}kh3kw5ph2dh1pw3",
        f"ic{3 * block}ih6iw35oc24kh1sh2",
        f"ic{block}ih5oc{4 * block}kh5ph4",
        "ic20ih40iw3oc17kh7kw1ph3pw0",
        "ic8ih1oc8kh1",
    ]


@pytest.mark.parametrize("types", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.NAME)
def test_every_solver_at_the_edges(solver: ModuleType, types: str) -> None:
    count = 0
    for seed, text in enumerate(edges()):
        problem = in_blocks(ConvProblem.parse(text, types=Types.parse(types)))
        if not types.endswith("s32"):  # sums as they are
            problem = replace(problem, activation=(None, "relu", "silu")[seed % 3 if types in FLOATS else seed % 2])
        count += check(problem, solver, seed)
    if solver.NAME != "amx" or tiles_granted():
        assert count > 0


@pytest.mark.parametrize("types", ["u8:s8:u8", "s8:s8:s8", "s8:s8:f32", *FLOATS])
@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.NAME)
def test_residuals_and_threads(solver: ModuleType, types: str) -> None:
    block = current().block(U8)
    for seed, text in enumerate((f"ic{block}ih10oc{block + 16}kh1", f"mb2ic{block + 2}ih10oc{block - 3}kh3ph1")):
        for activation in (None, "relu"):
            problem = ConvProblem.parse(text, types=Types.parse(types), residual=1, activation=activation, threads=2)
            check(in_blocks(problem), solver, seed)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.NAME)
def test_random_problems(solver: ModuleType, data: st.DataObject) -> None:
    draw = data.draw
    groups = draw(st.sampled_from((1, 1, 1, 2)))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    sizes: dict[str, Any] = {
        "n": draw(st.integers(1, 2)),
        "c": groups * draw(st.one_of(st.integers(1, 140), st.sampled_from((64, 128)))),
        "k": groups * draw(st.one_of(st.integers(1, 140), st.sampled_from((64, 128)))),
        "h": draw(st.integers(5, 20)),
        "w": draw(st.integers(5, 40)),
        "r": kernel[0],
        "s": kernel[1],
        "stride": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "pads": draw(st.tuples(*[st.integers(0, 2)] * 4)),
        "groups": groups,
    }
    problem = ConvProblem(**sizes, types=Types.parse(draw(st.sampled_from((*INTEGERS, *FLOATS)))))
    check(in_blocks(problem), solver, draw(st.integers(0, 99)))


@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.NAME)
def test_sums_that_saturate_bytes_do_not_saturate_between(solver: ModuleType) -> None:
    """The largest numbers of one sign: pairs of products are beyond int16, results at the ends of a byte."""
    block = current().block(U8)
    problem = in_blocks(ConvProblem.parse(f"ic{block}ih6oc{block}kh3ph1", types=Types.parse("u8:s8:u8")))
    if why_not(solver, problem, current()) is not None:
        pytest.skip(f"{solver.NAME} does not take it")
    x = np.full(problem.in_shape, 255, np.uint8)
    w = np.where(np.arange(problem.k) % 2, 127, -128).astype(np.int8).reshape(-1, 1, 1, 1)
    w = np.ascontiguousarray(np.broadcast_to(w, problem.weight_shape))
    physical = layouts.from_nchw(x, problem.in_layout)
    for scale in (1e-6, 1.0):
        scales = Quantization(x_scale=1.0, w_scale=1.0, y_scale=1 / scale, x_zero_point=7, y_zero_point=128)
        expected = reference.conv2d(physical, w, None, problem, None, scales)
        for candidate in some(solver, problem):
            y = planned(problem, w, None, candidate, scales)(physical)
            np.testing.assert_array_equal(y, expected, err_msg=str(candidate))


@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.NAME)
def test_weights_of_unsigned_bytes(solver: ModuleType) -> None:
    """Less their zero points they may need 16 bits, which the product of pairs takes."""
    problem = in_blocks(ConvProblem.parse("ic70ih6oc20kh3ph1", types=Types.parse("u8:s16:u8")))
    check_integers(problem, solver, 3, "u8") if why_not(solver, problem, current()) is None else None
