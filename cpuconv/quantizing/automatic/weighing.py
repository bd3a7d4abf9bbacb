"""Bytes weighed for `precision="auto"`: the network of bytes that keeps to a tolerance, or why there is none.

Its error is that of samples which it does not follow from (`held_out`): the largest, or what samples to come need by
the spread of these.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from autotune.data_classes import dataclass
from cpuconv.conv.choice.target import FULL
from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.graph.ir import Graph
from cpuconv.isa import current
from cpuconv.kernels.emit.product import product_of
from cpuconv.network.ports import Port
from cpuconv.network.precision.errors import Metric, relative_rms
from cpuconv.network.precision.programs import Results
from cpuconv.network.precision.table import Layer
from cpuconv.problem.types import Types
from cpuconv.quantizing import arguments
from cpuconv.quantizing.calibrating import Calibration, Form, Progress
from cpuconv.quantizing.choosing import (
    JUDGED,
    VALUES,
    Choice,
    NothingFits,
    calibrated,
    errors_alone,
    known_too_little,
    within,
    without_slower,
)
from cpuconv.quantizing.data.samples import Feed, Samples
from cpuconv.quantizing.errors import Bounded, Judge, Worst
from cpuconv.quantizing.graphs.preparing import prepared
from cpuconv.quantizing.graphs.products import Product, products_of
from cpuconv.quantizing.held_out import HeldOut
from cpuconv.quantizing.observing import ready
from cpuconv.quantizing.speed import race

NEEDED = 8  # samples, for bytes to be weighed
NOT_FASTER = "what is within the tolerance is not faster"


class Judged(NamedTuple):
    """Networks of bytes whose ranges follow from some of the samples, and what judges them."""

    made: Calibration
    judge: Judge


@dataclass(frozen=True)
class Weighed:
    """A network of bytes.

    Attributes
    ----------
    graph : Graph
        Its ranges follow from all samples.
    error : float
        On samples that it does not follow from, and on its own.
    choice : Choice
    alone : Judged
        Of errors of one product.
    """

    graph: Graph
    error: float
    choice: Choice
    alone: Judged

    def layers(self) -> dict[str, Layer]:
        """What was measured of its products, and the errors of those that multiply bytes, where they were not yet."""
        choice = self.choice
        made = self.alone.made
        errors = choice.alone or errors_alone(made, self.alone.judge, choice.products(made))
        return {
            name: Layer(errors.get(name), choice.slower(name)) for product in made.products if (name := product.name)
        }


def weighed(
    graph: Graph,
    feeds: Sequence[Feed],
    exact: Sequence[Results],
    threads: int,
    tolerance: float,
    metric: Metric,
    progress: Progress,
    precision: str = FULL,
) -> Weighed:
    """The network with as many products of bytes as pay and keep to the tolerance.

    Parameters
    ----------
    graph : Graph
        Of floats.
    feeds : sequence of dict of str to numpy.ndarray
        Samples.
    exact : sequence of dict of str to numpy.ndarray
        The outputs of each, by floats.
    threads : int
    tolerance : float
        Most error of any sample.
    metric : callable
    progress : callable
    precision : str
        What floats may be rounded to, where bytes are compared with them.

    Raises
    ------
    SourceError
        There is none; the message is the reason.
    ArgumentError
        The metric gives no number.
    """
    if len(feeds) < NEEDED:
        raise SourceError(f"{NEEDED} samples are needed, not {len(feeds)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuconvWarning)  # told when the network is compiled
        network = prepared(graph, {name: array.shape for name, array in feeds[0].items()})
    few = len(feeds) // 2
    choice = Choice(arguments.kept(network.graph, products_of(network.graph), ()) | known_too_little(network, few))
    if len(choice.kept) == len(products_of(network.graph)):
        raise SourceError(f"no product reads {VALUES} values on {few} samples")
    ports = tuple(Port(name, graph.value(name).shape, array.dtype) for name, array in feeds[0].items())
    form = Form(full_range=not _adds_small_words(), joined=True, room=True)
    samples = Samples(ports, feeds, lambda feed: feed)
    probabilities = metric is relative_rms
    all_of_them = Judge(network.graph, samples, threads, lambda: Worst(metric), exact, probabilities=probabilities)
    few_of_them = all_of_them.first(JUDGED)
    made = calibrated(network, samples, form, threads, progress, few_of_them, choice)
    without_slower(made, choice, feeds[0], precision)
    _check_faster(made, choice, feeds[0], precision)
    held_out = HeldOut(made, all_of_them, lambda: Bounded(metric))

    def whole(some: Sequence[Product]) -> float:
        return held_out.error(some, tolerance)

    # Where one product is of bytes, samples that ranges follow from err as others do.
    alone = Judged(next(iter(held_out.halves), made), few_of_them)
    try:
        within(*alone, whole, choice, tolerance, 0, additive=True)
    except NothingFits as error:
        smallest = min(choice.alone.values())
        alone_too_large = f"one layer alone errs by {smallest:.2g} or more"
        raise SourceError(alone_too_large if smallest > tolerance else NOT_FASTER) from error
    products = choice.products(made)
    return Weighed(made.built(products), whole(products), choice, alone)


def _adds_small_words() -> bool:
    """Whether products of bytes are faster here where weights do not use all of their range."""
    product = product_of(Types.parse("u8"), current())
    return product is not None and product.flipped


def _check_faster(made: Calibration, choice: Choice, feed: Feed, precision: str) -> None:
    """See that bytes pay before errors are measured, which takes a program for each layer."""
    of_bytes = made.built(choice.products(made))
    floats, whole = (ready(each, made.threads, precision=precision) for each in (made.graph, of_bytes))
    raced = race(floats, whole, feed)
    if raced.ratio.low >= 1:
        times = f"{raced.second * 1e3:.3f} ms, where floats take {raced.first * 1e3:.3f} ms"
        raise SourceError(f"it is not faster here: {times}")
