"""The benchmark of new sizes: which sizes it draws, and that it times a network and a layer at each."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx")

from bench import new_sizes  # noqa: E402
from support.graphs import parse  # noqa: E402


def test_sizes_are_different_and_about_as_large():
    sizes = new_sizes.drawn((1, 3, 48, 320), (3,), 8, 8, seed=1)
    assert sizes[0] == (1, 3, 48, 320) and len({*sizes}) == 9
    assert all(size[:3] == (1, 3, 48) and size[3] % 8 == 0 and 240 <= size[3] <= 400 for size in sizes)
    assert len(new_sizes.drawn((1, 3, 2, 2), (2, 3), 1, 50, seed=1)) < 50  # there are no more
    wide = new_sizes.spread((1, 3, 48, 320), (3,), 8, 200, seed=1)
    assert wide[0] == (1, 3, 48, 320) and len(wide) == 201 and {size[:3] for size in wide} == {(1, 3, 48)}
    widths = [size[3] for size in wide]
    assert min(widths) in range(80, 96) and max(widths) in range(1100, 1281) and not any(w % 8 for w in widths)


def test_figures_of_a_network(tmp_path):
    onnx.save(parse("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }"), tmp_path / "network.onnx")
    options = ["--base", "1,3,8,8", "--step", "1", "--count", "3", "--one", str(tmp_path / "network.onnx")]
    figures = list(new_sizes._network(new_sizes.parser().parse_args(options)))
    assert len(figures) == 3 and all(len(each) == len(new_sizes.COLUMNS) and each[0] > 0 for each in figures)
