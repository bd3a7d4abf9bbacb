"""Packed forms of weights: the order in which solvers read them, one class per form."""

from __future__ import annotations

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F16, F32, Element, round_to, split_to_bfloat16, to_float32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.steps import MicroRef
from cpuconv.kernels.packing.pack import PIECE_WORDS, VECTOR_WORDS
from cpuconv.kernels.packing.packing import (
    SPAN,
    Filters,
    Job,
    Packing,
    Room,
    TabledPacking,
    distances_of,
    elements_of,
    job_of,
    pieces_of,
    room,
)
from cpuconv.problem.arrays import address
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem

_BUFFER = 8 << 10  # bytes for the taps of a unit's channels
_SCRATCH = 256 << 10  # bytes for the intermediate results of their transforms


@dataclass(frozen=True)
class Panels(TabledPacking):
    """Form [group][panel][row][v][lanes of K], with one row per element of the reduction.

    Rows are [C][R][S], or in blocks of channels [C/block][R][S][block of C], where the last block may be shorter. Rows
    after the last element, up to `rows`, are zero.
    """

    filters: Filters
    c: int
    r: int
    s: int
    block: int
    rows: int

    @classmethod
    def of(cls, problem: ConvProblem, isa: Isa, v: int, planar: bool = False, rows: int = 0) -> Panels:
        """The panels of a problem. Groups that fill whole panels are merged; where blocks do not change the order, rows
        are planar."""
        whole = problem.kg % (v * isa.lanes) == 0
        filters = Filters(isa.lanes, v, *((1, problem.k) if whole else (problem.groups, problem.kg)))
        block = 1 if planar or problem.cg == 1 or problem.r * problem.s == 1 else isa.lanes
        rows = max(rows, problem.cg * problem.r * problem.s)
        return cls(filters, problem.cg, problem.r, problem.s, block, rows)

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.filters.groups * self.filters.panels * self._panel

    @property
    def is_complete(self) -> bool:
        """Whether no rows pad the reduction."""
        return self.rows == self.c * self.r * self.s

    @property
    def _panel(self) -> int:
        return self.rows * self.filters.row

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`."""
        packed = super().pack(weight, threads, place)
        count = self.c * self.r * self.s
        if self.rows > count:
            packed.reshape(-1, self.rows, self.filters.row // F32.bytes)[:, count:] = 0
        return packed

    def job(self, strides: tuple[int, ...]) -> Job:
        """See `TabledPacking`."""
        filters = self.filters
        elements = elements_of(strides[1:], self._order() * filters.row, SPAN)
        distances = distances_of(np.arange(filters.lanes) * strides[0], filters.k)
        vectors = filters.table(strides[0], filters.panels * self._panel, self._panel, 0, distances)
        return job_of(filters, vectors, pieces_of(elements), elements, distances)

    def _order(self) -> np.ndarray:
        """The row of each element."""
        area, whole = self.r * self.s, self.c // self.block * self.block
        rows = np.arange(self.c * area)
        blocks = rows[: whole * area].reshape(-1, area, self.block).swapaxes(1, 2)
        last = rows[whole * area :].reshape(area, -1).T
        return np.concatenate([blocks.ravel(), last.ravel()]).reshape(self.c, self.r, self.s)


@dataclass(frozen=True)
class Rounded(Packing):
    """Another form, with its elements rounded to 16-bit floats."""

    form: Packing
    w: Element = BF16

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.form.size // F32.bytes * self.w.bytes

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; the result has the type `w`."""
        packed = place(self.size).view(self.w.dtype)
        packed[:] = round_to(self.form.pack(weight, threads), self.w)
        return packed


@dataclass(frozen=True)
class Widened(Packing):
    """Another form, of weights that are 16-bit floats or integers before packing."""

    form: Packing
    w: Element = BF16

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; `weight` has the type `w`."""
        return self.form.pack(to_float32(weight, self.w), threads, place)


@dataclass(frozen=True)
class RoundedToHalf(Packing):
    """Another form, of float32, rounded to float16."""

    form: Packing

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.form.size // F32.bytes * F16.bytes

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; the result is uint8."""
        packed = place(self.size)
        packed.view(F16.dtype)[:] = round_to(self.form.pack(weight, threads).view(F32.dtype), F16)
        return packed


@dataclass(frozen=True)
class PartPanels(Packing):
    """Another form, of bfloat16 weights, with each of its segments in every bfloat16 part of float32 weights.

    Attributes
    ----------
    form : Packing
    parts : int
        Parts of a number; the largest is the first of a segment.
    segment : int
        Bytes of a segment of one part.
    """

    form: Packing
    parts: int
    segment: int

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.parts * self.form.size

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; the result is float32 in name, pairs of bfloat16."""
        packed = place(self.size)
        target = packed.reshape(-1, self.parts, self.segment)
        for part, each in enumerate(split_to_bfloat16(weight, self.parts)):
            target[:, part] = self.form.pack(each, threads).reshape(-1, self.segment)
        return packed.view(F32.dtype)


@dataclass(frozen=True)
class SlicedPanels(Packing):
    """Forms of slices of `channels` input channels, one after another."""

    forms: tuple[Packing, ...]
    channels: int

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return sum(form.size for form in self.forms)

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; the result is float32 in name."""
        packed, end = place(self.size), 0
        for at, form in enumerate(self.forms):
            part = weight[:, at * self.channels : (at + 1) * self.channels]
            start, end = end, end + form.size
            packed[start:end] = form.pack(part, threads).view(np.uint8)
        return packed.view(F32.dtype)


@dataclass(frozen=True)
class Scalars(TabledPacking):
    """Form [group][tile][C][R][S][n of K], for tiles that broadcast weights.

    There are `groups` of `k` output channels; the last tile of `n` overlaps the previous one.
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
        """Size of the packed form, in bytes."""
        return self.groups * divide(self.k, self.n) * self._tile

    @property
    def _tile(self) -> int:
        return self.c * self.r * self.s * self.n * F32.bytes

    def job(self, strides: tuple[int, ...]) -> Job:
        """See `TabledPacking`; the last vector of a tile overlaps the previous one."""
        places = np.arange(self.c * self.r * self.s).reshape(self.c, self.r, self.s) * (self.n * F32.bytes)
        elements = elements_of(strides[1:], places, SPAN)
        present = min(self.lanes, self.n)
        steps = np.arange(self.lanes) * strides[0]
        distances = np.where(np.arange(self.lanes) < present, steps, 0)[None]
        in_tile = np.minimum(np.arange(divide(self.n, self.lanes)) * self.lanes, self.n - present)
        tile = np.arange(divide(self.k, self.n))[:, None]
        group = np.arange(self.groups)[:, None, None]
        first = np.minimum(tile * self.n, self.k - self.n) + in_tile
        vectors = np.zeros((self.groups, *first.shape, VECTOR_WORDS), np.int64)
        vectors[..., 0] = (group * self.k + first) * strides[0]
        vectors[..., 1] = (group * len(tile) + tile) * self._tile + in_tile * F32.bytes
        vectors[..., 3], vectors[..., 4] = address(distances), present
        filters = Filters(self.lanes, len(in_tile), self.groups, self.k)
        table = vectors.reshape(-1, VECTOR_WORDS)
        return job_of(filters, table, pieces_of(elements), elements, distances, partial=True)


@dataclass(frozen=True)
class Mixed(TabledPacking):
    """Form [block][i][R][S][lanes], for groups of `c` input and output channels that share blocks.

    Vector i has, for output channel l of a block, the weight of input channel l ^ i; unused lanes are zero.
    """

    lanes: int
    k: int
    c: int
    r: int
    s: int

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return divide(self.k, self.lanes) * self.c * self.r * self.s * self.lanes * F32.bytes

    def job(self, strides: tuple[int, ...]) -> Job:
        """See `TabledPacking`."""
        filters = Filters(self.lanes, 1, 1, self.k)
        places = np.arange(self.r * self.s).reshape(self.r, self.s) * filters.row
        elements = elements_of(strides[2:], places, SPAN)
        lane, i = np.arange(self.lanes), np.arange(self.c)[:, None]
        distances = distances_of(lane * strides[0] + (lane % self.c ^ i) * strides[1], self.k)
        panel = places.size * filters.row
        vectors = [filters.table(strides[0], 0, self.c * panel, 0, distances[:, j]) for j in range(self.c)]
        for j, table in enumerate(vectors):
            table[:, 1] += j * panel
        return job_of(filters, np.concatenate(vectors), pieces_of(elements), elements, distances)


@dataclass(frozen=True)
class Transformed(TabledPacking):
    """Form [group][plane][panel][C][v][lanes of K] of a transform with `singles` planes and `pairs` pairs of planes.

    Pairs are [group][pair][panel][C][2][v][lanes of K]. The transform computes in float64 and rounds once.
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
        """Size of the packed form, in bytes."""
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

    @property
    def _taps(self) -> int:
        return self.r * self.s * self.filters.lanes * F32.bytes

    def job(self, strides: tuple[int, ...]) -> Job:
        """See `TabledPacking`."""
        scratch = self.transform.tile.scratch
        most = max(1, min(self.c, _BUFFER // self._taps, _SCRATCH // scratch if scratch else self.c))
        return self._job(strides, divide(self.c, divide(self.c, most)))  # pieces of about equal size; the last overlaps

    def _job(self, strides: tuple[int, ...], channels: int, apart: int = 1) -> Job:
        """Make the job for pieces of `channels` channels; blocks of channels or filters are `apart` apart."""
        filters, taps, scratch = self.filters, self._taps, self.transform.tile.scratch
        vector = filters.lanes * F32.bytes
        places = np.arange(channels * self.r * self.s).reshape(channels, self.r, self.s) * vector
        elements = elements_of(strides[1:], places, places.size)
        first = np.minimum(np.arange(divide(self.c, channels)) * channels, self.c - channels)
        pieces = np.empty((len(first), PIECE_WORDS), np.int64)
        pieces[:, 0], pieces[:, 3] = apart * first * strides[1], first * filters.row
        pieces[:, 1], pieces[:, 2] = 0, len(elements.spans)
        distances = distances_of(np.arange(filters.lanes) * strides[0], filters.k)
        vectors = filters.table(apart * strides[0], self._group, self._panel, self.singles * self._plane, distances)
        return job_of(
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


@dataclass(frozen=True)
class TransformedParts(Packing):
    """Form [group][plane][panel][block of C][part][pair of C][v][lanes of K][2] of bfloat16 parts of transforms.

    Attributes
    ----------
    form : Transformed
        Form of whole blocks of channels.
    parts : int
        Parts of a number, the largest first.
    block : int
        Channels of a block.
    """

    form: Transformed
    parts: int
    block: int

    @property
    def size(self) -> int:
        """Size of the packed form, in bytes."""
        return self.form.size // F32.bytes * BF16.bytes * self.parts

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`; the result is float32 in name, pairs of bfloat16."""
        filters, packed = self.form.filters, place(self.size)
        given = self.form.pack(weight, threads).reshape(-1, self.block // 2, 2, filters.v * filters.lanes)
        target = packed.view(BF16.dtype).reshape(len(given), self.parts, self.block // 2, -1, 2)
        for part, each in enumerate(split_to_bfloat16(given, self.parts)):
            target[:, part] = each.swapaxes(2, 3)
        return packed.view(F32.dtype)


@dataclass(frozen=True)
class BlockPairs(Transformed):
    """`Transformed` of 1x1 weights (2·K, 2·C, 1, 1), whose taps [2 of K][2 of C] are pairs of adjacent channel blocks.

    Blocks have as many channels as vectors have lanes, and `c` is a multiple of it.
    """

    def job(self, strides: tuple[int, ...]) -> Job:
        """See `TabledPacking`."""
        lanes, (filters, channels) = self.filters.lanes, strides[:2]
        return self._job((filters, channels, lanes * filters, lanes * channels), lanes, 2)
