"""The closed set of GEMM strips: candidates that keep to it ask for no other strip, and lose little."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import replace

import pytest

import layouts
from cpuconv.conv.choice.model import Limits, search
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.isa import current
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import MicroRef, Ref, Space
from cpuconv.kernels.emit.product import product_of
from cpuconv.kernels.products.closed import closed_set
from cpuconv.kernels.products.closed.closed_strip import closed_strip
from cpuconv.kernels.products.closed.closed_tile import ClosedTile
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.matmul import matmul_step
from cpuconv.kernels.products.matrices import MatmulProblem, Matrices
from cpuconv.kernels.products.matrix_strip import matrix_strip
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.solvers import fft

ISA = current()
MAX_STRIPS = 500  # of a type
WIDE = 14  # pixels of a row, from which on candidates of the set are near the best
LOSS = 1.12 if ISA.registers == 32 else 1.15  # of an estimate; of fewer registers tiles of several rows fit better
ACTIVATIONS = (
    None,
    ("relu",),
    ("relu6",),
    ("clip", -1.0, 2.0),
    ("silu",),
    ("hardswish",),
    ("leaky_relu", 0.1),
    ("gelu",),
)


def drawn(types: Types, count: int, seed: int = 3) -> list[ConvProblem]:
    """Random problems in channel blocks, or from planes where there are few input channels."""
    rng = random.Random(seed)
    found: list[ConvProblem] = []
    while len(found) < count:
        size, stride, groups = rng.choice((1, 1, 3, 3, 5, 7)), rng.choice((1, 1, 1, 2)), rng.choice((1,) * 9 + (2,))
        c, k = (groups * rng.choice((3, 8, 16, 24, 64, 128, 256, 512, rng.randint(1, 1024))) for _ in range(2))
        blocked = [layouts.blocked(ISA.block(each)).name for each in (types.x, types.y)]
        problem = ConvProblem(
            rng.choice((1, 1, 4)), c, rng.randint(size, 200), rng.randint(size, 200), k, size, size,
            stride=(stride, stride), pads=(size // 2,) * 4, groups=groups,
            in_layout="NCHW" if c <= 4 else blocked[0], out_layout=blocked[1] if rng.random() < 0.9 else "NCHW",
            activation=rng.choice(ACTIVATIONS), residual=rng.random() < 0.2, types=types, threads=1,
        )  # fmt: skip
        if problem.flops < 2e11:
            found.append(problem)
    return found


def test_matmuls_of_the_set_ask_for_no_other_strip():
    known, rng, asked = set(closed_set.strips(ISA, ALL_F32)), random.Random(7), set()
    for _ in range(300):
        rows, depth, columns = (round(math.exp(rng.uniform(0, math.log(1500)))) for _ in range(3))
        steps = rng.choice(((4 * depth, 4), (4, 4 * rows)))
        a, y = Matrices(Ref("a"), (), *steps), Matrices(Ref("y"), (), 4 * columns, 4)
        b = Matrices(Ref("b"), (), *rng.choice(((4 * columns, 4), (4, 4 * depth))))
        processor = Processor(replace(ISA, closed=True))
        step = matmul_step(processor, Space(), MatmulProblem((), rows, depth, columns, a, b, y))
        asked |= {
            each.tile for each in step.args.values() if isinstance(each, MicroRef) and each.kernel is closed_strip
        }
        assert not any(isinstance(each, MicroRef) and each.kernel is gemm_strip for each in step.args.values())
    assert asked <= known
    assert len(asked) > 20


def tiles(problem: ConvProblem, limits: Limits) -> tuple[float, set[ClosedTile]]:
    """The estimate of the best candidate within the limits, and the strips that it calls."""
    best = search(problem, limits)
    assert best is not None, problem.key
    found = set()
    for step in assemble(problem, best.candidate, closed=True).steps:
        for value in step.args.values():
            if isinstance(value, MicroRef):
                assert value.kernel not in (gemm_strip, matrix_strip), (problem.key, best.candidate)
                if value.kernel is closed_strip:
                    found.add(value.tile)
    return best.cost.estimate, found


def is_whole(problem: ConvProblem, candidate: Candidate) -> bool:
    """Whether its strips alone may be outside the set: not so of FFTs that a plane cuts short."""
    return candidate.solver is not fft.SOLVER or fft.is_closed(problem, candidate.params, ISA)


@pytest.mark.parametrize("text", ["f32", "bf16", "u8"])
def test_candidates_of_the_set_ask_for_no_other_strip(text):
    types = Types.parse(text)
    product = product_of(types, ISA)
    if product is None or not closed_set._able(product):
        pytest.skip(f"{text} has no strips of the closed set on this CPU")
    known = set(closed_set.strips(ISA, types))
    assert len(known) <= MAX_STRIPS
    asked, worst = set(), (1.0, "")
    for problem in drawn(types, 300):
        estimate, found = tiles(problem, Limits(closed=True))
        assert found <= known, (problem.key, found - known)
        asked |= found
        unrestricted = search(problem, Limits(), accept=functools.partial(is_whole, problem))
        assert unrestricted is not None
        if problem.ow >= WIDE:
            worst = max(worst, (estimate / unrestricted.cost.estimate, f"{problem.key} {unrestricted.candidate}"))
    assert len(asked) > 20
    assert worst[0] <= LOSS, worst
