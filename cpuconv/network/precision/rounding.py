"""The operators of a graph that may round to bfloat16 or float16, and plans in which some of them do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cpuconv.conv.choice.target import PRECISION_F32, Target
from cpuconv.graph.ir import Graph, merged_parts
from cpuconv.graph.lowering import Offer
from cpuconv.network.precision.search import Rounding
from cpuconv.network.selection.decisions import Decisions, name_of
from cpuconv.network.selection.float32_values import float32_values
from cpuconv.network.selection.layout import NetworkPlan, lay_out, offers_of
from cpuconv.network.selection.planning import Planner

Operator = tuple[tuple[str, str], ...]  # identities of its nodes: name in the model, operator


class Operators:
    """The operators of a graph that round in the fastest plan by the models, regardless of errors.

    Nodes that compute parts of the same node of the model are one operator, as they have its precision.

    Attributes
    ----------
    graph : Graph
    nodes : list of list of int
        For each operator, the indices of its nodes in the graph.
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        """Determine the operators.

        Parameters
        ----------
        graph : Graph
            The rewritten graph.
        target : Target
            A target in which all nodes may round.
        """
        self.graph, self._half = graph, target
        self._full = target.at(PRECISION_F32)
        late = float32_values(graph, target)
        self._exact = [offers_of(graph, node, self._full) for node in graph.nodes]
        all_ = [offers_of(graph, node, target, late) for node in graph.nodes]
        self._rounding = [
            [offer for offer in offers if not any(_same(offer, other) for other in exact)]
            for offers, exact in zip(all_, self._exact, strict=True)
        ]
        self._more: dict[int, float] = {}  # correction of the modelled seconds of operators that round
        self.nodes = [[at] for at, offers in enumerate(self._rounding) if offers]
        self.nodes = self._joined(self.solved([0.0] * len(self.nodes)))
        self._plans = [lay_out(graph, each).decisions() for each in (self._full, target)]

    def _joined(self, numbers: Iterable[int]) -> list[list[int]]:
        """The nodes of operators, merged where they belong to common nodes of the model."""
        groups: list[tuple[set[str], list[int]]] = []
        for number in sorted(numbers):
            nodes, parts = self.nodes[number], {*merged_parts(self.graph.nodes[at] for at in self.nodes[number])}
            for group in [group for group in groups if not parts.isdisjoint(group[0])]:
                groups.remove(group)
                parts, nodes = parts | group[0], group[1] + nodes
            groups.append((parts, nodes))
        return sorted(sorted(nodes) for _, nodes in groups)

    @property
    def precision(self) -> str:
        """The precision of operators that round."""
        return self._half.precision

    def parts(self, rounding: Rounding) -> tuple[str, ...]:
        """Names in the model of the nodes of some operators."""
        return merged_parts(self.graph.nodes[at] for number in rounding for at in self.nodes[number])

    def target(self, rounding: Rounding) -> Target:
        """The target in which only these operators may round; with one default precision if these are all or none."""
        if len(rounding) == len(self.nodes) and rounding:
            return self._half
        return replace(self._full, node_precisions=dict.fromkeys(self.parts(rounding), self.precision))

    def named(self, number: int) -> Operator:
        """The identity of an operator, which is equal in other forms of the network."""
        return tuple((name_of(node), node.op) for node in (self.graph.nodes[at] for at in self.nodes[number]))

    def follow(self, other: Operators) -> bool:
        """Use the corrections of another form of the network; False if it lacks an operator."""
        known = {other.named(number): more for number, more in other._more.items()}
        named = {number: self.named(number) for number in range(len(self.nodes))}
        if not all(operator in known for operator in named.values()):
            return False
        self._more = {number: known[operator] for number, operator in named.items()}
        return True

    def correct(self, full: Mapping[str, float], half: Mapping[str, float]) -> None:
        """Correct the models by measured minus modelled seconds of nodes, by name, in plans of one precision each.

        Their difference is due to rounding, and is added to the modelled seconds of operators that round.
        """
        names = [[name_of(self.graph.nodes[at]) for at in nodes] for nodes in self.nodes]
        self._more = {
            number: sum(half[name] - full[name] for name in each if name in half and name in full)
            for number, each in enumerate(names)
        }

    def solved(self, prices: Sequence[float]) -> Rounding:
        """The operators that round in the fastest plan by the models; `prices` are added seconds of their rounding."""
        picked = self._planner(dict(enumerate(prices))).cheapest()[0]
        return Rounding(
            number for number, nodes in enumerate(self.nodes) if any(picked[at] >= len(self._exact[at]) for at in nodes)
        )

    def modelled(self, rounding: Rounding) -> float:
        """Modelled seconds of the fastest plan in which only these operators may round."""
        planner = self._planner(dict.fromkeys(rounding, 0.0))
        return planner.cost(planner.cheapest()[0])

    def _planner(self, prices: dict[int, float]) -> Planner:
        """A planner with all offers that do not round, and rounding offers of some operators at a price."""
        offers = [list(each) for each in self._exact]
        for number, price in prices.items():
            share = (price + self._more.get(number, 0.0)) / len(self.nodes[number])
            for at in self.nodes[number]:
                rounding = (offer for offer in self._rounding[at] if offer is not None)
                offers[at] += [replace(offer, seconds=max(0.0, offer.seconds + share)) for offer in rounding]
        return Planner(self.graph, offers, self._half)

    def mixed(self, rounding: Rounding) -> tuple[NetworkPlan, Target]:
        """The plan in which these operators are as in the bfloat16 plan, all others as in float32."""
        names = {name_of(self.graph.nodes[at]) for number in rounding for at in self.nodes[number]}
        full, half = self._plans
        nodes = {name: (half if name in names else full).nodes[name] for name in full.nodes if name in half.nodes}
        target = replace(self._full, node_precisions=dict.fromkeys(self.parts(rounding), self.precision))
        return lay_out(self.graph, target, Decisions(full.isa, full.lanes, full.limits, nodes)), target


def _same(offer: Offer | None, other: Offer | None) -> bool:
    """Whether two offers compute a node in the same way."""
    if offer is None or other is None:
        return offer is other
    problems = (getattr(each.detail, "problem", None) for each in (offer, other))
    first, second = problems
    forms = (offer.inputs, offer.outputs, offer.view) == (other.inputs, other.outputs, other.view)
    return forms and offer.seconds == other.seconds and first == second
