"""How far a variant of a network is from the network of floats, on samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from cpuconv.graph.ir import Graph
from cpuconv.network.model import Model
from cpuconv.network.precision.errors import number_of, relative_rms
from cpuconv.network.precision.to_come import bounded, expected
from cpuconv.network.precision.undecided import Undecided, logits_of
from cpuconv.network.running.packed import OF_TRIES, Packed
from cpuconv.quantizing.data.samples import Samples
from cpuconv.quantizing.observing import Step, ready

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[Outputs, Outputs], float]  # of a sample's outputs by floats and by the variant; 0: equal
_KEPT = 1 << 28  # bytes of outputs that are kept; what takes more is computed anew


class Judge:
    """Errors of variants of one network.

    Parameters
    ----------
    graph : Graph
        The network of floats.
    samples : Samples
    threads : int
    measure : callable
        Makes what takes in the outputs of samples, by floats and by the variant, and says the error.
    exact : sequence of (mapping of str to numpy.ndarray)
        The outputs by floats of the first samples, where they are known.
    probabilities : bool
        Whether what undecided inputs err by is told too, of outputs that are probabilities.
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
        """On so many of the samples, the first ones; what this one knows is known to both."""
        made = Judge(self._graph, self.samples.first(count), self._threads, self._measure, self._kept[:count])
        made._logits, made._names, made._packed = self._logits, self._names, self._packed
        return made

    def undecided(self) -> Undecided:
        """What takes in logits and says what undecided inputs would err by; 0 of outputs that are no probabilities."""
        return Undecided(self._logits)

    def error(self, variant: Graph, step: Step = lambda: None) -> float:
        """How far a variant with the same inputs and outputs is from the network; `step` is told of each sample.

        Raises
        ------
        ArgumentError
            The metric gave no number.
        """
        return self.figures(variant, step)[0]

    def figures(self, variant: Graph, step: Step = lambda: None) -> tuple[float, float | None]:
        """The error of a variant, and how often it agrees in the largest class; None where no output is of classes."""
        error, agreement = self._measure(), Agreement()
        self.tell(variant, (error, agreement), step=step)
        return error.value, agreement.value

    def tell(
        self,
        variant: Graph,
        measures: Sequence[Taking],
        some: slice = slice(None),
        step: Step = lambda: None,
        undecided: Undecided | None = None,
    ) -> None:
        """Have measures take in the outputs of some of the samples, and `undecided` their logits."""
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

    def _exact(self) -> Iterator[Outputs]:
        """The outputs by floats of every sample."""
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


class Taking(Protocol):
    """What takes in samples, one after another."""

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Take in a sample."""


class Measure(Taking, Protocol):
    """An error of samples."""

    @property
    def value(self) -> float:
        """Of the samples so far."""


def measure_of(metric: Metric | None) -> Callable[[], Measure]:
    """What makes `RelativeError`s, or means of a user's metric."""
    return RelativeError if metric is None else partial(Mean, metric)


def bounded_measure_of(metric: Metric | None) -> Callable[[], Measure]:
    """The same, by which the error of single samples to come is bounded too; a user's metric stays a mean."""
    return BoundedError if metric is None else partial(Mean, metric)


class RelativeError:
    """The root of the mean square of differences over that of values, of all samples; of outputs the largest.

    Infinite where an output has another shape, or where one of the two has no finite number and the other another.
    """

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Take in a sample."""
        for name, array in exact.items():
            squares = _squares(array, rough[name])
            self._sums[name] = self._sums.get(name, np.zeros(2)) + squares

    @property
    def value(self) -> float:
        """Of the samples so far."""
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = [float(np.nan_to_num(part / whole, posinf=np.inf)) for part, whole in self._sums.values()]
        return math.sqrt(max(parts, default=0.0))


def _squares(exact: np.ndarray, rough: np.ndarray) -> tuple[float, float]:
    """Sums of squares of differences and of values."""
    if exact.shape != rough.shape:
        return np.inf, 1.0
    right, got = exact.astype(np.float64), rough.astype(np.float64)
    finite = np.isfinite(right)
    if not finite.all():
        if not np.array_equal(right[~finite], got[~finite], equal_nan=True):
            return np.inf, 1.0
        right, got = right[finite], got[finite]
    difference = float(np.square(got - right).sum())
    return np.inf if np.isnan(difference) else difference, float(np.square(right).sum())


class _Values:
    """Those of a metric, one for each sample."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._values: list[float] = []

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Take in a sample."""
        self._values.append(number_of(self._metric(exact, rough)))


class Mean(_Values):
    """The mean of a user's metric."""

    @property
    def value(self) -> float:
        """Of the samples so far."""
        return float(np.mean(self._values))


class Worst(_Values):
    """The largest of a metric."""

    @property
    def value(self) -> float:
        """Of the samples so far."""
        return max(self._values, default=0.0)


class Bounded(Worst):
    """The largest of a metric, or what samples to come need, if that is more (`precision.to_come`)."""

    @property
    def value(self) -> float:
        """Of the samples so far."""
        return bounded(self._values)


class BoundedError(RelativeError):
    """That of all samples together, or what single ones to come need, if that is more."""

    def __init__(self) -> None:
        super().__init__()
        self._single: list[float] = []

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Take in a sample."""
        super().add(exact, rough)
        self._single.append(relative_rms(exact, rough))

    @property
    def value(self) -> float:
        """Of the samples so far."""
        return max(super().value, expected(self._single))


class Agreement:
    """The share of rows whose largest class is the same, where one output looks like classes: floats (N, K)."""

    def __init__(self) -> None:
        self._same = self._rows = 0

    def add(self, exact: Outputs, rough: Outputs) -> None:
        """Take in a sample."""
        names = [name for name, array in exact.items() if _classes(array) is not None]
        names = [name for name in names if rough[name].shape == exact[name].shape]
        if len(names) == 1:
            a, b = (_classes(each[names[0]]) for each in (exact, rough))
            assert a is not None and b is not None
            self._same, self._rows = self._same + int((a.argmax(1) == b.argmax(1)).sum()), self._rows + len(a)

    @property
    def value(self) -> float | None:
        """Of the samples so far."""
        return self._same / self._rows if self._rows else None


def _classes(array: np.ndarray) -> np.ndarray | None:
    """Rows of scores, of floats; None where an output is none such."""
    if array.ndim < 2 or array.dtype.kind != "f" or not 1 < array.shape[1] == array.size // max(len(array), 1):
        return None
    return array.reshape(array.shape[:2])
