"""A network of open sizes takes kernels that are at hand, in place of those that its layout chose."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.conv.choice import substitutes  # noqa: E402
from cpuconv.conv.choice.layout_candidates import LayoutCandidate  # noqa: E402
from cpuconv.conv.choice.model import AT_HAND, ranking  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.kernels.binding import columns  # noqa: E402
from cpuconv.kernels.products import row_strips  # noqa: E402
from cpuconv.kernels.products.closed.closed_strip import closed_strip  # noqa: E402
from cpuconv.network.program_builder import Key, ProgramBuilder  # noqa: E402
from cpuconv.network.selection.layout import NetworkPlan  # noqa: E402
from cpuconv.runtime.code import at_hand, background, cache, kernel_files  # noqa: E402
from support.graphs import normal, parse, programs_of  # noqa: E402

TEXT = """g (float[1,32,H,W] x) => (float[1,P,Q,R] y) {
    a = Conv(x, w)
    b = Conv<pads = [1, 1, 1, 1]>(a, v)
    y = Sigmoid(b)
}"""
FIRST, LATER = (1, 32, 12, 48), (1, 32, 224, 224)  # sizes by which their classes are decided


def _model(**options) -> cpuconv.Model:
    made = parse(TEXT, **normal(np.random.default_rng(1), {"w": (64, 32, 1, 1), "v": (32, 64, 3, 3)}))
    return cpuconv.compile(made, threads=1, strategy="heuristic", **options)


@pytest.fixture
def builder(here) -> ProgramBuilder:
    return programs_of(_model()).builder


def _plan_layout(builder: ProgramBuilder, shape: tuple[int, ...]) -> NetworkPlan:
    (graph, *_), decisions = builder.definition.prepared((shape,), {}, noted=False)
    return builder._plan_layout(graph, Key((shape,)), decisions, builder.target)


def _convolutions(plan: NetworkPlan) -> list[LayoutCandidate]:
    details = [each.offer.detail for each in plan.nodes if each.offer is not None]
    return [each for each in details if isinstance(each, LayoutCandidate)]


def test_without_any_kernels_the_choice_is_the_models(builder, monkeypatch):
    monkeypatch.setattr(substitutes, "missing", lambda problem, candidate, closed: [("kernel", "tile")])
    closed = builder.target.closed
    for _ in range(2):
        first = _convolutions(_plan_layout(builder, FIRST))
        assert len(first) == 2
        assert all(each.choice.candidate == ranking(each.problem, closed=closed)[0].candidate for each in first)


def test_sizes_take_kernels_at_hand(builder, monkeypatch):
    def missing(problem, candidate, closed) -> list:
        best = ranking(problem, closed=closed)[0].candidate
        return [("kernel", "tile")] if candidate.micro_kernels == best.micro_kernels else []

    monkeypatch.setattr(substitutes, "missing", missing)
    monkeypatch.setattr(substitutes, "_tiles", lambda isa, steps: frozenset())
    monkeypatch.setattr(substitutes.background, "request", lambda wanted: True)
    for shape in (FIRST, LATER):
        plan, others = _plan_layout(builder, shape), 0
        for each in _convolutions(plan):
            ranked = ranking(each.problem, each.choice.candidate.solver.name, builder.target.closed)
            best = ranked[0].candidate
            near = [other for other in ranked if not missing(each.problem, other.candidate, builder.target.closed)]
            near = [other for other in near if other.candidate.rounding == best.rounding]
            assert each.choice.candidate == (near or ranked)[0].candidate
            assert each.choice.decided_by == AT_HAND or not near
            told = {node.detail["candidate"] for node in plan.decisions().nodes.values() if node.detail}
            assert str(each.choice.awaited or each.choice.candidate) in told, "what is saved is what is awaited"
            others += bool(near)
        assert others


@pytest.mark.parametrize("compiled_columns", [None, 5, 9, 14])
def test_no_size_compiles_a_kernel_after_one_about_as_large_has_run(compiled_columns, here, monkeypatch, tmp_path):
    """Nor does a size that comes again after more kernels have been compiled give other bits.

    `compiled_columns`: columns of the tiles that are compiled before, in addition to the selected ones.
    """
    monkeypatch.setattr(kernel_files, "folder", lambda: kernel_files.Folder(tmp_path))
    monkeypatch.setattr(cache, "_alive", type(cache._alive)())
    monkeypatch.setattr(closed_strip, "_entries", cache.Entries())

    def missing(kernels) -> list:
        wanted = list(kernels)
        if any(tile.cols != compiled_columns for _, tile in wanted):
            return wanted
        for kernel, tile in wanted:
            kernel.entry(tile)
        return []

    if compiled_columns:
        monkeypatch.setattr(columns, "at_hand", SimpleNamespace(missing=missing))
    model, rng = _model(), np.random.default_rng(2)
    sizes = [(int(high), int(wide)) for high, wide in rng.integers(34, 60, (40, 2))]
    model(np.zeros((1, 32, 40, 40), np.float32))
    known, compiled, compile_ = {}, [], cache._compile
    monkeypatch.setattr(cache, "_compile", lambda key, file, *more: compiled.append(file) or compile_(key, file, *more))
    for size in sizes:
        x = rng.standard_normal((1, 32, *size), np.float32)
        known[size] = x, model(x)
    assert not [file.name for file in compiled]
    again = _model()
    again(np.zeros((1, 32, 40, 40), np.float32))
    for x, y in reversed(known.values()):
        np.testing.assert_array_equal(again(x), y)


PRODUCT = "g (float[M,K] a, float[K,N] b) => (float[M,N] y) { y = MatMul(a, b) }"


@pytest.mark.parametrize("sizes", [(13, 37, 45), (5, 70, 16), (33, 3, 100)])
def test_all_strips_of_a_product_give_the_same_bits(sizes, here, monkeypatch):
    rows, depth, columns = sizes
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((rows, depth), np.float32), rng.standard_normal((depth, columns), np.float32)
    results, kinds, every = [], set(), 1
    for at in (0, 1, 7, 23, 40):

        def strip(isa, product, at=at):
            nonlocal every
            options = list(row_strips._strips(isa, product))
            every = len(options)
            kinds.add(options[at % every])
            return options[at % every]

        monkeypatch.setattr(row_strips, "_strip_at_hand", strip)
        results.append(cpuconv.compile(parse(PRODUCT), threads=1).run({"a": a, "b": b})["y"])
    assert len(kinds) > 2 and every > 8
    np.testing.assert_allclose(results[0], a.astype(np.float64) @ b, rtol=0, atol=1e-5 * depth)
    for each in results[1:]:
        np.testing.assert_array_equal(each, results[0])


def test_a_product_takes_a_strip_at_hand_and_asks_for_the_best(monkeypatch):
    isa = current()
    columns = 3 * isa.lanes
    product = row_strips._Sizes(37, 64, columns, 4 * 64, 4, "fma")
    best, *others = list(row_strips._strips(isa, product))
    told: list = []
    monkeypatch.setattr(at_hand, "is_at_hand", lambda kernel, tile: tile in others[-1])
    monkeypatch.setattr(background, "request", told.extend)
    assert row_strips._strip_at_hand(isa, product) == best and not told
    with at_hand.preferred():
        monkeypatch.setattr(at_hand, "_MAX_ASKED", len(others))
        found = row_strips._strip_at_hand(isa, product)
    assert found == others[-1] != best and told
