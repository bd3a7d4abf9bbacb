"""A size that is not about as large as others that ran takes their kernels where they are nearly as fast."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from cpuconv.conv.choice import existing, select  # noqa: E402
from cpuconv.conv.choice.model import ranking  # noqa: E402
from cpuconv.conv.choice.ways import Convolution  # noqa: E402
from cpuconv.network.program_builder import Key, ProgramBuilder  # noqa: E402
from cpuconv.network.selection.layout import NetworkPlan  # noqa: E402
from support.graphs import parse, programs_of  # noqa: E402

TEXT = """g (float[1,32,H,W] x) => (float[1,P,Q,R] y) {
    a = Conv(x, w)
    b = Conv<pads = [1, 1, 1, 1]>(a, v)
    y = Sigmoid(b)
}"""
FIRST, LATER = (1, 32, 12, 20), (1, 32, 67, 79)


@pytest.fixture
def builder(here) -> ProgramBuilder:
    made = parse(TEXT)
    for name, shape in {"w": (64, 32, 1, 1), "v": (32, 64, 3, 3)}.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    return programs_of(cpuconv.compile(made, threads=1, strategy="heuristic")).builder


def _laid_out(builder: ProgramBuilder, shape: tuple[int, ...]) -> NetworkPlan:
    (graph, *_), decisions = builder.definition.prepared((shape,), {}, noted=False)
    return builder._laid_out(graph, Key((shape,)), decisions, builder.target)


def _convolutions(plan: NetworkPlan) -> list[Convolution]:
    details = [each.offer.detail for each in plan.nodes if each.offer is not None]
    return [each for each in details if isinstance(each, Convolution)]


def test_the_first_size_is_the_models_own(builder, monkeypatch):
    monkeypatch.setattr(existing, "exists", lambda problem, candidate: pytest.fail("asked"))
    for _ in range(2):
        first = _convolutions(_laid_out(builder, FIRST))
        assert len(first) == 2
        assert all(each.choice.candidate == ranking(each.problem)[0].candidate for each in first)


def test_later_sizes_take_kernels_that_exist(builder, monkeypatch):
    _laid_out(builder, FIRST)

    def exists(problem, candidate) -> bool:
        return candidate.micro_kernels != ranking(problem)[0].candidate.micro_kernels

    monkeypatch.setattr(existing, "exists", exists)
    later, others = _laid_out(builder, LATER), 0
    for each in _convolutions(later):
        ranked = ranking(each.problem, each.choice.candidate.solver.NAME)
        limit = select._CLEARLY_SLOWER * ranked[0].cost.estimate
        near = [other for other in ranked if other.cost.estimate <= limit and exists(each.problem, other.candidate)]
        near = [other for other in near if other.candidate.rounding == ranked[0].candidate.rounding]
        assert each.choice.candidate == (near or ranked)[0].candidate
        others += bool(near)
    assert others and builder.choices == 2
    told = {each.detail["candidate"] for each in later.decisions().nodes.values() if each.detail}
    assert told == {str(each.choice.candidate) for each in _convolutions(later)}, "what is saved is what runs"
