"""Convolutions of a network through the solvers: every layout, stride and epilogue against the reference."""

from __future__ import annotations

import itertools
from dataclasses import replace

import lowered
import numpy as np
import pytest
from graph_draws import ACTIVATIONS, GENERATORS, numbers, sliding
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv import recipe
from cpuconv.graph.ir import Node
from cpuconv.graph.kernels.convolution import offer, way, ways
from cpuconv.graph.lowering import Offer
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.convolution import problem_of
from cpuconv.graph.place import BLOCKED, DENSE, STRIDED
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.recipe import effective_threads
from cpuconv.solvers.shared import blocked

LANES = current().lanes
CHANNELS = st.sampled_from((1, 3, LANES - 1, LANES, LANES + 1, 2 * LANES + 3))
PAIRS = list(itertools.product((blocked.layout(current()), "NCHW"), repeat=2))
CONSTANT = (1, 2)


def node_of(arrays, **attributes) -> Node:
    """A Conv of as many inputs."""
    names = ["" if array is None else name for array, name in zip(arrays, "xwbr", strict=False)]
    return TABLE["Conv"].node(names, ["y"], **attributes)


def everywhere(node: Node, arrays, threads: int = 1) -> list[Offer]:
    """Offers of all pairs of layouts, whether they are worth it or not; plain operands dense as well as strided."""
    values = lowered.values_of(arrays, CONSTANT)
    problem = problem_of(node, values)
    assert problem is not None
    made = []
    for first, second in PAIRS:
        option = replace(problem, in_layout=first, out_layout=second)
        found = offer(way(option, lowered.target(threads)), values)
        dense = tuple(DENSE if lies == STRIDED else lies for lies in found.inputs)
        made += [found] if dense == found.inputs else [found, replace(found, inputs=dense)]
    return made


def check(arrays, threads: int = 1, apart: bool = False, **attributes) -> None:
    """Every pair of layouts, and what is offered, against the reference."""
    node = node_of(arrays, **attributes)
    for made in (None, everywhere(node, arrays, threads)):
        assert lowered.check(node, arrays, CONSTANT, threads, apart, made=made) >= 1


@st.composite
def cases(draw):
    """Inputs and attributes, channels around whole blocks."""
    rng, rank, kind = draw(GENERATORS), draw(st.integers(1, 2)), draw(st.sampled_from(("one", "some", "depthwise")))
    kernel, attributes = draw(sliding(rank))
    each, out = (1, 1) if kind == "depthwise" else (draw(CHANNELS), draw(CHANNELS))
    groups = {"one": 1, "some": 2, "depthwise": draw(CHANNELS)}[kind]
    sizes = [draw(st.integers(5, 9)) for _ in range(rank)]
    x = numbers(rng, (draw(st.sampled_from((1, 3))), each * groups, *sizes))
    w = numbers(rng, (out * groups, each, *kernel)) / np.float32(np.sqrt(each * np.prod(kernel)))
    attributes |= {"group": groups, "kernel_shape": kernel, "activation": draw(ACTIVATIONS)}
    arrays = [x, w, numbers(rng, (out * groups,)) if draw(st.booleans()) else None]
    if draw(st.booleans()):
        (y,) = TABLE["Conv"].infer(node_of(arrays, **attributes), lowered.values_of(arrays, CONSTANT))
        arrays.append(numbers(rng, y.shape))
    return arrays, attributes


@settings(max_examples=16)
@given(cases(), st.sampled_from((1, 2)), st.booleans())
def test_every_layout(case, threads, apart):
    arrays, attributes = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "_SERIAL_FLOPS", -1)  # small work is shared
        check(arrays, threads, apart, **attributes)


@pytest.mark.parametrize("apart", [False, True])
def test_little_work_is_run_by_one(apart):
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (3, 5, 4, 6)), numbers(rng, (LANES + 1, 5, 3, 3)), None]
    node = node_of(arrays)
    found = lowered.offers(node, arrays, CONSTANT, threads=2)
    assert found and all(effective_threads(each.detail.problem) == each.detail.problem.threads == 1 for each in found)
    check(arrays, 2, apart)


def test_nothing_is_offered_for_what_no_solver_runs():
    rng = np.random.default_rng(0)
    x, w = numbers(rng, (1, 4, 6, 6)), numbers(rng, (4, 4, 3, 3))
    assert not lowered.offers(node_of([x, w]), [x, w])  # weights that the network computes
    assert not lowered.offers(node_of([x, w]), [x.astype(np.float64), w.astype(np.float64)], (1,))
    assert not lowered.offers(node_of([x, w]), [x[:0], w], (1,))
    cube = numbers(rng, (1, 4, 6, 6, 6)), numbers(rng, (4, 4, 3, 3, 3))
    assert not lowered.offers(node_of(cube), cube, (1,))
    assert not lowered.offers(node_of([x, w], pads=[-1, 0, 0, 0]), [x, w], (1,))


def test_offers_do_not_depend_on_what_was_tuned():
    problem = ConvProblem(1, 64, 14, 14, 64, 3, 3, pads=(1, 1, 1, 1), residual=True)
    by_model, stored = (
        [(each.problem, each.seconds) for each in ways(problem, replace(lowered.target(), strategy=strategy))]
        for strategy in ("heuristic", "cached")
    )
    assert by_model == stored


def test_few_channels_are_not_put_into_blocks():
    problem = ConvProblem(1, 3, 32, 32, 64, 3, 3)
    found = [offer(each, [None] * 3) for each in ways(problem, lowered.target())]
    assert {each.inputs[0] for each in found} == {STRIDED}
    assert BLOCKED in {each.outputs[0] for each in found}
