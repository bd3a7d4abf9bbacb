"""Assignment of int8: which nodes around layers compute in int8, and which layers do, given their prices.

A unit of nodes that compute together reads int8 or float32, and writes int8 or float32. A tensor that is written in one
type and read in the other is converted, which takes time. The costs of computing and converting form the same problem
as layout selection (`layouts.solve`). Its solution therefore optimises runs of layers as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

import layouts
from baselib.data_classes import dataclass
from cpuconv.graph.ir import Graph, Value
from cpuconv.graph.ops import traits_of
from cpuconv.graph.ops.traits import Int8, Movement
from cpuconv.graph.passes.rewriting import sole_reader
from cpuconv.kernels.binding.processor import Processor
from cpuconv.quantizing.graphs.attention import Quantizable
from cpuconv.quantizing.graphs.units import Unit, Units, in_epilogues, is_network_output

_FLOAT32, _INT8 = 4, 1  # bytes per element
_CALL = 1e-6  # overhead of a conversion in seconds, in addition to memory traffic
_NEARLY_FREE = 1e-6  # factor of conversion costs


class _Candidate(NamedTuple):
    """Candidate of a unit: whether it reads int8, whether it writes int8, and its additional seconds."""

    reads: bool
    writes: bool
    seconds: float


class _Form(NamedTuple):
    """Types in which a tensor exists: the written one, and whether the other one too."""

    written: bool  # as int8
    both: bool

    def serves(self, asked: Collection[bool]) -> bool:
        """Whether the tensor exists in the requested types (True: int8)."""
        return self.both or all(each == self.written for each in asked)


_FORMS = [_Form(written, both) for written in (False, True) for both in (False, True)]


@dataclass(frozen=True)
class Assignment:
    """Result of the assignment.

    Attributes
    ----------
    layers : tuple of Quantizable
        Int8 layers.
    tensors : tuple of str
        Tensors that exist as int8.
    readers : frozenset of int
        Nodes that read int8 where it exists, by `id`.
    written : frozenset of str
        Tensors that are written as int8; their float32 readers get dequantised values.
    seconds : float
        Total modelled cost.
    """

    layers: tuple[Quantizable, ...] = ()
    tensors: tuple[str, ...] = ()
    readers: frozenset[int] = frozenset()
    written: frozenset[str] = frozenset()
    seconds: float = 0.0


class Assignments:
    """Assignments of int8 that are possible in a network.

    Attributes
    ----------
    tensors : tuple of str
        Tensors that may be int8.

    Parameters
    ----------
    graph : Graph
        Result of `prepared`.
    known : mapping of str to Value
        Dtypes and sizes of its values.
    layers : collection of Quantizable
        Layers that may be int8.
    fuse_adds : bool
        Whether int8 convolutions give float32 if that is faster, and fuse a following addition. False: their results
        are quantised first, as other engines require.
    processor : Processor
        CPU model that estimates conversion costs.
    """

    def __init__(
        self,
        graph: Graph,
        known: Mapping[str, Value],
        layers: Collection[Quantizable],
        fuse_adds: bool,
        processor: Processor,
    ) -> None:
        self._graph, self._known, self._fuse_adds, self._processor = graph, known, fuse_adds, processor
        self._units = Units(graph, known, fuse_adds).of({id(layer.node): layer for layer in layers})
        self._writers = {name: at for at, unit in enumerate(self._units) for name in unit.outputs}
        self._readers: dict[str, list[int]] = {}
        for at, unit in enumerate(self._units):
            for name in dict.fromkeys(unit.inputs):
                self._readers.setdefault(name, []).append(at)
        self.tensors = tuple(dict.fromkeys([*self._readers, *self._writers]))
        members = {id(node): at for at, unit in enumerate(self._units) for node in unit.nodes}
        self._float32_only = {  # tensors with a reader that only supports float32
            name
            for name in self.tensors
            if graph.is_output(name)
            or any(members.get(id(node), -1) not in self._readers.get(name, ()) for node in graph.users(name))
        }
        self._in_epilogues = in_epilogues(graph, known)

    def fastest(self, prices: Mapping[str, float], *, forced: bool = False, free: bool = False) -> Assignment:
        """Select the fastest assignment.

        Parameters
        ----------
        prices : mapping of str to float
            Additional seconds of a layer in int8 instead of float32, by its name. Layers without a price are float32.
        forced : bool
            Whether all layers with a price are int8, at any cost.
        free : bool
            Whether conversions are assumed to be nearly free.
        """
        if not self._units:
            return Assignment()
        part = _NEARLY_FREE if free else 1.0
        candidates = [[*self._candidates(unit, prices, forced, part)] for unit in self._units]
        taken, seconds = self._solved(candidates, part)
        while apart := self._disconnected(taken):
            for at in apart:
                candidates[at] = [each for each in candidates[at] if not (each.reads or each.writes)]
            taken, seconds = self._solved(candidates, part)
        pairs = [*zip(self._units, taken, strict=True)]
        written = {name for unit, candidate in pairs if candidate.writes for name in unit.outputs}
        read = {name for unit, candidate in pairs for name in unit.inputs if True in _asked(unit, candidate, name)}
        return Assignment(
            tuple(unit.layer for unit, candidate in pairs if unit.layer is not None and candidate.reads),
            tuple(name for name in self.tensors if name in read or name in written),
            frozenset(
                id(node)
                for unit, candidate in pairs
                if candidate.reads
                for node in unit.nodes[: None if candidate.writes else 1]
            ),
            frozenset(written),
            seconds,
        )

    def _solved(self, candidates: Sequence[Sequence[_Candidate]], part: float) -> tuple[list[_Candidate], float]:
        """The fastest selection of candidates, and its seconds with `part` of the conversions' cost."""
        costs = [np.array([candidate.seconds for candidate in each]) for each in candidates]
        links: list[layouts.Link] = []
        for at, name in enumerate(self.tensors, len(candidates)):
            links += self._links(name, candidates, at)
            costs.append(part * self._conversions(name))
        picked, seconds, _ = layouts.solve(costs, links)
        return [each[at] for each, at in zip(candidates, picked, strict=False)], seconds

    def _disconnected(self, taken: Sequence[_Candidate]) -> list[int]:
        """Operators in int8 that int8 tensors do not connect to an int8 layer; their errors have no price."""
        connected = {at for at, unit in enumerate(self._units) if unit.layer is not None and taken[at].reads}
        ahead = [*connected]
        while ahead:
            unit, candidate = self._units[at := ahead.pop()], taken[at]
            written = unit.outputs if candidate.writes else ()
            read = [name for name in unit.inputs if True in _asked(unit, candidate, name)]
            near = {self._writers[name] for name in read if name in self._writers and taken[self._writers[name]].writes}
            near |= {to for name in written for to in self._readers.get(name, ()) if taken[to].reads}
            ahead += near - connected
            connected |= near
        return [at for at, each in enumerate(taken) if at not in connected and (each.reads or each.writes)]

    def _candidates(self, unit: Unit, prices: Mapping[str, float], forced: bool, part: float) -> Iterator[_Candidate]:
        """Candidates of a unit, and their costs."""
        kept = not unit.outputs or any(
            is_network_output(self._graph, name) for name in unit.outputs
        )  # needed as float32
        op = traits_of(unit.nodes[0])
        read, written = (self._elements(names) for names in (unit.inputs, unit.outputs))
        if unit.layer is not None:
            more = prices.get(unit.layer.name)
            if more is None or not forced:
                yield _Candidate(False, False, 0.0)
            if more is not None and not kept:
                yield _Candidate(True, True, more)
            if more is not None and (kept or self._fuse_adds or not op.convolution):
                yield _Candidate(True, False, more + part * self._moving((_FLOAT32 - _INT8) * written))
            return
        free = 0.0 if op.movement is Movement.IN_ORDER else part
        fused = op.int8 is Int8.RESCALED and any(map(self._is_sum, unit.inputs))  # fused into the convolution
        fused |= id(unit.nodes[0]) in self._in_epilogues
        yield _Candidate(False, False, 0.0 if fused else free * self._moving(_FLOAT32 * (read + written)))
        if not kept:
            yield _Candidate(True, True, free * self._moving(_INT8 * (read + written)))
        if op.int8 is Int8.RESCALED:
            yield _Candidate(True, False, free * self._moving(_INT8 * read + _FLOAT32 * written))

    def _is_sum(self, name: str) -> bool:
        """Whether a tensor is the output of a convolution and has a single reader."""
        node = self._graph.producer(name)
        return node is not None and traits_of(node).convolution and sole_reader(self._graph, name) is not None

    def _links(self, name: str, candidates: Sequence[Sequence[_Candidate]], index: int) -> Iterator[layouts.Link]:
        """Compatibility of a tensor's types with the candidates of its writer and readers."""
        if name in self._writers:
            at = self._writers[name]
            yield (
                at,
                index,
                _allowed([[candidate.writes == form.written for form in _FORMS] for candidate in candidates[at]]),
            )
        for at in self._readers.get(name, ()):
            asked = [_asked(self._units[at], candidate, name) for candidate in candidates[at]]
            yield index, at, _allowed([[form.serves(each) for each in asked] for form in _FORMS])

    def _conversions(self, name: str) -> np.ndarray:
        """Conversion cost of each combination of a tensor's types."""
        seconds = _CALL + self._moving((_FLOAT32 + _INT8) * self._elements((name,)))
        asked = {False} if name in self._float32_only else set()
        possible = (form.serves(asked) and (name in self._writers or not form.written) for form in _FORMS)
        return np.array([seconds * form.both if can else np.inf for form, can in zip(_FORMS, possible, strict=True)])

    def _elements(self, names: Collection[str]) -> int:
        """Number of elements of some tensors, as far as sizes are known."""
        shapes = [self._known[name].shape or () for name in names]
        return sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)

    def _moving(self, size: int) -> float:
        return self._processor.moving(float(size))


def _asked(unit: Unit, candidate: _Candidate, name: str) -> set[bool]:
    """Types in which a unit reads a tensor (True: int8); the addend of a float32 result is float32."""
    read = len(unit.inputs) if candidate.writes else unit.data
    return {candidate.reads and at < read for at, each in enumerate(unit.inputs) if each == name}


def _allowed(pairs: Sequence[Sequence[bool]]) -> np.ndarray:
    return np.where(np.array(pairs), 0.0, np.inf)
