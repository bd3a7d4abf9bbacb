"""Selection of int8 layers: the fastest mixture, measured on this machine, that the error tolerance allows.

Layers are timed alone in float32 and in int8; models estimate the conversion costs. `graphs.assignment` assigns int8
as one optimisation problem. Layers that its solution leaves in float32 are excluded first, if that makes the network
faster. While the network's error is above the tolerance, squared errors are a price in the same problem; each
layer's error is measured alone. The search is that of roundings to bfloat16 (`precision.search`). First and last layers
are treated like others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cpuconv.conv.choice.target import PRECISION_F32
from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph
from cpuconv.network.model import Model
from cpuconv.network.precision.search import Rounding, Search
from cpuconv.quantizing.calibrating import Calibration, Form, Progress
from cpuconv.quantizing.data.samples import Feed, Samples
from cpuconv.quantizing.errors import Judge
from cpuconv.quantizing.graphs.attention import Quantizable, quantizable
from cpuconv.quantizing.graphs.equalizing import equalized
from cpuconv.quantizing.graphs.preparing import Prepared
from cpuconv.quantizing.observing import ready
from cpuconv.quantizing.speed import race, seconds_by_name

ASKED, SLOWER, ERROR, FEW = "asked for", "int8 is not faster", "error", "few values"
COMPARISON_SAMPLES = 16  # samples for comparing layers; the whole network is measured on all
Whole = Callable[[Sequence[Quantizable]], float]  # error of the network in which these layers are int8
VALUES = 1000  # minimum number of values of a layer's input: with fewer, unseen values exceed the range too often
_MIN_SAVED = 1e-7  # seconds
_GAIN = 1.0  # required ratio: the network without must be faster, at the upper confidence limit


@dataclass
class Choice:
    """Selected layers, and measurements by the layer's name.

    Attributes
    ----------
    kept : dict of str to str
        Layers that stay float32, each with the reason.
    float32_seconds, int8_seconds : dict of str to float
        Measured seconds of single layers, in float32 and in int8.
    alone : dict of str to float
        Error of the network's outputs if only that layer is int8.
    """

    kept: dict[str, str] = field(default_factory=dict)
    float32_seconds: Mapping[str, float] = field(default_factory=dict)
    int8_seconds: Mapping[str, float] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """Whether layers were timed."""
        return bool(self.float32_seconds)

    def extra_seconds(self, names: Iterable[str]) -> dict[str, float]:
        """Additional seconds of layers in int8; without measurements, all save the same."""
        if not self.timed:
            return dict.fromkeys(names, -1.0)
        return {name: self.measured_extra(name) or 0.0 for name in names}

    def cost(self, layer: Quantizable) -> float:
        """Cost of an int8 layer: its squared error per second that it saves.

        Errors are squared because those of independent layers add up in squares.
        """
        return self.alone[layer.name] ** 2 / max(-self.extra_seconds([layer.name])[layer.name], _MIN_SAVED)

    def measured_extra(self, name: str) -> float | None:
        """Additional seconds of a layer in int8; None if it was not timed in both types."""
        both = name in self.float32_seconds and name in self.int8_seconds
        return self.int8_seconds[name] - self.float32_seconds[name] if both else None

    def int8_layers(self, made: Calibration) -> list[Quantizable]:
        """Layers that are int8."""
        return [layer for layer in made.layers if layer.name not in self.kept]


class NothingFits(ArgumentError):
    """Each single layer exceeds the tolerance, or the layers within it are not faster."""


class Int8Mixtures:
    """Mixtures of int8 and float32 layers (`precision.search.Mixtures`), where rounded nodes are int8."""

    def __init__(
        self,
        made: Calibration,
        layers: Sequence[Quantizable],
        choice: Choice,
        whole: Whole,
    ) -> None:
        self._made, self._layers, self._choice, self._whole = made, layers, choice, whole
        self._names = [layer.name for layer in layers]
        self._extra_seconds, self._free = choice.extra_seconds(self._names), not choice.timed
        self._float32_seconds = sum(choice.float32_seconds.get(name, 0.0) for name in self._names) or float(len(layers))

    @property
    def count(self) -> int:
        return len(self._layers)

    def errors(self) -> list[float]:
        return [self._choice.alone[name] for name in self._names]

    def solved(self, prices: Sequence[float]) -> Rounding:
        """Int8 layers of the fastest mixture if each int8 layer costs `prices` seconds more."""
        asked = {name: self._extra_seconds[name] + price for name, price in zip(self._names, prices, strict=True)}
        return self.numbers(self._made.fastest_assignment(asked, free=self._free).layers)

    def modelled(self, rounding: Rounding) -> float:
        """Seconds of a mixture, without the part that all mixtures have in common."""
        asked = {self._names[at]: self._extra_seconds[self._names[at]] for at in rounding}
        return self._float32_seconds + self._made.fastest_assignment(asked, forced=True, free=self._free).seconds

    def error(self, rounding: Rounding) -> float:
        """Measured error of the whole network."""
        return self._whole([self._layers[at] for at in sorted(rounding)]) if rounding else 0.0

    def numbers(self, layers: Iterable[Quantizable]) -> Rounding:
        """Indices of these layers."""
        names = {layer.name for layer in layers}
        return Rounding(at for at, name in enumerate(self._names) if name in names)


def layers_with_few_values(network: Prepared, samples: int) -> dict[str, str]:
    """Layers with an input of too few values on so many samples of the first sample's sizes."""

    def size(name: str) -> int:
        return math.prod(size for size in network.known[name].shape or () if isinstance(size, int))

    layers = quantizable(*network)
    return {layer.name: FEW for layer in layers if min(map(size, layer.inputs)) * samples < VALUES}


def calibrated(
    network: Prepared,
    samples: Samples,
    form: Form,
    threads: int,
    progress: Progress,
    judge: Judge,
    choice: Choice,
    *,
    correct: bool = True,
    equalize: bool | None = None,
) -> Calibration:
    """Calibrate the network as it is or equalised, or select the one with the smaller error.

    Parameters
    ----------
    network, samples, form, threads, progress, correct
        As for `Calibration`.
    judge : Judge
        Judge for this comparison.
    choice : Choice
        The current selection.
    equalize : bool or None
        None: both are tried if they differ.
    """
    graphs = [network.graph]
    if equalize is not False and (other := equalized(network.graph)) is not network.graph:
        graphs = [other] if equalize else [*graphs, other]
    made = [Calibration(Prepared(graph, network.known), samples, form, threads, progress, correct) for graph in graphs]
    return made[0] if len(made) == 1 else min(made, key=lambda each: judge.error(each.built(choice.int8_layers(each))))


def exclude_slower(made: Calibration, choice: Choice, feed: Feed, precision: str = PRECISION_F32) -> Choice:
    """Keep layers in float32 where int8 is not faster, by the times of layers and conversions, then of the network.

    In the comparison, float32 may be rounded to `precision`.
    """
    layers = choice.int8_layers(made)
    names = [layer.name for layer in layers]

    def model(graph: Graph) -> Model:
        return ready(graph, made.threads, precision=precision)

    made.progress("timing layers", 0, 2)
    float32_seconds = seconds_by_name(model(made.graph), feed, names)
    whole = model(made.built(layers))
    made.progress("timing layers", 1, 2)
    int8_seconds = seconds_by_name(whole, feed, names)
    choice.float32_seconds, choice.int8_seconds = float32_seconds, int8_seconds
    rest = made.fastest_assignment(choice.extra_seconds(names)).layers
    slower = dict.fromkeys({*names} - {layer.name for layer in rest}, SLOWER)
    if slower and rest and race(whole, model(made.built(rest)), feed).ratio.high < _GAIN:
        choice.kept |= slower
    made.progress("timing layers", 2, 2)
    return choice


def errors_alone(
    made: Calibration, judge: Judge, layers: Sequence[Quantizable], tolerance: float = math.inf
) -> dict[str, float]:
    """Measure the network's error with each of these layers as the only int8 layer; return it by name.

    Errors above twice the tolerance, which no mixture may have, are those of the first samples.
    """
    found = {}
    for at, layer in enumerate(layers):
        made.progress("measuring errors of layers", at, len(layers))
        found[layer.name] = judge.error(made.built([layer]), tolerance)
    made.progress("measuring errors of layers", len(layers), len(layers))
    return found


def fit_tolerance(
    made: Calibration,
    judge: Judge,
    whole: Whole,
    choice: Choice,
    tolerance: float | None,
    min_float32: int,
    *,
    additive: bool = False,
) -> float:
    """Keep layers in float32 until the network's error is within the tolerance; at least `min_float32` of them.

    The result is that error; 0 without a tolerance.

    Parameters
    ----------
    made : Calibration
    judge : Judge
        Judge for errors of single layers.
    whole : callable
    choice : Choice
        The current selection.
    tolerance : float or None
    min_float32 : int
        Minimum number of layers that stay float32.
    additive : bool
        Whether the sum of the layers' squared errors must be within too. Among many mixtures, few samples favour those
        whose errors on them are small by chance.

    Raises
    ------
    NothingFits
        Each single layer has a larger error than the tolerance.
    ArgumentError
        No layer would be int8.
    """
    layers = choice.int8_layers(made)
    if min_float32 and min_float32 >= len(layers):
        raise ArgumentError(must("layers", f"below {len(layers)}, the number of layers that can be int8", min_float32))
    chosen = layers
    if min_float32:
        choice.alone = errors_alone(made, judge, layers)
        first = {layer.name for layer in sorted(layers, key=choice.cost)[len(layers) - min_float32 :]}
        chosen = [layer for layer in layers if layer.name not in first]
    error = 0.0
    if tolerance is not None:
        search = Search(Int8Mixtures(made, chosen, choice, whole), tolerance, additive=additive)
        found = search.every
        if search.error(found) > tolerance:
            choice.alone = choice.alone or errors_alone(made, judge, layers, tolerance)
            found = search.fastest()
        chosen, error = [chosen[at] for at in sorted(found)], search.error(found)
    if layers and not chosen:
        smallest = min(choice.alone.values())
        above = f"above {smallest:.3g}, the error of one layer"
        pays = tolerance is not None and smallest <= tolerance
        raise NothingFits(must("tolerance", "larger, for int8 to be faster" if pays else above, tolerance))
    names = {layer.name for layer in chosen}
    choice.kept |= {layer.name: ERROR for layer in layers if layer.name not in names}
    return error
