"""Networks with nodes whose sizes are found in the run: programs of new sizes are evaluated from templates."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import cpuconv
from cpuconv.network import program_builder
from support import oracle
from support.graph.detector import detector
from support.graphs import close, normal, parse, programs_of
from support.random_sizes import Judge
from support.sized_networks import BY_NAME, SizedNetwork

CROPS = """g (float[1,3,H,W] x) => (float[K,8,P,Q] y, int64[2] size) {
    a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
    lively = Relu(a)
    mean = ReduceMean <axes = [0, 2, 3], keepdims = 0> (lively)
    least = ReduceMin <keepdims = 0> (mean)
    bright = Greater(mean, least)
    places = NonZero(bright)
    rows = Squeeze(places)
    crops = Gather <axis = 1> (lively, rows)
    swapped = Transpose <perm = [1, 0, 2, 3]> (crops)
    y = Conv <kernel_shape = [3,3]> (swapped, v)
    all = Shape(lively)
    size = Slice(all, two, four)
}"""


def _crops() -> SizedNetwork:
    weights = normal(np.random.default_rng(0), {"w": (8, 3, 3, 3), "v": (8, 1, 3, 3)})
    made = parse(CROPS, **weights, two=[2], four=[4])
    return SizedNetwork("crops", made, {"x": (1, 3, (5, 60), (5, 60))})


NETWORKS = {"detector": BY_NAME["dynamic suffix"], "crops": _crops()}


@pytest.mark.parametrize("threads", [1, oracle.THREADS])
def test_a_new_size_is_not_lowered(threads, monkeypatch):
    model = cpuconv.compile(detector(), threads=threads, strategy="heuristic")
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((1, 3, *size), np.float32)} for size in ((20, 20), (17, 30), (40, 25))]
    model.run(feeds[0])
    monkeypatch.setattr(program_builder, "build", lambda *_: pytest.fail("a network was lowered"))
    results = [model.run(feed) for feed in feeds]
    monkeypatch.undo()
    for feed, found in zip(feeds, results, strict=True):
        alone = cpuconv.compile(
            detector(), threads=threads, strategy="heuristic", input_shapes={"x": feed["x"].shape}
        ).run(feed)
        for name, array in alone.items():
            assert found[name].shape == array.shape
            close(found[name], array, 1e-4)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("threads", [1, oracle.THREADS])
def test_results_are_right_whatever_ran_before(name, threads):
    judge = Judge(NETWORKS[name], threads=threads)
    assert [judge.judge(number) for number in range(6)] == ["right"] * 6
    assert not judge.reordered(range(6))


def test_what_runs_natively_behind_is_one_network_for_all_sizes():
    judge = Judge(NETWORKS["crops"])
    for number in range(4):
        judge.model.run(judge.feed(number))
    programs = programs_of(judge.model)
    suffixes = [made.suffix for _, made in programs._cache.items()]
    assert len(suffixes) == 4 and len({id(suffix._model) for suffix in suffixes}) <= len(programs.builder._templates)
    assert programs.builder.shared_bytes and not any(suffix.nbytes for suffix in suffixes)


def test_programs_with_suffixes_are_small():
    programs = programs_of(cpuconv.compile(detector(), threads=1, strategy="heuristic"))
    for high in (140, 141):
        programs.find(((1, 3, high, 180),))
    gc.collect()
    tracemalloc.start()
    try:
        for high in range(142, 182):
            programs.find(((1, 3, high, 180),))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 40 * 60 << 10
    finally:
        tracemalloc.stop()
    assert len(programs.builder._templates) == 1
