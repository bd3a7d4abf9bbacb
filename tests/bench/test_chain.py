"""The chain: its arithmetic, and plans that read what others wrote."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench import chain
from bench.chain import Chain, Layer, judge
from cpuconv.conv.choice.model import Limits, by_model
from cpuconv.problem.problem import ConvProblem


def test_the_sum_of_samples_is_compared_with_the_calls_medians() -> None:
    layers = [Layer("a", 2, "direct", 1.0), Layer("b", 1, "fft", 4.0)]
    passes = [[1.0, 2.0, 9.0], [1.1, 9.0, 3.0], [9.0, 2.0, 3.0]]  # another program meets one call of each
    samples = [[1.1, 4.0], [1.0, 3.8], [7.0, 9.0]]  # the machine is faster than when the tuner timed
    result = judge(layers, passes, samples)
    assert (result.tuned, result.sampled, result.chained) == (6.0, pytest.approx(6.2), pytest.approx(6.1))
    assert result.ratio == pytest.approx(6.2 / 6.1)
    assert [layer.sampled for layer in result.layers] == [1.1, 4.0]
    assert [layer.chained for layer in result.layers] == pytest.approx([(1.1 + 2.0) / 2, 3.0])
    assert result.is_met


@pytest.mark.parametrize(("sample", "met"), [(0.89, False), (0.91, True), (1.09, True), (1.11, False)])
def test_within_a_tenth_is_near_enough(sample: float, met: bool) -> None:
    assert judge([Layer("a", 1, "direct", 1.0)], [[1.0]], [[sample]]).is_met == met


def test_each_plan_reads_what_the_one_before_wrote() -> None:
    problems = [ConvProblem(1, 8, 12, 12, 16, 3, 3, pads=(1, 1, 1, 1)), ConvProblem(1, 16, 12, 12, 4, 1, 1)] * 2
    links = Chain((problem, str(by_model(problem, Limits()))) for problem in problems)
    calls = links._calls
    assert len({plan._weight.ctypes.data for plan, *_ in calls}) == len(problems)
    assert links.weight_bytes == sum(plan.packing.size for plan, *_ in calls)
    for (_, _, _, written), (_, read, _, _) in zip(calls, calls[1:], strict=False):
        assert written.ctypes.data == read.ctypes.data
    seconds = links.run()
    assert len(seconds) == len(problems) and all(each > 0 for each in seconds)
    assert np.isfinite(calls[-1][3]).all()


def test_the_model_is_that_of_onnx() -> None:
    pytest.importorskip("onnx")
    assert chain.model().is_file()


def test_a_table_has_a_line_a_layer() -> None:
    result = judge([Layer("res2a", 1, "direct", 1e-3)], [[2e-3]], [[3e-3]])
    assert chain.table(result).splitlines()[2].split() == ["res2a", "1", "1000", "3000", "2000", "direct"]
    assert math.isnan(Layer("a", 1, "b", 1.0).chained)
