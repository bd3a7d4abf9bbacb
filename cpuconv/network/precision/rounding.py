"""The operators of a graph that may round to bfloat16, and plans in which some of them do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cpuconv.conv.choice.target import FULL, HALF, Target
from cpuconv.graph.ir import Graph, joined
from cpuconv.graph.lowering import Offer
from cpuconv.network.precision.choosing import Rounding
from cpuconv.network.selection.decisions import Decisions, name_of
from cpuconv.network.selection.late import late_values
from cpuconv.network.selection.layout import NetworkPlan, lay_out, offers_of
from cpuconv.network.selection.planning import Planner

Operator = tuple[tuple[str, str], ...]  # its nodes: what the model calls them, and what they compute


class Operators:
    """The operators of a graph that round in the fastest plan by the models, nothing said of errors.

    Nodes that compute the same node of the model count as one operator: its precision is theirs.

    Attributes
    ----------
    graph : Graph
    nodes : list of list of int
        Of each operator the nodes, by place in the graph.
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        """Find them.

        Parameters
        ----------
        graph : Graph
            Rewritten.
        target : Target
            In which all may round.
        """
        self.graph, self._half = graph, target
        self._full = target.at(FULL)
        late = late_values(graph, target)
        self._exact = [offers_of(graph, node, self._full) for node in graph.nodes]
        all_ = [offers_of(graph, node, target, late) for node in graph.nodes]
        self._rounding = [
            [offer for offer in offers if not any(_same(offer, other) for other in exact)]
            for offers, exact in zip(all_, self._exact, strict=True)
        ]
        self._more: dict[int, float] = {}  # seconds of operators that round, beyond what the models say
        self.nodes = [[at] for at, offers in enumerate(self._rounding) if offers]
        self.nodes = self._joined(self.solved([0.0] * len(self.nodes)))
        self._plans = [lay_out(graph, each).decisions() for each in (self._full, target)]

    def _joined(self, numbers: Iterable[int]) -> list[list[int]]:
        """The nodes of some operators, those that have parts in common together."""
        groups: list[tuple[set[str], list[int]]] = []
        for number in sorted(numbers):
            nodes, parts = self.nodes[number], {*joined(self.graph.nodes[at] for at in self.nodes[number])}
            for group in [group for group in groups if not parts.isdisjoint(group[0])]:
                groups.remove(group)
                parts, nodes = parts | group[0], group[1] + nodes
            groups.append((parts, nodes))
        return sorted(sorted(nodes) for _, nodes in groups)

    def parts(self, rounding: Rounding) -> tuple[str, ...]:
        """What the model calls the nodes of some operators."""
        return joined(self.graph.nodes[at] for number in rounding for at in self.nodes[number])

    def target(self, rounding: Rounding) -> Target:
        """The target in which these may round; of all or none that of one precision."""
        if len(rounding) == len(self.nodes) and rounding:
            return self._half
        return replace(self._full, node_precisions=dict.fromkeys(self.parts(rounding), HALF))

    def named(self, number: int) -> Operator:
        """What tells an operator from others, in other forms of the network too."""
        return tuple((name_of(node), node.op) for node in (self.graph.nodes[at] for at in self.nodes[number]))

    def follow(self, other: Operators) -> bool:
        """Take the corrections of another form of the network; whether it knows all operators."""
        known = {other.named(number): more for number, more in other._more.items()}
        named = {number: self.named(number) for number in range(len(self.nodes))}
        if not all(operator in known for operator in named.values()):
            return False
        self._more = {number: known[operator] for number, operator in named.items()}
        return True

    def correct(self, full: Mapping[str, float], half: Mapping[str, float]) -> None:
        """What nodes were measured to take beyond what the models say, by name, in plans of one precision each.

        The difference is that of rounding: it is added to the models' seconds of operators that round.
        """
        names = [[name_of(self.graph.nodes[at]) for at in nodes] for nodes in self.nodes]
        self._more = {
            number: sum(half[name] - full[name] for name in each if name in half and name in full)
            for number, each in enumerate(names)
        }

    def solved(self, prices: Sequence[float]) -> Rounding:
        """The operators that round in the fastest plan by the models, where the rounding of each costs seconds more."""
        picked = self._planner(dict(enumerate(prices))).cheapest()[0]
        return Rounding(
            number for number, nodes in enumerate(self.nodes) if any(picked[at] >= len(self._exact[at]) for at in nodes)
        )

    def modelled(self, rounding: Rounding) -> float:
        """Seconds of the fastest plan by the models in which only these may round."""
        planner = self._planner(dict.fromkeys(rounding, 0.0))
        return planner.cost(planner.cheapest()[0])

    def _planner(self, prices: dict[int, float]) -> Planner:
        """Of the offers that do not round, and of those of some operators that do, at a price."""
        offers = [list(each) for each in self._exact]
        for number, price in prices.items():
            share = (price + self._more.get(number, 0.0)) / len(self.nodes[number])
            for at in self.nodes[number]:
                rounding = (offer for offer in self._rounding[at] if offer is not None)
                offers[at] += [replace(offer, seconds=max(0.0, offer.seconds + share)) for offer in rounding]
        return Planner(self.graph, offers, self._half)

    def first(self, count: int) -> tuple[NetworkPlan, Target]:
        """The plan in which the first operators round as in that of bfloat16, all else as in that of float32."""
        rounding = Rounding(range(count))
        names = {name_of(self.graph.nodes[at]) for number in rounding for at in self.nodes[number]}
        full, half = self._plans
        nodes = {name: (half if name in names else full).nodes[name] for name in full.nodes if name in half.nodes}
        target = replace(self._full, node_precisions=dict.fromkeys(self.parts(rounding), HALF))
        return lay_out(self.graph, target, Decisions(full.isa, full.lanes, full.limits, nodes)), target


def _same(offer: Offer | None, other: Offer | None) -> bool:
    """Whether offers compute a node in the same way."""
    if offer is None or other is None:
        return offer is other
    problems = (getattr(each.detail, "problem", None) for each in (offer, other))
    first, second = problems
    forms = (offer.inputs, offer.outputs, offer.view) == (other.inputs, other.outputs, other.view)
    return forms and offer.seconds == other.seconds and first == second
