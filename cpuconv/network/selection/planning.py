"""Selection of offers in a network: the cheapest selection by the models, and alternatives.

Offers, and the copies between them, are a partitioned Boolean quadratic problem (`layouts.solve`). A value with several
readers is a node of that problem. Its options are sets of forms in which it is written and copied, so that one copy
serves all readers that need its form. Costs come from the operators' models. `PLANS` are several selections: models are
inexact, and timings of whole runs determine the fastest plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

import layouts
from baselib.data_classes import dataclass
from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.lowering import Offer
from cpuconv.kernels.binding.tensor_view import (
    BLOCKED,
    CHANNELS_LAST,
    DENSE,
    NARROW,
    STRIDED,
    blocked_shape,
    narrow_element,
    stored_as,
    unrounded,
)
from cpuconv.solvers.shared.split_products import PART_CYCLES

_HOST_SECONDS = 1e-4  # seconds assumed for a node that the reference computes, so that any kernel is preferred
_COPY_SECONDS = 1e-6  # overhead of a copy in seconds, in addition to moving the bytes
_TURNING = {DENSE: 2.0, BLOCKED: 1.25, CHANNELS_LAST: 2.0} | {
    narrow[form]: ratio
    for narrow in NARROW.values()
    for form, ratio in ((DENSE, 2.5), (BLOCKED, 1.25), (CHANNELS_LAST, 2.5))
}
"""Ratio of the time of a copy into a form to that of a plain move, measured in networks."""
_ROUNDING = 1.0  # the same of a copy that only changes the type
_FEWER, _MORE = 4.0, 0.25  # factors on the cost of copies
_MAX_COPIES = 2  # of one value
_PLAIN = {STRIDED: DENSE} | {narrow[STRIDED]: narrow[DENSE] for narrow in NARROW.values()}
"""Forms that accept any plain memory, and what is copied for them."""
_ACCEPTED = {
    (written, strided)
    for plain in (DENSE, CHANNELS_LAST)
    for written, strided in ((plain, STRIDED), *((narrow[plain], narrow[STRIDED]) for narrow in NARROW.values()))
}

Options = list[Offer | None]  # offers of a node; None: the reference computes it


def reads(offer: Offer | None, position: int) -> str:
    """The form that the input at a position must have."""
    return DENSE if offer is None else offer.inputs[position]


def writes(offer: Offer | None, position: int) -> str:
    """The form of the output at a position."""
    return DENSE if offer is None else offer.outputs[position]


def fits(written: str, read: str) -> bool:
    """Whether a reader accepts a value without a copy."""
    return read in ("", written) or (written, read) in _ACCEPTED


def copied_form(read: str) -> str:
    """The form of a copy for a reader's form."""
    return _PLAIN.get(read, read)


def seconds(offer: Offer | None) -> float:
    """Modelled time of a node, in seconds."""
    return _HOST_SECONDS if offer is None else offer.seconds


def conversion(value: Value, written: str, read: str, target: Target) -> float:
    """Time to copy a tensor from one form to the form that a reader needs, in seconds."""
    if fits(written, read):
        return 0.0
    assert value.shape is not None and value.dtype is not None
    shape = [int(axis or 0) for axis in value.shape]
    size = sum(math.prod(shape) * stored_as(form, value.dtype).itemsize for form in (written, read))
    if value.dtype.itemsize == 1 and BLOCKED in (written, read):  # few channels leave much of an int8 block unused
        size += math.prod(blocked_shape(shape, target.block(value.dtype))) - math.prod(shape)
    goal = copied_form(read)
    factor = _ROUNDING if written != goal and unrounded(goal) == written else _TURNING[goal]
    element = narrow_element((written, goal))
    split = PART_CYCLES * element.parts * math.prod(shape) if element and element.parts > 1 else 0.0
    return _COPY_SECONDS + factor * target.moving(float(size)) + target.computing(split)


@dataclass(frozen=True)
class _Tensor:
    """A value between nodes.

    Attributes
    ----------
    value : Value
    source : (int, int) or None
        Indices of its node and output; None: a dense input of the network.
    readers : list of (int, int)
        Indices of the reading nodes and of their inputs.
    """

    value: Value
    source: tuple[int, int] | None
    readers: list[tuple[int, int]]


class Planner:
    """The offers of a graph's nodes, and selections of one offer per node.

    A selection is a list of indices into the nodes' offers.
    """

    def __init__(self, graph: Graph, offers: Sequence[Options], target: Target) -> None:
        self.graph, self.offers, self.target = graph, offers, target
        self._solved: dict[float, tuple[list[int], bool]] = {}
        self._delivered = {*graph.outputs}
        sources = {
            name: (at, number) for at, node in enumerate(graph.nodes) for number, name in enumerate(node.outputs)
        }
        read: dict[str, list[tuple[int, int]]] = {}
        for at, node in enumerate(graph.nodes):
            for position, name in enumerate(node.inputs):
                if name and name not in graph.constants:
                    read.setdefault(name, []).append((at, position))
        self._tensors = [_Tensor(graph.value(name), sources.get(name), readers) for name, readers in read.items()]

    def taken(self, picked: Sequence[int]) -> Options:
        """The offers of a selection."""
        return [options[at] for options, at in zip(self.offers, picked, strict=True)]

    def cheapest(self, copying: float = 1.0) -> tuple[list[int], bool]:
        """The selection with the lowest cost of offers and copies that `layouts.solve` finds; whether it is optimal.

        The cost of copies is multiplied by `copying`.
        """
        if copying not in self._solved:
            picked, _, exact = layouts.solve(*self._problem(copying)) if self.offers else ([], 0.0, True)
            self._solved[copying] = picked[: len(self.offers)], exact
        return self._solved[copying]

    def least(self) -> float:
        """Lower bound of all selections by the models, in seconds."""
        return layouts.least(*self._problem(1.0)) if self.offers else 0.0

    def uniform(self, *wanted: str) -> list[int]:
        """Select per node the offer with most operands in these forms; of equal ones the cheapest."""

        def rank(offer: Offer | None) -> tuple[int, float]:
            forms = () if offer is None else (*offer.inputs, *offer.outputs)
            return -sum(map(forms.count, wanted)), seconds(offer)

        return [min(range(len(options)), key=lambda at: rank(options[at])) for options in self.offers]

    def greedy(self) -> list[int]:
        """Select node by node the offer that is cheapest with the copies of its inputs."""
        picked: list[int] = []
        forms: dict[str, str] = dict.fromkeys(self.graph.inputs, DENSE)
        for node, options in zip(self.graph.nodes, self.offers, strict=True):
            known = [(at, self.graph.value(name), forms[name]) for at, name in enumerate(node.inputs) if name in forms]
            picked.append(int(np.argmin([self._alone(offer, known) for offer in options])))
            taken = options[picked[-1]]
            forms |= {name: writes(taken, at) for at, name in enumerate(node.outputs) if name}
        return picked

    def _alone(self, offer: Offer | None, known: Sequence[tuple[int, Value, str]]) -> float:
        """Seconds of an offer and of copies of its inputs, each given as (position, value, form)."""
        copies = (conversion(value, form, reads(offer, at), self.target) for at, value, form in known)
        return seconds(offer) + sum(copies)

    def cost(self, picked: Sequence[int]) -> float:
        """Modelled time of a selection, in seconds."""
        taken = self.taken(picked)
        total = sum(map(seconds, taken)) + sum(
            self._delivery(node, offer) for node, offer in zip(self.graph.nodes, taken, strict=True)
        )
        for tensor in self._tensors:
            written = DENSE if tensor.source is None else writes(taken[tensor.source[0]], tensor.source[1])
            needed = {reads(taken[at], position) for at, position in tensor.readers}
            copies = {copied_form(form) for form in needed if not fits(written, form)}
            total += sum(conversion(tensor.value, written, form, self.target) for form in copies)
        return total

    def _delivery(self, node: Node, offer: Offer | None) -> float:
        """Seconds of copies to outputs of the network, which are dense for callers."""
        outputs = ((at, name) for at, name in enumerate(node.outputs) if name in self._delivered)
        return sum(conversion(self.graph.value(name), writes(offer, at), DENSE, self.target) for at, name in outputs)

    def _problem(self, copying: float) -> tuple[list[np.ndarray], list[layouts.Link]]:
        """The optimisation problem: costs of offers and of values with several readers, and their links."""
        costs = [
            np.array([seconds(offer) + copying * self._delivery(node, offer) for offer in options])
            for node, options in zip(self.graph.nodes, self.offers, strict=True)
        ]
        links: list[layouts.Link] = []
        for tensor in self._tensors:
            if len(tensor.readers) == 1 and tensor.source is not None:
                links.append(self._link(tensor, tensor.source, tensor.readers[0], copying))
            else:
                costs.append(self._tensor(tensor, len(costs), links, copying))
        return costs, links

    def _link(self, tensor: _Tensor, source: tuple[int, int], reader: tuple[int, int], copying: float) -> layouts.Link:
        """The link of a value with one reader: a copy between some pairs of offers."""
        written = [writes(offer, source[1]) for offer in self.offers[source[0]]]
        read = [reads(offer, reader[1]) for offer in self.offers[reader[0]]]
        known = {
            pair: copying * conversion(tensor.value, *pair, self.target)
            for pair in {(first, second) for first in written for second in read}
        }
        matrix = [[known[first, second] for second in read] for first in written]
        return source[0], reader[0], np.array(matrix)

    def _tensor(self, tensor: _Tensor, index: int, links: list[layouts.Link], copying: float) -> np.ndarray:
        """Costs of a value with several readers by set of forms; append the links to its producer and readers."""
        source = tensor.source
        written = [DENSE] if source is None else [writes(offer, source[1]) for offer in self.offers[source[0]]]
        read = [[reads(offer, position) for offer in self.offers[at]] for at, position in tensor.readers]
        needed = {form for forms in read for form in forms}
        form_sets = [forms for form in dict.fromkeys(written) for forms in _form_sets(form, needed)]
        if source is not None:
            producing = [[0.0 if form == have[0] else np.inf for have in form_sets] for form in written]
            links.append((source[0], index, np.array(producing)))
        for (at, _), forms in zip(tensor.readers, read, strict=True):
            serving = [
                [0.0 if any(fits(one, form) for one in have) else np.inf for form in forms] for have in form_sets
            ]
            links.append((index, at, np.array(serving)))
        copies = [[conversion(tensor.value, form, copy, self.target) for copy in more] for form, *more in form_sets]
        return copying * np.array([sum(each) for each in copies])


CHEAPEST = "cheapest"
PLANS: Mapping[str, Callable[[Planner], list[int]]] = {
    CHEAPEST: lambda planner: planner.cheapest()[0],
    "blocked": lambda planner: planner.uniform(BLOCKED),
    "greedy": Planner.greedy,
    "fewer copies": lambda planner: planner.cheapest(_FEWER)[0],
    "more copies": lambda planner: planner.cheapest(_MORE)[0],
}
"""Methods to select offers, by name: the cheapest by the models, the same with copies assumed more or less expensive,
and two heuristics."""

RULES: Mapping[str, Callable[[Planner], list[int]]] = {
    **PLANS,
    "dense": lambda planner: planner.uniform(DENSE, STRIDED),
}
"""`PLANS` and one that is not timed: few kernels of NCHW are as fast as blocked ones, and each needs compiling."""


def _form_sets(written: str, needed: set[str]) -> Iterator[tuple[str, ...]]:
    """The sets of forms in which a value may exist: its written form, then any useful copies."""
    copies = sorted({copied_form(form) for form in needed if not fits(written, form)})
    for count in range(min(len(copies), _MAX_COPIES) + 1):
        for more in itertools.combinations(copies, count):
            yield (written, *more)
