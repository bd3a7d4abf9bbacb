"""Where bytes are: which nodes around products compute with bytes, and which products do where each has its price.

What computes together reads bytes or floats, and writes bytes or floats. A tensor that is written in one form and read
in another is converted, which takes time. So much for each way to compute, so much for each conversion: that is the
problem that layouts are selected by (`layouts.solve`), and a solution prices runs of layers as wholes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

import layouts
from autotune.data_classes import dataclass
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.passes.rewriting import sole_reader
from cpuconv.kernels.binding.processor import Processor
from cpuconv.quantizing.graphs.products import CONVOLUTIONS, Product
from cpuconv.quantizing.graphs.units import KEEPING, Unit, Units, is_given

_VIEWS = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
_FLOAT, _BYTE = 4, 1  # bytes of an element
_CALL = 1e-6  # seconds of a conversion, beside moving the bytes
_NEARLY_FREE = 1e-6  # of what conversions take


class _Way(NamedTuple):
    """How a unit computes: whether it reads bytes, whether it writes bytes, and what it takes more than other ways."""

    reads: bool
    writes: bool
    seconds: float


class _Form(NamedTuple):
    """How a tensor exists: as what it is written, and whether as the other too."""

    written: bool  # as bytes
    both: bool

    def serves(self, asked: Collection[bool]) -> bool:
        """Whether it exists in the forms that are asked for, bytes or not."""
        return self.both or all(each == self.written for each in asked)


_FORMS = [_Form(written, both) for written in (False, True) for both in (False, True)]


@dataclass(frozen=True)
class Placed:
    """Where bytes are.

    Attributes
    ----------
    products : tuple of Product
        Those that multiply bytes.
    tensors : tuple of str
        That exist as bytes.
    readers : frozenset of int
        Nodes that read bytes where there are any, by `id`.
    written : frozenset of str
        Tensors that are written as bytes: floats of them are what these stand for.
    seconds : float
        Of all that was priced.
    """

    products: tuple[Product, ...] = ()
    tensors: tuple[str, ...] = ()
    readers: frozenset[int] = frozenset()
    written: frozenset[str] = frozenset()
    seconds: float = 0.0


class Places:
    """The ways in which a network may compute with bytes.

    Attributes
    ----------
    tensors : tuple of str
        That may be bytes.

    Parameters
    ----------
    graph : Graph
        What `prepared` gives.
    known : mapping of str to Value
        Dtypes and sizes of its values.
    products : collection of Product
        Those that may multiply bytes.
    joined : bool
        Whether convolutions of bytes give floats where that is faster, and take in what is added to their results.
        False: their results are stored as bytes first, as other engines want that.
    processor : Processor
        By whose model conversions are priced.
    """

    def __init__(
        self,
        graph: Graph,
        known: Mapping[str, Value],
        products: Collection[Product],
        joined: bool,
        processor: Processor,
    ) -> None:
        self._graph, self._known, self._joined, self._processor = graph, known, joined, processor
        self._units = Units(graph, known, joined).of({id(product.node): product for product in products})
        self._writers = {name: at for at, unit in enumerate(self._units) for name in unit.outputs}
        self._readers: dict[str, list[int]] = {}
        for at, unit in enumerate(self._units):
            for name in dict.fromkeys(unit.inputs):
                self._readers.setdefault(name, []).append(at)
        self.tensors = tuple(dict.fromkeys([*self._readers, *self._writers]))
        members = {id(node): at for at, unit in enumerate(self._units) for node in unit.nodes}
        self._floats = {  # tensors that something reads which computes with floats alone
            name
            for name in self.tensors
            if graph.gives(name)
            or any(members.get(id(node), -1) not in self._readers.get(name, ()) for node in graph.users(name))
        }

    def placed(self, prices: Mapping[str, float], *, forced: bool = False, free: bool = False) -> Placed:
        """The fastest places.

        Parameters
        ----------
        prices : mapping of str to float
            Seconds that a product takes more with bytes than with floats, by its name; those that have none multiply
            floats.
        forced : bool
            Whether those that have one multiply bytes, whatever that takes.
        free : bool
            Whether conversions are taken to cost next to nothing.
        """
        if not self._units:
            return Placed()
        part = _NEARLY_FREE if free else 1.0
        ways = [[*self._ways(unit, prices, forced, part)] for unit in self._units]
        costs = [np.array([way.seconds for way in each]) for each in ways]
        links: list[layouts.Link] = []
        for at, name in enumerate(self.tensors, len(ways)):
            links += self._links(name, ways, at)
            costs.append(part * self._conversions(name))
        picked, seconds, _ = layouts.solve(costs, links)
        taken = [each[at] for each, at in zip(ways, picked, strict=False)]
        pairs = [*zip(self._units, taken, strict=True)]
        written = {name for unit, way in pairs if way.writes for name in unit.outputs}
        read = {name for unit, way in pairs for name in unit.inputs if True in _asked(unit, way, name)}
        return Placed(
            tuple(unit.product for unit, way in pairs if unit.product is not None and way.reads),
            tuple(name for name in self.tensors if name in read or name in written),
            frozenset(id(node) for unit, way in pairs if way.reads for node in unit.nodes[: None if way.writes else 1]),
            frozenset(written),
            seconds,
        )

    def _ways(self, unit: Unit, prices: Mapping[str, float], forced: bool, part: float) -> Iterator[_Way]:
        """How a unit may compute, and what that takes."""
        kept = not unit.outputs or any(is_given(self._graph, name) for name in unit.outputs)  # floats are asked for
        op = unit.nodes[0].op
        read, written = (self._elements(names) for names in (unit.inputs, unit.outputs))
        if unit.product is not None:
            more = prices.get(unit.product.name)
            if more is None or not forced:
                yield _Way(False, False, 0.0)
            if more is not None and not kept:
                yield _Way(True, True, more)
            if more is not None and (kept or self._joined or op not in CONVOLUTIONS):
                yield _Way(True, False, more + part * self._moving((_FLOAT - _BYTE) * written))
            return
        free = 0.0 if op in _VIEWS else part
        joined = op not in KEEPING and any(map(self._is_sum, unit.inputs))  # floats are computed with the convolution
        yield _Way(False, False, 0.0 if joined else free * self._moving(_FLOAT * (read + written)))
        if not kept:
            yield _Way(True, True, free * self._moving(_BYTE * (read + written)))
        if op not in KEEPING:
            yield _Way(True, False, free * self._moving(_BYTE * read + _FLOAT * written))

    def _is_sum(self, name: str) -> bool:
        """Whether a convolution gives a tensor that one operator alone reads."""
        node = self._graph.producer(name)
        return node is not None and node.op in CONVOLUTIONS and sole_reader(self._graph, name) is not None

    def _links(self, name: str, ways: Sequence[Sequence[_Way]], index: int) -> Iterator[layouts.Link]:
        """Between the forms of a tensor and what writes and reads it: which go together."""
        if name in self._writers:
            at = self._writers[name]
            yield at, index, _allowed([[way.writes == form.written for form in _FORMS] for way in ways[at]])
        for at in self._readers.get(name, ()):
            asked = [_asked(self._units[at], way, name) for way in ways[at]]
            yield index, at, _allowed([[form.serves(each) for each in asked] for form in _FORMS])

    def _conversions(self, name: str) -> np.ndarray:
        """What the forms of a tensor take, beside writing it."""
        seconds = _CALL + self._moving((_FLOAT + _BYTE) * self._elements((name,)))
        asked = {False} if name in self._floats else set()
        possible = (form.serves(asked) and (name in self._writers or not form.written) for form in _FORMS)
        return np.array([seconds * form.both if can else np.inf for form, can in zip(_FORMS, possible, strict=True)])

    def _elements(self, names: Collection[str]) -> int:
        """Of some tensors, as far as their sizes are known."""
        shapes = [self._known[name].shape or () for name in names]
        return sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)

    def _moving(self, size: int) -> float:
        return self._processor.moving(float(size))


def _asked(unit: Unit, way: _Way, name: str) -> set[bool]:
    """The forms in which a unit reads a tensor, bytes or not: what is added to floats is floats."""
    added = way.writes or unit.product is None
    return {way.reads and (at == 0 or added) for at, each in enumerate(unit.inputs) if each == name}


def _allowed(pairs: Sequence[Sequence[bool]]) -> np.ndarray:
    return np.where(np.array(pairs), 0.0, np.inf)
