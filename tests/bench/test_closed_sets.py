"""Planes of every size ask for kernels of the enumerated sets, and for no others."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from bench.packs import closed_sets
from cpuconv.conv import recipe
from cpuconv.conv.recipe import Candidate, assemble, operands_of
from cpuconv.elements import F32
from cpuconv.isa import current
from cpuconv.kernels.axis.lines import Axes, line_steps, line_tiles
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import MicroRef, Ref, Space
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.kernels.copies.moving import move_image
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import depthwise, im2col, winograd
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.lanes import lane_set
from support import oracle
from support.machines import AVX2

ISA = current()
BLOCKED = blocked.layout(ISA)
COUNT = 200
MOST = 330  # some 20 of them are of attention


def planes(seed: int) -> list[tuple[int, int]]:
    """Random planes, most of them small; and those around the sizes of tiles."""
    rng = random.Random(seed)
    found = [(round(2 ** rng.uniform(0, 8)), round(2 ** rng.uniform(0, 8.5))) for _ in range(COUNT)]
    return [*found, *((high, wide) for high in range(1, 7) for wide in range(1, 9))]


def convolution(plane: tuple[int, int], size: int, stride: int, depthwise: bool) -> ConvProblem:
    channels = 3 * ISA.lanes
    return ConvProblem(
        *(1, channels, *plane, channels, size, size, (stride, stride), (size // 2,) * 4),
        groups=channels if depthwise else 1, in_layout=BLOCKED, out_layout=BLOCKED, activation=("relu",),
    )  # fmt: skip


def micro_kernels(problem: ConvProblem, candidate: Candidate) -> set[MicroRef]:
    """All of a call but those of products."""
    steps = candidate.solver.bind(problem, candidate.params, ISA, Space(), operands_of(problem))
    found = {value for step in steps for value in step.args.values() if isinstance(value, MicroRef)}
    return {each for each in found if "gemm" not in each.kernel.name}


@pytest.mark.parametrize("size, stride", [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)])
def test_depthwise_tiles(size, stride):
    known = set(lane_set.lane_tiles(ISA, size, size, (stride, stride), ("relu",)))
    for plane in planes(size):
        problem = convolution(plane, size, stride, True)
        closed = [each for each in depthwise.candidates(problem, ISA) if depthwise.is_closed(problem, each, ISA)]
        assert closed
        for params in closed:
            assert {ref.tile for ref in micro_kernels(problem, Candidate(depthwise.SOLVER, params))} <= known


def test_each_instruction_set_has_its_own_closed_set(monkeypatch):
    """What is memoised for one is no answer for another."""
    problem, asked = convolution((23, 29), 3, 1, True), []
    solver = replace(depthwise.SOLVER, is_closed=lambda problem, params, isa: asked.append(isa))
    candidate = Candidate(solver, next(iter(depthwise.candidates(problem, ISA))))
    isas = list(dict.fromkeys((ISA, AVX2)))
    for isa in (*isas, *isas):
        monkeypatch.setattr(recipe, "current", lambda isa=isa: isa)
        assert not recipe.in_closed_set(problem, candidate)
    assert asked == isas


def test_winograd_transforms():
    known = set(winograd.closed_tiles(ISA, 3, 3, ("relu",)))
    for plane in planes(1):
        problem = convolution(plane, 3, 1, False)
        closed = [each for each in winograd.candidates(problem, ISA) if winograd.is_closed(problem, each, ISA)]
        assert closed
        for params in closed:
            candidate = Candidate(winograd.SOLVER, params)
            assert micro_kernels(problem, candidate) | {candidate.packing(problem).transform} <= known


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("work", ["Softmax", "ReduceMax"])
def test_lines(work, axis):
    rng, known = random.Random(2), set(line_tiles(ISA, work))
    for _ in range(COUNT):
        shape = (2, round(2 ** rng.uniform(0, 9)), round(2 ** rng.uniform(0, 9)))
        out = shape if work == "Softmax" else tuple(1 if at == axis else size for at, size in enumerate(shape))
        x, y = (TensorView.plain(Ref(name), each, F32.dtype) for name, each in (("x", shape), ("y", out)))
        steps = line_steps(Processor(ISA), Space(), work, Axes(axis, axis + 1), x, y)
        assert {value.tile for step in steps for value in step.args.values() if isinstance(value, MicroRef)} <= known


@pytest.mark.parametrize("size, stride", [(3, 1), (5, 2), (7, 1)])
def test_one_size_tells_the_kernels_of_all(size, stride):
    asked, found = set(), []
    for plane in planes(3):
        problem = convolution(plane, size, stride, True)
        params = next(each for each in depthwise.candidates(problem, ISA) if depthwise.is_closed(problem, each, ISA))
        (ref,) = micro_kernels(problem, Candidate(depthwise.SOLVER, params))
        asked.add(ref.tile)
        found.append(lane_set.relatives(ref.tile, ISA))
    assert all(set(each) == set(found[0]) for each in found) and asked <= set(found[0])


@pytest.mark.parametrize("isa", [ISA, AVX2])
def test_there_are_few(isa):
    found = list(closed_sets.float32(isa))
    assert len(found) == len(set(found)) <= MOST


def test_all_can_be_compiled():
    assert all(ref.entry().name for ref in closed_sets.float32(ISA))


def test_drivers_are_those_that_convolutions_and_reorders_call():
    known = set(closed_sets.drivers(ISA))
    assert all(kernel.entry(tile).name for kernel, tile in known)
    for layout, other in itertools.permutations(("NHWC", BLOCKED)):
        problem = replace(convolution((20, 30), 3, 1, False), in_layout=layout, out_layout=layout)
        *_, step = assemble(problem, Candidate(im2col.SOLVER, next(iter(im2col.candidates(problem, ISA))))).steps
        assert (step.kernel, step.tile) in known
        far = replace(problem, c=1024, k=1024, out_layout=other)  # pixels that share sets of the caches
        operands = operands_of(far)
        step = move_image(ISA, Space(), far.in_shape, operands.x, operands.y, 1)
        assert (step.kernel, step.tile) in known


@pytest.mark.parametrize("size, stride", [(3, 1), (3, 2), (5, 1)])
def test_tiles_at_their_ends(size, stride):
    """Planes an output smaller than a tile, as large, and an output larger; and of one column."""
    done = set()
    for high, wide in ((1, 1), (size, 1), (2, 5), (size - 1, 4), (size, 7), (size + 1, 8), (size + 5, 9)):
        problem = convolution((high * stride, wide * stride), size, stride, True)
        for params in depthwise.candidates(problem, ISA):
            if depthwise.is_closed(problem, params, ISA) and (high, wide, params.cols) not in done:
                done.add((high, wide, params.cols))
                oracle.check(problem, Candidate(depthwise.SOLVER, params))
