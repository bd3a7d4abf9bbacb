"""Whole networks: compiled, and compared with ONNX Runtime, or with the references where that is not installed."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Mapping

import numpy as np
import pytest

from support import oracle

onnx = pytest.importorskip("onnx")

import cpuconv  # noqa: E402
from baselib.interpreter import VARIABLE  # noqa: E402
from bench.networks import networks  # noqa: E402
from bench.networks.model import batched, resize  # noqa: E402
from cpuconv.graph import passes  # noqa: E402
from cpuconv.network.interpret import interpret  # noqa: E402
from support.graphs import made, runtime_session  # noqa: E402
from support.running.callers import at_once  # noqa: E402

NETWORKS = networks()
LIMIT = 1e-4  # of an output's largest value
SMALL = ("shufflenet", "squeezenet")
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # of so many weights that they are run in one way only
# An emulator takes half an hour for what a CPU does in a second: there all but the small ones are run in one way.
ONE_WAY = {*NETWORKS} - {*SMALL} if VARIABLE in os.environ else {*LARGE}
RUNTIME = importlib.util.find_spec("onnxruntime")

Arrays = Mapping[str, np.ndarray]


class Case:
    """A network for any number of images, of few pixels where it takes few, and the right outputs."""

    def __init__(self, name: str) -> None:
        self.network = network = NETWORKS[name]
        if missing := network.missing():
            pytest.skip(missing)
        self.inputs = network.small or network.inputs
        self.model = network.make(self.inputs)
        resize(self.model, batched(self.inputs, "N"))

    def feed(self, batch: int) -> Arrays:
        return self.network.feed(batched(self.inputs, batch), batch)

    def compile(self, **options: object) -> cpuconv.Model:
        return cpuconv.compile(self.model, **{"strategy": "heuristic", "strict": True, **options})

    def expected(self, fed: Arrays) -> list[np.ndarray]:
        if RUNTIME:
            return self._session.run(None, dict(fed))
        return list(interpret(made(self.model, fed), fed).values())

    @functools.cached_property
    def _session(self):
        import onnxruntime

        return runtime_session(onnxruntime, self.model)


@pytest.fixture(scope="module", params=SMALL)
def small(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def agree(outputs: Arrays, expected: list[np.ndarray], limit: float = LIMIT) -> None:
    for got, right in zip(outputs.values(), expected, strict=True):
        assert got.dtype == right.dtype and got.shape == right.shape
        assert np.ptp(right) > 0.1 * np.abs(right).max()  # not a network that gives the same whatever it sees
        np.testing.assert_allclose(got, right, rtol=0, atol=limit * np.abs(right).max())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive(1 if name in LARGE else 5)) for name in NETWORKS]
)
def test_network(name: str) -> None:
    case = Case(name)
    feeds = [case.feed(batch) for batch in ((1,) if name in ONE_WAY else (1, 3))]
    expected = [case.expected(fed) for fed in feeds]
    for threads in {oracle.THREADS} if name in ONE_WAY else {1, oracle.THREADS}:
        model = case.compile(threads=threads)
        for fed, right in zip(feeds, expected, strict=True):
            first, again = model.run(fed), model.run(fed)
            agree(first, right)
            for name_, array in first.items():
                np.testing.assert_array_equal(array, again[name_])


def test_references_agree(small: Case) -> None:
    pytest.importorskip("onnxruntime")
    fed = small.feed(1)
    graph = made(small.model, fed, strict=True)
    assert not {"Constant", "ConstantOfShape", "Dropout", "Shape"} & {node.op for node in graph.nodes}
    agree(interpret(graph, fed), small.expected(fed))


@pytest.mark.parametrize("skipped", passes.NAMES)
def test_any_pass_may_be_left_out(small: Case, skipped: str) -> None:
    fed = small.feed(1)
    agree(small.compile(threads=1, skip_passes=(skipped,)).run(fed), small.expected(fed))


@pytest.mark.parametrize("threads", sorted({1, oracle.THREADS}))
def test_threads_of_the_caller_run_at_once(small: Case, threads: int) -> None:
    model = small.compile(threads=threads)
    feeds = [small.feed(batch) for batch in (1, 2, 1, 3, 1, 2, 1, 3)]
    alone = [model.run(fed) for fed in feeds]
    found: list[list[Arrays]] = [[] for _ in feeds]

    def go(at: int) -> None:
        found[at] += [model.run(feeds[at]) for _ in range(5)]

    at_once(len(feeds), go)
    for outputs, right in zip(found, alone, strict=True):
        assert len(outputs) == 5
        for each in outputs:
            for name, array in right.items():
                np.testing.assert_array_equal(each[name], array)
