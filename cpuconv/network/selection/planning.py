"""Which offer each node of a network takes: the cheapest selection by the models, and others to compare it with.

Offers, and the copies between them, are a partitioned Boolean quadratic problem (`layouts.solve`). A value with several
readers is a node of its own, whose options are the forms that it is written in and copied into: so one copy serves all
readers that need the same. Costs are those of the operators' models. `PLANS` are several ways to select: models
err, and which plan is fastest a race of whole runs decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

import layouts
from autotune.data_classes import dataclass
from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.lowering import Offer
from cpuconv.kernels.binding.place import BLOCKED, BLOCKED_BF16, DENSE, DENSE_BF16, STRIDED, blocked_shape, stored_as

_HOST_SECONDS = 1e-4  # of a node that the reference computes: enough that any kernel is preferred
_COPY_SECONDS = 1e-6  # of a copy, beside moving the bytes
_TURNING = {DENSE: 2.0, BLOCKED: 1.25, DENSE_BF16: 1.0, BLOCKED_BF16: 1.25}
"""Times a plain move that a copy into that form takes, measured in networks."""
_FEWER, _MORE = 4.0, 0.25  # how many times what they cost copies are taken to cost

Options = list[Offer | None]  # of a node; None: the reference computes it


def reads(offer: Offer | None, position: int) -> str:
    """How the input at a position must lie."""
    return DENSE if offer is None else offer.inputs[position]


def writes(offer: Offer | None, position: int) -> str:
    """How the output at a position lies."""
    return DENSE if offer is None else offer.outputs[position]


def fits(written: str, read: str) -> bool:
    """Whether a reader takes a value as it is."""
    return read in ("", written) or (written, read) == (DENSE, STRIDED)


def copied_form(read: str) -> str:
    """The form of a copy for a reader."""
    return DENSE if read == STRIDED else read


def seconds(offer: Offer | None) -> float:
    """What a node takes, by the model."""
    return _HOST_SECONDS if offer is None else offer.seconds


def conversion(value: Value, written: str, read: str, target: Target) -> float:
    """Seconds to copy a tensor that lies one way for a reader that needs another."""
    if fits(written, read):
        return 0.0
    assert value.shape is not None and value.dtype is not None
    shape = [int(axis or 0) for axis in value.shape]
    size = sum(math.prod(shape) * stored_as(form, value.dtype).itemsize for form in (written, read))
    if value.dtype.itemsize == 1 and BLOCKED in (written, read):  # few channels leave much of their blocks empty
        size += math.prod(blocked_shape(shape, target.block(value.dtype))) - math.prod(shape)
    return _COPY_SECONDS + _TURNING[copied_form(read)] * target.moving(float(size))


@dataclass(frozen=True)
class _Tensor:
    """A value between nodes.

    Attributes
    ----------
    value : Value
    source : (int, int) or None
        Its node, by place, and which output of it; None: an input of the network, which is dense.
    readers : list of (int, int)
        Nodes, and which input of theirs it is.
    """

    value: Value
    source: tuple[int, int] | None
    readers: list[tuple[int, int]]


class Planner:
    """The offers of a graph's nodes, and selections of one for each node.

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
        """The selection whose sum of offers and copies is least, as far as `layouts.solve` finds it, and whether it is
        known to be; copies count so many times."""
        if copying not in self._solved:
            picked, _, exact = layouts.solve(*self._problem(copying)) if self.offers else ([], 0.0, True)
            self._solved[copying] = picked[: len(self.offers)], exact
        return self._solved[copying]

    def least(self) -> float:
        """Seconds that no selection is below, by the models."""
        return layouts.least(*self._problem(1.0)) if self.offers else 0.0

    def uniform(self, *wanted: str) -> list[int]:
        """Every node on as many operands of these forms as it can be; of equal ones the cheapest offer."""

        def rank(offer: Offer | None) -> tuple[int, float]:
            forms = () if offer is None else (*offer.inputs, *offer.outputs)
            return -sum(map(forms.count, wanted)), seconds(offer)

        return [min(range(len(options)), key=lambda at: rank(options[at])) for options in self.offers]

    def greedy(self) -> list[int]:
        """Node after node the offer that is cheapest with the copies of what it reads."""
        picked: list[int] = []
        forms: dict[str, str] = dict.fromkeys(self.graph.inputs, DENSE)
        for node, options in zip(self.graph.nodes, self.offers, strict=True):
            known = [(at, self.graph.value(name), forms[name]) for at, name in enumerate(node.inputs) if name in forms]
            picked.append(int(np.argmin([self._alone(offer, known) for offer in options])))
            taken = options[picked[-1]]
            forms |= {name: writes(taken, at) for at, name in enumerate(node.outputs) if name}
        return picked

    def _alone(self, offer: Offer | None, known: Sequence[tuple[int, Value, str]]) -> float:
        """Seconds of an offer, and of copies of its inputs: (position, value, how it lies)."""
        copies = (conversion(value, form, reads(offer, at), self.target) for at, value, form in known)
        return seconds(offer) + sum(copies)

    def cost(self, picked: Sequence[int]) -> float:
        """Seconds of a selection, by the models."""
        taken = self.taken(picked)
        total = sum(map(seconds, taken)) + sum(
            self._delivery(node, offer) for node, offer in zip(self.graph.nodes, taken, strict=True)
        )
        for tensor in self._tensors:
            written = DENSE if tensor.source is None else writes(taken[tensor.source[0]], tensor.source[1])
            asked = {reads(taken[at], position) for at, position in tensor.readers}
            copies = {copied_form(form) for form in asked if not fits(written, form)}
            total += sum(conversion(tensor.value, written, form, self.target) for form in copies)
        return total

    def _delivery(self, node: Node, offer: Offer | None) -> float:
        """Seconds of copies to outputs of the network, which callers get dense."""
        outputs = ((at, name) for at, name in enumerate(node.outputs) if name in self._delivered)
        return sum(conversion(self.graph.value(name), writes(offer, at), DENSE, self.target) for at, name in outputs)

    def _problem(self, copying: float) -> tuple[list[np.ndarray], list[layouts.Link]]:
        """Costs of offers, then of the ways in which values exist, and what links them."""
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
        """A value of one reader: a copy between some pairs of offers."""
        written = [writes(offer, source[1]) for offer in self.offers[source[0]]]
        read = [reads(offer, reader[1]) for offer in self.offers[reader[0]]]
        known = {
            pair: copying * conversion(tensor.value, *pair, self.target)
            for pair in {(first, second) for first in written for second in read}
        }
        matrix = [[known[first, second] for second in read] for first in written]
        return source[0], reader[0], np.array(matrix)

    def _tensor(self, tensor: _Tensor, index: int, links: list[layouts.Link], copying: float) -> np.ndarray:
        """A value of several readers: its ways to exist cost copies, and suit some offers of producer and readers."""
        source = tensor.source
        written = [DENSE] if source is None else [writes(offer, source[1]) for offer in self.offers[source[0]]]
        read = [[reads(offer, position) for offer in self.offers[at]] for at, position in tensor.readers]
        asked = {form for forms in read for form in forms}
        ways = [way for form in dict.fromkeys(written) for way in _ways(form, asked)]
        if source is not None:
            producing = [[0.0 if form == way[0] else np.inf for way in ways] for form in written]
            links.append((source[0], index, np.array(producing)))
        for (at, _), forms in zip(tensor.readers, read, strict=True):
            serving = [[0.0 if any(fits(have, form) for have in way) else np.inf for form in forms] for way in ways]
            links.append((index, at, np.array(serving)))
        copies = [[conversion(tensor.value, form, copy, self.target) for copy in more] for form, *more in ways]
        return copying * np.array([sum(each) for each in copies])


CHEAPEST = "cheapest"
PLANS: Mapping[str, Callable[[Planner], list[int]]] = {
    CHEAPEST: lambda planner: planner.cheapest()[0],
    "blocked": lambda planner: planner.uniform(BLOCKED),
    "greedy": Planner.greedy,
    "fewer copies": lambda planner: planner.cheapest(_FEWER)[0],
    "more copies": lambda planner: planner.cheapest(_MORE)[0],
}
"""Ways to select offers, by name: what the models find cheapest, as it is and with copies taken for dearer or cheaper
than they are; and two rules of thumb."""

RULES: Mapping[str, Callable[[Planner], list[int]]] = {
    **PLANS,
    "dense": lambda planner: planner.uniform(DENSE, STRIDED),
}
"""Those, and one that no race tries: few kernels of planes are as fast as those of blocks, and each is compiled."""


def _ways(written: str, asked: set[str]) -> Iterator[tuple[str, ...]]:
    """The sets of forms in which a value may exist: the one that it is written in, first, and copies of use."""
    copies = sorted({copied_form(form) for form in asked if not fits(written, form)})
    for count in range(len(copies) + 1):
        for more in itertools.combinations(copies, count):
            yield (written, *more)
