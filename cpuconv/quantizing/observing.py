"""What tensors of a network are on samples: it runs by the kernels of floats, its inner tensors given out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cpuconv.conv.choice.target import FULL
from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.graph.ir import Graph
from cpuconv.graph.lowering import Target
from cpuconv.isa import current
from cpuconv.network.compiling import compiled
from cpuconv.network.model import Model
from cpuconv.network.running.packed import Packed
from cpuconv.quantizing.data.samples import Feed
from cpuconv.quantizing.ranges import Histogram, Range, least_error

PARTS = 2048  # of a histogram
Step = Callable[[], None]  # is told of each sample that is done


def ready(
    graph: Graph,
    threads: int,
    outputs: Sequence[str] | None = None,
    precision: str = FULL,
    packed: Packed | None = None,
) -> Model:
    """The network, ready to run, with other outputs if these are named; floats may be rounded to a precision.

    Weights that are in `packed` are not packed again.
    """
    graph = replace(graph, outputs=tuple(graph.outputs if outputs is None else outputs)).live()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuconvWarning)  # of operators without kernels: told when it was prepared
        return compiled(graph, Target(current(), threads, precision=precision), {}, packed=packed)


class Ends(NamedTuple):
    """The ends of a tensor on each sample, with 0 between them: those of its values, or of a range for them."""

    lows: list[float]
    highs: list[float]

    @property
    def seen(self) -> Range:
        """Of all samples."""
        return min(self.lows), max(self.highs)

    @property
    def to_come(self) -> Range:
        """What other samples stay within, but for few: three deviations beyond the means."""
        if len(self.lows) < 2:
            return self.seen
        (low, far), (high, beyond) = ((np.mean(each), 3 * np.std(each, ddof=1)) for each in self)
        return min(float(low - far), self.seen[0]), max(float(high + beyond), self.seen[1])


def ends_of(model: Model, samples: Iterable[Feed], step: Step) -> dict[str, Ends]:
    """The ends of each output on all samples.

    Raises
    ------
    SourceError
        A tensor has values that are no numbers, or infinite.
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
    """How often the values of a tensor occur on all samples, and the ends of the range that suits each sample best."""

    histogram: Histogram
    best: Ends


def counted(
    model: Model, samples: Iterable[Feed], ends: Mapping[str, Range], step: Step, *, apart: bool
) -> dict[str, Counted]:
    """How often values occur in each output, between the ends that they have; of each sample `apart`, too."""
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
