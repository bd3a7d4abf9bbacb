"""Measurement of this machine's roofs: peaks of multiply instructions, bandwidth per memory level, vector stores."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autotune.machine.device import fingerprint
from cpuconv.conv.least_work import DTYPES
from cpuconv.elements import BF16, F16, F32, S8, S16, U8, Element
from cpuconv.isa import Isa, current
from cpuconv.isa.dots import AMX, TILE_ROWS, X86, TileDot
from cpuconv.isa.features import amx_permitted, has_feature
from cpuconv.kernels.emit.product import TABLE, WORD, usable
from cpuconv.kernels.streams.peaks import (
    TILE_BYTES,
    MatrixTile,
    PeakTile,
    configuration,
    matrix_peak,
    product_peak,
)
from cpuconv.kernels.streams.probe import ProbeTile, fma_peak, read_sum, touch, write_all
from cpuconv.memory.aligned import aligned
from cpuconv.runtime import Kernel, Program
from cpuconv.runtime.threads import check_threads, usable_threads

MEASURED = (BF16, F16, U8, S8, S16)  # element types whose multiply-adds are roofs, in addition to float32
SAMPLE_SECONDS = 0.01
LEVEL_SECONDS = 0.12  # duration of all samples of one figure
_MIN_SAMPLES = 4
_FIRST_TURNS = 1000  # turns of the first runs, which measure the time of a turn
_MIN_MEMORY, _MAX_MEMORY = 64 << 20, 512 << 20
_OVER_L2 = 3  # min. share of L3 per worker as a multiple of L2, so that L2 serves little of it
_OVER_CACHE = 4  # memory size for DRAM reads as a multiple of the last cache
_PAGE = 4096


def probe(threads: int) -> Iterator[tuple[str, float]]:
    """Measure the peaks of `threads` workers together: yields each figure with its name, in about 2 s.

    Returns
    -------
    iterator of (str, float)
        `<dtype>_gflops` of each data type that kernels compute in, with the fastest instruction, and
        `<product>_gflops` of each multiply instruction of this CPU, such as vpdpbusd; `l1_gbs`, `l2_gbs`, `l3_gbs` and
        `dram_gbs` in GB/s of reads; `store_gbs` of writes within L1. Levels that the machine lacks are left out. So is
        an L3 too small for each worker to get a share well above its L2.

    Raises
    ------
    ArgumentTypeError, ArgumentError
        `threads` is not an integer, or not from 1 to the cores that this process may use.
    """
    return _figures(current(), usable_threads(check_threads(threads)))


def _figures(isa: Isa, threads: int) -> Iterator[tuple[str, float]]:
    yield f"{DTYPES[F32]}_gflops", (fma := _fma_gflops(isa, threads))
    best = dict.fromkeys((DTYPES[element] for element in MEASURED), 0.0)
    best |= {DTYPES[BF16]: fma, DTYPES[F16]: fma}  # float32 FMA on widened values
    for name, elements, gflops in _products(isa, threads):
        yield f"{name}_gflops", gflops
        best |= {DTYPES[element]: max(gflops, best[DTYPES[element]]) for element in elements}
    for dtype, gflops in best.items():
        yield f"{dtype}_gflops", gflops
    yield from _bandwidths(isa, threads, level_sizes(dict(fingerprint().caches), threads))
    yield "store_gbs", _store_gbs(isa, threads)


def fma_tile(isa: Isa) -> ProbeTile:
    """Return a tile with enough chains to fill the FMA units, and registers left for the two operands."""
    return ProbeTile(isa.lanes, chains=isa.registers * 3 // 4, unroll=4)


def read_tile(isa: Isa) -> ProbeTile:
    """Return a tile with enough chains to hide the latency of additions; 8 more registers are free for loads."""
    return ProbeTile(isa.lanes, chains=8, unroll=2)


def level_sizes(caches: Mapping[str, int], threads: int) -> dict[str, int]:
    """Return the bytes that each worker reads per level, by the figure's name; `caches` as in a fingerprint."""
    sizes = {f"{level.lower()[:2]}_gbs": caches[level] // 2 for level in ("L1d", "L2") if caches.get(level)}
    if last := caches.get("L3"):
        share = max(last // 2 // threads, _OVER_L2 * caches.get("L2", 0))
        if share * threads <= last:
            sizes["l3_gbs"] = share
    memory = min(max(_OVER_CACHE * max(caches.values(), default=0), _MIN_MEMORY), _MAX_MEMORY)
    return sizes | {"dram_gbs": memory // threads}


def _fma_gflops(isa: Isa, threads: int) -> float:
    tile = fma_tile(isa)
    seeds = np.ones((tile.chains + 2, isa.lanes), np.float32)
    seeds[: tile.chains] += np.arange(tile.chains, dtype=np.float32)[:, None]  # all chains differ
    sums = aligned((threads, _PAGE // F32.bytes))
    words = {"seeds": seeds.ctypes.data, "y": sums.ctypes.data, "y_step": _PAGE}
    seconds = _seconds_a_turn(fma_peak, tile, words, threads)
    return threads * 2 * isa.lanes * tile.chains * tile.unroll / seconds * 1e-9


def measured_products(isa: Isa) -> dict[str, tuple[tuple[Element, ...], PeakTile]]:
    """Return element types and tiles of this CPU's multiply instructions except FMA, by the figure's name.

    x86 instructions that no kernel uses are included.
    """
    chains = isa.registers * 3 // 4  # as in `fma_tile`
    able = [product for product in TABLE if product.packed != F32 and usable(isa, product)]
    found: dict[str, tuple[tuple[Element, ...], PeakTile]] = {}
    for product in able:
        elements = (product.x,) if product.packed in (U8, S8, BF16, F16) else (product.x, product.packed)
        tile = PeakTile(isa.lanes, chains, product.name, WORD // product.x.bytes // product.cuts)
        found[product.instruction or product.name] = elements, tile
    for dot in isa.dots:
        wide = dot.x in MEASURED and dot.sum.bytes == WORD
        if dot.machine == X86 and wide and dot.name not in found and has_feature(dot.feature):
            found[dot.name] = (dot.x,), PeakTile(isa.lanes, chains, dot.intrinsic, dot.group)
    return found


def matrix_tile(isa: Isa, dot: TileDot) -> MatrixTile:
    """Return a tile with multiplications into all accumulators, in several steps."""
    return MatrixTile(isa.lanes, dot.name, TILE_ROWS * TILE_ROWS * dot.macs, 4)


def measured_matrices() -> list[TileDot]:
    """Return AMX's instructions, if the system permits their use."""
    return [dot for dot in AMX if has_feature(dot.feature)] if amx_permitted() else []


def _products(isa: Isa, threads: int) -> Iterator[tuple[str, tuple[Element, ...], float]]:
    """Yield (name, elements, GFLOP/s) of every instruction; a multiply-add, also of integers, is two operations."""
    sums = aligned((threads, _PAGE // F32.bytes))
    target = {"y": sums.ctypes.data, "y_step": _PAGE}
    for name, (elements, tile) in measured_products(isa).items():
        seeds = np.zeros((tile.chains + 2, isa.lanes), np.uint32)
        seconds = _seconds_a_turn(product_peak, tile, {"seeds": seeds.ctypes.data, **target}, threads)
        yield name, elements, threads * 2 * tile.macs / seconds * 1e-9
    for dot in measured_matrices():
        matrix = matrix_tile(isa, dot)
        shape, operands = configuration(), aligned(2 * TILE_BYTES // F32.bytes)
        operands[:] = 0
        words = {"configuration": shape.ctypes.data, "operands": operands.ctypes.data, **target}
        yield (
            dot.name,
            (dot.x,),
            threads * 2 * matrix.macs / _seconds_a_turn(matrix_peak, matrix, words, threads) * 1e-9,
        )


def _bandwidths(isa: Isa, threads: int, sizes: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    tile = read_tile(isa)
    step = -(-max(sizes.values()) // _PAGE) * _PAGE
    buffer, sums = aligned((threads, step // F32.bytes)), aligned((threads, _PAGE // F32.bytes))
    words = {"x": buffer.ctypes.data, "x_step": step}
    _program(touch, tile, words | {"size": step}, threads).run()
    words |= {"y": sums.ctypes.data, "y_step": _PAGE}
    for name, size in sizes.items():
        passed = max(1, size // tile.step)  # turns that read the whole size
        seconds = _seconds_a_turn(read_sum, tile, words | {"size": passed * tile.step}, threads, passed)
        yield name, threads * tile.step / seconds * 1e-9


def _store_gbs(isa: Isa, threads: int) -> float:
    tile = read_tile(isa)
    buffer, seed = aligned((threads, _PAGE // F32.bytes)), aligned(isa.lanes)
    buffer[:], seed[:] = 0, 1
    size = _PAGE // tile.step * tile.step
    words = {"y": buffer.ctypes.data, "y_step": _PAGE, "size": size, "seed": seed.ctypes.data}
    return threads * tile.step / _seconds_a_turn(write_all, tile, words, threads) * 1e-9


def _seconds_a_turn(kernel: Kernel, tile: Any, words: dict[str, int], threads: int, multiple: int = 1) -> float:
    """Return the shortest time of a turn in seconds, over samples whose turns are a multiple of `multiple`.

    The number of turns per sample is found on one thread, as the first launches of a pool are not representative.
    """
    turns = -(-_FIRST_TURNS // multiple) * multiple
    while (seconds := _least_seconds(_program(kernel, tile, words | {"turns": turns}, 1), 0)) < SAMPLE_SECONDS / 10:
        turns *= 4
    turns = max(1, round(SAMPLE_SECONDS * turns / seconds / multiple)) * multiple
    return _least_seconds(_program(kernel, tile, words | {"turns": turns}, threads), LEVEL_SECONDS) / turns


def _program(kernel: Kernel, tile: Any, words: dict[str, int], threads: int) -> Program:
    return Program([(kernel.entry(tile), kernel.pack(words), 1)], threads)


def _least_seconds(program: Program, seconds: float) -> float:
    """Return the shortest time of some runs, repeated for at least `seconds`."""
    clock = time.perf_counter
    begun = clock()
    times: list[float] = []
    while len(times) < _MIN_SAMPLES or clock() - begun < seconds:
        start = clock()
        program.run()
        times.append(clock() - start)
    return min(times)
