"""The benchmark of single operators: its models are what their names say."""

from __future__ import annotations

import math

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from bench import chains, operators  # noqa: E402
from bench.networks.model import save  # noqa: E402
from bench.networks.problem import problems  # noqa: E402
from cpuconv.network.sizes.specialise import specialise  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402

LARGE = 1 << 22  # elements of weights that are not made here
CHAINS = {network.name: network for network in chains.chains()}
NETWORKS = {network.name: network for network in operators.operators()}
LAYERS = ("LST", "GRU", "RNN")  # the first letters


def is_small(network) -> bool:
    """Whether the weights of a product are not many."""
    name, x = network.name, network.inputs.get("x", (0,))
    return not name.startswith("Gemm") or math.prod((x[-1], int(name.split()[-1]))) <= LARGE


def test_names_tell_operators_apart():
    assert len(NETWORKS) == sum(1 for _ in operators.operators())


@pytest.mark.parametrize("name", ["LSTM 80x1x288 to 2x48", "GRU 80x1x256 to 2x192", "RNN 80x1x256 to 2x256"])
def test_layers(name):
    network = NETWORKS[name]
    graph = specialise(read(network.make(network.inputs)), network.inputs)
    steps, batch, hidden = (*network.inputs["x"][:2], int(name.rpartition("x")[2]))
    assert [node.op for node in graph.nodes] == [name.split()[0]]
    assert graph.value("y").shape == (steps, 2, batch, hidden)


OTHERS = [name for name in NETWORKS if name not in CHAINS and name[:3] not in LAYERS]


@pytest.mark.parametrize("name", [name for name in OTHERS if is_small(NETWORKS[name])])
def test_others(name):
    network = NETWORKS[name]
    graph = specialise(read(network.make(network.inputs)), network.inputs)
    kinds = {"LayerNorm": "LayerNormalization", "Gelu": "Mul"}
    assert graph.nodes[-1].op == kinds.get(name.split()[0], name.split()[0])


def test_chains():
    """Every one is a network whose shapes follow, and whose output is y."""
    for name, network in CHAINS.items():
        graph = specialise(read(network.make(network.inputs)), network.inputs)
        assert graph.value("y").shape, name


def test_patterns_that_fit_nothing():
    with pytest.raises(SystemExit, match="No operator has such a name"):
        operators.main(["Deconv*"])


def test_the_command_prints_a_row_for_each_operator(capsys):
    name = "Softmax 1x8x40x40"
    assert operators.main([name, "--peers", "", "--rounds", "1", "--seconds", "0.01"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("Soft")] == [name]


@pytest.mark.parametrize("weights", ["s8", "u8"])
def test_weights_become_bytes(tmp_path, weights):
    """Where there are some, right by the operators' own references."""
    pytest.importorskip("onnxruntime")
    for name in ("LSTM 50x1x128 to 1x128", "Softmax 1x8x40x40"):
        network = NETWORKS[name]
        save(network.make(network.inputs), tmp_path / f"{name}.onnx")
    chosen = {name: NETWORKS[name] for name in ("LSTM 50x1x128 to 1x128", "Softmax 1x8x40x40")}
    with problems(tmp_path, chosen, 1) as found:
        ((name, made),) = operators.dynamic_problems(found, chosen, weights)
        (full,), (bytes_,) = found[name].outputs(), made.outputs()
    assert name.startswith("LSTM") and made.full == found[name]
    assert 0 < np.linalg.norm(bytes_ - full) < 0.1 * np.linalg.norm(full)
