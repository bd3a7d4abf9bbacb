"""Which products multiply bytes: those that are faster so on this machine, as far as the error allows.

First go products that bytes do not make faster, if the whole is faster without. Then, while the error of the whole is
above the tolerance, those with the largest error for the time that they save, each measured alone against floats: how
many, is found by bisection on the whole. First and last layers are products like others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cpuconv.conv.choice.target import FULL
from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Graph
from cpuconv.network.model import Model
from cpuconv.quantizing.calibrating import Calibration, Form, Progress
from cpuconv.quantizing.data.samples import Feed, Samples
from cpuconv.quantizing.errors import Judge
from cpuconv.quantizing.graphs.equalizing import equalized
from cpuconv.quantizing.graphs.preparing import Prepared
from cpuconv.quantizing.graphs.products import Product
from cpuconv.quantizing.observing import ready
from cpuconv.quantizing.speed import race, seconds_by_name

ASKED, SLOWER, ERROR = "asked for", "bytes are not faster", "error"
JUDGED = 16  # samples by which layers are compared with one another; the whole is measured on all
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

    def costs(self, names: Sequence[str]) -> dict[str, float]:
        """What products of bytes cost: their squared error, for each second that they save where all were timed.

        Squares, as the errors of products that know nothing of one another add up so.
        """
        timed = all(name in self.floats and name in self.bytes for name in names)
        saved = {name: max(self.floats[name] - self.bytes[name], _LEAST_SAVED) if timed else 1.0 for name in names}
        return {name: self.alone[name] ** 2 / saved[name] for name in names}

    def slower(self, name: str) -> float | None:
        """Seconds that a product takes more with bytes; None where it was not timed in both."""
        both = name in self.floats and name in self.bytes
        return self.bytes[name] - self.floats[name] if both else None

    def products(self, made: Calibration) -> list[Product]:
        """Those that multiply bytes."""
        return [product for product in made.products if product.name not in self.kept]


class NothingFits(ArgumentError):
    """One layer alone exceeds the tolerance, whichever it is."""


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
    """Keep products of floats that bytes do not make faster: by the time of each alone, then of the whole.

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
    slower = {name: SLOWER for name in names if name in floats and of_bytes.get(name, 0.0) > floats[name]}
    if slower and len(slower) < len(names):
        rest = [product for product in products if product.name not in slower]
        if race(whole, model(made.built(rest)), feed).ratio.high < _GAIN:
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
    whole: Callable[[Sequence[Product]], float],
    choice: Choice,
    tolerance: float | None,
    layers: int,
) -> Choice:
    """Keep products of floats until the error of the whole is within the tolerance; `layers` of them in any case.

    Parameters
    ----------
    made : Calibration
    judge : Judge
        Of the errors of one product.
    whole : callable
        The error of the network in which these products are of bytes.
    choice : Choice
        So far.
    tolerance : float or None
    layers : int
        How many are kept at least.

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
    costs = choice.costs([product.name for product in products])
    ranked = sorted(products, key=lambda product: -costs[product.name])

    def rest(count: int) -> list[Product]:
        gone = {product.name for product in ranked[:count]}
        return [product for product in products if product.name not in gone]

    least, most = layers, len(ranked)
    if tolerance is None or whole(rest(least)) <= tolerance:
        most = least
    while most - least > 1:  # `least` are too few, `most` are enough
        middle = (least + most) // 2
        least, most = (least, middle) if whole(rest(middle)) <= tolerance else (middle, most)  # type: ignore[operator]
    if most == len(ranked):
        smallest = min(choice.alone.values())
        raise NothingFits(must("tolerance", f"above {smallest:.3g}, the error of one layer", tolerance))
    choice.kept |= {product.name: ERROR for product in ranked[:most]}
    return choice
