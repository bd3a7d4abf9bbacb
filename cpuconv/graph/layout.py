"""How every tensor of a network lies: an offer for each node, and copies where a reader needs another form.

Offers and the copies between them are a partitioned Boolean quadratic problem (`layouts.solve`), exact where the graph
reduces to chains and simple branches. Costs are those of the operators' models: what was tuned changes no layout, so
the tuner is asked for the problems that will run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import layouts
from cpuconv.graph import ops
from cpuconv.graph.chosen import Chosen, Taken, name_of
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.lowering import Offer, Target
from cpuconv.graph.ops.base import Op
from cpuconv.graph.place import BLOCKED, DENSE, STRIDED

_HOST_SECONDS = 1e-4  # of a node that the reference computes: enough that any kernel is preferred
_COPY_SECONDS = 1e-6  # of a copy, beside moving the bytes
_TURNING = {DENSE: 1.0, STRIDED: 2.0, BLOCKED: 1.5}  # bytes of a copy into that form cost so many times a plain move


@dataclass(frozen=True)
class Laid:
    """A node and how it is computed; without an offer the reference computes it while the network runs."""

    node: Node
    offer: Offer | None

    def reads(self, position: int) -> str:
        """How the input at a position must lie."""
        return DENSE if self.offer is None else self.offer.inputs[position]

    def writes(self, position: int) -> str:
        """How the output at a position lies."""
        return DENSE if self.offer is None else self.offer.outputs[position]


@dataclass(frozen=True)
class Layout:
    """A graph with an offer for every node.

    Attributes
    ----------
    graph : Graph
        With the copies that were inserted.
    nodes : list[Laid]
        In order.
    outputs : dict[str, str]
        For every output of the network the value that lies as callers get it: dense, in memory of its own.
    exact : bool
        Whether no other selection of offers is cheaper by the model.
    target : Target
        That it was made for.
    anew : tuple[str, ...]
        Where a record was to be followed: the nodes (`name_of`) whose forms or algorithm it did not decide.
    """

    graph: Graph
    nodes: list[Laid]
    outputs: dict[str, str]
    exact: bool
    target: Target
    anew: tuple[str, ...] = ()

    def chosen(self) -> Chosen:
        """What was chosen, for other layouts of the network to follow."""
        return Chosen.of(self.target, ((laid.node, laid.offer) for laid in self.nodes))


def lay_out(graph: Graph, target: Target, chosen: Chosen | None = None, *, algorithms: bool = True) -> Layout:
    """Choose an offer for each node of a specialised graph, and insert copies.

    Parameters
    ----------
    graph : Graph
    target : Target
    chosen : Chosen or None
        What another layout of the network chose, perhaps for other sizes: followed where it fits, and no other ways are
        compared there.
    algorithms : bool
        Whether algorithms of convolutions are followed too: as they are where the problem is the same, by solver where
        sizes are others. Else they are chosen anew.
    """
    followed, anew = _followed(graph, target, chosen, algorithms)
    offers = [followed.get(at) or _offers(graph, node, target) for at, node in enumerate(graph.nodes)]
    picked, exact = _pick(graph, offers, target)
    taken = [offered[at] for offered, at in zip(offers, picked, strict=True)]
    return _with_copies(graph, taken, target, exact, anew)


def _followed(
    graph: Graph, target: Target, chosen: Chosen | None, algorithms: bool
) -> tuple[dict[int, list[Offer | None]], tuple[str, ...]]:
    """The one offer of each node, by its place, that a record decides; and the nodes that are decided anew."""
    if chosen is None:
        return {}, ()
    forms, same = chosen.forms_fit(target), algorithms and chosen.algorithms_fit(target)
    followed = {
        at: _recorded(graph, node, target, chosen.nodes[name_of(node)], same)
        for at, node in enumerate(graph.nodes)
        if forms and name_of(node) in chosen.nodes
    }
    decided = {at for at, offers in followed.items() if offers and not (algorithms and _is_open(offers[0]))}
    return followed, tuple(name_of(node) for at, node in enumerate(graph.nodes) if at not in decided)


def _recorded(graph: Graph, node: Node, target: Target, record: Taken, same: bool) -> list[Offer | None]:
    """The offer of a record; none if it does not fit the node."""
    op = _computing(graph, node)
    if op is not None and op.restored is not None and record.detail is not None:
        offers: list[Offer | None] = [op.restored(node, graph.operands(node), target, record.detail, same)]
    else:
        offers = _offers(graph, node, target)
    return sorted((offer for offer in offers if record.fits(offer)), key=_seconds)[:1]


def _is_open(offer: Offer | None) -> bool:
    """Whether the algorithm of an offer is yet to be chosen."""
    return offer is not None and getattr(offer.detail, "settled", True) is None


def _computing(graph: Graph, node: Node) -> Op | None:
    """The operator whose offers a node may take; None: the reference computes it."""
    op = None if node.meaning is not None else ops.TABLE[node.op]
    return op if op is not None and op.offers is not None and _filled(graph.operands(node)) else None


def _offers(graph: Graph, node: Node, target: Target) -> list[Offer | None]:
    op = _computing(graph, node)
    if op is None or op.offers is None:
        return [None]
    values = graph.operands(node)
    fixed = bool(node.inputs) and node.inputs[0] in graph.constants  # which lies nowhere that a view could point to
    return [offer for offer in op.offers(node, values, target) if not (offer.view and fixed)] or [None]


def _filled(values: Sequence[Value | None]) -> bool:
    """Whether no tensor among the operands is empty; constants may be, such as the region of a Resize."""
    return all(value is None or value.array is not None or 0 not in (value.shape or ()) for value in values)


def _seconds(offer: Offer | None) -> float:
    return _HOST_SECONDS if offer is None else offer.seconds


def _conversion(value: Value, written: str, read: str, target: Target) -> float:
    """Seconds to copy a tensor that lies one way for a reader that needs another."""
    if _fits(written, read):
        return 0.0
    assert value.shape is not None and value.dtype is not None
    size = math.prod(int(axis or 0) for axis in value.shape) * value.dtype.itemsize
    return _COPY_SECONDS + _TURNING[read] * target.moving(2.0 * size)


def _fits(written: str, read: str) -> bool:
    return read in ("", written) or (written, read) == (DENSE, STRIDED)


def _pick(graph: Graph, offers: list[list[Offer | None]], target: Target) -> tuple[list[int], bool]:
    """One offer for each node, so that the sum of offers and copies is small."""
    index = {id(node): at for at, node in enumerate(graph.nodes)}
    laid = [[Laid(node, offer) for offer in options] for node, options in zip(graph.nodes, offers, strict=True)]
    costs = [np.array([_seconds(offer) for offer in options]) for options in offers]
    links = []
    for at, node in enumerate(graph.nodes):
        for position, name in enumerate(node.inputs):
            if not name or name in graph.constants:
                continue
            value, producer = graph.value(name), graph.producer(name)
            if producer is None:
                costs[at] += [_conversion(value, DENSE, mine.reads(position), target) for mine in laid[at]]
                continue
            before, output = index[id(producer)], producer.outputs.index(name)
            matrix = [
                [_conversion(value, theirs.writes(output), mine.reads(position), target) for mine in laid[at]]
                for theirs in laid[before]
            ]
            links.append((before, at, np.array(matrix)))
        for position, name in enumerate(node.outputs):
            if name in graph.outputs:
                value = graph.value(name)
                costs[at] += [_conversion(value, mine.writes(position), DENSE, target) for mine in laid[at]]
    if not costs:
        return [], True
    picked, _, exact = layouts.solve(costs, links)
    return picked, exact


class _Copies:
    """The nodes in order, with copies behind what they copy; a copy serves all readers that need the same."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.nodes: list[Laid] = []
        self.values: dict[str, Value] = {}
        self.lies = dict.fromkeys(graph.inputs, DENSE)
        self._made: dict[tuple[str, str], str] = {}

    def add(self, laid: Laid) -> None:
        """A node, behind the copies that it needs."""
        node = laid.node
        names = {}
        for position, name in enumerate(node.inputs):
            if name and name not in self.graph.constants and not _fits(self.lies[name], laid.reads(position)):
                names[position] = self.copied(name, laid.reads(position))
        inputs = tuple(names.get(position, name) for position, name in enumerate(node.inputs))
        self.nodes.append(Laid(node if inputs == node.inputs else replace(node, inputs=inputs), laid.offer))
        self.lies |= {name: laid.writes(position) for position, name in enumerate(node.outputs) if name}

    def copied(self, name: str, form: str) -> str:
        """The name of a copy in that form."""
        made = self._made.get((name, form))
        if made is None:
            made = self._made[name, form] = f"{name}@{form}"
            self._copy(name, made, DENSE if form == STRIDED else form)
        return made

    def _copy(self, name: str, copy: str, form: str) -> None:
        value = self.graph.value(name)
        op = ops.TABLE["Copy"]
        node = op.node([name], [copy], name)
        assert op.offers is not None
        offers = op.offers(node, [value], self.target)
        fitting = [o for o in offers if _fits(self.lies[name], o.inputs[0]) and o.outputs[0] == form]
        self.nodes.append(Laid(node, min(fitting, key=lambda offer: offer.seconds, default=None)))
        self.values[copy] = value
        self.lies[copy] = form

    def output(self, name: str, taken: set[str]) -> str:
        """The value that callers get for an output of the network: dense, in memory of its own."""
        if name in self.graph.constants:
            return name
        if self.lies[name] == DENSE and self._own(name) not in taken | {None}:
            taken.add(str(self._own(name)))
            return name
        copy = f"{name}@output"
        self._copy(name, copy, DENSE)
        return copy

    def _own(self, name: str) -> str | None:
        """The value whose whole memory a dense value is, by way of views.

        None if that memory is an input's or a constant's, or the value only a part of it.
        """
        producers = {output: laid for laid in self.nodes for output in laid.node.outputs}
        while name in producers and (offer := producers[name].offer) is not None and offer.view:
            before = producers[name].node.inputs[0]
            if self.lies.get(before) != DENSE or self._elements(before) != self._elements(name):
                return None
            name = before
        return name if name in producers else None

    def _elements(self, name: str) -> int:
        shape = (self.values.get(name) or self.graph.value(name)).shape or ()
        return math.prod(int(size or 0) for size in shape)


def _with_copies(
    graph: Graph, picked: list[Offer | None], target: Target, exact: bool, anew: tuple[str, ...]
) -> Layout:
    copies = _Copies(graph, target)
    for node, offer in zip(graph.nodes, picked, strict=True):
        copies.add(Laid(node, offer))
    taken: set[str] = set()
    outputs = {name: copies.output(name, taken) for name in graph.outputs}
    nodes = tuple(laid.node for laid in copies.nodes)
    values = {**graph.values, **copies.values}
    made = Graph(graph.inputs, tuple(outputs.values()), nodes, graph.constants, values, graph.name)
    return Layout(made, copies.nodes, outputs, exact, target, anew)
