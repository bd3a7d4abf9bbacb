"""Roofline model of a problem: lower bounds of an algorithm's time, and the resource that limits a run.

After Williams, Waterman and Patterson, "Roofline" (CACM 2009), with three roofs: the algorithm's operations at the
measured peak of their data type; its reads, each byte once, from the closest memory levels that hold them; and its
vector stores. They are lower bounds: overlapping tiles, padding and passes over intermediate results are not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from baselib.data_classes import dataclass

FMA, STORES, MEMORY = "FMA", "stores", "memory"
COMPUTE, BANDWIDTH, OVERHEAD = "compute", "bandwidth", "overhead"
DTYPE = "float32"
GFLOPS = "_gflops"  # suffix of arithmetic figures
SHARED = ("L3",)  # caches shared by all cores; other caches are per thread
MEASURED = "measured"  # name of the time of measurement among the figures, in seconds since 1970
THREADS = re.compile("[1-9][0-9]{0,5}")
MAX_FIGURE = 1e12  # max. plausible figure
PAST = 1.05  # a larger share of a roof means that the roofs were measured while other programs ran
EXPLAINED = 0.5  # share of a run's time: if the sum of all bounds is below, no roof limits the run

KeptRoofs = Mapping[str, Mapping[str, float]]
"""Stored roofs of a device: figures of `Workload.probe` and `MEASURED`, by the number of threads as text."""

# Advice for a run by the roof that limits it, or for a run limited by none.
REMEDIES = {
    FMA: "Do less arithmetic: an algorithm with fewer multiplications, if the accuracy asked for admits one, or a "
    "narrower data type. More cores help in proportion.",
    "L1": "Do more with what is loaded: fuse the operations before or after this one, or use a narrower data type.",
    "L2": "Keep more in L1: fuse the operations before or after this one, or use a narrower data type. More cores "
    "bring their own L2.",
    "L3": "Keep the data in L2: run the next operation on a part as soon as it is ready, use smaller batches if the "
    "activations are large, or a narrower data type. More cores bring their own L2.",
    MEMORY: "Fetch less: more images in a call if the weights are large, fewer if the activations are; run the next "
    "operation while its input is in cache; a narrower data type. More cores share the same memory.",
    STORES: "Store less: fuse the operation that reads the output, or use a layout whose vectors are full.",
    OVERHEAD: "Starting threads, borders, packing, passes over intermediate results and idle lanes take most of the "
    "time: more images in a call, fewer threads, a layout that needs no reordering, or a greater effort of tuning.",
}


@dataclass(frozen=True)
class Level:
    """A level of memory: its size in bytes for all threads together (infinite: DRAM), and read bandwidth in GB/s."""

    name: str
    size: float
    gbs: float


@dataclass(frozen=True)
class Roofs:
    """Measured peaks of all threads together.

    Attributes
    ----------
    fma_gflops : float
        Float32 FMAs, in GFLOP/s.
    store_gbs : float
        Vector stores, in GB/s.
    levels : tuple of Level
        Memory levels, closest first.
    peaks : tuple of (str, float)
        Peaks of other data types and of single instructions in GFLOP/s, by the names of their figures; empty where
        not measured. An integer multiply-add also counts as two operations.
    """

    fma_gflops: float
    store_gbs: float
    levels: tuple[Level, ...]
    peaks: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, figures: Mapping[str, float], caches: Mapping[str, int], threads: int) -> Roofs:
        """Make roofs from the figures of `Workload.probe` and the size of each cache in bytes.

        A cache that was not measured counts as fast as the previous level.

        Raises
        ------
        ValueError
            A required figure is missing or not positive.
        """
        levels, gbs = [], math.inf
        for key, size in caches.items():
            name = key[:2]
            gbs = _figure(figures, f"{name.lower()}_gbs", gbs)
            levels.append(Level(name, size * (1 if name in SHARED else threads), gbs))
        levels.append(Level(MEMORY, math.inf, _figure(figures, "dram_gbs")))
        fma = _figure(figures, f"{DTYPE}{GFLOPS}")
        names = sorted(name.removesuffix(GFLOPS) for name in figures if name.endswith(GFLOPS))
        peaks = tuple((name, _figure(figures, f"{name}{GFLOPS}")) for name in names if name != DTYPE)
        return cls(fma, _figure(figures, "store_gbs"), tuple(levels), peaks)

    def peak(self, dtype: str) -> float | None:
        """Return the peak of a data type in GFLOP/s, or None if it was not measured."""
        return self.fma_gflops if dtype == DTYPE else dict(self.peaks).get(dtype)

    def best(self, other: Roofs) -> Roofs:
        """Return the higher of two measurements, per figure."""
        pairs = zip(self.levels, other.levels, strict=True)
        levels = tuple(replace(a, gbs=max(a.gbs, b.gbs)) for a, b in pairs)
        peaks = dict(self.peaks)
        peaks |= {name: max(value, peaks.get(name, 0.0)) for name, value in other.peaks}
        fma, stores = max(self.fma_gflops, other.fma_gflops), max(self.store_gbs, other.store_gbs)
        return Roofs(fma, stores, levels, tuple(sorted(peaks.items())))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types; the size of DRAM is null."""
        levels = [asdict(level) | {"size": level.size if math.isfinite(level.size) else None} for level in self.levels]
        return asdict(self) | {"levels": levels, "peaks": dict(self.peaks)}


@dataclass(frozen=True)
class Work:
    """The necessary work of an algorithm: operations, bytes read of inputs and of weights, bytes written.

    `dtype` is the data type of its multiplications, which may differ from that of its arrays.
    """

    flops: float
    inputs: int
    weights: int
    outputs: int
    dtype: str = DTYPE

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / (self.inputs + self.weights + self.outputs)


@dataclass(frozen=True)
class Verdict:
    """The limiting roof of a run.

    Attributes
    ----------
    kind : {"compute", "bandwidth", "overhead"}
    roof : str
        The roof with the largest lower bound.
    share : float
        Share of that roof that the run reaches.
    """

    kind: str
    roof: str
    share: float

    def __str__(self) -> str:
        return f"{self.kind} ({self.roof})" if self.kind == BANDWIDTH else self.kind

    @property
    def remedy(self) -> str:
        """Advice for this limit."""
        return REMEDIES[OVERHEAD if self.kind == OVERHEAD else self.roof]


def bounds(work: Work, roofs: Roofs, *, cold: bool = False) -> dict[str, float]:
    """Return the lower bounds in seconds: FMA, memory (named after the level with the longest read time), stores.

    FMA is the peak of the work's data type; it is left out if that was not measured. Cold weights come from DRAM, as in
    a large model, where other layers run in between.
    """
    memory = roofs.levels[-1]
    reading = dict.fromkeys((level.name for level in roofs.levels), 0.0)
    left = float(work.inputs + work.outputs + (0 if cold else work.weights))
    for level in roofs.levels:
        part = min(left, level.size)
        reading[level.name] += part / level.gbs * 1e-9
        left -= part
    if cold:
        reading[memory.name] += work.weights / memory.gbs * 1e-9
    peak = roofs.peak(work.dtype)
    return ({} if peak is None else {FMA: work.flops / peak * 1e-9}) | {
        max(reading, key=lambda name: reading[name]): sum(reading.values()),
        STORES: work.outputs / roofs.store_gbs * 1e-9,
    }


def classify(work: Work, roofs: Roofs, seconds: float, *, cold: bool = False) -> Verdict | None:
    """Return the roof that limits a run of `seconds`: the largest bound, or overhead if the sum of bounds is far less.

    None if the peak of the work's data type was not measured.
    """
    if roofs.peak(work.dtype) is None:
        return None
    least = bounds(work, roofs, cold=cold)
    roof = max(least, key=lambda name: least[name])
    kind = OVERHEAD if sum(least.values()) < EXPLAINED * seconds else COMPUTE if roof == FMA else BANDWIDTH
    return Verdict(kind, roof, least[roof] / seconds)


def busy_note(shares: Iterable[float | None]) -> str | None:
    """Return a note if a share of a roof exceeds `PAST`; else None."""
    most = max((share for share in shares if share is not None), default=0.0)
    if most <= PAST:
        return None
    return (
        f"up to {most:.0%} of a roof: the roofs were measured while the machine was busy;"
        " 'autotune doctor --measure' measures them again"
    )


def roofs_for(device: Mapping[str, Any], threads: int) -> Roofs | None:
    """Return a device's stored roofs (from `Store.devices`) for a number of threads; None if not measured."""
    try:
        return Roofs.of(device["roofs"][str(threads)], device["caches"], threads)
    except (AttributeError, KeyError, TypeError, ValueError):  # not measured, or written by another version
        return None


def sound_roofs(roofs: Any) -> dict[str, dict[str, float]]:
    """Return the valid part of stored `roofs`: a damaged file, or one of another version, may contain anything."""
    return {
        threads: figures
        for threads, figures in (roofs.items() if isinstance(roofs, dict) else ())
        if THREADS.fullmatch(threads) and isinstance(figures, dict) and all(map(_is_figure, figures.values()))
    }


def newest_roofs(*measured: KeptRoofs) -> dict[str, Mapping[str, float]]:
    """Return the latest measurement for each number of threads."""
    newest: dict[str, Mapping[str, float]] = {}
    for roofs in measured:
        for threads, figures in roofs.items():
            kept = newest.get(threads, {})
            newest[threads] = max(figures, kept, key=lambda known: (known.get(MEASURED, 0.0), sorted(known.items())))
    return newest


def _is_figure(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= MAX_FIGURE


def _figure(figures: Mapping[str, float], name: str, otherwise: float | None = None) -> float:
    value = figures.get(name, otherwise)
    if not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"Argument 'figures' must hold a positive {name!r}, not {value!r}.")
    return value
