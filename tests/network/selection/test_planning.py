"""Selections of offers: the cheapest one against brute force, one copy for all its readers, and what explain says."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from support import oracle

onnx = pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import cpuconv  # noqa: E402
from autotune.machine.device import fingerprint  # noqa: E402
from cpuconv.conv.choice.target import Target  # noqa: E402
from cpuconv.graph.ir import Graph, Node, Value  # noqa: E402
from cpuconv.graph.lowering import Offer  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.kernels.binding.tensor_view import BLOCKED, DENSE, FLOAT32, STRIDED  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from cpuconv.network.running.building import build  # noqa: E402
from cpuconv.network.running.packed import Packed  # noqa: E402
from cpuconv.network.selection import winners  # noqa: E402
from cpuconv.network.selection.layout import lay_out, plans  # noqa: E402
from cpuconv.network.selection.planning import PLANS, RULES, Planner  # noqa: E402
from cpuconv.network.sizes.prepared import Rewriting, prepared  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graph.random_networks import networks  # noqa: E402
from support.graphs import close, made, parse  # noqa: E402
from support.tuner.stored import row  # noqa: E402

TARGET = Target(current(), 1, "heuristic")
READ, WRITTEN = (DENSE, STRIDED, BLOCKED), (DENSE, STRIDED, BLOCKED)


@st.composite
def planners(draw: st.DrawFn) -> Planner:
    """A random graph of few nodes, of one or two inputs, whose offers are random too."""
    names, nodes, offers = ["x"], [], []
    for at in range(draw(st.integers(1, 6))):
        inputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
        nodes.append(Node("Any", tuple(inputs), (f"v{at}",)))
        names.append(f"v{at}")
        forms = st.tuples(st.tuples(*[st.sampled_from(READ)] * len(inputs)), st.sampled_from(WRITTEN))
        seconds = st.integers(0, 40).map(lambda number: number * 1e-6)
        ways = draw(st.lists(st.tuples(forms, seconds), min_size=1, max_size=3))
        offers.append([Offer(read, (written,), time) for (read, written), time in ways])
    outputs = draw(st.sets(st.sampled_from(names[1:]), min_size=1, max_size=2))
    value = Value((1, 64, draw(st.sampled_from((4, 40))), 40), FLOAT32)
    graph = Graph(("x",), tuple(sorted(outputs)), tuple(nodes), values=dict.fromkeys(names, value))
    order = {node.outputs: options for node, options in zip(nodes, offers, strict=True)}
    return Planner(graph, [order[node.outputs] for node in graph.nodes], TARGET)


@settings(max_examples=150, deadline=None)
@given(planners())
def test_the_cheapest_selection_against_brute_force(planner):
    best = min(map(planner.cost, itertools.product(*(range(len(options)) for options in planner.offers))))
    picked, exact = planner.cheapest()
    assert exact and planner.cost(picked) == pytest.approx(best, rel=1e-9, abs=1e-15)
    assert planner.least() == pytest.approx(best, rel=1e-9, abs=1e-15)
    for select in RULES.values():
        assert planner.cost(select(planner)) >= best * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@given(networks(most=6))
def test_random_networks_have_their_copies_in_the_cost(drawn):
    """Copies that are inserted are those that were counted: each at most once for a value and a form."""
    graph = prepared(read(drawn[0]), {}, Rewriting()).graph
    for network_plan in plans(graph, TARGET):
        copies = [each.node for each in network_plan.nodes if "@" in each.node.outputs[0]]
        forms = [(node.inputs[0], node.outputs[0].rpartition("@")[2]) for node in copies]
        assert len(forms) == len(set(forms)) and {form for _, form in forms} <= {DENSE, BLOCKED, "output"}


def test_readers_that_need_one_form_share_a_copy():
    nodes = [Node("Any", ("x",), (name,)) for name in "abc"]
    value = Value((1, 64, 40, 40), FLOAT32)
    graph = Graph(("x",), ("a", "b", "c"), tuple(nodes), values=dict.fromkeys("xabc", value))
    dense, blocked = Offer((DENSE,), (DENSE,), 60e-6), Offer((BLOCKED,), (DENSE,), 1e-6)
    alone = Planner(replace(graph, nodes=(nodes[0],), outputs=("a",)), [[dense, blocked]], TARGET)
    copy = alone.cost([1]) - 1e-6
    assert 0 < copy < 59e-6  # each would pay for a copy of its own …
    planner = Planner(graph, [[dense, blocked]] * 3, TARGET)
    assert planner.cheapest()[0] == [1, 1, 1] and planner.cost([1, 1, 1]) == pytest.approx(copy + 3e-6)
    dear = replace(dense, seconds=copy / 2 + 1e-6)  # … now only two together
    assert Planner(graph, [[dear, blocked]] * 3, TARGET).cheapest()[0] == [1, 1, 1]
    assert Planner(alone.graph, [[dear, blocked]], TARGET).cheapest()[0] == [0]


TEXT = """g (float[1,20,9,9] x) => (float[1,20,9,9] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w1)
    b = Softmax<axis = 3>(a)
    c = Conv<pads = [1, 1, 1, 1]>(b, w2)
    y = Add(c, a)
}"""


def network(name: str = "g") -> onnx.ModelProto:
    w1, w2 = np.random.default_rng(0).standard_normal((2, 20, 20, 3, 3), np.float32)
    return parse(TEXT.replace("g (", f"{name} ("), w1=w1, w2=w2)


def test_every_plan_gives_the_right_results():
    model, x = network(), np.random.default_rng(1).standard_normal((1, 20, 9, 9), np.float32)
    graph = prepared(read(model), {}, Rewriting()).graph
    right = interpret(made(model), {"x": x})["y"]
    for name in RULES:
        network_plan = lay_out(graph, TARGET, plan=name)
        y = np.empty_like(right)
        build(network_plan, TARGET, Packed()).run([x], [y])
        close(y, right, 1e-4)
        assert (network_plan.plan, network_plan.decided_by) == (name, "raced")


def test_explain_says_what_was_weighed():
    told = cpuconv.compile(network(), strategy="heuristic", threads=1).explain()
    assert (told.plan, told.plan_decided_by) == ("cheapest", "model")
    assert {"cheapest", "blocked", "greedy", "least"} == {*told.weighed}
    assert told.weighed["least"] == told.weighed["cheapest"] <= min(told.weighed["blocked"], told.weighed["greedy"])
    line = str(told).splitlines()[1]
    assert "cheapest (decided by: model)" in line and "blocked" in line and "no others are cheaper" in line
    assert told.to_dict()["weighed"] == told.weighed


def test_a_network_goes_by_its_operators_and_sizes():
    def key(model: onnx.ModelProto, **target: object) -> str:
        return winners.key_of(prepared(read(model), {}, Rewriting()).graph, replace(TARGET, **target))

    other = network("another")
    for node in other.graph.node:
        node.name = f"{node.name} again"
    assert key(network()) == key(other) != key(network(), threads=2)
    other.graph.node[1].op_type = "LogSoftmax"
    half = {"precision": "bfloat16"}
    kept = {other.graph.node[0].name: "float32"}
    assert len({key(other), key(other, **half), key(other, **half, node_precisions=kept)}) == 3
    assert key(other) == key(other, node_precisions=kept)
    assert key(network()) != key(other)


@pytest.mark.parametrize("winner", [name for name in PLANS if name != "cheapest"])
def test_compile_follows_the_winner_of_a_race(our_store, winner):
    graph = prepared(read(network()), {}, Rewriting()).graph
    target = replace(TARGET, strategy="cached")
    blank = dict(device=fingerprint().key, problem=winners.key_of(graph, target), sources=winners.sources(), state="ok")
    assert cpuconv.compile(network(), threads=1).explain().plan_decided_by == "model"
    our_store.put([row(winner, 1.0, **blank), row("cheapest", 2.0, **blank), row("unheard of", 3.0, **blank)])
    told = cpuconv.compile(network(), threads=1).explain()
    assert (told.plan, told.plan_decided_by) == (winner, "raced") and "decided by: raced" in str(told)
    more = [{"threads": 2}] if oracle.THREADS > 1 else []
    for others in ({"strategy": "heuristic"}, {"accuracy": "exact"}, *more):
        told = cpuconv.compile(network(), **{"threads": 1, **others}).explain()
        assert (told.plan, told.plan_decided_by) == ("cheapest", "model")
    our_store.put([row("unheard of", 0.5, **blank)])
    assert cpuconv.compile(network(), threads=1).explain().plan_decided_by == "model"


def test_a_race_of_older_kernels_decides_nothing(our_store):
    graph = prepared(read(network()), {}, Rewriting()).graph
    target = replace(TARGET, strategy="cached")
    our_store.put([row("blocked", 1.0, device=fingerprint().key, problem=winners.key_of(graph, target), sources="old")])
    assert cpuconv.compile(network(), threads=1).explain().plan_decided_by == "model"


@pytest.mark.parametrize("changed", [False, True])
def test_a_race_of_other_sources_decides_if_the_kernels_are_the_same(our_store, changed):
    graph = prepared(read(network()), {}, Rewriting()).graph
    target = replace(TARGET, strategy="cached")
    raced = [*plans(graph, target)][-1]
    kernels = winners.plan_hash(raced)
    assert len(kernels) == 16
    blank = dict(device=fingerprint().key, problem=winners.key_of(graph, target), sources="old", state="ok")
    our_store.put([row(raced.plan, 1.0, **blank, kernels="0" * 16 if changed else kernels)])
    told = cpuconv.compile(network(), threads=1).explain()
    assert told.plan_decided_by == ("model" if changed else "raced")
    assert changed or told.plan == raced.plan
