"""Calibration of a network on samples: tensor ranges, and the int8 network for any set of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.graph.ir import Graph
from cpuconv.isa import current
from cpuconv.kernels.binding.processor import Processor
from cpuconv.quantizing.bias_correction import measure_layers
from cpuconv.quantizing.data.samples import Samples
from cpuconv.quantizing.graphs.assignment import Assignment, Assignments
from cpuconv.quantizing.graphs.attention import Quantizable, quantizable
from cpuconv.quantizing.graphs.building import insert_quantization
from cpuconv.quantizing.graphs.plan import Plan, plan_of
from cpuconv.quantizing.graphs.preparing import Prepared
from cpuconv.quantizing.graphs.quantizable import QuantizableLayer
from cpuconv.quantizing.observing import counted, ends_of, ready
from cpuconv.quantizing.ranges import Range, range_of
from cpuconv.quantizing.scales import Scale, Weights, scale_of, weights_of

_FEW = 8000  # values per sample: with fewer, one that is 10% out of range causes more error than all rounding
Progress = Callable[[str, int, int], None]  # step name, steps done, steps in total


@dataclass(frozen=True)
class Form:
    """Options of quantisation.

    Attributes
    ----------
    method : str
        One of `ranges.METHODS`.
    percentile : float
        Percentage of values that the range of "percentile" covers, at each end.
    dtype : numpy.dtype
        Type of activations: uint8 or int8.
    full_range : bool
        Whether two weights of a channel may saturate 16-bit sums.
    fuse_adds : bool
        As for `Assignments`.
    margin : bool
        Whether ranges of "mse" have a margin for unseen inputs in large tensors too. It costs resolution.
    """

    method: str = "mse"
    percentile: float = 99.99
    dtype: np.dtype = np.dtype(np.uint8)
    full_range: bool = False
    fuse_adds: bool = False
    margin: bool = False


class Calibration:
    """Calibration of one network: tensor ranges on the samples; builds its int8 networks.

    Parameters
    ----------
    prepared : Prepared
    samples : Samples
    form : Form
    threads : int
    progress : callable
    correct : bool
        Whether biases compensate the mean errors of channels.

    Attributes
    ----------
    layers : tuple of Quantizable
    errors : dict of str to float
        Output error of each layer alone, by the name of its output.
    """

    def __init__(
        self, prepared: Prepared, samples: Samples, form: Form, threads: int, progress: Progress, correct: bool
    ) -> None:
        self.graph, self.known = prepared
        self.samples, self.form, self.threads, self.progress = samples, form, threads, progress
        self._correct = correct
        self.layers = quantizable(self.graph, self.known)
        self._ranges: dict[str, Range] = {}
        self._biases: dict[str, np.ndarray] = {}
        self._known: dict[tuple[str, str], Weights] = {}  # by the layer's output and the root of its input's scale
        self._assignments = Assignments(
            self.graph, self.known, self.layers, form.fuse_adds, Processor(current(), threads)
        )
        inner = (name for layer in self.layers for name in layer.inner)
        self._observe((*self._assignments.tensors, *inner))
        plan = self.plan(self.layers)
        scales = self._scales(plan)
        weights = self._weights(plan, scales)
        step = self.steps("comparing layers", 1)
        found = measure_layers(self.graph, plan, scales, weights, samples, threads, step, correct)
        self._biases, self.errors = found.biases, found.errors
        self._known.clear()

    def of_half(self, first: int) -> Calibration:
        """Calibrate on every second sample, from the first (0) or the second (1) on."""
        prepared = Prepared(self.graph, self.known)
        return Calibration(prepared, self.samples.half(first), self.form, self.threads, self.progress, self._correct)

    def plan(self, layers: Collection[Quantizable]) -> Plan:
        """Plan the quantisation of these layers."""
        return plan_of(self.graph, self.fastest_assignment({layer.name: 0.0 for layer in layers}, forced=True))

    def fastest_assignment(
        self, prices: Mapping[str, float], *, forced: bool = False, free: bool = False
    ) -> Assignment:
        """Select the fastest assignment of int8 to tensors and layers (`Assignments.fastest`)."""
        return self._assignments.fastest(prices, forced=forced, free=free)

    def built(self, layers: Collection[Quantizable]) -> Graph:
        """Build the network in which these layers are int8."""
        plan = self.plan(layers)
        scales = self._scales(plan)
        return insert_quantization(self.graph, plan, scales, self._weights(plan, scales))

    def steps(self, what: str, passes: int) -> Callable[[], None]:
        """Make a callback to be called per sample, which reports the progress of some passes over the samples."""
        done, total = 0, passes * len(self.samples)
        self.progress(what, 0, total)

        def step() -> None:
            nonlocal done
            done += 1
            self.progress(what, done, total)

        return step

    def _scales(self, plan: Plan) -> dict[str, Scale]:
        names = {*plan.roots.values(), *(name for layer in plan.layers for name in layer.inner)}
        return {name: scale_of(*self._ranges[name], self.form.dtype) for name in names}

    def _observe(self, names: Sequence[str]) -> None:
        """Determine the ranges of tensors."""
        model = ready(self.graph, self.threads, names)
        one_pass = self.form.method == "minmax"
        step = self.steps("observing tensors", 1 if one_pass else 2)
        ends = ends_of(model, self.samples, step)
        seen = {name: each.seen for name, each in ends.items()}
        if one_pass:
            self._ranges |= seen
            return
        apart = self.form.method == "mse" and self.form.margin
        for name, (found, best) in counted(model, self.samples, seen, step, apart=apart).items():
            low, high = range_of(self.form.method, found, self.form.percentile)
            few = self.form.method == "mse" and found.counts.sum() < _FEW * len(self.samples)
            if low < high and (few or apart):
                least, most = (ends[name] if few else best).unseen_bound
                low, high = min(low, least), max(high, most)
            self._ranges[name] = low, high

    def _weights(self, plan: Plan, scales: dict[str, Scale]) -> dict[str, Weights]:
        layers = (layer for layer in plan.layers if isinstance(layer, QuantizableLayer))
        return {layer.node.outputs[0]: self._weights_of(layer, plan, scales) for layer in layers}

    def _weights_of(self, layer: QuantizableLayer, plan: Plan, scales: dict[str, Scale]) -> Weights:
        """Quantise the weights of one layer, cached."""
        key = name, root = layer.node.outputs[0], plan.roots[layer.node.inputs[0]]
        if key not in self._known:
            bias, unit = self._biases.get(name, layer.bias), scales[root].scale
            self._known[key] = weights_of(layer.weight, layer.axis, bias, unit, self.form.full_range)
        return self._known[key]
