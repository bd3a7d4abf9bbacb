"""Micro-kernels of cpuconv, bound to data in a known cache level and timed alone."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.steps import MicroRef, Operand, Operands, Ref, Space
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.products.tiling import fits
from cpuconv.kernels.streams.probe import fma_peak
from cpuconv.kernels.transforms.winograd import WinogradTransform, winograd_in, winograd_out
from cpuconv.kernels.windows.depthwise_tile import lane_strip
from cpuconv.memory.aligned import aligned
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.solvers.shared import blocked, winograd_tiles
from cpuconv.solvers.shared.base import contiguous
from cpuconv.solvers.shared.lanes import lane_tiles, lanewise
from cpuconv.tuning.probes import fma_tile

L1_SHARE, L2_SHARE = 0.75, 0.5  # shares of the cache for operands that a tile rereads
_STRIP = 16  # tiles per call, all on the same data
_TURNS = 10_000  # turns of the FMA chains per call, so that the launch does not count
DEPTHWISE = ((3, 1), (3, 2), (5, 1), (7, 1))  # kernel, stride
_PLANE = 56  # side of the plane, in pixels, for depthwise tiles
_DEPTHWISE_TILES = 3  # tiles per depthwise kernel


@dataclass
class Loop:
    """A loop to time: `run(times)`.

    Attributes
    ----------
    flops, vectors, tiles : float
        Operations, moved vectors and computed tiles per repetition.
    case : str
        Distinguishes loops of one tile: the cache level of the operands.
    seconds : float
        Shortest time of one tile so far.
    """

    tile: str
    case: str
    run: Callable[[int], object]
    tiles: int = 1
    flops: int = 0
    vectors: int = 0
    seconds: float = math.inf
    _times: int = 1

    def sample(self, least: float) -> None:
        """Run for at least `least` seconds, doubling the repetitions until then; store the shortest time."""
        while True:
            start = time.perf_counter()
            self.run(self._times)
            passed = time.perf_counter() - start
            if passed >= least:
                self.seconds = min(self.seconds, passed / self._times / self.tiles)
                return
            self._times *= 2


def time_all(loops: Sequence[Loop], rounds: int, least: float, progress: Callable[[range], Iterable[int]]) -> None:
    """Sample every loop in turn, `rounds` times, so that a change of the clock affects all of them."""
    for _ in progress(range(rounds)):
        for loop in loops:
            loop.sample(least)


def peak_loop(isa: Isa) -> Loop:
    """Make the loop of the FMA peak: chains of FMAs in registers."""
    tile = fma_tile(isa)
    seeds, sums = _data(tile.chains + 2, isa.lanes), _data(isa.lanes)
    words = {"turns": _TURNS, "seeds": seeds.ctypes.data, "y": sums.ctypes.data, "y_step": 0}
    program = Program([(fma_peak.entry(tile), fma_peak.pack(words), 0)], 1)

    def run(times: int, keep: object = (seeds, sums)) -> None:
        for _ in range(times):
            program.run()

    return Loop("FMA", "registers", run, flops=2 * isa.lanes * tile.chains * tile.unroll * _TURNS)


def gemm_loops(isa: Isa) -> Iterator[tuple[str, Callable[[], list[Loop]]]]:
    """Yield every GEMM tile of the instruction set, named `v`x`pixels`, with a function that makes its loops."""
    for v, most in enumerate(isa.pixels, 1):
        for n in range(1, most + 1):
            if fits(isa, v, n):
                yield f"{v}x{n}", functools.partial(_gemm, isa, v, n)


def _gemm(isa: Isa, v: int, n: int) -> list[Loop]:
    """Make two loops: weights and pixels in L1; weights streaming from L2, with the pixels of one segment."""
    lanes = isa.lanes
    weight, pixels = v * lanes * F32.bytes, n * F32.bytes  # bytes per scalar of the reduction
    depths = {"L1": L1_SHARE * machine().l1 / (weight + pixels), "L2": L2_SHARE * machine().l2 / weight}
    made = []
    for case, scalars in depths.items():
        tile = GemmTile(lanes, v, 1, n, unroll=lanes, xs=lanes, ys=lanes, stream=case == "L2", has_epilogue=False)
        segments = max(1, int(scalars) // lanes)
        x, w, y = _data(segments, n, lanes), _data(segments, lanes, v, lanes), _data(v, n, lanes)
        table = np.arange(segments, dtype=np.int64) * (pixels * lanes if case == "L1" else 0)
        words: dict[str, Any] = {
            "x": x,
            "table": table,
            "segments": segments,
            "w": w,
            "y": y,
            "yvec": n * lanes * F32.bytes,
        }
        words |= {"last": _STRIP, "width": n}
        words = dict.fromkeys(gemm_strip.words, 0) | words
        run = _bound(gemm_strip, tile, words)
        made.append(Loop(f"{v}x{n}", case, run, _STRIP, flops=2 * v * lanes * n * segments * lanes))
    return made


def winograd_loops(isa: Isa) -> Iterator[tuple[str, Callable[[], list[Loop]]]]:
    """Yield the transforms of a tile of one channel block for 3x3 kernels, named as in F(4,3)."""
    for a in sorted(winograd_tiles.POINTS):
        if 3 < a <= winograd_tiles.LARGEST[True]:
            yield f"F({a - 2},3)", functools.partial(_winograd, isa, a - 2)


def _winograd(isa: Isa, m: int) -> list[Loop]:
    """Make the loops of the input and output transforms, with tile and planes in L1."""
    at, _, bt = (tuple(map(tuple, matrix.tolist())) for matrix in winograd_tiles.matrices(m, 3))
    a, pixel = len(bt), isa.lanes * F32.bytes
    spatial, planes, bias = _data(a, a, isa.lanes), _data(a * a, isa.lanes), _data(isa.lanes)
    shared: dict[str, Any] = {"pixel": pixel, "plane": pixel, "scratch": 0}
    forward = shared | {"x": spatial, "line": a * pixel, "v": planes}
    back = shared | {"m": planes, "y": spatial, "line": m * pixel, "bias": bias, "residual": 0}
    return [
        Loop(f"F({m},3)", case, _bound(kernel, WinogradTransform(isa.lanes, matrix, matrix), words), vectors=vectors)
        for case, kernel, matrix, words, vectors in (
            ("in", winograd_in, bt, forward, 2 * a * a),
            ("out", winograd_out, at, back, a * a + m * m),
        )
    ]


def depthwise_loops(isa: Isa) -> Iterator[tuple[str, Callable[[], list[Loop]]]]:
    """Yield the cost model's best tiles of a few depthwise kernels, named kernel, stride, rows x columns."""
    layout = blocked.layout(isa)
    for r, stride in DEPTHWISE:
        problem = ConvProblem(
            1, isa.lanes, _PLANE, _PLANE, isa.lanes, r, r, (stride, stride), (r // 2,) * 4,
            groups=isa.lanes, in_layout=layout, out_layout=layout,
        )  # fmt: skip
        for shape in lanewise.shapes(problem, isa, mix=1, most=_DEPTHWISE_TILES):
            name = f"{r}x{r} s{stride} {shape.rows}x{shape.cols}" + (" held" if shape.held else "")
            yield name, functools.partial(_depthwise, isa, problem, shape, name)


def _depthwise(isa: Isa, problem: ConvProblem, shape: lane_tiles.Shape, name: str) -> list[Loop]:
    """Make the loop of a tile in the interior of a plane, with its window in L1."""
    views = (
        Operand(Ref(name), contiguous(problem.in_layout, each))
        for name, each in (("x", problem.in_shape), ("y", problem.out_shape))
    )
    strip = lanewise.step(problem, shape, isa, Space(), Operands(*views)).args["strip"]
    assert isinstance(strip, MicroRef)
    high, wide = lane_tiles.window(problem, shape.rows, shape.cols)
    pixel, outputs = isa.lanes * F32.bytes, shape.rows * shape.cols
    words: dict[str, Any] = {
        "x": _data(high, wide, isa.lanes),
        "xline": wide * pixel,
        "height": high,
        "width": wide,
        "zeros": _data(wide, isa.lanes),
        "kernel_rows": problem.r,
        "w": _data(problem.r, problem.s, isa.lanes),
        "y": _data(shape.rows, shape.cols, isa.lanes),
        "yline": shape.cols * pixel,
        "bias": _data(isa.lanes),
        "rows": shape.rows,
        "tiles": _STRIP,
    } | dict.fromkeys(("row", "residual", "high", "pad_left"), 0)
    flops = 2 * isa.lanes * outputs * problem.r * problem.s
    return [Loop(name, "L1", _bound(lane_strip, strip.tile, words), _STRIP, flops)]


def _data(*shape: int) -> np.ndarray:
    """Make a unit-normal array that starts on a cache line."""
    array = aligned(shape)
    array[...] = np.random.default_rng(0).standard_normal(shape, np.float32)
    return array


def _bound(kernel: MicroKernel, tile: Any, words: dict[str, int | np.ndarray]) -> Callable[[int], object]:
    """Return run(times) of a micro-kernel on named argument words; an array is passed by address."""
    values = [words[name] for name in kernel.words]
    packed = tuple(each.ctypes.data if isinstance(each, np.ndarray) else each for each in values)
    kept: list[object] = []
    repeat, address = _repeat(kernel), kernel.entry(tile).address_for(kept)
    repeat(1, address, packed)  # compiles

    def run(
        times: int, values: object = values, kept: object = kept
    ) -> None:  # defaults keep the addressed objects alive
        repeat(times, address, packed)

    return run


@functools.cache
def _repeat(kernel: MicroKernel) -> Callable[..., None]:
    """Compile a loop of calls. It is not cached on disk, because the cache covers only cpuconv's sources."""
    from cpuconv.runtime.front_end import numba_types  # noqa: F401, registers the called function with Numba

    call = kernel.caller()

    @njit(nogil=True)
    def repeat(times, address, words):
        for _ in range(times):
            call(address, *words)

    return repeat
