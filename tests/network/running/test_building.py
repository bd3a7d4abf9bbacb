"""What is built of a layout: a result that does not change, and that holds nothing of what it was built from."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest

pytest.importorskip("onnx")

from cpuconv.conv.choice.target import Target  # noqa: E402
from cpuconv.graph.ir import Graph  # noqa: E402
from cpuconv.isa import current  # noqa: E402
from cpuconv.network.running.building import build  # noqa: E402
from cpuconv.network.running.packed import Packed  # noqa: E402
from cpuconv.network.selection.layout import lay_out  # noqa: E402
from cpuconv.network.sizes.prepared import Rewriting, prepared  # noqa: E402
from cpuconv.reading.onnx_reader import read  # noqa: E402
from support.graphs import parse  # noqa: E402

TARGET = Target(current(), 1, "heuristic")
CONSTANT = "<float[2] c = {1, 2}>"
TEXT = f"g (float[2] x) => (float[2] y, float[2] z) {CONSTANT} {{ y = Relu (x) z = Identity (c) }}"


def _graph() -> Graph:
    return prepared(read(parse(TEXT)), {}, Rewriting()).graph


def test_what_was_built_does_not_change():
    made = build(lay_out(_graph(), TARGET), TARGET, Packed())
    y, z = np.empty(2, np.float32), np.empty(2, np.float32)
    before = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    made.run([np.array([-1, 3], np.float32)], [y, z])
    assert [*y, *z] == [0, 3, 1, 2] and made.constant_outputs.keys() == {"z"}
    assert all(getattr(made, name) is value for name, value in before.items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.memory = None


def test_what_it_was_built_from_goes_with_its_last_reference():
    graph = _graph()
    network_plan = lay_out(graph, TARGET)
    graphs = [weakref.ref(graph), weakref.ref(network_plan.graph)]
    gc.disable()
    try:
        made = build(network_plan, TARGET, Packed())
        del graph, network_plan
        assert made.operations and not any(each() for each in graphs)
    finally:
        gc.enable()
