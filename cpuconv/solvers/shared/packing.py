"""Packed weights: what a form is, and how the packing kernel is told to make it.

A form is a frozen value that holds only what packed weights depend on. So problems of other sizes, candidates with
other blocks, and solvers that read weights in the same order share one form. Equal forms pack equal weights to the same
bytes.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpuconv.isa import Isa
from cpuconv.micro.pack import PIECE_WORDS, SPAN_WORDS, VECTOR_WORDS, PackTile, pack_weights
from cpuconv.problem.arrays import address
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.solvers.shared.base import FLOAT, MicroRef, aligned, divide

_SPAN = 512  # elements of a unit of work
_BUFFER = 8 << 10  # bytes of the taps of a unit's channels
_SCRATCH = 256 << 10  # bytes of their transforms under way
_JOBS = 64  # jobs remembered
_PARALLEL_BYTES = 1 << 18  # packed; below this, one thread is done before others have started


@dataclass(frozen=True)
class Filters:
    """Output channels in vectors: `groups` of `k`, each in panels of `v` vectors.

    The last panel of a group overlaps the one before.
    """

    lanes: int
    v: int
    groups: int
    k: int

    @property
    def vectors(self) -> int:
        """Vectors of a group."""
        return divide(self.k, self.lanes)

    @property
    def panels(self) -> int:
        """Panels of a group."""
        return divide(self.vectors, self.v)

    @property
    def row(self) -> int:
        """Bytes of an element of a panel."""
        return self.v * self.lanes * FLOAT

    def table(self, filter_step: int, group: int, panel: int, pairs: int, distances: np.ndarray) -> np.ndarray:
        """The packing kernel's table of vectors.

        Parameters
        ----------
        filter_step : int
            Bytes from a filter of the weights to the next.
        group, panel : int
            Bytes of a group and of a panel of the packed form.
        pairs : int
            Bytes from the start of a group to its pairs of planes.
        distances : numpy.ndarray
            Bytes to each filter of a whole vector, and of the last vector of a group.
        """
        number = np.arange(self.panels * self.v)
        in_panel, at = number % self.v, number // self.v
        vector = np.minimum(at * self.v, self.vectors - self.v) + in_panel
        groups = np.arange(self.groups)[:, None]
        table = np.empty((self.groups, self.panels * self.v, VECTOR_WORDS), np.int64)
        table[..., 0] = (groups * self.k + vector * self.lanes) * filter_step
        table[..., 1] = groups * group + at * panel + in_panel * self.lanes * FLOAT
        table[..., 2] = table[..., 1] + pairs + at * panel
        table[..., 3] = address(distances) + (vector == self.vectors - 1) * distances.strides[0]
        table[..., 4] = np.minimum(self.lanes, self.k - vector * self.lanes)
        return table.reshape(-1, VECTOR_WORDS)


def _distances(steps: np.ndarray, k: int) -> np.ndarray:
    """Distances from the first filter, of whole vectors and of the last one of `k` filters: (2, …, lanes)."""
    lanes = steps.shape[-1]
    present = k - (k - 1) // lanes * lanes
    return np.stack([steps, np.where(np.arange(lanes) < present, steps, 0)])


@dataclass(frozen=True)
class _Elements:
    """Elements in the order of memory: the tables of spans and of targets, and the bytes between a span's elements."""

    spans: np.ndarray
    targets: np.ndarray
    step: int


def _elements(strides: Sequence[int], targets: np.ndarray, longest: int) -> _Elements:
    """Elements with these byte strides of axes, and the place of each (an array of the same axes).

    Runs are cut into spans of at most `longest`.
    """
    axes = sorted(range(targets.ndim), key=lambda axis: -abs(strides[axis]) if targets.shape[axis] > 1 else -math.inf)
    shape = targets.shape
    outer, count, step = axes[:-1], shape[axes[-1]], strides[axes[-1]]
    while outer and strides[outer[-1]] == step * count:
        count *= shape[outer.pop()]
    starts = np.zeros(1, np.int64)
    for axis in outer:
        starts = (starts[:, None] + np.arange(shape[axis]) * strides[axis]).ravel()
    parts = divide(count, longest)
    cuts = np.array([count * part // parts for part in range(parts + 1)])
    spans = np.empty((len(starts), parts, SPAN_WORDS), np.int64)
    spans[..., 0] = starts[:, None] + cuts[:-1] * step
    spans[..., 1] = cuts[1:] - cuts[:-1]
    spans[..., 2] = np.arange(len(starts))[:, None] * count + cuts[:-1]
    return _Elements(spans.reshape(-1, SPAN_WORDS), np.ascontiguousarray(targets.transpose(axes)).ravel(), step)


@dataclass(frozen=True)
class Job:
    """What the packing kernel is told for given strides and form: all its words but those of one call."""

    lanes: int
    words: dict[str, int]
    kept: tuple[np.ndarray, ...]  # whose addresses are among the words
    buffer: int = 0  # bytes a worker
    scratch: int = 0
    transform: MicroRef | None = None
    partial: bool = False


def _job(
    filters: Filters, vectors: np.ndarray, pieces: np.ndarray, elements: _Elements, distances: np.ndarray, **more: Any
) -> Job:
    words = {
        "units": len(vectors) * len(pieces),
        "v": filters.v,
        "vectors": address(vectors),
        "pieces": address(pieces),
        "pieces_count": len(pieces),
        "spans": address(elements.spans),
        "targets": address(elements.targets),
        "step": elements.step,
        "side_by_side": int(bool((np.diff(distances[0]) == FLOAT).all())),
        "channels": 0,
        "plane": 0,
        "row": filters.row,
        **more.pop("words", {}),
    }
    return Job(filters.lanes, words, (vectors, pieces, elements.spans, elements.targets, distances), **more)


Room = Callable[[int], np.ndarray]  # memory for so many bytes


def _room(size: int) -> np.ndarray:
    return aligned(size, np.uint8)


class Packing(abc.ABC):
    """A packed form of weights of one shape."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Bytes of the packed form."""

    @abc.abstractmethod
    def job(self, strides: tuple[int, ...]) -> Job:
        """What the kernel is told for weights of these byte strides."""

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = _room) -> np.ndarray:
        """The packed form of `weight`, denormals as zeros.

        Parameters
        ----------
        weight : numpy.ndarray, (K, C/groups, R, S)
            float32, of any strides; read in place.
        threads : int
            Workers that may share the work; the result is the same to the last bit.
        place : callable
            Gives so many uninitialised bytes that start on a cache line, for the result.

        Returns
        -------
        numpy.ndarray
            float32, one axis, of `size` bytes that start on a cache line.
        """
        job = _jobs(self, weight.strides)
        packed = place(self.size).view(np.float32)
        threads = threads if self.size >= _PARALLEL_BYTES else 1
        space = aligned(threads * (job.buffer + job.scratch), np.uint8)
        transform = job.transform.entry() if job.transform else None
        words = {
            **job.words,
            "x": address(weight),
            "y": address(packed),
            "transform": transform.address if transform else 0,
            "buffer": address(space),
            "buffer_step": job.buffer,
            "scratch": address(space) + threads * job.buffer,
            "scratch_step": job.scratch,
        }
        row = pack_weights.entry(PackTile(job.lanes, job.partial)), pack_weights.pack(words), True
        Program([row], threads).run()
        return packed


@functools.lru_cache(maxsize=_JOBS)
def _jobs(packing: Packing, strides: tuple[int, ...]) -> Job:
    return packing.job(strides)


@dataclass(frozen=True)
class Panels(Packing):
    """[group][panel][row][v][lanes of K], a row an element of the reduction.

    Rows are [C][R][S], or in blocks of channels [C/block][R][S][block of C], the last as long as it is. Rows after the
    last element, up to `rows`, are zero.
    """

    filters: Filters
    c: int
    r: int
    s: int
    block: int
    rows: int

    @classmethod
    def of(cls, problem: ConvProblem, isa: Isa, v: int, planar: bool = False, rows: int = 0) -> Panels:
        """The panels of a problem: groups that fill whole panels count as one; where blocks change no order, rows are
        planar.
        """
        whole = problem.kg % (v * isa.lanes) == 0
        filters = Filters(isa.lanes, v, *((1, problem.k) if whole else (problem.groups, problem.kg)))
        block = 1 if planar or problem.cg == 1 or problem.r * problem.s == 1 else isa.lanes
        rows = max(rows, problem.cg * problem.r * problem.s)
        return cls(filters, problem.cg, problem.r, problem.s, block, rows)

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self.filters.groups * self.filters.panels * self._panel

    @property
    def _panel(self) -> int:
        return self.rows * self.filters.row

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = _room) -> np.ndarray:
        """As `Packing` says."""
        packed = super().pack(weight, threads, place)
        count = self.c * self.r * self.s
        if self.rows > count:
            packed.reshape(-1, self.rows, self.filters.row // FLOAT)[:, count:] = 0
        return packed

    def job(self, strides: tuple[int, ...]) -> Job:
        """As `Packing` says."""
        filters = self.filters
        elements = _elements(strides[1:], self._order() * filters.row, _SPAN)
        distances = _distances(np.arange(filters.lanes) * strides[0], filters.k)
        vectors = filters.table(strides[0], filters.panels * self._panel, self._panel, 0, distances)
        return _job(filters, vectors, _cut(elements), elements, distances)

    def _order(self) -> np.ndarray:
        """The row of each element."""
        area, whole = self.r * self.s, self.c // self.block * self.block
        rows = np.arange(self.c * area)
        blocks = rows[: whole * area].reshape(-1, area, self.block).swapaxes(1, 2)
        last = rows[whole * area :].reshape(area, -1).T
        return np.concatenate([blocks.ravel(), last.ravel()]).reshape(self.c, self.r, self.s)


@dataclass(frozen=True)
class Scalars(Packing):
    """[group][tile][C][R][S][n of K], for tiles that read weights one by one.

    There are `groups` of `k` output channels; the last tile of `n` overlaps the one before.
    """

    lanes: int
    n: int
    groups: int
    k: int
    c: int
    r: int
    s: int

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self.groups * divide(self.k, self.n) * self._tile

    @property
    def _tile(self) -> int:
        return self.c * self.r * self.s * self.n * FLOAT

    def job(self, strides: tuple[int, ...]) -> Job:
        """As `Packing` says; the last vector of a tile overlaps the one before."""
        places = np.arange(self.c * self.r * self.s).reshape(self.c, self.r, self.s) * (self.n * FLOAT)
        elements = _elements(strides[1:], places, _SPAN)
        present = min(self.lanes, self.n)
        steps = np.arange(self.lanes) * strides[0]
        distances = np.where(np.arange(self.lanes) < present, steps, 0)[None]
        in_tile = np.minimum(np.arange(divide(self.n, self.lanes)) * self.lanes, self.n - present)
        tile = np.arange(divide(self.k, self.n))[:, None]
        group = np.arange(self.groups)[:, None, None]
        first = np.minimum(tile * self.n, self.k - self.n) + in_tile
        vectors = np.zeros((self.groups, *first.shape, VECTOR_WORDS), np.int64)
        vectors[..., 0] = (group * self.k + first) * strides[0]
        vectors[..., 1] = (group * len(tile) + tile) * self._tile + in_tile * FLOAT
        vectors[..., 3], vectors[..., 4] = address(distances), present
        filters = Filters(self.lanes, len(in_tile), self.groups, self.k)
        table = vectors.reshape(-1, VECTOR_WORDS)
        return _job(filters, table, _cut(elements), elements, distances, partial=True)


@dataclass(frozen=True)
class Mixed(Packing):
    """[block][i][R][S][lanes], for groups of `c` channels in and out that share blocks.

    Vector i holds the weights by which output channel l of a block takes input channel l ^ i; tail lanes are zero.
    """

    lanes: int
    k: int
    c: int
    r: int
    s: int

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return divide(self.k, self.lanes) * self.c * self.r * self.s * self.lanes * FLOAT

    def job(self, strides: tuple[int, ...]) -> Job:
        """As `Packing` says."""
        filters = Filters(self.lanes, 1, 1, self.k)
        places = np.arange(self.r * self.s).reshape(self.r, self.s) * filters.row
        elements = _elements(strides[2:], places, _SPAN)
        lane, i = np.arange(self.lanes), np.arange(self.c)[:, None]
        distances = _distances(lane * strides[0] + (lane % self.c ^ i) * strides[1], self.k)
        panel = places.size * filters.row
        vectors = [filters.table(strides[0], 0, self.c * panel, 0, distances[:, j]) for j in range(self.c)]
        for j, table in enumerate(vectors):
            table[:, 1] += j * panel
        return _job(filters, np.concatenate(vectors), _cut(elements), elements, distances)


@dataclass(frozen=True)
class Transformed(Packing):
    """[group][plane][panel][C][v][lanes of K] of a transform with `singles` planes and `pairs` pairs of planes.

    Pairs are [group][pair][panel][C][2][v][lanes of K]. The transform works in float64 and rounds once.
    """

    filters: Filters
    c: int
    r: int
    s: int
    singles: int
    pairs: int
    transform: MicroRef

    @property
    def size(self) -> int:
        """Bytes of the packed form."""
        return self.filters.groups * self._group

    @property
    def _panel(self) -> int:
        return self.c * self.filters.row

    @property
    def _plane(self) -> int:
        return self.filters.panels * self._panel

    @property
    def _group(self) -> int:
        return (self.singles + 2 * self.pairs) * self._plane

    def job(self, strides: tuple[int, ...]) -> Job:
        """As `Packing` says."""
        filters, scratch = self.filters, self.transform.tile.scratch
        vector = filters.lanes * FLOAT
        taps = self.r * self.s * vector
        most = max(1, min(self.c, _BUFFER // taps, _SCRATCH // scratch if scratch else self.c))
        channels = divide(self.c, divide(self.c, most))  # of pieces about equal: the last overlaps the one before
        places = np.arange(channels * self.r * self.s).reshape(channels, self.r, self.s) * vector
        elements = _elements(strides[1:], places, places.size)
        first = np.minimum(np.arange(divide(self.c, channels)) * channels, self.c - channels)
        pieces = np.empty((len(first), PIECE_WORDS), np.int64)
        pieces[:, 0], pieces[:, 3] = first * strides[1], first * filters.row
        pieces[:, 1], pieces[:, 2] = 0, len(elements.spans)
        distances = _distances(np.arange(filters.lanes) * strides[0], filters.k)
        vectors = filters.table(strides[0], self._group, self._panel, self.singles * self._plane, distances)
        return _job(
            filters,
            vectors,
            pieces,
            elements,
            distances,
            words={"channels": channels, "plane": self._plane},
            buffer=channels * taps,
            scratch=channels * scratch,
            transform=self.transform,
        )


def _cut(elements: _Elements) -> np.ndarray:
    """The table of pieces, each of as many spans as make a worthwhile unit of work."""
    count, longest = len(elements.spans), int(elements.spans[:, 1].max())
    first = np.arange(0, count, max(1, _SPAN // longest))
    pieces = np.zeros((len(first), PIECE_WORDS), np.int64)
    pieces[:, 1] = first
    pieces[:, 2] = np.append(first[1:], count)
    return pieces
