"""What fuzzing found: models that ended in another error than those that are promised."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx")


import cpuconv  # noqa: E402
from cpuconv.errors import SourceError  # noqa: E402
from support.graphs import parse  # noqa: E402

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"


def test_outputs_and_inputs_without_a_name():
    model = parse(RELU)
    model.graph.output[0].name = ""
    with pytest.raises(SourceError, match="g: The graph's output '' is defined by nothing in it"):
        cpuconv.compile(model)
    model = parse(RELU)
    model.graph.input.add().CopyFrom(model.graph.input[0])
    model.graph.input[1].name = ""
    with pytest.raises(SourceError, match="g: The graph has an input or a constant without a name"):
        cpuconv.compile(model)


@pytest.mark.parametrize("groups", [0, -1, 3, 2**62])
def test_groups_that_channels_cannot_be(groups):
    text = f"y = GroupNormalization <num_groups = {groups}> (x, s, b)"
    with pytest.raises(SourceError, match=f"GroupNormalization node 'y' .*4 channels cannot be {groups} groups"):
        cpuconv.compile(parse(f"g (float[2,4,3] x, float[4] s, float[4] b) => (float[] y) {{ {text} }}", 21))


@pytest.mark.parametrize("count", [-1, -(2**31), 1])
def test_a_split_into_fewer_parts_than_outputs(count):
    text = f"g (float[6] x) => (float[] y, float[] z) {{ y, z = Split <num_outputs = {count}> (x) }}"
    with pytest.raises(SourceError, match=f"Split node 'y' .*6 cannot be split into {count}"):
        cpuconv.compile(parse(text, 18))
    text = f"g (float[6] x) => (float[] y) {{ y = Split <num_outputs = {min(count, -1)}> (x) }}"
    with pytest.raises(SourceError, match="Split node 'y' .*6 cannot be split into -"):
        cpuconv.compile(parse(text, 18))


def test_a_branch_of_fewer_outputs_than_its_if():
    yes, no = "t () => (float[2] a) { a = Neg (x) }", "e () => (float[2] b) { b = Abs (x) }"
    node = f"y, z = If (c) <then_branch = {yes}, else_branch = {no}>"
    text = f"g (float[2] x) => (float[2] y) <bool c = {{1}}> {{ {node} }}"
    with pytest.raises(SourceError, match="If node 'y' has 2 outputs where its branch has 1"):
        cpuconv.compile(parse(text))


@pytest.mark.parametrize("perm", [[0, 2**63 - 1, 1], [0, 1], [0, 1, 1], [0, 1, 3], [0, 1, -1]])
def test_a_transposition_of_other_axes(perm):
    text = f"g (float[2,3,4] x) => (float[] y) {{ y = Transpose <perm = {perm}> (x) }}"
    with pytest.raises(SourceError, match="Transpose node 'y'.* must be the 3 axes in some order"):
        cpuconv.compile(parse(text))
