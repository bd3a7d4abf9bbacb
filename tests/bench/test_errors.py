"""The benchmark of errors in bfloat16: that it measures what it says."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from bench import errors  # noqa: E402
from bench.networks import Network  # noqa: E402
from bench.peers.base import Form  # noqa: E402
from support.graphs import parse  # noqa: E402

SHAPES = {"x": (1, 3, 8, 8)}
NETWORK = Network(
    "tiny", SHAPES, lambda inputs: parse("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }"), {}
)


class Doubling:
    """An engine that gives twice its input plus an error of some share of it."""

    def __init__(self, share):
        self.share = share

    def network(self, path, feed, threads):
        return [Form("plain", lambda: None, lambda: [2 * (1 + self.share) * array for array in feed.values()])]


def test_errors_are_relative_and_over_all_inputs(monkeypatch, tmp_path):
    monkeypatch.setattr(errors, "ENGINES", {"ours": Doubling(0.01), "theirs": Doubling(-0.04)})
    monkeypatch.setattr(errors, "CpuconvPeer", lambda strategy: Doubling(0.0))
    found = errors.errors(NETWORK, tmp_path / "tiny.onnx", 3, 1)
    assert found == pytest.approx({"ours": 0.01, "theirs": 0.04})


def test_every_input_is_another(monkeypatch, tmp_path):
    seen = []

    class Watching(Doubling):
        def network(self, path, feed, threads):
            return [Form("plain", lambda: seen.append(feed["x"].copy()), lambda: [feed["x"]])]

    monkeypatch.setattr(errors, "ENGINES", {"ours": Watching(0)})
    monkeypatch.setattr(errors, "CpuconvPeer", lambda strategy: Doubling(0.0))
    errors.errors(NETWORK, tmp_path / "tiny.onnx", 3, 1)
    assert len(seen) == 3 and all((a != b).any() for a, b in zip(seen, seen[1:], strict=False))
    np.testing.assert_array_equal(seen[1], NETWORK.feed(SHAPES, 2)["x"])


def test_the_table_states_ratios(monkeypatch):
    monkeypatch.setattr(errors, "ENGINES", {"ours": None, "theirs": None})
    lines = errors.table({"a": {"ours": 0.01, "theirs": 0.04}, "b": {"ours": 0.02, "theirs": 0.02}}).splitlines()
    assert [line.split()[-1] for line in lines[2:]] == ["0.25", "1.00", "0.50", "1.00"]


def test_without_openvino_it_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(errors.ENGINES["OpenVINO"], "package", "no_such_engine")
    assert errors.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == "no_such_engine is not installed\n"
