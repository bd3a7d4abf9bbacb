"""Measurements of a network on samples, as `choosing` needs them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import PRECISION_F32, Target, narrow_precision
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.network.definition import Definition
from cpuconv.network.ports import Port, fed
from cpuconv.network.precision.errors import Metric, number_of
from cpuconv.network.precision.prediction_bound import bounded_error
from cpuconv.network.precision.rounding import Operator, Operators
from cpuconv.network.precision.sample_groups import Results, Runner, SampleGroup
from cpuconv.network.precision.search import Rounding
from cpuconv.network.program_builder import Key
from cpuconv.network.running.packed import OF_TRIES, Packed
from cpuconv.network.selection.layout import NetworkPlan

_COMPARISON_SAMPLES = 4  # samples for errors of single operators

Listener = Callable[[str, int, int], None]
"""Called with the current activity, its completed steps, and their total number; 0 if unknown."""


class Measured:
    """A network measured on samples; implements `choosing.Trials`.

    Attributes
    ----------
    feeds : list of dict of str to numpy.ndarray
        The samples, validated.
    right : sequence of dict of str to numpy.ndarray
        The reference outputs of each sample.
    operators : Operators
        The operators for the sizes of the first sample.
    """

    def __init__(
        self,
        definition: Definition,
        target: Target,
        samples: Sequence[Mapping[str, Any]],
        metric: Metric,
        listener: Listener,
        other: Measured | None = None,
        least: float = 0.0,
        *,
        tolerance: float = math.inf,
    ) -> None:
        """Run the network on all samples, without rounding.

        Parameters
        ----------
        definition : Definition
        target : Target
            Its precisions are ignored.
        samples : sequence of mapping of str to array
        metric : callable
        listener : callable
        other : Measured or None
            The network with the reference outputs, of which this one is another form. Measurements of operators that
            both have are reused. None: the network itself.
        least : float
            Lower bound of the network's errors, measured elsewhere.
        tolerance : float
            Above it, an error is that of the samples up to the first one that exceeds it.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A sample does not fit the network, or the metric does not return a number.
        """
        self._metric, self._tell, self._packed = metric, listener, Packed(keeps=OF_TRIES)
        self._sizes = list(_sized(definition, samples))
        self._own: list[Results] = [{} for _ in samples]
        self.feeds: list[dict[str, np.ndarray]] = [{} for _ in samples]
        full = target.at(PRECISION_F32)
        for each in self._sizes:
            results = each.results(each.plan_layout(full), full, self._packed)
            for number, result, (arrays, _) in zip(each.numbers, results, each.feeds, strict=True):
                self._own[number] = result
                self.feeds[number] = dict(zip(definition.inputs, arrays, strict=True))
        self.right: Sequence[Results] = self._own if other is None else other.right
        self._least, self._tolerance = least, tolerance
        self.operators = Operators(self._sizes[0].graph, target.at(narrow_precision()))
        self._known: dict[Operator, float] = {} if other is None else other._known  # errors of operators
        self._other = other

    @property
    def count(self) -> int:
        """Number of operators that may round."""
        return len(self.operators.nodes)

    def correct(self) -> None:
        """Time each operator separately in both precisions on the first sample, and correct the models accordingly."""
        if self._other is not None and self.operators.follow(self._other.operators):
            return
        self._tell("timing operators", 0, 0)
        targets = self.operators.target(Rounding()), self.operators.target(Rounding(range(self.count)))
        self.operators.correct(*(self._sizes[0].beyond_models(target, self._packed) for target in targets))

    def errors(self) -> list[float]:
        """Increase of the error by each operator's rounding, with all operators before it rounding already.

        They are measured on a few samples, as there is a program for each operator; whole plans are measured on all.
        A tensor between two operators is thus not counted twice, if both round it. Operators after it compute in
        float32, so that two runs differ only in its rounding. Operators whose error is above the tolerance round in no
        plan that is selected, so they do not round in later measurements either.
        """
        rounding, before = Rounding(), list[Results]()
        for number in range(self.count):
            self._tell("errors of operators", number, self.count)
            operator, after = self.operators.named(number), list[Results]()
            if operator not in self._known:
                before = before or [*self._prefix(rounding)]
                errors, after = self._judged(before, self._prefix(rounding | {number}))
                self._known[operator] = max(errors)
            if self._known[operator] <= self._tolerance:
                rounding, before = rounding | {number}, after
        return [self._known[self.operators.named(number)] for number in range(self.count)]

    def _prefix(self, rounding: Rounding) -> Iterable[Results]:
        """Results for some samples of the first sizes, with these operators as in the bfloat16 plan."""
        first = self._sizes[0]
        if not rounding:
            return [self._own[sample] for sample in first.numbers[:_COMPARISON_SAMPLES]]
        return itertools.islice(first.results(*self.operators.mixed(rounding), self._packed), _COMPARISON_SAMPLES)

    def solved(self, prices: Sequence[float]) -> Rounding:
        """The operators that round in the fastest plan by the models; `prices` are added seconds of their rounding."""
        return self.operators.solved(prices)

    def modelled(self, rounding: Rounding) -> float:
        """Modelled seconds of the fastest plan in which only these operators may round."""
        return self.operators.modelled(rounding)

    def error(self, rounding: Rounding) -> float:
        """Error of all samples (`prediction_bound.bounded_error`) if these operators may round."""
        if rounding:
            self._tell("errors of mixtures", 0, 0)
        elif self.right is self._own:
            return 0.0
        errors: list[float] = []
        for each in self._sizes:
            errors += self._of_size(each, rounding)
            if rounding and max(errors) > self._tolerance:
                break
        return max(self._least, bounded_error(errors))

    def _of_size(self, sized: SampleGroup, rounding: Rounding) -> list[float]:
        """Errors of the samples of one combination of sizes."""
        right = [self.right[number] for number in sized.numbers]
        if not rounding:
            own = (self._own[number] for number in sized.numbers)
            return [number_of(self._metric(one, other)) for one, other in zip(right, own, strict=True)]
        target = self.operators.target(rounding)
        return self._judged(right, sized.results(sized.plan_layout(target), target, self._packed))[0]

    def runner(self, rounding: Rounding) -> Runner:
        """The program in which these operators round, for the first sample."""
        return self._sizes[0].runner(self.operators.target(rounding), self._packed)

    def plan(self, rounding: Rounding) -> NetworkPlan:
        """The plan in which these operators round, for the sizes of the first sample."""
        return self._sizes[0].plan_layout(self.operators.target(rounding))

    def _judged(self, right: Sequence[Results], results: Iterable[Results]) -> tuple[list[float], list[Results]]:
        """Errors and results of the samples, up to the first error above the tolerance; later ones are not computed."""
        errors, found = list[float](), list[Results]()
        for one, other in zip(right, results, strict=True):
            errors.append(number_of(self._metric(one, other)))
            found.append(other)
            if errors[-1] > self._tolerance:
                break
        return errors, found


def _sized(definition: Definition, samples: Sequence[Mapping[str, Any]]) -> Iterator[SampleGroup]:
    """Group the samples by sizes."""
    ports = [Port(name, value.shape, value.dtype) for name, value in definition.inputs.items()]
    found: dict[Key, SampleGroup] = {}
    for at, sample in enumerate(samples):
        try:
            arrays = fed(ports, sample)
            definition.graph_for(tuple(array.shape for array in arrays))
        except (ArgumentError, ArgumentTypeError) as error:
            raise type(error)(f"samples[{at}]: {error}") from error
        named = dict(zip(definition.inputs, arrays, strict=True))
        deciding = {name: named.pop(name) for name in definition.shape_inputs}
        key = Key(tuple(array.shape for array in arrays), tuple(array.tobytes() for array in deciding.values()))
        if key not in found:
            found[key] = SampleGroup(definition, key, deciding)
        found[key].feeds.append((arrays, list(named.values())))
        found[key].numbers.append(at)
    yield from found.values()
