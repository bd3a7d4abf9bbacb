"""Convolutions of floats of 16 bits and of integers, by every solver and by every product, against the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpuconv
import layouts
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import U8
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.emit import product as products
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers import TABLE, direct, why_not
from cpuconv.solvers.shared import geometry, words
from cpuconv.solvers.shared.solver import Solver
from support import typed
from support.typed import blocked as in_blocks

pytestmark = pytest.mark.exhaustive

TYPED = [solver for solver in TABLE if solver.low_precision]
INTEGERS = ("u8:s8:u8", "s8:s8:s8", "u8:s8:s32", "s8:s8:f32", "u8:s8:s8", "u8:s16:u8")
FLOATS = ("bf16:bf16:bf16", "bf16:bf16:f32", "f16:f16:f16")
_EACH = 2  # candidates of a solver


def some(solver: Solver, problem: ConvProblem) -> list[Candidate]:
    """A few candidates, from all of the list."""
    found = [Candidate(solver, params) for params in solver.candidates(problem, current())]
    return found[:: max(1, len(found) // _EACH)][:_EACH]


def check(problem: ConvProblem, solver: Solver, seed: int) -> int:
    """Some candidates of a solver, if it takes the problem, against the oracle; gives how many."""
    if why_not(solver, problem, current()) is not None:
        return 0
    candidates = some(solver, problem)
    for candidate in candidates:
        typed.check(problem, candidate, seed)
        assert solver.bound(problem, machine()) <= solver.cost(problem, candidate.params, machine()).estimate, candidate
    return len(candidates)


def edges() -> list[str]:
    """Problems around the ends of blocks, tiles and registers, as benchdnn writes them."""
    block = current().block(U8)
    channels = (1, block - 1, block + 1, 2 * block + 5)
    shapes = [f"ic{c}ih7oc{k}kh1" for c, k in zip(channels, channels[::-1], strict=True)]
    shapes += [f"ic{c}ih9iw7oc{k}kh3ph1" for c, k in zip(channels, channels[::-1], strict=True)]
    return [
        *shapes,
        f"mb2ic{block}ih12oc{block}kh3ph1sh2",
        f"mb2g2ic{2 * block}ih8oc{2 * block}kh3ph1",
        f"mb2g16ic{block}ih8oc{2 * block}kh3ph1",
        "g5ic20ih7oc35kh3ph1",
        f"ic{block + 4}ih17iw33oc40kh3ph1",
        f"ic{block}ih13oc{block}kh3kw5ph2dh1pw3",
        f"ic{3 * block}ih6iw35oc24kh1sh2",
        "ic20ih40iw3oc17kh7kw1ph3pw0",
    ]


@pytest.mark.parametrize("types", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.name)
def test_every_solver_at_the_edges(solver: Solver, types: str) -> None:
    count = 0
    for seed, text in enumerate(edges()):
        problem = in_blocks(ConvProblem.parse(text), types)
        if not types.endswith("s32"):  # sums as they are
            problem = replace(problem, activation=(None, "relu", "silu")[seed % 3 if types in FLOATS else seed % 2])
        count += check(problem, solver, seed)
    if not count:
        pytest.skip(f"{solver.name} takes no {types} here")


@pytest.mark.parametrize("types", ["u8:s8:u8", "s8:s8:s8", "s8:s8:f32", *FLOATS])
@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.name)
def test_residuals_and_threads(solver: Solver, types: str) -> None:
    block = current().block(U8)
    for seed, text in enumerate((f"ic{block}ih10oc{block + 16}kh1", f"mb2ic{block + 2}ih10oc{block - 3}kh3ph1")):
        for activation in (None, "relu"):
            problem = ConvProblem.parse(text, residual=True, activation=activation, threads=2)
            check(in_blocks(problem, types), solver, seed)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.name)
def test_random_problems(solver: Solver, data: st.DataObject) -> None:
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
    problem = in_blocks(ConvProblem(**sizes), draw(st.sampled_from((*INTEGERS, *FLOATS, "f16:f16:f32"))))
    check(problem, solver, draw(st.integers(0, 99)))


@pytest.mark.parametrize(("types", "values"), [("u8:s8:s32", (255, 0)), ("s8:s8:s32", (-128, 127))])
@pytest.mark.parametrize("solver", TYPED, ids=lambda solver: solver.name)
def test_sums_that_saturate_bytes_do_not_saturate_between(solver: Solver, types: str, values: tuple[int, int]) -> None:
    """The ends of both types: sums of two products are beyond int16, or at its ends."""
    block = current().block(U8)
    problem = in_blocks(ConvProblem.parse(f"ic{block}ih6oc{block}kh3ph1"), types)
    if why_not(solver, problem, current()) is not None:
        pytest.skip(f"{solver.name} does not take it")
    dtype = problem.types.x.dtype
    ends = [layouts.from_nchw(np.full(problem.in_shape, value, dtype), problem.in_layout) for value in values]
    w = np.where(np.arange(problem.k) % 2, 127, -128).astype(np.int8).reshape(-1, 1, 1, 1)
    w = np.ascontiguousarray(np.broadcast_to(w, problem.weight_shape))
    taps = np.array([2, 3, 3, 3, 3, 2])  # of an axis that an output sees
    sums = block * (taps[:, None] * taps) * w[:, 0, 0, 0].astype(np.int32)[:, None, None]
    for candidate in some(solver, problem):
        plan = cpuconv.plan(
            problem.in_shape, w, padding=1, in_layout=problem.in_layout, out_layout=problem.out_layout,
            x_dtype=dtype, y_dtype="int32", algorithm=str(candidate),
        )  # fmt: skip
        for x, value in zip(ends, values, strict=True):
            y = layouts.to_nchw(plan(x), problem.out_layout, problem.k)
            np.testing.assert_array_equal(y[0], value * sums, err_msg=str(candidate))


def _usable() -> list[tuple[products.Product, str]]:
    """Every product of words that this CPU has, with types that it takes."""
    found = []
    for product in products.TABLE:
        for types in (*INTEGERS, *FLOATS):
            if products.usable(current(), product) and product.takes(Types.parse(types)):
                found.append((product, types))
    return found


@pytest.mark.parametrize(("product", "types"), _usable(), ids=lambda each: getattr(each, "name", each))
def test_products_that_are_not_the_fastest(
    product: products.Product, types: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "product", lambda problem, isa: product)
    monkeypatch.setattr(geometry, "_geometry", geometry._geometry.__wrapped__)  # which remembers the usual product
    block = current().block(U8)
    for seed, text in enumerate((f"ic{block + 5}ih7oc{block - 3}kh3ph1", "ic3ih6iw9oc5kh2", f"ic{block}ih5oc40kh1")):
        problem = in_blocks(ConvProblem.parse(text), types)
        for candidate in some(direct.SOLVER, problem):
            typed.check(problem, candidate, seed)


def test_every_type_has_a_product_on_every_cpu() -> None:
    for types in (*INTEGERS, *FLOATS):
        assert products.product_of(Types.parse(types), current()) is not None, types
    assert products.product_of(Types.parse("u8:s16:u8"), current()) == products.BY_NAME["pairs"]
