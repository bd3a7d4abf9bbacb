"""What `choosing` asks of a network, measured on samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cpuconv.conv.choice.target import FULL, HALF, Target
from cpuconv.errors import ArgumentError, ArgumentTypeError
from cpuconv.network.definition import Definition
from cpuconv.network.ports import Port, fed
from cpuconv.network.precision.choosing import Rounding
from cpuconv.network.precision.errors import Metric, number_of
from cpuconv.network.precision.programs import Results, Runner, Sized
from cpuconv.network.precision.rounding import Operator, Operators
from cpuconv.network.precision.to_come import bounded
from cpuconv.network.program_builder import Key
from cpuconv.network.running.packed import OF_TRIES, Packed
from cpuconv.network.selection.layout import NetworkPlan

Listener = Callable[[str, int, int], None]
"""Told what is being done, how many steps of it are done, and how many there are; 0: not known."""


class Measured:
    """A network with samples (`choosing.Trials`).

    Attributes
    ----------
    feeds : list of dict of str to numpy.ndarray
        Its samples, checked.
    right : sequence of dict of str to numpy.ndarray
        The outputs of each sample that errors are measured against.
    operators : Operators
        Of the sizes that the first sample has.
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
    ) -> None:
        """Run it on all samples, nothing rounded to bfloat16.

        Parameters
        ----------
        definition : Definition
        target : Target
            Its precisions are left out of account.
        samples : sequence of mapping of str to array
        metric : callable
        listener : callable
        other : Measured or None
            The network that errors are measured against, of which this one is another form: what is known of operators
            that both have is not measured again. None: the network itself.
        least : float
            What errors of the network are at least, as was measured otherwise.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            A sample does not fit the network, or the metric gives no number.
        """
        self._metric, self._tell, self._packed = metric, listener, Packed(keeps=OF_TRIES)
        self._sizes = list(_sized(definition, samples))
        self._own: list[Results] = [{} for _ in samples]
        self.feeds: list[dict[str, np.ndarray]] = [{} for _ in samples]
        full = target.at(FULL)
        for each in self._sizes:
            results = each.results(each.laid_out(full), full, self._packed)
            for number, result, (arrays, _) in zip(each.numbers, results, each.feeds, strict=True):
                self._own[number] = result
                self.feeds[number] = dict(zip(definition.inputs, arrays, strict=True))
        self.right: Sequence[Results] = self._own if other is None else other.right
        self._least = least
        self.operators = Operators(self._sizes[0].graph, target.at(HALF))
        self._known: dict[Operator, float] = {} if other is None else other._known  # errors of operators
        self._other = other

    @property
    def count(self) -> int:
        """Of operators that may round."""
        return len(self.operators.nodes)

    def correct(self) -> None:
        """Time each operator alone in both precisions, on the first sample; models are corrected by what it took."""
        if self._other is not None and self.operators.follow(self._other.operators):
            return
        self._tell("timing operators", 0, 0)
        targets = self.operators.target(Rounding()), self.operators.target(Rounding(range(self.count)))
        self.operators.correct(*(self._sizes[0].beyond_models(target, self._packed) for target in targets))

    def errors(self) -> list[float]:
        """What each operator's rounding adds to the error, with those before it rounding already.

        What an operator rounds that an earlier one has rounded is not counted twice: a tensor between two of them.
        Those behind it compute in float32, so that nothing but its rounding is between two runs.
        """
        first, before = self._sizes[0], None
        for number in range(self.count):
            self._tell("errors of operators", number, self.count)
            if (operator := self.operators.named(number)) in self._known:
                before = None
                continue
            results = first.results(*self.operators.first(number + 1), self._packed)
            self._known[operator] = max(self._each(before or self._before(number), results))
            before = results
        return [self._known[self.operators.named(number)] for number in range(self.count)]

    def _before(self, number: int) -> list[Results]:
        """What samples of the first size give where only the operators before one round."""
        first = self._sizes[0]
        if number == 0:
            return [self._own[sample] for sample in first.numbers]
        return first.results(*self.operators.first(number), self._packed)

    def solved(self, prices: Sequence[float]) -> Rounding:
        """The operators that round in the fastest plan by the models, where the rounding of each costs seconds more."""
        return self.operators.solved(prices)

    def modelled(self, rounding: Rounding) -> float:
        """Seconds of the fastest plan by the models in which only these may round."""
        return self.operators.modelled(rounding)

    def error(self, rounding: Rounding) -> float:
        """Of all samples (`to_come.bounded`), where these operators may round."""
        if rounding:
            self._tell("errors of mixtures", 0, 0)
        elif self.right is self._own:
            return 0.0
        return max(self._least, bounded([error for each in self._sizes for error in self._of_size(each, rounding)]))

    def _of_size(self, sized: Sized, rounding: Rounding) -> list[float]:
        """Of the samples of one size."""
        if rounding:
            target = self.operators.target(rounding)
            results = sized.results(sized.laid_out(target), target, self._packed)
        else:
            results = [self._own[number] for number in sized.numbers]
        return self._each([self.right[number] for number in sized.numbers], results)

    def runner(self, rounding: Rounding) -> Runner:
        """The program in which these round, for the first sample."""
        return self._sizes[0].runner(self.operators.target(rounding), self._packed)

    def plan(self, rounding: Rounding) -> NetworkPlan:
        """The plan of a candidate for these sizes."""
        return self._sizes[0].laid_out(self.operators.target(rounding))

    def _each(self, right: Sequence[Results], results: Sequence[Results]) -> list[float]:
        return [number_of(self._metric(one, other)) for one, other in zip(right, results, strict=True)]


def _sized(definition: Definition, samples: Sequence[Mapping[str, Any]]) -> Iterator[Sized]:
    """The samples by their sizes."""
    ports = [Port(name, value.shape, value.dtype) for name, value in definition.inputs.items()]
    found: dict[Key, Sized] = {}
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
            found[key] = Sized(definition, key, deciding)
        found[key].feeds.append((arrays, list(named.values())))
        found[key].numbers.append(at)
    yield from found.values()
