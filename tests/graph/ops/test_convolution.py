"""Convolutions of a network through the solvers: every layout, stride and epilogue against the reference."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.choice.layout_candidates import in_own_layouts, layout_candidates, merged_group_counts
from cpuconv.conv.choice.model import Limits, cheapest
from cpuconv.conv.recipe import effective_threads
from cpuconv.elements import from_bfloat16, to_bfloat16
from cpuconv.graph.ir import Node
from cpuconv.graph.lowering import Offer
from cpuconv.graph.ops import TABLE
from cpuconv.graph.ops.convolution import problem_of
from cpuconv.graph.ops.solver_calls import offer
from cpuconv.isa import current
from cpuconv.kernels.binding.tensor_view import BLOCKED, BLOCKED_BF16, DENSE, IN_BF16, STRIDED
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers.shared import blocked
from support.graph import lowered
from support.graph.draws import ACTIVATIONS, GENERATORS, numbers, sliding
from support.running.sharing import small_work_is_shared

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
        found = offer(in_own_layouts(option, lowered.target(threads)), values)
        dense = tuple(DENSE if lies == STRIDED else lies for lies in found.inputs)
        made += [found] if dense == found.inputs else [found, replace(found, inputs=dense)]
    return made


def joined(node: Node, arrays, threads: int = 1) -> list[Offer]:
    """Offers of all pairs of layouts with 2 groups joined, or all, whether they share blocks or not."""
    values = lowered.values_of(arrays, CONSTANT)
    problem = problem_of(node, values)
    assert problem is not None
    made = []
    for count in {2, problem.groups}:
        if count > 1 and problem.groups % count == 0:
            fewer = replace(problem, groups=problem.groups // count)
            options = (replace(fewer, in_layout=first, out_layout=second) for first, second in PAIRS)
            made += [
                offer(replace(in_own_layouts(each, lowered.target(threads)), joined=count), values) for each in options
            ]
    return made


def check(arrays, threads: int = 1, apart: bool = False, **attributes) -> None:
    """Every pair of layouts, and what is offered, against the reference; also with groups joined."""
    node = node_of(arrays, **attributes)
    for made in (None, everywhere(node, arrays, threads), joined(node, arrays, threads)):
        if made == []:
            continue
        assert lowered.check(node, arrays, CONSTANT, threads, apart, made=made) >= 1


@st.composite
def cases(draw):
    """Inputs and attributes, channels around whole blocks."""
    rng, rank, kind = draw(GENERATORS), draw(st.integers(1, 2)), draw(st.sampled_from(("one", "some", "depthwise")))
    kernel, attributes = draw(sliding(rank))
    each, out = (1, 1) if kind == "depthwise" else (draw(CHANNELS), draw(CHANNELS))
    groups = {"one": 1, "some": draw(st.sampled_from((2, 3, 4))), "depthwise": draw(CHANNELS)}[kind]
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
    with small_work_is_shared():
        check(arrays, threads, apart, **attributes)


@settings(max_examples=16, deadline=None)
@given(cases(), st.sampled_from((1, 2)), st.booleans())
def test_every_way_in_bfloat16(case, threads, apart):
    """Of numbers that bfloat16 holds: products are exact, so what is offered differs by sums and one rounding."""
    arrays, attributes = case
    arrays = [array if array is None else from_bfloat16(to_bfloat16(array)).reshape(array.shape) for array in arrays]
    node = node_of(arrays, **attributes)
    made = lowered.offers(node, arrays, CONSTANT, threads, precision="bfloat16")
    narrow = [each for each in made if {*IN_BF16.values()} & {*each.inputs, *each.outputs}]
    with small_work_is_shared():
        assert lowered.check(node, arrays, CONSTANT, threads, apart, 1e-4, narrow) == len(narrow)


@pytest.mark.parametrize("activation", [None, ("relu",)])
@pytest.mark.parametrize("residual", [False, True])
def test_bfloat16_is_offered_where_kernels_multiply_it(activation, residual):
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (1, 4 * LANES, 14, 14)), numbers(rng, (4 * LANES, 4 * LANES, 3, 3)), None]
    arrays += [numbers(rng, (1, 4 * LANES, 12, 12))] if residual else []
    node = node_of(arrays, activation=activation)
    forms = {(made.inputs[0], *made.outputs) for made in lowered.offers(node, arrays, CONSTANT, precision="bfloat16")}
    assert (BLOCKED_BF16, BLOCKED_BF16) in forms and {(BLOCKED, BLOCKED), (BLOCKED_BF16, BLOCKED)} & forms
    assert not any(BLOCKED_BF16 in (*each.inputs, *each.outputs) for each in lowered.offers(node, arrays, CONSTANT))


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
    assert not lowered.offers(node_of([x, w]), [x.astype(np.float64), w.astype(np.float64)], (1,))
    assert not lowered.offers(node_of([x, w]), [x[:0], w], (1,))
    cube = numbers(rng, (1, 4, 6, 6, 6)), numbers(rng, (4, 4, 3, 3, 3))
    assert not lowered.offers(node_of(cube), cube, (1,))
    assert not lowered.offers(node_of([x, w], pads=[-1, 0, 0, 0]), [x, w], (1,))


def test_offers_do_not_depend_on_what_was_tuned():
    problem = ConvProblem(1, 64, 14, 14, 64, 3, 3, pads=(1, 1, 1, 1), residual=True)
    by_model, stored = (
        [
            (each.problem, each.seconds)
            for each in layout_candidates(problem, replace(lowered.target(), strategy=strategy))
        ]
        for strategy in ("heuristic", "cached")
    )
    assert by_model == stored


EACH = 3 * LANES // 2  # channels of a group: two groups fill blocks
GROUPED = ConvProblem(1, 4 * EACH, 28, 28, 4 * EACH, 3, 3, pads=(1, 1, 1, 1), groups=4)


def test_groups_that_share_blocks_are_joined_where_the_model_finds_it_cheaper():
    found = list(layout_candidates(GROUPED, lowered.target()))
    assert any(each.joined > 1 for each in found)
    for made in found:
        estimates = {
            groups: cheapest(replace(made.problem, groups=groups), Limits()).cost.estimate for groups in (4, 2, 1)
        }
        assert made.seconds == estimates[made.problem.groups] == min(estimates.values())
        assert made.joined * made.problem.groups == GROUPED.groups
        assert made.flops == GROUPED.flops


@pytest.mark.parametrize(
    ("each", "groups", "options"),
    [
        (LANES, 4, [4]),  # whole blocks
        (1, 3 * LANES, [3 * LANES]),  # depthwise
        (LANES // 2, 1, [1]),
        (LANES // 2, 6, [6, 3, 1]),
        (LANES // 2, 7, [7, 1]),
        (LANES + 1, 2, [2, 1]),
        *[(LANES // 4, 4, [4, 1])] * (LANES > 4),  # else these are depthwise
    ],
)
def test_groups_are_joined_to_the_most_that_do_not_share_blocks_and_to_one(each, groups, options):
    assert merged_group_counts(ConvProblem(1, each * groups, 8, 8, each * groups, 3, 3, groups=groups)) == options


def test_joined_groups_share_no_packed_weights_with_others():
    """The same constant, in the same form, of a convolution in groups and of one without."""
    rng = np.random.default_rng(0)
    packed: dict = {}
    w = numbers(rng, (2 * LANES, 4, 1, 1))
    for groups, count in ((2, 2), (1, 1)):
        problem = ConvProblem(1, 4 * groups, 5, 5, 2 * LANES, 1, 1, groups=groups // count)
        made = offer(replace(in_own_layouts(problem, lowered.target()), joined=count), [None, None])
        x = numbers(rng, (1, 4 * groups, 5, 5))
        node = node_of([x, w], group=groups)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lowered.Kept, "packed", lambda self, *key: self.keep(packed.setdefault(key[:2], key[2]())))
            assert lowered.check(node, [x, w], CONSTANT, made=[made])


def test_few_channels_are_not_put_into_blocks():
    problem = ConvProblem(1, LANES // 2, 32, 32, 64, 3, 3)
    found = [offer(each, [None] * 3) for each in layout_candidates(problem, lowered.target())]
    assert {each.inputs[0] for each in found} == {STRIDED}
    assert BLOCKED in {each.outputs[0] for each in found}
