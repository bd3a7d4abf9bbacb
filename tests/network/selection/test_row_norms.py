"""Rows whose norms are taken: those that should be zero are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cpuconv
from cpuconv.conv.choice import model
from cpuconv.isa import current
from cpuconv.kernels.binding.machine import Cost
from cpuconv.solvers import TABLE, strassen
from support import graphs, oracle

CHANNELS = 4 * current().lanes
GRAPH = f"""g (float[30, {CHANNELS}] x) => (float[2, 30, {CHANNELS // 2}] y) {{
    product = MatMul(x, w)
    scaled = Mul(product, scale)
    halves = Reshape(scaled, shape)
    parts = Transpose<perm = [1, 0, 2]>(halves)
    {{norm}}
    some = Max(norm, tiny)
    y = Div(parts, some)
}}"""
SHAPE = np.array([30, 2, CHANNELS // 2])
CHEAP = replace(strassen.SOLVER, bound=lambda *_: 0.0, cost=lambda *_: Cost(0.0, 0.0))


@pytest.mark.parametrize(
    ("norm", "chosen"),
    [
        ("norm = ReduceL2<axes = [-1]>(parts)", False),
        ("square = Mul(parts, parts) sum = ReduceSum(square, axes) norm = Sqrt(sum)", False),
        ("norm = ReduceMax<axes = [-1]>(parts)", True),
    ],
)
def test_rows_of_zeros_have_no_direction(monkeypatch, norm, chosen):
    """Strassen's algorithm, here the cheapest, would leave errors that the division enlarges."""
    monkeypatch.setattr(model, "TABLE", (CHEAP, *(solver for solver in TABLE if solver.name != "strassen")))
    x, w = oracle.normal((30, CHANNELS)), oracle.normal((CHANNELS, CHANNELS), 1)
    x[::8] = 0
    scale, tiny = np.float32(0.5), np.float32(1e-12)
    text = GRAPH.replace("{norm}", norm)
    graph = graphs.parse(text, w=w, scale=scale, shape=SHAPE, axes=np.array([-1]), tiny=tiny)
    network = cpuconv.compile(graph, threads=1)
    assert ("strassen" in str(network.explain())) == chosen
    (y,) = network.run({"x": x}).values()
    if not chosen:
        assert not y[:, ::8].any()
        np.testing.assert_allclose(np.linalg.norm(y[:, 1], axis=-1), 1, rtol=1e-5)
