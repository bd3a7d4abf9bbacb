"""Which products multiply bytes: the fastest mixture, as measured on this machine, as far as the error allows.

Products are timed alone by floats and by bytes, conversions between the two are priced by the models, and where bytes
are is solved as one problem (`graphs.placing`). First go products that are floats in its solution, if the whole is
faster so. Then, while the error of the whole is above the tolerance, squared errors get a price in the same problem,
each product measured alone against floats: the search is that of roundings to bfloat16 (`precision.choosing`). First
and last layers are products like others.
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
JUDGED = 16  # samples by which layers are compared with one another; the whole is measured on all
Whole = Callable[[Sequence[Product]], float]  # the error of the network in which these products are of bytes
VALUES = 1000  # that say what the bytes of a product's input stand for: of fewer, others lie far outside too often
_LEAST_SAVED = 1e-7  # seconds
_GAIN = 1.0  # what the whole without must be faster than, in every case that chance allows


@dataclass
class Choice:
    """What was chosen, and what is known of each product, by its name.

    Attributes
    ----------
    kept : dict of str to str
        Products that stay floats, each with the reason.
    floats, bytes : dict of str to float
        Seconds of products alone, of floats and of bytes, where they were measured.
    alone : dict of str to float
        Errors of the network's outputs where that product alone is of bytes.
    """

    kept: dict[str, str] = field(default_factory=dict)
    floats: Mapping[str, float] = field(default_factory=dict)
    bytes: Mapping[str, float] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """Whether products were."""
        return bool(self.floats)

    def more(self, names: Iterable[str]) -> dict[str, float]:
        """Seconds that products take more with bytes; where none were timed, all save as much."""
        if not self.timed:
            return dict.fromkeys(names, -1.0)
        return {name: self.slower(name) or 0.0 for name in names}

    def cost(self, product: Product) -> float:
        """What a product of bytes costs: its squared error, for each second that it saves.

        Squares, as the errors of products that know nothing of one another add up so.
        """
        return self.alone[product.name] ** 2 / max(-self.more([product.name])[product.name], _LEAST_SAVED)

    def slower(self, name: str) -> float | None:
        """Seconds that a product takes more with bytes; None where it was not timed in both."""
        both = name in self.floats and name in self.bytes
        return self.bytes[name] - self.floats[name] if both else None

    def products(self, made: Calibration) -> list[Product]:
        """Those that multiply bytes."""
        return [product for product in made.products if product.name not in self.kept]


class NothingFits(ArgumentError):
    """One layer alone exceeds the tolerance, whichever it is, or what is within it is not faster."""


class Mixed:
    """Mixtures of products of bytes and of floats (`precision.choosing.Mixtures`); what rounds multiplies bytes."""

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
        """The products of bytes in the fastest mixture, where the bytes of each cost seconds more."""
        asked = {name: self._more[name] + price for name, price in zip(self._names, prices, strict=True)}
        return self.numbers(self._made.placed(asked, free=self._free).products)

    def modelled(self, rounding: Rounding) -> float:
        """Seconds of a mixture, beside what all mixtures have."""
        asked = {self._names[at]: self._more[self._names[at]] for at in rounding}
        return self._floats + self._made.placed(asked, forced=True, free=self._free).seconds

    def error(self, rounding: Rounding) -> float:
        """Of the whole network, as measured."""
        return self._whole([self._products[at] for at in sorted(rounding)]) if rounding else 0.0

    def numbers(self, products: Iterable[Product]) -> Rounding:
        """The places of some products among these."""
        names = {product.name for product in products}
        return Rounding(at for at, name in enumerate(self._names) if name in names)


def known_too_little(network: Prepared, samples: int) -> dict[str, str]:
    """Products whose inputs have few values on so many samples of the first one's sizes."""
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
    """The network on its samples: as it is or equalised, or that of both whose error is smaller.

    Parameters
    ----------
    network, samples, form, threads, progress, correct
        As for `Calibration`.
    judge : Judge
        Of the two.
    choice : Choice
        So far.
    equalize : bool or None
        None: both are tried, where there is a difference.
    """
    graphs = [network.graph]
    if equalize is not False and (other := equalized(network.graph)) is not network.graph:
        graphs = [other] if equalize else [*graphs, other]
    made = [Calibration(Prepared(graph, network.known), samples, form, threads, progress, correct) for graph in graphs]
    return made[0] if len(made) == 1 else min(made, key=lambda each: judge.error(each.built(choice.products(each))))


def without_slower(made: Calibration, choice: Choice, feed: Feed, precision: str = FULL) -> Choice:
    """Keep products of floats that bytes do not make faster: by the time of each and of conversions, then of the whole.

    Floats may be rounded to `precision`.
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
    """The error of the network with one product of bytes, for each of them by its name."""
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
    """Keep products of floats until the error of the whole is within the tolerance; `layers` of them in any case.

    Parameters
    ----------
    made : Calibration
    judge : Judge
        Of the errors of one product.
    whole : callable
    choice : Choice
        So far.
    tolerance : float or None
    layers : int
        How many are kept at least.
    additive : bool
        Whether the sum of the products' squared errors is to be within as well: few samples favour, of many mixtures
        that are tried, those that err little on them by chance.

    Raises
    ------
    NothingFits
        One product alone has a larger error than the tolerance, whichever it is.
    ArgumentError
        All would be kept.
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
