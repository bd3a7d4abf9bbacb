"""Where bytes are: the least sum of what nodes and conversions take, and what it looks like in networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from cpuconv.isa import current  # noqa: E402
from cpuconv.kernels.binding.processor import Processor  # noqa: E402
from cpuconv.network.precision.search import Rounding, Search  # noqa: E402
from cpuconv.quantizing.choosing import Choice, Int8Mixtures  # noqa: E402
from cpuconv.quantizing.graphs.assignment import Assignment, Assignments  # noqa: E402
from cpuconv.quantizing.graphs.building import insert_quantization  # noqa: E402
from cpuconv.quantizing.graphs.plan import plan_of  # noqa: E402
from cpuconv.quantizing.graphs.preparing import Prepared, prepared  # noqa: E402
from cpuconv.quantizing.graphs.quantizable import QuantizableLayer, layers_of  # noqa: E402
from cpuconv.quantizing.graphs.units import in_epilogues  # noqa: E402
from cpuconv.quantizing.scales import scale_of, weights_of  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402

SIDE = 56
SEEDS = range(12)


def network(lines: Sequence[str], output: str = "y") -> Prepared:
    """Eight channels throughout; weights by the names w0, w1, …"""
    text = "\n".join(lines)
    model = parse(f"g (float[1,8,{SIDE},{SIDE}] x) => (float[1,8,{SIDE},{SIDE}] {output}) {{\n{text}\n}}", 17)
    rng = np.random.default_rng(0)
    for name in sorted({name for node in model.graph.node for name in node.input if name.startswith("w")}):
        array = rng.standard_normal((8, 8, 1, 1)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return prepared(read(model), {"x": (1, 8, SIDE, SIDE)})


def drawn(seed: int) -> Prepared:
    """A random network: convolutions, and what lies between them."""
    rng = np.random.default_rng(seed)
    lines, names, layers = [], ["x"], 0
    while layers < 4:
        one, other = (names[-1 - int(rng.geometric(0.5) - 1) % len(names)] for _ in range(2))
        name, kind = f"t{len(names)}", rng.choice(["Conv", "Conv", "Conv", "Add", "MaxPool", "Sigmoid", "Exp", "Relu"])
        if kind == "Conv":
            lines.append(f"{name} = Conv({one}, w{layers})")
            layers += 1
        elif kind == "Add":
            lines.append(f"{name} = Add({one}, {other})")
        elif kind == "MaxPool":
            lines.append(f"{name} = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>({one})")
        else:
            lines.append(f"{name} = {kind}({one})")
        names.append(name)
    total = names[1]
    for at, name in enumerate(names[2:]):
        lines.append(f"s{at} = Add({total}, {name})")
        total = f"s{at}"
    return network([*lines, f"y = Tanh({total})"])


def assignments(given: Prepared, *, fuse_adds: bool) -> Assignments:
    return Assignments(given.graph, given.known, layers_of(given.graph), fuse_adds, Processor(current(), 1))


def subsets(names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))


@pytest.mark.parametrize("fuse_adds", [False, True])
def test_the_places_are_those_of_the_least_sum(fuse_adds):
    kinds = set()
    for seed in SEEDS:
        given, rng = drawn(seed), np.random.default_rng(seed)
        names = [layer.name for layer in layers_of(given.graph)]
        prices = {name: 1e-5 * rng.uniform(-2, 1) for name in names}
        made = assignments(given, fuse_adds=fuse_adds)
        best = made.fastest(prices)
        each = {some: made.fastest({name: prices[name] for name in some}, forced=True) for some in subsets(names)}
        assert all({layer.name for layer in found.layers} == {*some} for some, found in each.items())
        assert best.seconds == pytest.approx(min(found.seconds for found in each.values()), rel=1e-9, abs=1e-12)
        chosen = tuple(layer.name for layer in best.layers)
        assert each[chosen].seconds == pytest.approx(best.seconds, rel=1e-9, abs=1e-12)
        kinds.add("none" if not chosen else "all" if len(chosen) == len(names) else "some")
    assert "some" in kinds


@pytest.mark.parametrize("fuse_adds", [False, True])
def test_a_mixture_is_never_predicted_to_be_slower_than_floats_and_beats_a_ranking_of_layers(fuse_adds):
    gained = 0.0
    for seed in SEEDS:
        given, rng = drawn(seed), np.random.default_rng(100 + seed)
        layers = layers_of(given.graph)
        names = [layer.name for layer in layers]
        choice = Choice(
            float32_seconds={name: 1e-5 for name in names},
            int8_seconds={name: 1e-5 * rng.uniform(0, 0.8) for name in names},
            alone={name: rng.uniform(0.2, 1.0) for name in names},
        )

        def whole(some: Sequence[QuantizableLayer], alone=choice.alone) -> float:
            return float(np.sqrt(sum(alone[layer.name] ** 2 for layer in some)))

        made = assignments(given, fuse_adds=fuse_adds)
        trials = Int8Mixtures(SimpleNamespace(fastest_assignment=made.fastest), layers, choice, whole)
        tolerance = rng.uniform(0.3, 0.9) * whole(layers)
        mixed = Search(trials, tolerance).fastest()
        ranked = sorted(range(len(layers)), key=lambda at: choice.cost(layers[at]))
        by_rank = max(
            (Rounding(ranked[:count]) for count in range(5)), key=lambda some: within(trials, some, tolerance)
        )
        assert trials.error(mixed) <= tolerance
        assert trials.modelled(mixed) <= trials.modelled(Rounding()) + 1e-12
        gained += trials.modelled(by_rank) - trials.modelled(mixed)
    assert gained > 0


def within(trials: Int8Mixtures, some: Rounding, tolerance: float) -> float:
    """How many it has, if they are within the tolerance."""
    return len(some) if trials.error(some) <= tolerance else -1.0


def quantized(given: Prepared, names: Sequence[str], *, fuse_adds: bool) -> tuple[Assignment, dict[str, list[str]]]:
    """Assignment in which these layers are int8, and by output the operators that each node reads from."""
    found = assignments(given, fuse_adds=fuse_adds).fastest(dict.fromkeys(names, 0.0), forced=True)
    plan = plan_of(given.graph, found)
    scale = scale_of(-1.0, 1.0, np.dtype(np.uint8))
    weights = {
        layer.node.outputs[0]: weights_of(layer.weight, layer.axis, layer.bias, scale.scale, False)
        for layer in plan.layers
    }
    graph = insert_quantization(given.graph, plan, dict.fromkeys(plan.roots.values(), scale), weights)
    read = {}
    for node in graph.nodes:
        sources = [graph.producer(name) for name in node.inputs if name not in graph.constants]
        read[node.outputs[0]] = ["x" if source is None else source.op for source in sources]
    return found, read


TWO = ["a = Conv(x, w0)", "b = Relu(a)", "c = Conv(b, w1)", "d = Add(c, x)", "e = Relu(d)", "f = Conv(e, w2)"]
END = "y = Exp(f)"


def test_sums_of_floats_stay_floats_whatever_is_of_bytes_behind():
    found, read = quantized(network([*TWO, END]), ["f"], fuse_adds=False)
    assert found.tensors == ("e", "f")
    assert read["d"] == ["Conv", "x"] and read["f"][0] == "DequantizeLinear" and read["y"] == ["DequantizeLinear"]


def test_activations_between_float32_layers_stay_float32():
    silu = ["s = Sigmoid(a)", "b = Mul(a, s)"]
    lines = ["a = Conv(x, w0)", *silu, "c = Conv(b, w1)", "d = MaxPool<kernel_shape=[1,1]>(c)", "e = Conv(d, w2)"]
    found, read = quantized(network([*lines, "y = Exp(e)"]), ["e"], fuse_adds=False)
    assert read["s"] == ["Conv"] and read["b"] == ["Conv", "Sigmoid"] and read["c"] == ["Mul"]
    assert found.layers and not {"x", "a", "s", "b"} & {*found.tensors}
    made = network(
        ["a = Conv(x, w0)", *silu, "e = Conv(a, w1)", "y = Add(b, e)"]
    )  # the convolution's result has another reader
    assert not in_epilogues(made.graph, made.known)


def test_floats_are_read_where_floats_are_written():
    lines = [*TWO, "g = Conv(e, w3)", "h = Add(f, g)", "y = Exp(h)"]
    for fuse_adds in (False, True):
        found, read = quantized(network(lines), ["f"], fuse_adds=fuse_adds)
        assert read["f"][0] == "DequantizeLinear" and read["g"] == ["Relu"] and "e" not in found.written


@pytest.mark.parametrize("fuse_adds", [False, True])
def test_sums_between_bytes_are_of_bytes(fuse_adds):
    found, read = quantized(network([*TWO, END]), ["a", "c", "f"], fuse_adds=fuse_adds)
    assert ("c" in found.tensors) == (not fuse_adds) and {"x", "b", "e"} <= {*found.tensors}
    assert read["d"] == ["Conv" if fuse_adds else "DequantizeLinear", "DequantizeLinear"]
    assert ("f" in found.tensors) == (not fuse_adds)  # floats are read behind


def test_what_a_convolution_of_bytes_gives_to_floats_is_not_rounded_where_all_of_it_is_ours():
    _, read = quantized(network([*TWO, END]), ["a"], fuse_adds=True)
    assert read["c"] == ["Relu"]
    _, read = quantized(network([*TWO, END]), ["a"], fuse_adds=False)
    assert read["c"] == ["DequantizeLinear"]
