"""Networks in which one operator has very many neighbours."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")


import cpuconv  # noqa: E402
from support.graphs import parse  # noqa: E402


@pytest.mark.parametrize("columns", [70, 400])
def test_a_split_into_many_columns(columns):
    """More neighbours than an array of NumPy has axes, each of them with a single way to be computed."""
    names = [f"s{at}" for at in range(columns)]
    outputs = ", ".join(f"float[3,1] y{at}" for at in range(columns))
    body = "\n".join(f"y{at} = Sigmoid(s{at})" for at in range(columns))
    text = f"g (float[3,{columns}] x) => ({outputs}) {{ {', '.join(names)} = Split <axis = 1> (x, parts) {body} }}"
    model = parse(text, parts=np.ones(columns, np.int64))
    x = np.random.default_rng(0).standard_normal((3, columns), dtype=np.float32)
    found = cpuconv.compile(model, strategy="heuristic").run({"x": x})
    assert np.allclose(np.hstack([found[f"y{at}"] for at in range(columns)]), 1 / (1 + np.exp(-x)), atol=1e-6)
