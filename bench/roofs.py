"""The roofs over a line: the time that no run of the chosen algorithm is under, on this machine as just measured.

Three roofs, after Williams, Waterman and Patterson, "Roofline" (CACM 2009): the algorithm's FMAs at the measured peak;
input, weights and output, each byte once, from the closest levels of memory that hold them; and the output's vector
stores at one core's rate. They are lower bounds: no lane is counted that holds no channel, no tile that overlaps, no
pass over a transform. Winograd and FFT count the products and the weights of their own domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from autotune.device import fingerprint
from cpuconv.isa import current
from cpuconv.micro.fft import plane_count
from cpuconv.probes import probe
from cpuconv.problem import FLOAT_BYTES, ConvProblem
from cpuconv.recipe import Candidate
from cpuconv.solvers import fft, transformed, winograd

FMA, STORES = "FMA", "stores"
_SHARED = ("L3",)  # the caches that all cores share; of the others each thread has its own


@dataclass(frozen=True)
class Level:
    """A level of memory: the bytes that it holds for all threads together (infinite: memory), and GB/s of reading."""

    name: str
    size: float
    gbs: float


@dataclass(frozen=True)
class Roofs:
    """What all threads reach together: GFLOP/s of FMAs, GB/s of vector stores, and the levels, closest first."""

    fma_gflops: float
    store_gbs: float
    levels: tuple[Level, ...]

    def best(self, other: Roofs) -> Roofs:
        """The higher of two measurements, figure by figure."""
        pairs = zip(self.levels, other.levels, strict=True)
        levels = tuple(replace(a, gbs=max(a.gbs, b.gbs)) for a, b in pairs)
        return Roofs(max(self.fma_gflops, other.fma_gflops), max(self.store_gbs, other.store_gbs), levels)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; memory's size is null."""
        levels = [asdict(level) | {"size": level.size if math.isfinite(level.size) else None} for level in self.levels]
        return asdict(self) | {"levels": levels}


@dataclass(frozen=True)
class Work:
    """Scalar multiplications of an algorithm, and the floats of its weights."""

    multiplications: int
    weights: int


def measure(threads: int) -> Roofs:
    """The roofs of so many threads, measured by the library's own probes in about a second."""
    return from_probe(probe(threads), dict(fingerprint().caches), threads)


def from_probe(found: Mapping[str, float], caches: Mapping[str, int], threads: int) -> Roofs:
    """Roofs from the figures of `cpuconv.probes.probe` and the bytes of each cache.

    A cache that was not measured counts as fast as the one before it. Stores have no probe: their rate is the
    instruction set's, at the clock that the FMA peak shows.
    """
    isa = current()
    levels, gbs = [], math.inf
    for key, size in caches.items():
        name = key[:2]
        gbs = found.get(f"{name.lower()}_gbs", gbs)
        levels.append(Level(name, size * (1 if name in _SHARED else threads), gbs))
    levels.append(Level("memory", math.inf, found["dram_gbs"]))
    ghz = found["fma_gflops"] / (2 * isa.lanes * isa.fma_rate)  # of all threads
    return Roofs(found["fma_gflops"], ghz * isa.lanes * FLOAT_BYTES / isa.store_cost, tuple(levels))


def _transformed(problem: ConvProblem, planes: int, m: tuple[int, int], step: tuple[int, int] = (1, 1)) -> Work:
    floats = planes * problem.cg * problem.k
    return Work(floats * transformed.tile_grid(problem, m, step)[2], floats)


def _winograd(problem: ConvProblem, params: winograd.Params) -> Work:
    m = params.rows, params.cols
    return _transformed(problem, math.prod(winograd.outer(problem, m)), m, problem.dilation)


def _fft(problem: ConvProblem, params: fft.Params) -> Work:
    out = fft.outputs(problem, params.rows, params.cols)
    return _transformed(problem, plane_count(params.rows, params.cols), out)


_WORK: dict[str, Callable[[ConvProblem, Any], Work]] = {winograd.NAME: _winograd, fft.NAME: _fft}


def work(problem: ConvProblem, algorithm: str) -> Work:
    """The work of an algorithm as `plan.algorithm` names it; all but the transforming ones do the sum's own."""
    candidate = Candidate.parse(algorithm)
    special = _WORK.get(candidate.solver.NAME)
    if special is not None:
        return special(problem, candidate.params)
    return Work(problem.flops // 2, problem.weight_bytes // FLOAT_BYTES)


def touched_bytes(problem: ConvProblem) -> int:
    """Bytes of the input's rows and columns that some output reads: strides may step over the others."""
    counts = []
    sizes = (problem.h, problem.w), (problem.oh, problem.ow), (problem.r, problem.s)
    for size, outputs, taps, step, gap, pad in zip(
        *sizes, problem.stride, problem.dilation, (problem.pads[0], problem.pads[2]), strict=True
    ):
        places = {output * step + tap * gap - pad for output in range(outputs) for tap in range(taps)}
        counts.append(len(places & set(range(size))))
    return problem.n * problem.c * math.prod(counts) * FLOAT_BYTES


def bounds(problem: ConvProblem, algorithm: str, roofs: Roofs) -> dict[str, float]:
    """Seconds under each roof: FMA, the outermost level of memory that is needed, stores."""
    needed = work(problem, algorithm)
    left = touched_bytes(problem) + needed.weights * FLOAT_BYTES + problem.out_bytes
    seconds, outermost = 0.0, ""
    for level in roofs.levels:
        if left > 0:
            part = min(left, level.size)
            seconds, outermost, left = seconds + part / level.gbs * 1e-9, level.name, left - part
    return {
        FMA: 2 * needed.multiplications / roofs.fma_gflops * 1e-9,
        outermost: seconds,
        STORES: problem.out_bytes / roofs.store_gbs * 1e-9,
    }


def shares(problem: ConvProblem, algorithm: str, roofs: Roofs, seconds: float) -> dict[str, float]:
    """How much of each roof a run that took `seconds` reaches; the roof that binds has the largest share."""
    return {name: bound / seconds for name, bound in bounds(problem, algorithm, roofs).items()}
