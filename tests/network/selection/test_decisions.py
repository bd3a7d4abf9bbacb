"""What a layout chose is kept as plain values, and followed: by the same network, and by it at other sizes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402

from cpuconv.conv.choice import layout_candidates, model  # noqa: E402
from cpuconv.conv.choice.layout_candidates import LayoutCandidate  # noqa: E402
from cpuconv.conv.choice.model import Limits  # noqa: E402
from cpuconv.conv.choice.target import Target  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from cpuconv.graph.ir import Graph  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.network.running.building import build  # noqa: E402
from cpuconv.network.running.packed import Packed  # noqa: E402
from cpuconv.network.selection.decisions import Decision, Decisions, name_of  # noqa: E402
from cpuconv.network.selection.layout import NetworkPlan, lay_out  # noqa: E402
from cpuconv.network.sizes.prepared import Rewriting, prepared  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graph.random_networks import known_networks  # noqa: E402
from support.graphs import parse  # noqa: E402

TARGET = Target(current(), 2, "heuristic")
TEXT = """g (float[N,3,H,12] x) => (float[N,M] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w1)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 6>(b, w2)
    d = Add(c, b)
    e = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d)
    f = Conv(e, w3)
    m = GlobalAveragePool(f)
    v = Flatten(m)
    y = MatMul(v, w4)
}"""
WEIGHTS = {"w1": (36, 3, 3, 3), "w2": (36, 6, 3, 3), "w3": (40, 36, 1, 1), "w4": (40, 10)}


def head(source: onnx.ModelProto, **shapes: tuple[int, ...]) -> Graph:
    return prepared(read(source), shapes, Rewriting()).graph


def network(n: int = 1, h: int = 12) -> Graph:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in WEIGHTS.items()}
    return head(parse(TEXT, **weights), x=(n, 3, h, 12))


def through_json(network_plan: NetworkPlan) -> Decisions:
    return Decisions.from_dict(json.loads(json.dumps(network_plan.decisions().to_dict())))


def decisions(network_plan: NetworkPlan) -> list[tuple[object, ...]]:
    """Everything that decides what runs."""
    details = [getattr(each.offer, "detail", None) for each in network_plan.nodes]
    algorithms = [
        (str(detail.problem), detail.joined, detail.choice) if isinstance(detail, LayoutCandidate) else detail
        for detail in details
    ]
    nodes = [(name_of(each.node), each.node.inputs, Decision.of(each.offer)) for each in network_plan.nodes]
    return [*zip(nodes, algorithms, strict=True), *network_plan.outputs.items()]


@pytest.fixture
def no_ranking_after(monkeypatch):
    """Once called, comparing candidates fails."""

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("candidates were compared")

    def start() -> None:
        monkeypatch.setattr(model, "modelled_cost", fail)
        for name in ("search", "cheapest", "choose"):
            monkeypatch.setattr(layout_candidates, name, fail)

    return start


@settings(max_examples=30, deadline=None)
@given(known_networks)
def test_a_record_gives_an_equal_layout(drawn):
    graph = head(drawn[0])
    network_plan = lay_out(graph, TARGET)
    again = lay_out(graph, TARGET, through_json(network_plan))
    assert decisions(again) == decisions(network_plan)
    assert not again.anew
    assert through_json(again) == through_json(network_plan) == network_plan.decisions()


def test_what_is_followed_is_not_compared(no_ranking_after):
    graph = network()
    chosen = lay_out(graph, TARGET).decisions()
    no_ranking_after()
    network_plan = lay_out(graph, TARGET, chosen)
    assert not network_plan.anew and build(network_plan, TARGET, Packed()).operations


def test_runs_are_equal_to_the_last_bit():
    graph, x = network(), np.random.default_rng(1).standard_normal((1, 3, 12, 12), np.float32)
    network_plan = lay_out(graph, TARGET)
    results = []
    for each in (network_plan, lay_out(graph, replace(TARGET, strategy="cached"), through_json(network_plan))):
        results.append(np.empty((1, 10), np.float32))
        build(each, TARGET, Packed()).run([x], [results[-1]])
    assert results[0].any() and results[0].tobytes() == results[1].tobytes()


def forms(network_plan: NetworkPlan) -> dict[str, tuple[object, ...]]:
    """How operands lie; copies are left out, as they follow from it."""
    taken = {name_of(each.node): Decision.of(each.offer) for each in network_plan.nodes if each.node.op != "Copy"}
    return {name: (each.inputs, each.outputs) for name, each in taken.items()}


@pytest.mark.parametrize("sizes", [(3, 12), (1, 30), (2, 5)])
def test_other_sizes_take_over_forms(sizes):
    network_plan, graph = lay_out(network(), TARGET), network(*sizes)
    other = lay_out(graph, TARGET, network_plan.decisions(), algorithms=False)
    assert {*other.anew} <= {"Reshape v", "Linear y"}  # which are offered in other forms for more rows than one
    assert {name for name in forms(network_plan) if forms(network_plan)[name] != forms(other)[name]} <= {*other.anew}
    details = [each.offer.detail for each in other.nodes if each.node.op == "Conv"]
    assert [detail.problem.n for detail in details] == [sizes[0]] * 3
    assert all(detail.settled is None for detail in details)
    same = lay_out(graph, TARGET, network_plan.decisions())
    assert forms(same) == forms(other)
    for before, after in zip(network_plan.nodes, same.nodes, strict=False):  # of other problems the solver is followed
        if before.node.op == after.node.op == "Conv":
            assert after.offer.detail.settled.candidate.solver is before.offer.detail.choice.candidate.solver
            assert name_of(after.node) not in same.anew


def test_another_target_is_planned_as_usual():
    graph = network()
    network_plan = lay_out(graph, TARGET)
    chosen, usual = network_plan.decisions(), decisions(network_plan)
    others = replace(chosen, lanes=chosen.lanes + 1), replace(chosen, nodes={})
    for other in others:
        planned = lay_out(graph, TARGET, other)
        assert decisions(planned) == usual and [*planned.anew] == [name_of(node) for node in graph.nodes]
    exact = replace(TARGET, limits=Limits(accuracy="exact"))
    planned = lay_out(graph, exact, chosen)
    assert forms(planned) == forms(network_plan) and "Conv b" in planned.anew
    assert all(
        each.offer.detail.choice.candidate.accuracy == "exact" for each in planned.nodes if each.node.op == "Conv"
    )


WRONG = [
    {"candidate": "winograd(m=99)"},
    {"candidate": "nothing"},
    {"problem": "nonsense"},
    {"joined": 5},
    {"joined": "many"},
    {"problem": None},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_record_that_does_not_fit_a_node_is_passed_over_there(wrong):
    graph = network()
    network_plan = lay_out(graph, TARGET)
    chosen = network_plan.decisions()
    damaged = replace(chosen.nodes["Conv d"], detail={**chosen.nodes["Conv d"].detail, **wrong})
    planned = lay_out(graph, TARGET, replace(chosen, nodes={**chosen.nodes, "Conv d": damaged}))
    assert planned.anew == ("Conv d",) and forms(planned) == forms(network_plan)
    assert [each.offer.detail.choice for each in planned.nodes if each.node.op == "Conv"] == [
        each.offer.detail.choice for each in network_plan.nodes if each.node.op == "Conv"
    ]


def test_forms_that_a_node_does_not_offer_are_planned():
    graph = network()
    network_plan = lay_out(graph, TARGET)
    nodes = {**network_plan.decisions().nodes, "MaxPool e": Decision(("blocked",), ("sideways",))}
    planned = lay_out(graph, TARGET, replace(network_plan.decisions(), nodes=nodes))
    assert planned.anew == ("MaxPool e",) and decisions(planned) == decisions(network_plan)


@pytest.mark.parametrize("data", [{}, {"nodes": 3}, {"nodes": {"a": [1]}, "isa": "", "lanes": 1, "limits": {}}, None])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(SourceError, match="Decisions.to_dict"):
        Decisions.from_dict(data)
