"""Model of work distribution: the units of a kernel call, their cost, and the time of any number of workers.

A unit is a place (pixels or tiles of an image and group) and a chunk (panels of weights); the chunk index varies
fastest. A worker prepares a place, by packing or transforming its input, before its first chunk there. `LOADS` has the
numbering of units by driver, with the names of the drivers' arguments. Workers are simulated as in
`cpuconv.runtime.work_stealing`: each begins with its own range of parts and then steals parts from others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpuconv.elements import F32
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import MicroRef, Step
from cpuconv.problem.integers import divide

_MANY = 1 << 10  # units of an unknown driver
_TRANSFORM = 4.0  # cycles per vector of a transformed component: a load, arithmetic, a store


@dataclass(frozen=True)
class Load:
    """Units of a kernel call, with their cost in cycles of one core and in bytes.

    Attributes
    ----------
    places, chunks : numpy.ndarray
        Relative amounts; a unit takes their product times `cycles`.
    cycles : float
    preparing : numpy.ndarray
        Cycles to prepare each place, for each worker that works on it.
    read, weights : float
        Bytes of all places, and of all chunks; a worker reads those that it works on.
    """

    places: np.ndarray
    chunks: np.ndarray
    cycles: float = 1.0
    preparing: np.ndarray | None = None
    read: float = 0.0
    weights: float = 0.0

    @property
    def units(self) -> int:
        """Number of units."""
        return self.places.size * self.chunks.size

    @property
    def total(self) -> float:
        """Cycles of one worker that does all units."""
        prepared = 0.0 if self.preparing is None else float(self.preparing.sum())
        return float(self.places.sum() * self.chunks.sum()) * self.cycles + prepared


@dataclass(frozen=True)
class Shared:
    """Result of a simulation: a load on a number of workers.

    Attributes
    ----------
    slowest : float
        Cycles of the worker that ends last.
    total : float
        Cycles of all workers.
    bytes : float
        Bytes that workers read: inputs of their places and weights of their chunks, once for each worker.
    ends : tuple[float, ...]
        Time in cycles when each worker ends and can start concurrent work.
    """

    slowest: float
    total: float
    bytes: float
    ends: tuple[float, ...]

    @property
    def share(self) -> float:
        """Share of the cycles that the last worker has."""
        return self.slowest / self.total if self.total else 1.0


def cut(count: int, parts: int) -> np.ndarray:
    """Return the sizes of `parts` parts of a count, as all drivers divide it."""
    ends = count * np.arange(parts + 1) // max(1, parts)
    return np.diff(ends)


def shared(load: Load, workers: int, each: int, starts: Sequence[float] = (), owner: int = 0) -> Shared:
    """Simulate a load on `workers` workers, each starting with `each` parts; 0: the worker `owner` does all of it.

    Workers begin at `starts`, in cycles, after concurrent work; empty: all at 0.
    """
    begun = list(starts) or [0.0] * workers
    if not each or workers == 1:
        begun[owner] += load.total
        return Shared(max(begun), load.total, load.read + load.weights, tuple(begun))
    parts = each * workers
    edges = (load.units * np.arange(parts + 1) // parts).tolist()
    places, chunks = load.places.tolist(), load.chunks.tolist()
    preparing = [0.0] * len(places) if load.preparing is None else load.preparing.tolist()
    runs = [[parts * worker // workers, parts * (worker + 1) // workers] for worker in range(workers)]
    last = [-1] * workers
    came: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in range(workers)]
    clock = [(start, worker) for worker, start in enumerate(begun)]
    heapq.heapify(clock)
    total = 0.0
    while clock:
        start, worker = heapq.heappop(clock)
        part = _take(runs, worker)
        if part is None:
            begun[worker] = start
            continue
        taken = 0.0
        for unit in range(edges[part], edges[part + 1]):
            place, chunk = divmod(unit, len(chunks))
            taken += places[place] * chunks[chunk] * load.cycles
            if last[worker] != place:
                taken += preparing[place]
                last[worker] = place
            came[worker][0].add(place)
            came[worker][1].add(chunk)
        total += taken
        heapq.heappush(clock, (start + taken, worker))
    read = load.read / max(1, len(places)) * sum(len(each) for each, _ in came)
    weights = load.weights / max(1, len(chunks)) * sum(len(each) for _, each in came)
    return Shared(max(begun), total, read + weights, tuple(begun))


def _take(runs: list[list[int]], worker: int) -> int | None:
    """Take the first part of the worker's own range, or the last part of the next range that is not empty."""
    for turn in range(len(runs)):
        run = runs[(worker + turn) % len(runs)]
        if run[0] < run[1]:
            run[turn > 0] += 1 if turn == 0 else -1
            return run[0] - 1 if turn == 0 else run[1]
    return None


# --- the drivers' units ---------------------------------------------------------------------------------------------


def load(step: Step) -> Load:
    """Return the units of a step."""
    kind = step.kernel.name.rpartition(".")[2]
    return LOADS.get(kind, _alike)(step)


def _moving(size: Any) -> Any:
    """Return the cycles to read and write `size` bytes in L2."""
    return 2 * size / current().l2_rate


def _gemm(step: Step, *names: str) -> Any:
    """Return the tile of the first of these micro-kernels that the step has."""
    reference = next(step.args[name] for name in names if isinstance(step.args[name], MicroRef))
    assert isinstance(reference, MicroRef)
    return reference.tile


def _numbers(step: Step, names: str) -> list[int]:
    return [int(step.args[name]) for name in names.split()]  # type: ignore[arg-type]


def _convolve(step: Step) -> Load:
    names = "batch row_blocks column_blocks row_tiles column_tiles chunks panels groups panel_bytes tile_height"
    batch, row_blocks, column_blocks, rows, columns, chunks, panels, groups, panel, height = _numbers(step, names)
    band, in_height, out_height, stride, reach = _numbers(step, "band_step in_height height stride_h reach")
    edge, inner, inner_end = _numbers(step, "pad_top inner_tiles inner_tiles_end")
    tile = _gemm(step, "gemm")
    reduction = panel / (tile.v * tile.lanes * F32.bytes)
    high = cut(rows, row_blocks)
    places = np.tile(np.outer(high, cut(columns, column_blocks)).ravel(), batch)
    first = np.minimum(np.cumsum(high) - high, rows) * height * stride - edge
    last = np.minimum(np.cumsum(high) * height, out_height) * stride + reach - stride - edge
    outer = 1 - (inner_end - inner) / max(1, columns) * ((first >= 0) & (last <= in_height))
    packing = _moving(band * high / max(1, high.max()) * outer)  # for the columns that are packed
    preparing = np.tile(np.repeat(packing, column_blocks), batch) if band else None
    cycles = tile.v * tile.rows * tile.cols * reduction / current().fma_rate
    read = batch * groups * rows * height * stride * columns * tile.cols * F32.bytes * reduction / max(1, reach * reach)
    return Load(places, cut(panels * groups, chunks), cycles, preparing, read, panels * groups * panel)


def _tiled(step: Step) -> Load:
    names = "groups blocks chunks total panels planes singles panel_bytes tile_vectors tile_columns channel_blocks"
    groups, blocks, chunks, total, panels, planes, singles, panel, v, n, channels = _numbers(step, names)
    tile = _gemm(step, "gemm", "pair_gemm")
    counts = np.tile(cut(total, blocks), groups)
    products = singles + 2 * (planes - singles)  # real multiplications: a complex pair takes four
    reduction = panel / (v * tile.lanes * F32.bytes)
    cycles = products * v * reduction / current().fma_rate + planes * v * _TRANSFORM
    preparing = counts * channels * planes * _TRANSFORM
    wide = divide(counts.max(), n) * n if counts.size else 0
    places = np.minimum(-(-counts // n) * n, wide)
    vector = tile.lanes * F32.bytes
    return Load(
        places, cut(panels, chunks), cycles, preparing, groups * total * channels * planes * vector / 2,
        groups * planes * panels * panel,
    )  # fmt: skip


def _im2col(step: Step) -> Load:
    names = "batch groups blocks tiles chunks panels depth_padded tile_vectors tile_columns panel_bytes columns_step"
    batch, groups, blocks, tiles, chunks, panels, depth, v, n, panel, packed = _numbers(step, names)
    amounts = np.tile(cut(tiles, blocks), batch * groups)
    size = depth * n * F32.bytes
    preparing = _moving(amounts * size) if packed else None
    cycles = v * n * depth / current().fma_rate
    read = batch * groups * tiles * size / 2
    return Load(amounts, cut(panels, chunks), cycles, preparing, read, groups * panels * panel)


def _planar(step: Step) -> Load:
    names = "batch groups panels panel_pixels pixels chunks tiles tile_bytes columns_step"
    batch, groups, panels, wide, pixels, chunks, tiles, weights, packed = _numbers(step, names)
    tile = _gemm(step, "gemm_last")
    depth = weights / (tile.cols * F32.bytes)
    widths = np.full(panels, wide)
    widths[-1] = pixels - wide * (panels - 1)
    amounts = np.tile(-(-widths // tile.lanes), batch * groups)
    size = depth * tile.lanes * F32.bytes
    preparing = _moving(amounts * size) if packed else None
    cycles = tile.cols * depth / current().fma_rate
    return Load(amounts, cut(tiles, chunks), cycles, preparing, amounts.sum() * size, groups * tiles * weights)


def _lanewise(step: Step) -> Load:
    batch, blocks, row_blocks, rows, columns, band = _numbers(
        step, "batch blocks row_blocks row_tiles column_tiles band_step"
    )
    high = cut(rows, row_blocks)
    tile = _gemm(step, "strip")
    cycles = tile.rows * tile.cols * tile.r * tile.s * tile.mix / current().fma_rate
    preparing = np.tile(_moving(band * high / max(1, high.max())), batch * blocks) if band else None
    pixels = columns * tile.rows * tile.cols * tile.lanes * F32.bytes
    read = batch * blocks * rows * pixels * tile.stride[0] * tile.stride[1]
    return Load(np.tile(high * columns, batch * blocks), np.ones(1), cycles, preparing, read)


def _matmul(step: Step) -> Load:
    items, panels, chunks, tiles, depth = _numbers(step, "items panels chunks tiles depth")
    packed, columns, size = _numbers(step, "panel_step panel_columns a_tile")
    amounts = np.ones(items * panels)
    preparing = _moving(amounts * depth * columns * F32.bytes) if packed else None
    cycles = size / F32.bytes * columns / current().lanes / current().fma_rate
    read = items * depth * columns * panels * F32.bytes
    return Load(amounts, cut(tiles, chunks), cycles, preparing, read, tiles * size)


def _reorder(step: Step) -> Load:
    units, chunk = _numbers(step, "units chunk")
    size = chunk * step.tile.lanes * F32.bytes
    return Load(np.ones(units), np.ones(1), _moving(size), None, units * size)


def _alike(step: Step) -> Load:
    """Return units with equal cost; the total is unknown."""
    names = _UNITS.get(step.kernel.name.rpartition(".")[2], ("units",))
    if not all(name in step.args for name in names):
        return Load(np.full(_MANY, 1 / _MANY), np.ones(1))
    units = int(np.prod(_numbers(step, " ".join(names))))
    return Load(np.full(units, 1 / max(1, units)), np.ones(1))


_UNITS: dict[str, Sequence[str]] = {
    "neighbours": ("images", "chunks", "planes"),
    "lines": ("images", "rows", "blocks"),
    "taps": ("batch", "blocks", "row_blocks"),
}
LOADS: dict[str, Callable[[Step], Load]] = {
    "convolve": _convolve,
    "tiled": _tiled,
    "im2col": _im2col,
    "planar": _planar,
    "lanewise": _lanewise,
    "matmul": _matmul,
    "reorder": _reorder,
}
