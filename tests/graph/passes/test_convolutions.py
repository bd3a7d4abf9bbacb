"""Rewrites of convolutions: by parts that meet fewer taps, and of volumes by those of images."""

from __future__ import annotations

import pytest

from cpuconv.graph.passes import PASSES as RUN
from support.graph.expressions import feed, graph, op
from support.graph.layers import array, conv, same

x = feed(2, 6, 5, 4)


@pytest.mark.parametrize(
    ("attributes", "kernel"),
    [
        ({"dilations": [5, 5], "pads": [5, 5, 5, 5]}, (1, 1)),
        ({"dilations": [5, 4], "pads": [5, 4, 5, 4], "activation": ("relu",)}, (1, 1)),
        ({"dilations": [9, 1], "auto_pad": "SAME_UPPER", "pads": None}, (1, 3)),
        ({"dilations": [5, 1], "pads": [5, 7, 5, 2], "strides": [1, 2]}, (1, 3)),
        ({"dilations": [1, 2], "pads": [1, 4, 1, 0]}, (3, 2)),
        ({"dilations": [2, 2], "pads": [2, 2, 2, 2]}, (3, 3)),
        ({"dilations": [5, 4], "pads": [11, 4, 10, 4]}, (3, 1)),
        ({"dilations": [6, 1], "pads": [5, 1, 5, 1]}, (3, 3)),  # would need padding that takes away
    ],
)
def test_taps_that_meet_only_padding_go(attributes, kernel):
    before = graph(conv(x, bias=array(7), **attributes))
    made = RUN["convolutions"](before)
    (node,) = made.nodes
    assert made.constants[node.inputs[1]].shape[2:] == kernel
    assert (made is before) == (kernel == (3, 3))
    assert RUN["convolutions"](made) is made
    same(before, made)


@pytest.mark.parametrize(
    ("size", "attributes", "parts"),
    [
        ((17, 16), {"dilations": [9, 12], "pads": [9, 12, 9, 12]}, 9),
        ((17, 16), {"dilations": [9, 8], "pads": [9, 8, 9, 8], "activation": ("relu",)}, 6),
        ((40, 30), {"dilations": [1, 28], "pads": [1, 28, 1, 28]}, 9),
        ((40, 30), {"dilations": [24, 28], "pads": [26, 20, 22, 31]}, 12),
        ((40, 30), {"dilations": [24, 28], "pads": [50, 28, 24, 28]}, 1),  # some outputs meet no tap
        ((40, 30), {"dilations": [2, 2], "pads": [2, 2, 2, 2]}, 1),
        ((40, 30), {"dilations": [1, 1], "pads": [1, 1, 1, 1]}, 1),
        ((15, 16), {"dilations": [9, 12], "pads": [9, 12, 9, 12]}, 1),
        ((31, 31), {"dilations": [9, 12], "pads": [9, 12, 9, 12], "strides": [2, 1]}, 1),
    ],
)
def test_parts_of_an_image_that_meet_few_taps(size, attributes, parts):
    before = graph(conv(feed(2, 6, *size), bias=array(7), **attributes))
    made = RUN["convolutions"](before)
    assert sum(node.op == "Conv" for node in made.nodes) == parts
    assert (made is before) == (parts == 1)
    assert RUN["convolutions"](made) is made
    same(before, made)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("attributes", "kernel", "groups"),
    [
        ({"pads": [1, 1, 1, 1, 1, 1]}, (3, 3, 3), 1),
        ({"pads": [1, 1, 1, 1, 1, 1]}, (3, 3, 3), 2),
        ({"pads": [1, 1, 0, 2, 1, 1], "activation": ("relu",)}, (3, 3, 2), 6),
        ({"strides": [2, 1, 2], "pads": [1, 0, 1, 0, 2, 0]}, (3, 3, 3), 1),
        ({"strides": [2, 2, 2], "auto_pad": "SAME_UPPER"}, (4, 3, 1), 3),
        ({"dilations": [2, 1, 2], "pads": [3, 0, 0, 2, 0, 0]}, (3, 1, 2), 1),
        ({"strides": [2, 2, 2]}, (1, 1, 1), 1),
        ({"strides": [3, 1, 1]}, (5, 3, 3), 1),
        ({}, (2, 1, 1), 1),
    ],
)
def test_convolutions_of_volumes_become_those_of_images(batch, attributes, kernel, groups):
    weight = array(6, 6 // groups, *kernel)
    first = op.Conv(feed(batch, 6, 5, 4, 6), weight, array(6), group=groups, **attributes)
    residual = op.Conv(first, array(6, 6, 1, 1, 1), None, op.Exp(first), activation=("leaky_relu", 0.5))
    before = graph(residual)
    made = RUN["volumes"](before)
    assert all(len(made.value(node.outputs[0]).shape) == 4 for node in made.nodes if node.op == "Conv")
    assert RUN["volumes"](made) is made
    same(before, made)
    less = RUN["views"](made)
    assert sum(node.op == "Transpose" for node in less.nodes) == 2  # of the input and the result
    same(before, less)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("pooling", "attributes", "pools"),
    [
        (op.MaxPool, {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}, True),
        (op.MaxPool, {"kernel_shape": [3, 2, 3], "strides": [2, 1, 2], "pads": [1, 0, 1, 1, 1, 0]}, True),
        (op.MaxPool, {"kernel_shape": [2, 3, 2], "strides": [2, 2, 3], "ceil_mode": 1}, True),
        (op.MaxPool, {"kernel_shape": [2, 2, 1], "dilations": [3, 2, 1], "auto_pad": "SAME_LOWER"}, True),
        (op.MaxPool, {"kernel_shape": [9, 1, 1], "pads": [4, 0, 0, 4, 0, 0]}, False),
        (op.AveragePool, {"kernel_shape": [3, 2, 2], "strides": [2, 1, 1], "pads": [0, 1, 1, 0, 1, 0]}, True),
        (op.AveragePool, {"kernel_shape": [1, 2, 2], "ceil_mode": 1, "strides": [1, 2, 3]}, True),
        (op.AveragePool, {"kernel_shape": [2, 2, 2], "pads": [1, 0, 0, 0, 0, 0]}, False),
    ],
)
def test_volumes_are_pooled_by_planes(batch, pooling, attributes, pools):
    before = graph(pooling(feed(batch, 3, 5, 4, 7), **attributes))
    made = RUN["volumes"](before)
    assert (made is not before) == pools
    same(before, made)


@pytest.mark.parametrize("batch", [1, 2])
def test_operators_between_volumes_compute_on_slices(batch):
    one, two = (op.Conv(feed(batch, 4, 3, 5, 6), array(6, 4, 1, 3, 3)) for _ in range(2))
    norm = op.InstanceNormalization(one, array(6), array(6))
    scaled = op.Add(op.Mul(norm, array(6, 1, 1, 1)), op.PRelu(two, array(1, 1, 1, 1)))
    before = graph(op.Conv(op.Concat(op.Elu(scaled), two, axis=-4), array(2, 12, 3, 1, 1)))
    made = RUN["volumes"](before)
    assert sum(node.op == "Transpose" for node in RUN["views"](made).nodes) == 3  # of inputs and the result
    same(before, RUN["epilogues"](RUN["views"](made)))


def test_constants_joined_to_volumes_stay():
    """They have as many volumes as the others, and a depth."""
    before = graph(op.Concat(op.Relu(op.Conv(feed(1, 4, 3, 3, 3), array(8, 4, 3, 3, 3))), array(1, 3, 1, 1, 1), axis=1))
    same(before, RUN["volumes"](before))
