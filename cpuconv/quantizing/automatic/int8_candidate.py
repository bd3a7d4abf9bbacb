"""int8 candidates for `precision="auto"`: quantise as many layers as the tolerance allows, or explain why none.

The error is cross-validated on samples that were not used for calibration (`cross_validation`). It is the maximum over
the samples, or an upper bound for unseen inputs derived from their spread.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from baselib.data_classes import dataclass
from cpuconv.conv.choice.target import PRECISION_F32
from cpuconv.errors import CpuconvWarning, SourceError
from cpuconv.graph.ir import Graph
from cpuconv.isa import current
from cpuconv.kernels.emit.product import product_of
from cpuconv.network.ports import Port
from cpuconv.network.precision.errors import Metric, relative_rms
from cpuconv.network.precision.sample_groups import Results
from cpuconv.network.precision.table import Layer
from cpuconv.problem.types import Types
from cpuconv.quantizing import arguments
from cpuconv.quantizing.calibrating import Calibration, Form, Progress
from cpuconv.quantizing.choosing import (
    COMPARISON_SAMPLES,
    VALUES,
    Choice,
    NothingFits,
    calibrated,
    errors_alone,
    exclude_slower,
    fit_tolerance,
    layers_with_few_values,
)
from cpuconv.quantizing.cross_validation import CrossValidation
from cpuconv.quantizing.data.samples import Feed, Samples
from cpuconv.quantizing.errors import Bounded, Judge, Worst
from cpuconv.quantizing.graphs.attention import quantizable
from cpuconv.quantizing.graphs.preparing import prepared
from cpuconv.quantizing.observing import ready
from cpuconv.quantizing.speed import race

NEEDED = 8  # minimum number of samples
NOT_FASTER = "networks within the tolerance are not faster"


class Evaluation(NamedTuple):
    """A calibration on some of the samples, and the judge of its networks' errors."""

    made: Calibration
    judge: Judge


@dataclass(frozen=True)
class Int8Candidate:
    """A quantised network.

    Attributes
    ----------
    graph : Graph
        Calibrated on all samples.
    error : float
        Error on held-out samples and on the calibration samples.
    choice : Choice
    alone : Evaluation
        Calibration and judge for errors of single layers.
    """

    graph: Graph
    error: float
    choice: Choice
    alone: Evaluation

    def layers(self) -> dict[str, Layer]:
        """Measurements of all layers; measures the errors of the int8 layers if that is not yet done."""
        choice = self.choice
        made = self.alone.made
        errors = choice.alone or errors_alone(made, self.alone.judge, choice.int8_layers(made))
        return {
            name: Layer(errors.get(name), choice.measured_extra(name)) for layer in made.layers if (name := layer.name)
        }


def int8_candidate(
    graph: Graph,
    feeds: Sequence[Feed],
    exact: Sequence[Results],
    threads: int,
    tolerance: float,
    metric: Metric,
    progress: Progress,
    precision: str = PRECISION_F32,
) -> Int8Candidate:
    """Quantise as many layers as are faster and keep to the tolerance.

    Parameters
    ----------
    graph : Graph
        The float32 network.
    feeds : sequence of dict of str to numpy.ndarray
        Samples.
    exact : sequence of dict of str to numpy.ndarray
        Float32 outputs of each sample.
    threads : int
    tolerance : float
        Maximum error of any sample.
    metric : callable
    progress : callable
    precision : str
        Precision to which float32 may be rounded in the comparison with int8.

    Raises
    ------
    SourceError
        No layer can be quantised; the message is the reason.
    ArgumentError
        The metric does not return a number.
    """
    if len(feeds) < NEEDED:
        raise SourceError(f"{NEEDED} samples are needed, not {len(feeds)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CpuconvWarning)  # warned about at compilation
        network = prepared(graph, {name: array.shape for name, array in feeds[0].items()})
    few = len(feeds) // 2
    layers = quantizable(*network)
    choice = Choice(arguments.kept(network.graph, layers, ()) | layers_with_few_values(network, few))
    if len(choice.kept) == len(layers):
        raise SourceError(f"no layer reads {VALUES} values on {few} samples")
    ports = tuple(Port(name, graph.value(name).shape, array.dtype) for name, array in feeds[0].items())
    form = Form(full_range=not _prefers_reduced_range(), fuse_adds=True, margin=True)
    samples = Samples(ports, feeds, lambda feed: feed)
    probabilities = metric is relative_rms
    all_of_them = Judge(network.graph, samples, threads, lambda: Worst(metric), exact, probabilities=probabilities)
    few_of_them = all_of_them.first(COMPARISON_SAMPLES)
    made = calibrated(network, samples, form, threads, progress, few_of_them, choice)
    exclude_slower(made, choice, feeds[0], precision)
    _check_faster(made, choice, feeds[0], precision)
    validation = CrossValidation(made, all_of_them, lambda: Bounded(metric), tolerance)
    # Errors of single int8 layers are alike on calibration samples and on others.
    alone = Evaluation(next(iter(validation.halves), made), few_of_them)
    try:
        error = fit_tolerance(*alone, validation.error, choice, tolerance, 0, additive=True)
    except NothingFits as reason:
        smallest = min(choice.alone.values())
        alone_too_large = f"one layer alone errs by {smallest:.2g} or more"
        raise SourceError(alone_too_large if smallest > tolerance else NOT_FASTER) from reason
    return Int8Candidate(made.built(choice.int8_layers(made)), error, choice, alone)


def _prefers_reduced_range() -> bool:
    """Whether int8 layers are faster on this CPU with weights of reduced range."""
    found = product_of(Types.parse("u8"), current())
    return found is not None and found.flipped


def _check_faster(made: Calibration, choice: Choice, feed: Feed, precision: str) -> None:
    """Check that int8 is faster before errors are measured, which needs a program per layer."""
    int8 = made.built(choice.int8_layers(made))
    before, after = (ready(each, made.threads, precision=precision) for each in (made.graph, int8))
    raced = race(before, after, feed)
    if raced.ratio.low >= 1:
        times = f"{raced.second * 1e3:.3f} ms, and float32 takes {raced.first * 1e3:.3f} ms"
        raise SourceError(f"it is not faster on this machine: {times}")
