"""Observation of tensors on samples: runs the float32 network with inner tensors as outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cpuconv.conv.choice.target import PRECISION_F32
from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.graph.ir import Graph
from cpuconv.graph.lowering import Target
from cpuconv.isa import current
from cpuconv.network.compiling import compiled
from cpuconv.network.model import Model
from cpuconv.network.running.packed import Packed
from cpuconv.quantizing.data.samples import Feed
from cpuconv.quantizing.ranges import Histogram, Range, least_error

PARTS = 2048  # bins of a histogram
Step = Callable[[], None]  # called per sample


def ready(
    graph: Graph,
    threads: int,
    outputs: Sequence[str] | None = None,
    precision: str = PRECISION_F32,
    packed: Packed | None = None,
) -> Model:
    """Compile the network, optionally with other outputs and with float32 rounded to a precision.

    Weights that are in `packed` are not packed again.
    """
    graph = replace(graph, outputs=tuple(graph.outputs if outputs is None else outputs)).live()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuconvWarning)  # operators without kernels: warned about in preparation
        return compiled(graph, Target(current(), threads, precision=precision), {}, packed=packed)


class Ends(NamedTuple):
    """Lower and upper ends of a tensor on each sample, including 0: of its values, or of a range."""

    lows: list[float]
    highs: list[float]

    @property
    def seen(self) -> Range:
        """Range over all samples."""
        return min(self.lows), max(self.highs)

    @property
    def unseen_bound(self) -> Range:
        """Bound for unseen samples, except for few: three standard deviations beyond the mean ends."""
        if len(self.lows) < 2:
            return self.seen
        (low, far), (high, beyond) = ((np.mean(each), 3 * np.std(each, ddof=1)) for each in self)
        return min(float(low - far), self.seen[0]), max(float(high + beyond), self.seen[1])


def ends_of(model: Model, samples: Iterable[Feed], step: Step) -> dict[str, Ends]:
    """Determine the ends of each output on all samples.

    Raises
    ------
    SourceError
        A tensor has NaN or infinite values.
    """
    ends: dict[str, Ends] = {}
    for feed in samples:
        for name, array in model.run(feed).items():
            seen = (float(array.min(initial=0)), float(array.max(initial=0)))
            if not np.isfinite(seen).all():
                raise SourceError(f"The tensor {name!r} must be of finite numbers on every sample.")
            of_tensor = ends.setdefault(name, Ends([], []))
            of_tensor.lows.append(seen[0])
            of_tensor.highs.append(seen[1])
        step()
    return ends


class Counted(NamedTuple):
    """Histogram of a tensor over all samples, and the ends of the best range for each sample."""

    histogram: Histogram
    best: Ends


def counted(
    model: Model, samples: Iterable[Feed], ends: Mapping[str, Range], step: Step, *, apart: bool
) -> dict[str, Counted]:
    """Count the values of each output between its ends; with `apart`, find the best range of each sample too."""
    found = {name: Counted(Histogram(*seen, np.zeros(PARTS, np.int64)), Ends([], [])) for name, seen in ends.items()}
    for feed in samples:
        for name, array in model.run(feed).items():
            (low, high), (whole, best) = ends[name], found[name]
            if low < high:
                parts = ((array.ravel() - np.float32(low)) * np.float32(PARTS / (high - low))).astype(np.int32)
                counts = np.bincount(np.clip(parts, 0, PARTS - 1), minlength=PARTS)
                whole.counts[:] += counts
                if apart:
                    least, most = least_error(Histogram(low, high, counts))
                    best.lows.append(least)
                    best.highs.append(most)
        step()
    return found
