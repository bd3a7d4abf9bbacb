"""Networks with open sizes at random ones: what each result is compared with."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import cpuconv
from bench.networks import networks
from bench.networks.feeds import page
from bench.networks.model import batched, resize
from cpuconv.errors import CpuconvError
from support.graphs import programs_of, runtime_session
from support.guarded import EDGES, only, place
from support.sized_networks import Axes, SizedNetwork

Shapes = dict[str, tuple[int, ...]]
Feed = dict[str, np.ndarray]
SMALLEST, ODDEST = 0, 1  # numbers of drawn shapes: all axes at their smallest; each at its largest odd size
FRESH_LIMITS = {"float32": 1e-4, "bfloat16": 4e-2}
"""Largest difference from a model that is compiled for that size alone, by precision, over the largest element."""


class Wrong(AssertionError):
    """A result is not what it must be."""


class Judge:
    """A network with open sizes, and the engines that it is compared with.

    Parameters
    ----------
    network : SizedNetwork
    seed : int
        Seed of all sizes and elements.
    threads : int
    """

    def __init__(self, network: SizedNetwork, seed: int = 1, threads: int = 1) -> None:
        self.network, self.seed, self.threads = network, seed, threads
        self.outputs = [each.name for each in network.model.graph.output]

    @cached_property
    def model(self) -> cpuconv.Model:
        """The model whose sizes are tried."""
        return self.compiled()

    @cached_property
    def session(self) -> object:
        """ONNX Runtime's."""
        return runtime_session(onnxruntime, self.network.model)

    def compiled(self, shapes: Shapes | None = None) -> cpuconv.Model:
        """A new model of the network, or of one for these sizes alone."""
        source = self.network.model
        if shapes is not None:
            source = onnx.ModelProto()
            source.CopyFrom(self.network.model)
            resize(source, shapes)
        options = {"strategy": "heuristic", "precision": self.network.precision}
        return cpuconv.compile(source, threads=self.threads, **options)

    def shapes(self, number: int) -> Shapes:
        """The drawn shapes of a number."""
        rng = self._rng(number)

        def size(axis: int, ends: int | tuple[int, int]) -> int:
            if isinstance(ends, int):
                return ends
            step = self.network.step if axis else 1
            low, high = -(-ends[0] // step), ends[1] // step
            odd = max(low, high - 1 + high % 2)
            return step * (low if number == SMALLEST else odd if number == ODDEST else int(rng.integers(low, high + 1)))

        return {
            name: tuple(size(axis, ends) for axis, ends in enumerate(axes))
            for name, axes in self.network.inputs.items()
        }

    def feed(self, number: int) -> Feed:
        """Arrays of these shapes."""
        if self.network.text:
            return page(self.shapes(number), number)
        rng = self._rng(number, 1)
        return {name: rng.standard_normal(shape, np.float32) for name, shape in self.shapes(number).items()}

    def _rng(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(self.network.name.encode()), *numbers])

    def judge(self, number: int, fresh: bool = True) -> str:
        """Compare the results of drawn sizes, computed between guard pages, with ONNX Runtime's and a fresh model's.

        Returns "right", or "refused" where ONNX Runtime and cpuconv refuse these sizes.
        """
        feed = self.feed(number)
        try:
            expected = self.session.run(self.outputs, feed)
        except Exception as error:
            try:
                self.model.run(feed)
            except CpuconvError:
                return "refused"
            raise Wrong(f"{_told(feed)}: ONNX Runtime refuses these sizes: {error}") from error
        got = self._guarded(feed, expected, EDGES[number % len(EDGES)])
        self._compare(got, expected, self.network.limit, f"{_told(feed)}: ONNX Runtime")
        if fresh:
            alone = self.compiled(self.shapes(number)).run(feed)
            limit = FRESH_LIMITS[self.network.precision]
            self._compare(got, list(alone.values()), limit, f"{_told(feed)}: a fresh model")
        return "right"

    def _guarded(self, feed: Feed, expected: Sequence[np.ndarray], edge: str) -> list[np.ndarray]:
        """Results where inputs and outputs are at the edges of pages that nobody may touch."""
        inputs = {name: place(array, edge) for name, array in feed.items()}
        results = self.model.run(inputs)
        if programs_of(self.model).last.suffix is None:  # sizes of outputs are known before a run
            alone = results
            pairs = zip(self.outputs, expected, strict=True)
            out = {name: place(np.zeros_like(array), edge) for name, array in pairs}
            with only(*out.values()):
                results = self.model.run(inputs, out)
            for name in self.outputs:
                if alone[name].tobytes() != results[name].tobytes():
                    raise Wrong(f"{_told(feed)}: output {name!r} has other bits in an array that is given")
        for name, array in feed.items():
            if not np.array_equal(inputs[name], array):
                raise Wrong(f"{_told(feed)}: input {name!r} was written to")
        return [results[name] for name in self.outputs]

    def _compare(self, got: Sequence[np.ndarray], expected: Sequence[np.ndarray], limit: float, about: str) -> None:
        for name, one, other in zip(self.outputs, got, expected, strict=True):
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                raise Wrong(f"{about} gives {other.dtype} {other.shape} for {name!r}, not {one.dtype} {one.shape}")
            if not one.size:
                continue
            error = np.abs(one.astype(np.float64) - other).max()
            scale = max(1e-30, float(np.abs(other.astype(np.float64)).max()))
            if not error <= limit * scale:
                raise Wrong(f"{about}: output {name!r} differs by {error / scale:.2e} of the largest element")

    def results(self, model: cpuconv.Model, numbers: Sequence[int]) -> dict[int, dict[str, bytes]]:
        """The bits that a model gives for these numbers, run in this order; sizes that it refuses are left out."""
        found = {}
        for number in numbers:
            try:
                results = model.run(self.feed(number))
            except CpuconvError:
                continue
            found[number] = {name: array.tobytes() for name, array in results.items()}
        return found

    def reordered(self, numbers: Sequence[int]) -> list[int]:
        """The numbers of which two new models give other bits, where one runs them in reverse order."""
        one = self.results(self.compiled(), numbers)
        other = self.results(self.compiled(), numbers[::-1])
        return [number for number in numbers if one.get(number) != other.get(number)]


def _told(feed: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in feed.items())


def from_folder(folder: Path, names: Sequence[str] = (), most_images: int = 2) -> Iterator[SizedNetwork]:
    """The networks in a folder that `python -m bench.networks` made, with their sizes opened, one after another.

    Axes whose sizes differ between a network's own shapes and its small ones are drawn between these; the others but
    the batch are fixed.
    """
    for name, network in networks().items():
        path = folder / f"{name}.onnx"
        if not path.is_file() or (names and name not in names):
            continue
        model = onnx.load(path)
        inputs: dict[str, Axes] = {}
        for port, shape in network.inputs.items():
            small = network.small.get(port, shape)
            rest = [one if one == other else (one, other) for one, other in zip(small[1:], shape[1:], strict=True)]
            inputs[port] = ((1, most_images), *rest)
        opened = {
            port: [size if isinstance(size, int) else f"{port} {axis}" for axis, size in enumerate(axes)]
            for port, axes in inputs.items()
        }
        resize(model, batched(opened, "batch"))
        yield SizedNetwork(name, model, inputs, limit=1e-3, text=network.reads)
