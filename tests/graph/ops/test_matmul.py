"""Products of two matrices that are known only when the network runs, through their kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.graph import ops
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Ref, Space
from cpuconv.kernels.products.matmul import matmul_step
from cpuconv.kernels.products.matrices import MatmulProblem, Matrices
from cpuconv.memory.aligned import aligned
from cpuconv.network.running.recording import Recording
from cpuconv.problem.arrays import address
from support.graph import lowered
from support.graph.draws import numbers
from support.graph.lowered import check, offers, run_offer

LANES = current().lanes
SIZES = st.sampled_from((1, 2, 5, LANES - 1, LANES, LANES + 1, 2 * LANES, 3 * LANES + 1, 33))
MATMUL = ops.TABLE["MatMul"].node(["a", "b"], ["y"])


@st.composite
def pairs(draw):
    """Operands of a product: stacks that broadcast, and vectors."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    m, k, n = draw(SIZES), draw(SIZES), draw(SIZES)
    stack = draw(st.lists(st.integers(1, 3), max_size=2))
    left, right = (
        [size if draw(st.booleans()) else 1 for size in stack[draw(st.integers(0, len(stack))) :]] for _ in range(2)
    )
    a = [k] if not left and draw(st.integers(0, 3)) == 0 else [*left, m, k]
    b = [k] if not right and draw(st.integers(0, 3)) == 0 else [*right, k, n]
    return numbers(rng, tuple(a)), numbers(rng, tuple(b))


@given(pairs(), st.sampled_from((1, 2)), st.booleans(), st.sampled_from((None, 0, 1)))
@settings(deadline=None, max_examples=90)
def test_matmul(arrays, threads, apart, constant):
    """Tensors of a network, or one of them a constant; a constant matrix on the right is that of Linear."""
    known = [] if constant is None or (constant == 1 and arrays[1].ndim < 3) else [constant]
    assert check(MATMUL, arrays, constant=known, threads=threads, apart=apart) >= 1


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize(
    "a, b",
    [
        ((12, 197, 64), (12, 64, 197)),
        ((12, 197, 197), (12, 197, 64)),
        ((8, 49, 32), (8, 32, 49)),
        ((1, 512, 64), (64, 64)),
        ((3, 200, 7), (7, 5)),
        ((300, 70), (70,)),
        ((70,), (70, 300)),
        ((3, 1, 37), (3, 37, 1101)),
        ((2, 1, 9), (9, 4200)),
        ((2, 131, 35), (2, 35, 1)),
        ((2, 120, 9), (2, 9, 600)),  # rows of the right matrix far apart
        ((90, 35), (35, 513)),
        ((1, 577, 19), (19, 515)),
        ((60, 300), (300, 1100)),  # more than fits a cache
    ],
)
def test_sizes_of_attention(a, b, threads):
    rng = np.random.default_rng(0)
    assert check(MATMUL, [numbers(rng, a), numbers(rng, b)], threads=threads) >= 1


@given(SIZES, SIZES, SIZES, st.integers(0, 1), st.integers(0, 1), st.booleans())
@settings(deadline=None, max_examples=40)
def test_gemm(m, k, n, left, right, apart):
    rng = np.random.default_rng(m + k + n)
    a, b = numbers(rng, (k, m) if left else (m, k)), numbers(rng, (n, k) if right else (k, n))
    node = ops.TABLE["Gemm"].node(["a", "b"], ["y"], transA=left, transB=right)
    assert check(node, [a, b], apart=apart) >= 1


@pytest.mark.parametrize("closed", (False, True))
@pytest.mark.parametrize("depth", (1, 5, 3 * LANES + 2))
def test_operands_of_any_strides(depth, closed):
    """Steps of zero, as those of a tensor that is broadcast, backwards, and over elements between."""
    m, n = 2 * LANES + 3, 3 * LANES + 1
    memory = {"a": numbers(np.random.default_rng(0), (4000,)), "b": numbers(np.random.default_rng(1), (60000,))}
    for a_steps in ((depth, 1), (0, 1), (1, 0), (-2, 3), (1, -2)):
        for b_steps in ((n, 1), (1, depth), (0, 1), (1, 0), (-n, 1), (2, -3)):
            starts = {"a": 2000, "b": 30000}
            views = [
                np.lib.stride_tricks.as_strided(memory[name][starts[name] :], shape, [4 * step for step in steps])
                for name, shape, steps in (("a", (m, depth), a_steps), ("b", (depth, n), b_steps))
            ]
            y = np.full((m, n), np.nan, np.float32)
            left, right = (
                Matrices(Ref(name, 4 * starts[name]), (), view.strides[0], view.strides[1])
                for name, view in zip("ab", views, strict=True)
            )
            space = Space()
            result = Matrices(Ref("y"), (), *y.strides)
            target = lowered.target()
            target = replace(target, isa=replace(target.isa, closed=closed))
            step = matmul_step(target, space, MatmulProblem((), m, depth, n, left, right, result))
            workspace = aligned(space.size + 64, np.uint8)
            bases = {**memory, "y": y, "workspace": workspace}
            Recording.of([step], 1).bind({name: address(array) for name, array in bases.items()}).run()
            wanted = views[0].astype(np.float64) @ views[1].astype(np.float64)
            np.testing.assert_allclose(y, wanted, atol=1e-5 * np.abs(wanted).max())


def test_what_is_not_offered():
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    assert not offers(MATMUL, [a.astype(np.int32), b.astype(np.int32)])
    assert not offers(MATMUL, [a, b], constant=[1])
    scaled = ops.TABLE["Gemm"].node(["a", "b"], ["y"], alpha=0.5)
    assert not offers(scaled, [a, b])
    assert not offers(MATMUL, [np.ones((0, 4), np.float32), b])


def test_results_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (3, 70, 65)), numbers(rng, (3, 65, 50))]
    (offer,) = offers(MATMUL, arrays)
    one, two = (run_offer(MATMUL, arrays, offer, threads=threads)[0] for threads in (1, 2))
    assert np.array_equal(one, two)
