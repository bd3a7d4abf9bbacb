"""Convolutions that meet ever new sizes: right, equal to the last bit whatever ran before, and nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import cpuconv
import layouts
from cpuconv.api.layer import TemplateLayer
from cpuconv.conv import session
from cpuconv.conv.caches.size_classes import SizeClasses
from cpuconv.conv.choice.model import Limits, cheapest, modelled_cost
from cpuconv.conv.choice.query import Query
from cpuconv.conv.choice.select import choose, decide
from cpuconv.conv.choice.sources.size_class import class_choice, representative
from cpuconv.conv.session import Session
from cpuconv.elements import BF16, F32
from cpuconv.errors import ArgumentError
from cpuconv.isa import current
from cpuconv.problem import reference
from cpuconv.problem.error_bound import error_bound
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.runtime.code.cache import Statistics
from cpuconv.symbolic.classes import BATCH, representative_size, size_class
from support import oracle
from support.examples import examples
from support.quantized import operands, quantization
from support.strided import sliced

pytestmark = pytest.mark.usefixtures("small_work_is_shared")
SIZES = [(18, 40), (23, 33), (31, 64), (47, 17), (18, 41), (60, 52), (33, 21)]
TYPES = [ALL_F32, ALL_F32, Types(BF16, BF16, F32, BF16), Types.parse("u8:s8:u8"), Types.parse("s8:s8:f32")]
KINDS = {
    "3x3": ConvProblem(1, 24, 17, 17, 20, 3, 3, pads=(1, 1, 1, 1)),
    "1x1": ConvProblem(1, 40, 17, 17, 33, 1, 1),
    "depthwise": ConvProblem(1, 37, 17, 17, 37, 3, 3, pads=(1, 1, 1, 1), groups=37),
    "first": ConvProblem(1, 3, 17, 17, 32, 7, 7, (2, 2), (3, 3, 3, 3)),
    "int8": ConvProblem(1, 24, 17, 17, 20, 3, 3, pads=(1, 1, 1, 1), types=Types.parse("u8:s8:u8")),
}
NO_TABLES = Path("no tables")
CALLED = ("stride", "dilation", "groups", "activation", "in_layout", "out_layout", "threads")


class Operands:
    """Weights, bias and scales of a convolution, and its calls for inputs of any size."""

    def __init__(self, problem: ConvProblem, padding: Any = None) -> None:
        self.problem, rng = problem, np.random.default_rng(3)
        self.scales = quantization(problem, 1) if problem.types.sum.integer else None
        top, bottom, left, right = problem.pads
        named = {name: getattr(problem, name) for name in CALLED}
        self.options = {"padding": padding or ((top, bottom), (left, right)), "quantization": self.scales, **named}
        scale = np.float32((problem.cg * problem.r * problem.s) ** -0.5)
        self.w: np.ndarray = rng.standard_normal(problem.weight_shape, np.float32) * scale
        self.bias: np.ndarray = rng.standard_normal(problem.k, np.float32)
        if problem.types.sum.integer:
            self.w = operands(problem, 1).w
            self.options["y_dtype"] = problem.types.y.label
        elif problem.types.x == BF16:
            self.w = self.w.astype(BF16.outside)
            self.options["accuracy"] = "exact"

    def sized(self, n: int, h: int, w: int) -> ConvProblem:
        return replace(self.problem, n=n, h=h, w=w)

    def given(self, problem: ConvProblem) -> tuple[np.ndarray, np.ndarray | None]:
        """The input and the residual."""
        rng, types = np.random.default_rng(problem.in_shape), problem.types
        made = operands(problem, 5) if types.sum.integer else None
        if made is not None:
            return made.x, made.residual
        x = rng.standard_normal(problem.in_shape).astype(types.x.outside)
        residual = rng.standard_normal(problem.out_shape).astype(types.y.outside) if problem.residual else None
        added = None if residual is None else layouts.from_nchw(residual, problem.out_layout)
        return layouts.from_nchw(x, problem.in_layout), added

    def run(self, x: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
        return cpuconv.conv2d(x, self.w, self.bias, residual=residual, **self.options)

    def plan(self, problem: ConvProblem) -> cpuconv.Plan:
        types = problem.types
        named = {"x_dtype": types.x.label, "y_dtype": types.y.label} if types.sum.integer else {}
        asked = {**self.options, **named}
        return cpuconv.plan(problem.in_shape, self.w, self.bias, residual=problem.residual, **asked)

    def check(self, y: np.ndarray, x: np.ndarray, residual: np.ndarray | None, problem: ConvProblem) -> None:
        """See that a result is right."""
        expected = reference.conv2d(x, self.w, self.bias, problem, residual, self.scales)
        if problem.types.sum.integer:
            np.testing.assert_array_equal(y, expected)
        elif problem.types == ALL_F32:
            oracle.expect(y, expected, "standard", problem.out_layout, problem.k, problem)
        else:
            bound = error_bound(x, self.w, self.bias, problem, residual)
            assert (np.abs(y.astype(np.float64) - expected) <= bound).all(), problem


def templates() -> int:
    return sum(len(each.templates) for each in session.current.size_classes.pools())


def fresh() -> Session:
    session.current = Session(tables=NO_TABLES, persistent=False)
    return session.current


@st.composite
def series(draw: Any) -> tuple[ConvProblem, Any, list[tuple[int, int, int]]]:
    """A convolution, its padding as users state it, and sizes, some of one class."""
    one = st.sampled_from
    types, groups = draw(one(TYPES)), draw(one([1, 1, 1, 2, 3, 16]))
    cg, kg = draw(st.integers(1, 48 // groups)), draw(st.integers(1, 48 // groups))
    if draw(st.booleans()):
        cg = kg = draw(one([1, 1, 4]))
    r, s = draw(one([(1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (2, 3), (1, 5)]))
    steps = one([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)])
    stride, dilation = draw(steps), draw(one([(1, 1), (1, 1), (2, 1)]))
    size = st.integers(0, 3)
    names = ["same_upper", "same_lower"] + ["same"] * (stride == (1, 1))
    padding = draw(st.one_of(size, st.tuples(st.tuples(size, size), st.tuples(size, size)), one(names)))
    blocks = [f"NCHW{current().block(types.x)}c", "NHWC", "NCHW", "NCHW"]
    outs = [f"NCHW{current().block(types.y)}c", "NHWC", "NCHW", "NCHW"]
    problem = ConvProblem(
        1, cg * groups, 64, 64, kg * groups, r, s, stride, (0, 0, 0, 0), dilation, groups,
        draw(one(blocks)), draw(one(outs)), draw(one([None, "relu", ("clip", -0.5, 2.0)])),
        draw(st.booleans()), draw(one([1, oracle.THREADS])), types,
    )  # fmt: skip
    low, high = draw(one([(5, 16), (17, 64), (17, 64)]))
    axis = st.integers(low, high)
    sizes = draw(st.lists(st.tuples(one([1, 1, 2, 3]), axis, axis), min_size=5, max_size=7, unique=True))
    return problem, padding, sizes


def padded(problem: ConvProblem, padding: Any, n: int, h: int, w: int) -> ConvProblem:
    """The problem of some sizes, with the padding that is stated."""
    from cpuconv.problem.arguments import padding as resolved

    pads = resolved(padding, (problem.r, problem.s), problem.stride, problem.dilation, (h, w))
    try:
        return replace(problem, n=n, h=h, w=w, pads=pads)
    except ArgumentError:  # a kernel larger than the padded input
        assume(False)
        raise


@pytest.fixture(autouse=True)
def restored(here: Session) -> Iterator[None]:
    """Tests put other sessions in its place."""
    yield
    session.current = here


@settings(max_examples=examples(12), deadline=None, phases=[Phase.generate])
@given(series())
def test_random_series_are_right_and_do_not_depend_on_what_ran_before(asked: Any) -> None:
    problem, padding, sizes = asked
    have, results = Operands(problem, padding if isinstance(padding, (str, tuple)) else ((padding,) * 2,) * 2), []
    fresh()
    for each in sizes:
        sized = padded(problem, padding, *each)
        x, residual = have.given(sized)
        y = have.run(x, residual)
        have.check(y, x, residual, sized)
        np.testing.assert_array_equal(have.run(x, residual), y)
        np.testing.assert_array_equal(have.plan(sized)(x, residual=residual), y)
        results.append((sized, x, residual, y))
    for sized, x, residual, y in results[2:]:
        fresh()
        np.testing.assert_array_equal(have.run(x, residual), y, err_msg=str(sized))


@pytest.mark.parametrize("kind", KINDS)
def test_templates_serve_new_sizes_and_compile_nothing(kind: str) -> None:
    have = Operands(KINDS[kind])
    for h, w in [*SIZES, *[(18 + 5 * at, 62 - 4 * at) for at in range(9)]]:  # reorders of few pixels, and of many
        have.run(*have.given(have.sized(1, h, w)))
    before, made = Statistics.compiled, templates()
    assert made
    for h, w in ((20, 39), (37, 62), (59, 26)):
        sized = have.sized(1, h, w)
        x, residual = have.given(sized)
        have.check(have.run(x, residual), x, residual, sized)
        have.check(have.plan(sized)(x), x, residual, sized)
    layers = [value for _, value in session.current.cache.items() if isinstance(value, TemplateLayer)]
    assert len(layers) >= 3
    assert Statistics.compiled == before or kind == "3x3"  # some of whose transforms may not have been met


@pytest.mark.parametrize("kind", KINDS)
def test_equal_arrays_give_equal_bits_in_any_order(kind: str) -> None:
    have = Operands(KINDS[kind])
    arrays = [have.given(have.sized(1, *size))[0] for size in SIZES]
    forward = [have.run(x) for x in arrays]
    fresh()
    backward = [have.run(x) for x in arrays[::-1]][::-1]
    for first, second, x in zip(forward, backward, arrays, strict=True):
        np.testing.assert_array_equal(first, second)
        fresh()
        np.testing.assert_array_equal(have.run(x), first)


def test_a_size_that_comes_often_is_planned_by_itself() -> None:
    have = Operands(KINDS["depthwise"])
    arrays = [have.given(have.sized(1, *size))[0] for size in SIZES]
    results = [have.run(x) for x in arrays]

    def layer() -> Any:
        found = [(value.plan.problem, value) for _, value in session.current.cache.items() if hasattr(value, "kin")]
        return next(value for problem, value in found if (problem.h, problem.w) == SIZES[-1])

    assert isinstance(layer(), TemplateLayer)
    for _ in range(TemplateLayer.often + 1):
        np.testing.assert_array_equal(have.run(arrays[-1]), results[-1])
    assert not isinstance(layer(), TemplateLayer)


def test_views_and_several_threads_of_one_template() -> None:
    have = Operands(KINDS["depthwise"])
    for size in SIZES:
        x, _ = have.given(have.sized(2, *size))
        y = have.run(x)
        np.testing.assert_array_equal(have.run(sliced(x)), y)
    plan = have.plan(have.sized(2, 19, 50))
    x, _ = have.given(plan.problem)
    first = plan(x)
    taken = plan._contexts[None, None].pop()  # as by a call of another thread
    np.testing.assert_array_equal(plan(x), first)
    assert len(plan._contexts[None, None]) == 1 and plan._contexts[None, None][0] is not taken


def test_plans_have_the_number_of_threads_of_now() -> None:
    have = Operands(KINDS["depthwise"])
    have.options["threads"] = None
    before = cpuconv.get_num_threads()
    try:
        for threads in (1, oracle.THREADS):
            cpuconv.set_num_threads(threads)
            for size in SIZES:
                assert have.plan(have.sized(1, *size)).problem.threads == threads
    finally:
        cpuconv.set_num_threads(before)


def test_rows_of_exactly_a_problem_count_before_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    have = Operands(KINDS["1x1"])
    for size in SIZES:
        have.plan(have.sized(1, *size))
    new = have.sized(1, 50, 43)
    assert have.plan(new)._evaluated is not None
    monkeypatch.setattr(session.current.tiers, "problems", lambda device: {new.key})
    assert have.plan(new)._evaluated is None
    assert have.plan(have.sized(1, 50, 44))._evaluated is not None


def test_memory_of_many_sizes_is_bounded() -> None:
    have = Operands(KINDS["depthwise"])
    rng = np.random.default_rng(1)
    x = rng.standard_normal(37 * 90 * 90, np.float32)
    for at in range(600):
        h, w = 17 + at % 60, 17 + at // 9
        have.run(x[: 37 * h * w].reshape(1, 37, h, w))
    here = session.current
    layers = [value for _, value in here.cache.items() if hasattr(value, "kin")]
    assert len(layers) > 500 and here.cache.nbytes < 600 * (40 << 10)
    assert templates() <= 24 * len(here.size_classes)


def test_classes_are_forgotten_by_age_and_with_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = SizeClasses()
    monkeypatch.setattr(classes, "most", 3)
    first = classes.of(1, 1)
    assert classes.of(1, 1) is first is not classes.of(1, 2)
    for key in (2, 3, 4):
        classes.of(key, 1)
    assert len(classes) == 3 and classes.of(1, 1) is not first
    for forget in ("clear", "forget_choices"):
        session.current.size_classes.of(1, 1)
        getattr(session.current, forget)()
        assert not len(session.current.size_classes)
    session.current.size_classes.of(1, 1)
    session.current.forget_problem(KINDS["1x1"])
    assert not len(session.current.size_classes)


def test_sizes_of_a_class_run_with_its_algorithms() -> None:
    limits = Limits()
    for kind in ("1x1", "depthwise", "first", "3x3"):
        problem = KINDS[kind]
        of = class_choice(Query(problem, "heuristic", limits, decide))
        assert of is not None and len(of.algorithms) <= 4
        sized = [replace(problem, h=h, w=w) for h, w in SIZES]
        found = [choose(each, "heuristic", limits, by_class=True).candidate.rounding for each in sized]
        assert found == [of.ordered(each)[0].rounding for each in sized]


@pytest.mark.parametrize(("channels", "size"), [(16, 64), (64, 64), (64, 256), (160, 64)])
def test_the_algorithms_of_a_class_lose_little_by_the_model(channels: int, size: int) -> None:
    problem, limits = ConvProblem(1, channels, 40, 40, channels, 3, 3, pads=(1, 1, 1, 1)), Limits()
    rng = np.random.default_rng(1)
    losses = []
    for h, w in rng.integers(size // 4 + 1, size + 1, (24, 2)).tolist():
        sized = replace(problem, h=h, w=w)
        own = choose(sized, "heuristic", limits, by_class=True).candidate
        losses.append(modelled_cost(sized, own).estimate / cheapest(sized, limits).cost.estimate)
    assert np.quantile(losses, 0.9) < 1.2 and max(losses) < 1.4


def test_templates_serve_sizes_that_they_suit_by_the_model() -> None:
    have, losses = Operands(KINDS["depthwise"]), []
    for h, w in np.random.default_rng(2).integers(17, 65, (40, 2)).tolist():
        plan = have.plan(have.sized(1, h, w))
        if plan._evaluated is not None:
            least = cheapest(plan.problem, Limits()).cost.estimate
            losses.append(modelled_cost(plan.problem, plan.candidate).estimate / least)
    assert len(losses) > 30 and np.quantile(losses, 0.9) < 1.2 and max(losses) < 1.5


def test_tiles_of_transforms_are_chosen_for_each_size_of_small_planes() -> None:
    problem = ConvProblem(1, 64, 14, 14, 64, 3, 3, pads=(1, 1, 1, 1))
    assert class_choice(Query(problem, "heuristic", Limits(), decide)) is None


def test_the_representative_has_the_sizes_of_its_class() -> None:
    known = representative(ConvProblem(3, 8, 20, 70, 8, 3, 5, (2, 2), pads=(0, 0, 3, 0)))
    assert known is not None
    assert (known.n, known.h, known.w, known.pads[:3:2]) == (8, 48, 224, (0, 2))
    assert [size_class(representative_size(each)) for each in range(0, 14, 2)] == [*range(0, 14, 2)]
    assert [size_class(representative_size(each, True), BATCH) for each in (0, 4, 8)] == [0, 4, 8]
    assert representative(ConvProblem(1, 8, 16, 16, 8, 15, 15)) is None  # its kernel is larger than 12 rows
