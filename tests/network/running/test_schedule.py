"""Operators side by side: what may share a join, the kernel that runs it, and that results stay the same."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

pytest.importorskip("onnx")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cpuconv.conv.choice.target import Target  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.kernels.binding.steps import Ref  # noqa: E402
from cpuconv.kernels.binding.tensor_view import TensorView  # noqa: E402
from cpuconv.kernels.calls.parallel_group import grouped  # noqa: E402
from cpuconv.network.running.building import build  # noqa: E402
from cpuconv.network.running.packed import Packed  # noqa: E402
from cpuconv.network.running.schedule import bounds, scheduled  # noqa: E402
from cpuconv.network.selection.layout import lay_out  # noqa: E402
from cpuconv.network.sizes.prepared import Rewriting, prepared  # noqa: E402
from cpuconv.problem.arrays import address  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from cpuconv.runtime import Program  # noqa: E402
from cpuconv.runtime.atomics import put  # noqa: E402
from cpuconv.runtime.kernel import kernel  # noqa: E402
from support.graph.branches import branches, slowed  # noqa: E402
from support.graph.random_networks import known_networks  # noqa: E402

TARGET = Target(current(), 2, "heuristic")


@dataclass(frozen=True)
class LogTile:
    """There is one."""


@kernel("log")
def note(tile, worker, before, part, parts, args):
    """Write down who did a part, how many there were, and what this worker did before."""
    put(args.log, 3 * part, worker + 1)
    put(args.log, 3 * part + 1, parts)
    put(args.log, 3 * part + 2, before)


@settings(max_examples=25)
@given(counts=st.lists(st.integers(0, 3), min_size=2, max_size=5), workers=st.integers(1, 2), cut=st.integers(1, 4))
def test_every_part_is_done_once(counts, workers, cut):
    """Also of calls that one worker runs, and of rows that stay alone."""
    logs = [np.zeros((max(1, count * workers), 3), np.int64) for count in counts]
    rows = [
        (note.entry(LogTile()), note.pack({"log": address(log)}), count)
        for count, log in zip(counts, logs, strict=True)
    ]
    sizes = [cut, *[1] * (len(counts) - cut)] if cut < len(counts) else [len(counts)]
    made = grouped(rows, sizes, kept := [])
    Program(made, workers).run()
    assert len(made) == len(sizes) and kept is not None
    for count, log in zip(counts, logs, strict=True):
        parts = log[0, 1]
        assert parts == (count * workers if count and workers > 1 else 1)
        assert (log[:parts, 0] > 0).all() and (log[:parts, 1] == parts).all() and not log[parts:].any()
        assert (log[:parts, 2] < parts).all()


def test_a_worker_goes_on_with_its_own_part():
    """What it left of a call is there when its next part of that call follows at once."""
    log = np.zeros((6, 3), np.int64)
    rows = [(note.entry(LogTile()), note.pack({"log": address(log)}), 3)] * 2
    ((code, block, each),) = grouped(rows, [2], kept := [])
    words = [ctypes.c_int64] * 4
    call = code.function(ctypes.CFUNCTYPE(None, ctypes.c_void_p, *words, ctypes.c_void_p))
    for before, part, expected in ((-1, 0, -1), (0, 1, 0), (2, 3, -1), (4, 5, 1), (6, 7, 3)):
        call(None, 0, before, part, 2 * each, address(block))
        owner, place = divmod(part, each)
        assert log[3 * owner + place % 3].tolist() == [1, 6, expected], (before, part)
    assert each == 6 and kept


@pytest.mark.parametrize("n", [1, 3])
def test_branches_come_together(n):
    """Each after what it reads."""
    network_plan, stages = scheduled(branches(n))
    of = {name: at for each, at in zip(network_plan.nodes, stages, strict=True) for name in each.node.outputs}
    assert stages == sorted(stages) and len(set(stages)) < len(stages) - 2
    for each in network_plan.nodes:
        is_view = each.offer is not None and each.offer.view
        for name in set(each.node.inputs) & of.keys():
            assert of[name] < of[each.node.outputs[0]] + is_view


def test_one_thread_and_large_operators_keep_the_order():
    network_plan = branches(1)
    alone = replace(network_plan, target=Target(current(), 1, "heuristic"))
    assert scheduled(alone) == (alone, list(range(len(network_plan.nodes))))
    network_plan = slowed(network_plan)
    assert [each.node for each in scheduled(network_plan)[0].nodes] == [each.node for each in network_plan.nodes]
    assert not any(len(each) > 1 for each in build(network_plan, TARGET, Packed()).groups)


def elements(place: TensorView) -> set[tuple[str, int]]:
    """The addresses of a place's elements."""
    index = np.full(1, place.ref.offset)
    for count, step in zip(place.physical, place.strides, strict=True):
        index = (index[:, None] + step * np.arange(count)).ravel()
    return {(place.ref.name, at) for at in index.tolist()}


@settings(max_examples=15)
@given(drawn=known_networks)
def test_what_runs_side_by_side_touches_other_memory(drawn):
    model, feed = drawn
    graph = prepared(read(model), {name: array.shape for name, array in feed.items()}, Rewriting()).graph
    made = build(lay_out(graph, TARGET), TARGET, Packed())
    assert [at for each in made.groups for at in each] == list(range(len(made.operations)))
    places = made.memory.places
    for each in made.groups:
        nodes = [made.operations[at].node_plan.node for at in each]
        written = [set().union(*(elements(places[name]) for name in node.outputs if name)) for node in nodes]
        read_too = [set().union(*(elements(places[name]) for name in node.inputs if name in places)) for node in nodes]
        for one, other in itertools.permutations(range(len(each)), 2):
            assert not written[one] & (written[other] | read_too[other])


def test_bounds_of_a_view_that_runs_backwards():
    forwards = TensorView(Ref("arena", 64), (3, 5), (20, 4))
    backwards = TensorView(Ref("arena", 80), (3, 5), (20, -4))
    assert bounds(backwards) == bounds(forwards) == (64, 124)
