"""Bytes weighed for `precision="auto"`: the network of bytes that keeps to a tolerance, or why there is none.

Ranges follow from every other sample alone, and errors are measured on all of them: those that ranges follow from err
less than others do. What is judged is what runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from autotune.data_classes import dataclass
from cpuconv.conv.choice.target import FULL
from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.graph.ir import Graph
from cpuconv.isa import current
from cpuconv.kernels.emit.product import product_of
from cpuconv.network.ports import Port
from cpuconv.network.precision.errors import Metric
from cpuconv.network.precision.programs import Results
from cpuconv.network.precision.table import Layer
from cpuconv.problem.types import Types
from cpuconv.quantizing import arguments
from cpuconv.quantizing.calibrating import Calibration, Form, Progress
from cpuconv.quantizing.choosing import (
    JUDGED,
    Choice,
    NothingFits,
    calibrated,
    errors_alone,
    within,
    without_slower,
)
from cpuconv.quantizing.data.samples import Feed, Samples
from cpuconv.quantizing.errors import Judge, Worst
from cpuconv.quantizing.graphs.plan import products_of
from cpuconv.quantizing.graphs.preparing import prepared
from cpuconv.quantizing.observing import ready
from cpuconv.quantizing.speed import race

NEEDED = 8  # samples, for bytes to be weighed


@dataclass(frozen=True)
class Weighed:
    """A network of bytes.

    Attributes
    ----------
    graph : Graph
    made : Calibration
    choice : Choice
    judge : Judge
        On samples that ranges do not follow from.
    """

    graph: Graph
    made: Calibration
    choice: Choice
    judge: Judge

    def layers(self) -> dict[str, Layer]:
        """What was measured of its products, and the errors of those that multiply bytes, where they were not yet."""
        choice = self.choice
        alone = choice.alone or errors_alone(self.made, self.judge, choice.products(self.made))
        return {
            name: Layer(alone.get(name), choice.slower(name))
            for product in self.made.products
            if (name := product.name)
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
    choice = Choice(arguments.kept(network.graph, products_of(network.graph), ()))
    ports = tuple(Port(name, graph.value(name).shape, array.dtype) for name, array in feeds[0].items())
    seen, others, all_ = (Samples(ports, items, lambda feed: feed) for items in (feeds[::2], feeds[1::2], feeds))

    def measure() -> Worst:
        return Worst(metric)

    few = Judge(network.graph, others.first(JUDGED), threads, measure, exact[1::2][:JUDGED])
    judge = Judge(network.graph, all_, threads, measure, exact)
    made = calibrated(network, seen, Form(full_range=not _adds_small_words()), threads, progress, few, choice)
    without_slower(made, choice, feeds[0], precision)
    _check_faster(made, choice, feeds[0], precision)
    try:
        within(made, few, lambda some: judge.error(made.built(some)), choice, tolerance, 0)
    except NothingFits as error:
        raise SourceError(f"one layer alone errs by {min(choice.alone.values()):.2g} or more") from error
    return Weighed(made.built(choice.products(made)), made, choice, few)


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
