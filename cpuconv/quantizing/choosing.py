"""Selection of int8 layers: the fastest mixture, measured on this machine, that the error tolerance allows.

Layers are timed alone in float32 and in int8; models estimate the conversion costs. `graphs.placing` assigns int8
as one optimisation problem. Layers that its solution leaves in float32 are excluded first, if that makes the network
faster. While the network's error is above the tolerance, squared errors are a price in the same problem; each
layer's error is measured alone. The search is that of roundings to bfloat16 (`precision.choosing`). First and last
layers are treated like others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cpuconv.conv.choice.target import FULL
from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph
from cpuconv.network.model import Model
from cpuconv.network.precision.choosing import Bound, Rounding, mixture
from cpuconv.quantizing.calibrating import Calibration, Form, Progress
from cpuconv.quantizing.data.samples import Feed, Samples
from cpuconv.quantizing.errors import Judge
from cpuconv.quantizing.graphs.equalizing import equalized
from cpuconv.quantizing.graphs.preparing import Prepared
from cpuconv.quantizing.graphs.products import Product, products_of
from cpuconv.quantizing.observing import ready
from cpuconv.quantizing.speed import race, seconds_by_name

ASKED, SLOWER, ERROR, FEW = "asked for", "bytes are not faster", "error", "few values"
JUDGED = 16  # samples for comparing layers; the whole network is measured on all
Whole = Callable[[Sequence[Product]], float]  # error of the network in which these layers are int8
VALUES = 1000  # minimum number of values of a layer's input: with fewer, unseen values exceed the range too often
_LEAST_SAVED = 1e-7  # seconds
_GAIN = 1.0  # required ratio: the network without must be faster, at the upper confidence limit


@dataclass
class Choice:
    """Selected layers, and measurements by the layer's name.

    Attributes
    ----------
    kept : dict of str to str
        Layers that stay float32, each with the reason.
    floats, bytes : dict of str to float
        Measured seconds of single layers, in float32 and in int8.
    alone : dict of str to float
        Error of the network's outputs if only that layer is int8.
    """

    kept: dict[str, str] = field(default_factory=dict)
    floats: Mapping[str, float] = field(default_factory=dict)
    bytes: Mapping[str, float] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """Whether layers were timed."""
        return bool(self.floats)

    def more(self, names: Iterable[str]) -> dict[str, float]:
        """Additional seconds of layers in int8; without measurements, all save the same."""
        if not self.timed:
            return dict.fromkeys(names, -1.0)
        return {name: self.slower(name) or 0.0 for name in names}

    def cost(self, product: Product) -> float:
        """Cost of an int8 layer: its squared error per second that it saves.

        Errors are squared because those of independent layers add up in squares.
        """
        return self.alone[product.name] ** 2 / max(-self.more([product.name])[product.name], _LEAST_SAVED)

    def slower(self, name: str) -> float | None:
        """Additional seconds of a layer in int8; None if it was not timed in both types."""
        both = name in self.floats and name in self.bytes
        return self.bytes[name] - self.floats[name] if both else None

    def products(self, made: Calibration) -> list[Product]:
        """Layers that are int8."""
        return [product for product in made.products if product.name not in self.kept]


class NothingFits(ArgumentError):
    """Each single layer exceeds the tolerance, or the layers within it are not faster."""


class Mixed:
    """Mixtures of int8 and float32 layers (`precision.choosing.Mixtures`), where rounded nodes are int8."""

    def __init__(
        self,
        made: Calibration,
        products: Sequence[Product],
        choice: Choice,
        whole: Whole,
    ) -> None:
        self._made, self._products, self._whole = made, products, whole
        self._names = [product.name for product in products]
        self._more, self._free = choice.more(self._names), not choice.timed
        self._floats = sum(choice.floats.get(name, 0.0) for name in self._names) or float(len(products))
        self._alone = choice.alone

    @property
    def count(self) -> int:
        return len(self._products)

    def errors(self) -> list[float]:
        return [self._alone[name] for name in self._names]

    def solved(self, prices: Sequence[float]) -> Rounding:
        """Int8 layers of the fastest mixture if each int8 layer costs `prices` seconds more."""
        asked = {name: self._more[name] + price for name, price in zip(self._names, prices, strict=True)}
        return self.numbers(self._made.placed(asked, free=self._free).products)

    def modelled(self, rounding: Rounding) -> float:
        """Seconds of a mixture, without the part that all mixtures have in common."""
        asked = {self._names[at]: self._more[self._names[at]] for at in rounding}
        return self._floats + self._made.placed(asked, forced=True, free=self._free).seconds

    def error(self, rounding: Rounding) -> float:
        """Measured error of the whole network."""
        return self._whole([self._products[at] for at in sorted(rounding)]) if rounding else 0.0

    def numbers(self, products: Iterable[Product]) -> Rounding:
        """Indices of these layers."""
        names = {product.name for product in products}
        return Rounding(at for at, name in enumerate(self._names) if name in names)


def known_too_little(network: Prepared, samples: int) -> dict[str, str]:
    """Layers whose inputs have too few values on so many samples of the first sample's sizes."""
    shapes = {product.name: network.known[product.node.inputs[0]].shape or () for product in products_of(network.graph)}
    sizes = {name: math.prod(size for size in shape if isinstance(size, int)) for name, shape in shapes.items()}
    return {name: FEW for name, size in sizes.items() if size * samples < VALUES}


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
    return made[0] if len(made) == 1 else min(made, key=lambda each: judge.error(each.built(choice.products(each))))


def without_slower(made: Calibration, choice: Choice, feed: Feed, precision: str = FULL) -> Choice:
    """Keep layers in float32 where int8 is not faster, by the times of layers and conversions, then of the network.

    In the comparison, float32 may be rounded to `precision`.
    """
    products = choice.products(made)
    names = [product.name for product in products]

    def model(graph: Graph) -> Model:
        return ready(graph, made.threads, precision=precision)

    made.progress("timing layers", 0, 2)
    floats = seconds_by_name(model(made.graph), feed, names)
    whole = model(made.built(products))
    made.progress("timing layers", 1, 2)
    of_bytes = seconds_by_name(whole, feed, names)
    choice.floats, choice.bytes = floats, of_bytes
    rest = made.placed(choice.more(names)).products
    slower = dict.fromkeys({*names} - {product.name for product in rest}, SLOWER)
    if slower and rest and race(whole, model(made.built(rest)), feed).ratio.high < _GAIN:
        choice.kept |= slower
    made.progress("timing layers", 2, 2)
    return choice


def errors_alone(made: Calibration, judge: Judge, products: Sequence[Product]) -> dict[str, float]:
    """Measure the network's error with each of these layers as the only int8 layer; return it by name."""
    found = {}
    for at, product in enumerate(products):
        made.progress("measuring errors of layers", at, len(products))
        found[product.name] = judge.error(made.built([product]))
    made.progress("measuring errors of layers", len(products), len(products))
    return found


def within(
    made: Calibration,
    judge: Judge,
    whole: Whole,
    choice: Choice,
    tolerance: float | None,
    layers: int,
    *,
    additive: bool = False,
) -> Choice:
    """Keep layers in float32 until the network's error is within the tolerance; at least `layers` of them.

    Parameters
    ----------
    made : Calibration
    judge : Judge
        Judge for errors of single layers.
    whole : callable
    choice : Choice
        The current selection.
    tolerance : float or None
    layers : int
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
    products = choice.products(made)
    if layers and layers >= len(products):
        raise ArgumentError(must("layers", f"below {len(products)}, the layers that can be of bytes", layers))
    if not layers and (tolerance is None or whole(products) <= tolerance):
        return choice
    choice.alone = errors_alone(made, judge, products)
    first = {product.name for product in sorted(products, key=choice.cost)[len(products) - layers :]}
    chosen = [product for product in products if product.name not in first]
    if tolerance is not None and (not layers or whole(chosen) > tolerance):
        trials = Mixed(made, chosen, choice, whole)
        chosen = [chosen[at] for at in sorted(mixture(trials, Bound(trials, tolerance, 0.0, additive=additive)))]
    if not chosen:
        smallest = min(choice.alone.values())
        above = f"above {smallest:.3g}, the error of one layer"
        pays = tolerance is not None and smallest <= tolerance
        raise NothingFits(must("tolerance", "larger, for bytes to be faster" if pays else above, tolerance))
    names = {product.name for product in chosen}
    choice.kept |= {product.name: ERROR for product in products if product.name not in names}
    return choice
