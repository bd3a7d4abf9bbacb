"""Layout planning: an offer for each node of a network, and copies where a reader needs another form.

`planning` selects the offers. Their costs come from the operators' models, so that tuning results do not change a
layout, and the tuner receives the problems that will run. Only timings of whole runs override the models (`winners`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from baselib.data_classes import dataclass
from baselib.locks import lazy
from cpuconv.conv.choice.target import Target
from cpuconv.graph import ops
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.lowering import Offer
from cpuconv.graph.ops.base import OPERAND_ERRORS, Op, operand_error
from cpuconv.kernels.binding.signature import mismatch
from cpuconv.kernels.binding.tensor_view import DENSE
from cpuconv.network.selection.channels_last import channels_last_nodes
from cpuconv.network.selection.decisions import Decision, Decisions, name_of
from cpuconv.network.selection.float32_values import float32_values, keeps_float32
from cpuconv.network.selection.planning import (
    CHEAPEST,
    PLANS,
    RULES,
    Planner,
    copied_form,
    fits,
    reads,
    seconds,
    writes,
)
from cpuconv.network.selection.row_norms import target_of

LOWER_BOUND = "least"
_COMPARED = ("blocked", "greedy")  # plans that `NetworkPlan.weighed` always includes


@dataclass(frozen=True)
class NodePlan:
    """A node and its offer; without an offer the reference computes it at run time."""

    node: Node
    offer: Offer | None

    @property
    def seconds(self) -> float:
        """Modelled time, in seconds; 0 if a reference computes it."""
        return 0.0 if self.offer is None else self.offer.seconds

    def reads(self, position: int) -> str:
        """The form that the input at a position must have."""
        return reads(self.offer, position)

    def writes(self, position: int) -> str:
        """The form of the output at a position."""
        return writes(self.offer, position)


@dataclass(frozen=True)
class NetworkPlan:
    """A graph with an offer for each node.

    Attributes
    ----------
    graph : Graph
        The graph with the inserted copies.
    nodes : list[NodePlan]
        Planned nodes in order.
    outputs : dict[str, str]
        For each output of the network, the value that callers get: dense, in memory of its own.
    target : Target
        The target of the plan.
    plan, decided_by : str
        The member of `PLANS` that selected the offers, and what chose it: "model" or "raced"; "" and "record" if a
        record was reused.
    weighed : mapping of str to float
        Modelled seconds of this plan and of others; "least" is the lower bound of all selections. Empty for a record.
    anew : tuple[str, ...]
        If a record was reused: the nodes (`name_of`) whose forms or algorithm it did not decide.
    recorded : Decisions or None
        The decisions of the plan, if known.
    """

    graph: Graph
    nodes: list[NodePlan]
    outputs: dict[str, str]
    target: Target
    plan: str
    decided_by: str
    weighed: Mapping[str, float]
    anew: tuple[str, ...] = ()
    recorded: Decisions | None = None

    @property
    def seconds(self) -> float:
        """Modelled time of the plan, in seconds; NaN for a record."""
        return self.weighed.get(self.plan, math.nan)

    def decisions(self) -> Decisions:
        """The decisions of the plan, to be reused by other plans of the network."""
        return self.recorded or self._chosen

    def decisions_later(self) -> Callable[[], Decisions]:
        """Return a function that returns `decisions` without the graph; open algorithms are selected now."""
        if self.recorded is None and not any(map(_is_open, (node_plan.offer for node_plan in self.nodes))):
            nodes = [(node_plan.node, node_plan.offer) for node_plan in self.nodes]
            return functools.partial(Decisions.of, self.target, nodes)
        chosen = self.decisions()
        return lambda: chosen

    @lazy
    def _chosen(self) -> Decisions:
        return Decisions.of(self.target, ((node_plan.node, node_plan.offer) for node_plan in self.nodes))


def lay_out(
    graph: Graph,
    target: Target,
    decisions: Decisions | None = None,
    *,
    algorithms: bool = True,
    plan: str | None = None,
) -> NetworkPlan:
    """Select an offer for each node of a specialised graph, and insert copies.

    Parameters
    ----------
    graph : Graph
    target : Target
    decisions : Decisions or None
        Decisions of another plan of the network, possibly for other sizes. They are reused where they fit, without
        considering alternatives.
    algorithms : bool
        Whether algorithms of convolutions are reused too: unchanged if the problem is the same, only the solver for
        other sizes. Otherwise they are selected again.
    plan : str or None
        The member of `RULES` to use, as it was fastest in whole runs; None: the cheapest by the models.
    """
    followed, anew = _followed(graph, target, decisions, algorithms)
    listed = _listed(graph, target)
    offers = [followed.get(at) or listed(node) for at, node in enumerate(graph.nodes)]
    if decisions is not None and all(len(options) == 1 for options in offers):
        return _with_copies(graph, target, [offer for (offer,) in offers], "", "record", {}, anew)
    planner = Planner(graph, offers, target)
    if decisions is not None:
        return _with_copies(graph, target, planner.taken(planner.cheapest()[0]), "", "record", {}, anew)
    name = plan or CHEAPEST
    picked = RULES[name](planner)
    weighed = _weighed(planner, name, picked)
    return _with_copies(graph, target, planner.taken(picked), name, "raced" if plan else "model", weighed)


def plans(graph: Graph, target: Target) -> list[NetworkPlan]:
    """The distinct layout plans of all `PLANS`, the cheapest by the models first; of equal ones the first."""
    planner = Planner(graph, [*map(_listed(graph, target), graph.nodes)], target)
    made: dict[tuple[int, ...], NetworkPlan] = {}
    for name, select in PLANS.items():
        picked = select(planner)
        if tuple(picked) not in made:
            offers = planner.taken(picked)
            made[tuple(picked)] = _with_copies(graph, target, offers, name, "model", {name: planner.cost(picked)})
    return list(made.values())


def _listed(graph: Graph, target: Target) -> Callable[[Node], list[Offer | None]]:
    """Return a function that returns the offers of a node; only some nodes may store tensors channels last."""
    late, near, others = float32_values(graph, target), channels_last_nodes(graph), replace(target, channels_last=False)
    return lambda node: offers_of(graph, node, target if id(node) in near else others, late)


def _weighed(planner: Planner, plan: str, picked: Sequence[int]) -> dict[str, float]:
    """Modelled seconds of a selection and others, for `NetworkPlan.weighed`."""
    cheapest, exact = planner.cheapest()
    selections = {plan: picked, CHEAPEST: cheapest} | {name: PLANS[name](planner) for name in _COMPARED}
    costs = {name: planner.cost(selection) for name, selection in selections.items()}
    return {**costs, LOWER_BOUND: costs[CHEAPEST] if exact else planner.least()}


def _followed(
    graph: Graph, target: Target, decisions: Decisions | None, algorithms: bool
) -> tuple[dict[int, list[Offer | None]], tuple[str, ...]]:
    """The offers that a record decides, by index of the node; and the nodes that it does not decide."""
    if decisions is None:
        return {}, ()
    forms, same = decisions.forms_fit(target), algorithms and decisions.algorithms_fit(target)
    followed = {
        at: _recorded(graph, node, target, decisions.nodes[name_of(node)], same)
        for at, node in enumerate(graph.nodes)
        if forms and name_of(node) in decisions.nodes
    }
    decided = {at for at, offers in followed.items() if offers and not (algorithms and _is_open(offers[0]))}
    return followed, tuple(name_of(node) for at, node in enumerate(graph.nodes) if at not in decided)


def _recorded(graph: Graph, node: Node, target: Target, record: Decision, same: bool) -> list[Offer | None]:
    """The offer of a record; empty if it does not fit the node."""
    values = graph.operands(node)
    op = _computing(node, values, _results(graph, node))
    if op is not None and op.restored is not None and record.detail is not None:
        offers: list[Offer | None] = [op.restored(node, values, target_of(graph, node, target), record.detail, same)]
    else:
        offers = _offers_of(graph, node, op, values, target)
    return sorted((offer for offer in offers if record.fits(offer)), key=seconds)[:1]


def _is_open(offer: Offer | None) -> bool:
    """Whether the algorithm of an offer is not selected yet."""
    return offer is not None and getattr(offer.detail, "settled", True) is None


def _computing(node: Node, values: Sequence[Value | None], results: Sequence[Value | None]) -> Op | None:
    """The operator whose offers apply to a node with these operands; None: the reference computes it."""
    op = None if node.semantics is not None else ops.TABLE[node.op]
    if op is None or op.offers is None or not _filled(values):
        return None
    return None if op.signature and mismatch(op.signature, values, results) else op


def offers_of(graph: Graph, node: Node, target: Target, late: frozenset[str] = frozenset()) -> list[Offer | None]:
    """The offers of a node; `late` values stay float32. An offer None means the reference."""
    values = graph.operands(node)
    return _offers_of(graph, node, _computing(node, values, _results(graph, node)), values, target, late)


def _offers_of(
    graph: Graph,
    node: Node,
    op: Op | None,
    values: Sequence[Value | None],
    target: Target,
    late: frozenset[str] = frozenset(),
) -> list[Offer | None]:
    if op is None or op.offers is None:
        return [None]
    fixed = bool(node.inputs) and node.inputs[0] in graph.constants  # a constant has no memory that a view could use
    try:
        made = (
            offer for offer in op.offers(node, values, target_of(graph, node, target)) if not (offer.view and fixed)
        )
        return [offer for offer in made if keeps_float32(offer, node, late)] or [None]
    except OPERAND_ERRORS as error:
        raise operand_error(node, values, error) from error


def _results(graph: Graph, node: Node) -> list[Value | None]:
    """The known shapes and dtypes of a node's outputs; None for unused ones."""
    return [graph.value(name) if name else None for name in node.outputs]


def _filled(values: Sequence[Value | None]) -> bool:
    """Whether no operand is empty, except for constants such as the region of a Resize."""
    return all(value is None or value.array is not None or 0 not in (value.shape or ()) for value in values)


class _Copies:
    """The nodes in order, with copies inserted; a copy serves all readers that need its form."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target.rounded()
        self.nodes: list[NodePlan] = []
        self.values: dict[str, Value] = {}
        self.format = dict.fromkeys(graph.inputs, DENSE)
        self._made: dict[tuple[str, str], str] = {}
        self._producers: dict[str, NodePlan] = {}

    def add(self, node_plan: NodePlan) -> None:
        """Append a node after the copies that it needs."""
        node = node_plan.node
        names = {}
        for position, name in enumerate(node.inputs):
            if name and name not in self.graph.constants and not fits(self.format[name], node_plan.reads(position)):
                names[position] = self.copied(name, node_plan.reads(position))
        inputs = tuple(names.get(position, name) for position, name in enumerate(node.inputs))
        self._append(NodePlan(node if inputs == node.inputs else replace(node, inputs=inputs), node_plan.offer))
        self.format |= {name: node_plan.writes(position) for position, name in enumerate(node.outputs) if name}

    def copied(self, name: str, form: str) -> str:
        """The name of the copy for a reader that needs a form."""
        form = copied_form(form)
        made = self._made.get((name, form))
        if made is None:
            made = self._made[name, form] = f"{name}@{form}"
            self._copy(name, made, form)
        return made

    def _copy(self, name: str, copy: str, form: str) -> None:
        value = self.graph.value(name)
        op = ops.TABLE["Copy"]
        node = op.node([name], [copy], name)
        assert op.offers is not None
        offers = op.offers(node, [value], self.target)
        fitting = [o for o in offers if fits(self.format[name], o.inputs[0]) and o.outputs[0] == form]
        self._append(NodePlan(node, min(fitting, key=lambda offer: offer.seconds, default=None)))
        self.values[copy] = value
        self.format[copy] = form

    def _append(self, node_plan: NodePlan) -> None:
        self.nodes.append(node_plan)
        self._producers |= dict.fromkeys(node_plan.node.outputs, node_plan)

    def output(self, name: str, taken: set[str]) -> str:
        """The value that callers get for an output of the network: dense, in memory of its own."""
        if name in self.graph.constants:
            return name
        if self.format[name] == DENSE and self._own(name) not in taken | {None}:
            taken.add(str(self._own(name)))
            return name
        copy = f"{name}@output"
        self._copy(name, copy, DENSE)
        return copy

    def _own(self, name: str) -> str | None:
        """The value whose whole memory a dense value uses, through views.

        None if the memory is that of an input or a constant, or if the value is only a part of it.
        """
        producers = self._producers
        while name in producers and (offer := producers[name].offer) is not None and offer.view:
            before = producers[name].node.inputs[0]
            if self.format.get(before) != DENSE or self._elements(before) != self._elements(name):
                return None
            name = before
        return name if name in producers else None

    def _elements(self, name: str) -> int:
        shape = (self.values.get(name) or self.graph.value(name)).shape or ()
        return math.prod(int(size or 0) for size in shape)


def _with_copies(
    graph: Graph,
    target: Target,
    offers: Sequence[Offer | None],
    plan: str,
    decided_by: str,
    weighed: Mapping[str, float],
    anew: tuple[str, ...] = (),
) -> NetworkPlan:
    copies = _Copies(graph, target)
    for node, offer in zip(graph.nodes, offers, strict=True):
        copies.add(NodePlan(node, offer))
    taken: set[str] = set()
    outputs = {name: copies.output(name, taken) for name in graph.outputs}
    nodes = tuple(node_plan.node for node_plan in copies.nodes)
    values = {**graph.values, **copies.values}
    made = Graph(graph.inputs, tuple(outputs.values()), nodes, graph.constants, values, graph.name)
    return NetworkPlan(made, copies.nodes, outputs, target, plan, decided_by, weighed, anew)
