"""Errors of a network's variants, relative to the float32 network, on samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from cpuconv.graph.ir import Graph
from cpuconv.network.model import Model
from cpuconv.network.precision.errors import number_of, relative_error, relative_rms, squared_errors
from cpuconv.network.precision.low_margin import LowMargin, logits_of
from cpuconv.network.precision.prediction_bound import bounded_error, needed_tolerance
from cpuconv.network.running.packed import OF_TRIES, Packed
from cpuconv.quantizing.data.samples import Samples
from cpuconv.quantizing.observing import Step, ready

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[Outputs, Outputs], float]  # of a sample's float32 and variant outputs; 0: equal
_SOME = 4  # samples before a measurement may end early: one may be unlike the others
_FAR_ABOVE = 2.0  # error, relative to the tolerance, at which more samples are not needed
_KEPT = 1 << 28  # maximum bytes of cached outputs; others are recomputed


class Judge:
    """Errors of variants of one network.

    Parameters
    ----------
    graph : Graph
        The float32 network.
    samples : Samples
    threads : int
    measure : callable
        Makes a `Measure`, which takes float32 and variant outputs of samples and returns the error.
    exact : sequence of (mapping of str to numpy.ndarray)
        Known float32 outputs of the first samples.
    probabilities : bool
        Whether errors of low-margin inputs are measured too, for outputs that are probabilities.
    """

    def __init__(
        self,
        graph: Graph,
        samples: Samples,
        threads: int,
        measure: Callable[[], Measure],
        exact: Sequence[Outputs] = (),
        *,
        probabilities: bool = False,
    ) -> None:
        self._graph, self.samples, self._threads, self._measure = graph, samples, threads, measure
        self._logits = logits_of(graph) if probabilities else ()
        self._names = (*dict.fromkeys([*graph.outputs, *(each.name for each in self._logits)]),)
        self._model: Model | None = None
        self._kept: list[Outputs] = [] if self._logits else [*exact]
        self._packed = Packed(keeps=OF_TRIES)

    def first(self, count: int) -> Judge:
        """Judge on the first `count` samples; shares the cached outputs."""
        made = Judge(self._graph, self.samples.first(count), self._threads, self._measure)
        made._logits, made._names, made._packed, made._kept = self._logits, self._names, self._packed, self._kept
        return made

    def undecided(self) -> LowMargin:
        """Make a measure of the error of low-margin inputs from logits; 0 if no output is a probability."""
        return LowMargin(self._logits)

    def error(self, variant: Graph, limit: float = math.inf) -> float:
        """Error of a variant with the same inputs and outputs; far above the limit, that of the first samples.

        Raises
        ------
        ArgumentError
            The metric did not return a number.
        """
        error = self._measure()
        self.measure(variant, (error,), enough=lambda: error.exceeds(limit))
        return error.value

    def figures(self, variant: Graph, step: Step = lambda: None) -> tuple[float, float | None]:
        """Error of a variant, and its top-1 agreement; None if no output has classes."""
        error, agreement = self._measure(), Agreement()
        self.measure(variant, (error, agreement), step=step)
        return error.value, agreement.value

    def measure(
        self,
        variant: Graph,
        measures: Sequence[Accumulator],
        some: slice = slice(None),
        step: Step = lambda: None,
        undecided: LowMargin | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Pass the outputs of some samples to the measures, and their logits to `undecided`, until `enough()`."""
        names = self._graph.outputs if undecided is None else self._names
        model, wanted = ready(variant, self._threads, names, packed=self._packed), range(len(self.samples))[some]
        for at, (feed, exact) in enumerate(zip(self.samples, self._exact(), strict=True)):
            if at in wanted:
                rough = model.run(feed)
                right, got = ({name: each[name] for name in self._graph.outputs} for each in (exact, rough))
                for measure in measures:
                    measure.add(right, got)
                if undecided is not None:
                    undecided.add(exact, rough)
                step()
                if enough():
                    return

    def _exact(self) -> Iterator[Outputs]:
        """Iterate over the float32 outputs of all samples."""
        size = sum(array.nbytes for outputs in self._kept for array in outputs.values())
        for at, feed in enumerate(self.samples):
            if at < len(self._kept):
                yield self._kept[at]
                continue
            if self._model is None:
                self._model = ready(self._graph, self._threads, self._names, packed=self._packed)
            outputs = self._model.run(feed)
            size += sum(array.nbytes for array in outputs.values())
            if at == len(self._kept) and size <= _KEPT:
                self._kept.append(outputs)
            yield outputs


class Accumulator(Protocol):
    """Accumulator of samples."""

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Add a sample."""


class Measure(Accumulator, Protocol):
    """Accumulator that has an error."""

    @property
    def value(self) -> float:
        """Error of the samples so far."""

    def exceeds(self, limit: float) -> bool:
        """Whether the error is expected to be above the limit, whatever more samples add."""


def measure_of(metric: Metric | None) -> Callable[[], Measure]:
    """Factory of `RelativeError`, or of means of a user's metric."""
    return RelativeError if metric is None else partial(Mean, metric)


def bounded_measure_of(metric: Metric | None) -> Callable[[], Measure]:
    """Factory of `BoundedError`, which also bounds the error of single unseen inputs, or means of a user's metric."""
    return BoundedError if metric is None else partial(Mean, metric)


class RelativeError:
    """Relative RMS error over all samples, by groups of columns; for several outputs, the maximum.

    Infinite if an output has another shape, or if the non-finite values differ. Outputs whose number of columns varies
    between samples are one column.
    """

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}
        self._count = 0

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Add a sample."""
        self._count += 1
        for name, array in exact.items():
            squares = squared_errors(array, rough[name])
            known = self._sums.get(name, np.zeros_like(squares))
            if known.shape != squares.shape:
                known, squares = (each.sum(1, keepdims=True) for each in (known, squares))
            self._sums[name] = known + squares

    @property
    def value(self) -> float:
        """Error of the samples so far."""
        return self._pooled

    def exceeds(self, limit: float) -> bool:
        """Whether the error of some samples is far above the limit."""
        return self._count >= _SOME and self._pooled > _FAR_ABOVE * limit

    @property
    def _pooled(self) -> float:
        return max(map(relative_error, self._sums.values()), default=0.0)


class _Values:
    """Values of a metric, one per sample."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._values: list[float] = []

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Add a sample."""
        self._values.append(number_of(self._metric(exact, rough)))


class Mean(_Values):
    """Mean of a user's metric."""

    @property
    def value(self) -> float:
        """Error of the samples so far."""
        return float(np.mean(self._values))

    def exceeds(self, limit: float) -> bool:
        """False: a single sample may differ from all others by any factor."""
        return False


class Worst(_Values):
    """Maximum of a metric."""

    @property
    def value(self) -> float:
        """Error of the samples so far."""
        return max(self._values, default=0.0)

    def exceeds(self, limit: float) -> bool:
        """Whether a sample exceeds the limit."""
        return max(self._values, default=0.0) > limit


class Bounded(Worst):
    """Maximum of a metric, or the bound for unseen inputs if that is larger (`precision.prediction_bound`)."""

    @property
    def value(self) -> float:
        """Error of the samples so far."""
        return bounded_error(self._values)


class BoundedError(RelativeError):
    """Relative RMS error of all samples together, or the bound for single unseen inputs if that is larger."""

    def __init__(self) -> None:
        super().__init__()
        self._single: list[float] = []

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Add a sample."""
        super().add(exact, rough)
        self._single.append(relative_rms(exact, rough))

    @property
    def value(self) -> float:
        """Error of the samples so far."""
        return max(super().value, needed_tolerance(self._single))


class Agreement:
    """Top-1 agreement: share of rows with the same class, if exactly one output looks like class scores (N, K)."""

    def __init__(self) -> None:
        self._same = self._rows = 0

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Add a sample."""
        names = [name for name, array in exact.items() if _classes(array) is not None]
        names = [name for name in names if rough[name].shape == exact[name].shape]
        if len(names) == 1:
            a, b = (_classes(each[names[0]]) for each in (exact, rough))
            assert a is not None and b is not None
            self._same, self._rows = self._same + int((a.argmax(1) == b.argmax(1)).sum()), self._rows + len(a)

    @property
    def value(self) -> float | None:
        """Agreement on the samples so far."""
        return self._same / self._rows if self._rows else None


def _classes(array: np.ndarray) -> np.ndarray | None:
    """Reshape class scores to rows; None if the output is not a matrix of floats."""
    if array.ndim < 2 or array.dtype.kind != "f" or not 1 < array.shape[1] == array.size // max(len(array), 1):
        return None
    return array.reshape(array.shape[:2])
