"""Packed weights: the base classes of packed forms, and the tables of the packing kernel.

A form is a frozen value with only the parameters that determine the packed weights. So problems of other sizes,
candidates with other blocks, and solvers that read weights in the same order share one form. Equal forms pack equal
weights to the same bytes.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.steps import Args, MicroRef, Ref, Space, Step, word_of
from cpuconv.kernels.packing.pack import PIECE_WORDS, SPAN_WORDS, VECTOR_WORDS, PackTile, pack_weights
from cpuconv.memory.aligned import aligned
from cpuconv.problem.arrays import address
from cpuconv.problem.integers import divide
from cpuconv.runtime import Program

SPAN = 512  # elements per unit of work
_JOBS = 64  # size of the cache of jobs
_PARALLEL_BYTES = 1 << 18  # packed bytes below which one thread finishes before others have started


@dataclass(frozen=True)
class Filters:
    """Output channels in vectors: `groups` of `k`, each in panels of `v` vectors.

    The last panel of a group overlaps the previous one.
    """

    lanes: int
    v: int
    groups: int
    k: int

    @property
    def vectors(self) -> int:
        """Vectors per group."""
        return divide(self.k, self.lanes)

    @property
    def panels(self) -> int:
        """Panels per group."""
        return divide(self.vectors, self.v)

    @property
    def row(self) -> int:
        """Size of an element of the reduction in a panel, in bytes."""
        return self.v * self.lanes * F32.bytes

    def table(self, filter_step: int, group: int, panel: int, pairs: int, distances: np.ndarray) -> np.ndarray:
        """Make the packing kernel's table of vectors.

        Parameters
        ----------
        filter_step : int
            Byte stride of the filters of the weights.
        group, panel : int
            Byte strides of groups and of panels of the packed form.
        pairs : int
            Byte offset of the pairs of planes in a group.
        distances : numpy.ndarray
            Byte offsets of the filters of a whole vector, and of the last vector of a group.
        """
        number = np.arange(self.panels * self.v)
        in_panel, at = number % self.v, number // self.v
        vector = np.minimum(at * self.v, self.vectors - self.v) + in_panel
        groups = np.arange(self.groups)[:, None]
        table = np.empty((self.groups, self.panels * self.v, VECTOR_WORDS), np.int64)
        table[..., 0] = (groups * self.k + vector * self.lanes) * filter_step
        table[..., 1] = groups * group + at * panel + in_panel * self.lanes * F32.bytes
        table[..., 2] = table[..., 1] + pairs + at * panel
        table[..., 3] = address(distances) + (vector == self.vectors - 1) * distances.strides[0]
        table[..., 4] = np.minimum(self.lanes, self.k - vector * self.lanes)
        return table.reshape(-1, VECTOR_WORDS)


def distances_of(steps: np.ndarray, k: int) -> np.ndarray:
    """Offsets from the first filter, for whole vectors and for the last one of `k` filters: (2, …, lanes)."""
    lanes = steps.shape[-1]
    present = k - (k - 1) // lanes * lanes
    return np.stack([steps, np.where(np.arange(lanes) < present, steps, 0)])


@dataclass(frozen=True)
class _Elements:
    """Elements in memory order: tables of spans and of targets, and the byte stride within a span."""

    spans: np.ndarray
    targets: np.ndarray
    step: int


def elements_of(strides: Sequence[int], targets: np.ndarray, longest: int) -> _Elements:
    """List elements with these byte strides of axes, and the place of each (an array of the same axes).

    Runs are cut into spans of at most `longest` elements.
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
    """Arguments of the packing kernel for given strides and form: all its words but those of one call."""

    lanes: int
    words: dict[str, int]
    kept: tuple[np.ndarray, ...]  # arrays whose addresses are among the words
    buffer: int = 0  # bytes per worker
    scratch: int = 0
    transform: MicroRef | None = None
    partial: bool = False


def job_of(
    filters: Filters, vectors: np.ndarray, pieces: np.ndarray, elements: _Elements, distances: np.ndarray, **more: Any
) -> Job:
    """Make the job that packs vectors of filters piece by piece; `more` are further fields of `Job`, also `words`."""
    words = {
        "units": len(vectors) * len(pieces),
        "v": filters.v,
        "vectors": address(vectors),
        "pieces": address(pieces),
        "pieces_count": len(pieces),
        "spans": address(elements.spans),
        "targets": address(elements.targets),
        "step": elements.step,
        "side_by_side": int(bool((np.diff(distances[0]) == F32.bytes).all())),
        "channels": 0,
        "plane": 0,
        "row": filters.row,
        **more.pop("words", {}),
    }
    return Job(filters.lanes, words, (vectors, pieces, elements.spans, elements.targets, distances), **more)


Room = Callable[[int], np.ndarray]  # allocator of a number of bytes


def room(size: int) -> np.ndarray:
    return aligned(size, np.uint8)


class Packing(abc.ABC):
    """Packed form of weights of one shape."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Size of the packed form, in bytes."""

    @abc.abstractmethod
    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """Pack `weight`, with denormals as zeros.

        Parameters
        ----------
        weight : numpy.ndarray, (K, C/groups, R, S)
            Of the form's type, float32 unless the form documents another, with any strides; read in place.
        threads : int
            Workers that may share the work; the result is bit-identical for any number.
        place : callable
            Allocator of the result: returns uninitialised bytes that start on a cache line.

        Returns
        -------
        numpy.ndarray
            1-D, `size` bytes that start on a cache line.
        """


class TabledPacking(Packing):
    """A float32 form that the packing kernel makes, by tables."""

    @abc.abstractmethod
    def job(self, strides: tuple[int, ...]) -> Job:
        """Make the kernel's arguments for weights of these byte strides."""

    @property
    def is_complete(self) -> bool:
        """Whether the packing kernel writes all of the form."""
        return True

    def step(self, strides: tuple[int, ...], x: Ref, y: Ref, space: Space, threads: int) -> Step:
        """Kernel call that packs weights of these byte strides at run time."""
        job = _jobs(self, strides)
        vectors, pieces, spans, targets, distances = job.kept
        joined = np.concatenate([vectors.ravel(), distances.ravel()])  # vectors have addresses of distances
        moved = address(joined) + vectors.nbytes - address(distances)
        joined[: vectors.size].reshape(vectors.shape)[:, 3] += moved
        tables = {"vectors": joined, "pieces": pieces, "spans": spans, "targets": targets}
        args: Args = {**job.words, **tables, "x": x, "y": y, "transform": job.transform or 0}
        args |= worker_args("buffer", space, job.buffer, threads) | worker_args("scratch", space, job.scratch, threads)
        return Step(pack_weights, PackTile(job.lanes, job.partial), args, int(self.size >= _PARALLEL_BYTES))

    def pack(self, weight: np.ndarray, threads: int = 1, place: Room = room) -> np.ndarray:
        """See `Packing`."""
        job = _jobs(self, weight.strides)
        packed = place(self.size).view(np.float32)
        threads = threads if self.size >= _PARALLEL_BYTES else 1
        space = aligned(threads * (job.buffer + job.scratch), np.uint8)
        kept: list[Any] = [job, weight, packed, space]
        words = {
            **job.words,
            "x": address(weight),
            "y": address(packed),
            "transform": word_of(job.transform, kept) if job.transform else 0,
            "buffer": address(space),
            "buffer_step": job.buffer,
            "scratch": address(space) + threads * job.buffer,
            "scratch_step": job.scratch,
        }
        row = pack_weights.entry(PackTile(job.lanes, job.partial)), pack_weights.pack(words), True
        Program([row], threads, kept).run()
        return packed


@functools.lru_cache(maxsize=_JOBS)
def _jobs(packing: TabledPacking, strides: tuple[int, ...]) -> Job:
    return packing.job(strides)


def pieces_of(elements: _Elements) -> np.ndarray:
    """Make the table of pieces, each with enough spans for a worthwhile unit of work."""
    count, longest = len(elements.spans), int(elements.spans[:, 1].max())
    first = np.arange(0, count, max(1, SPAN // longest))
    pieces = np.zeros((len(first), PIECE_WORDS), np.int64)
    pieces[:, 1] = first
    pieces[:, 2] = np.append(first[1:], count)
    return pieces
