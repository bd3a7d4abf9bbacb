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
    assert sum(node.op == "Transpose" for node in less.nodes) == 4  # of the input, around Exp, of the result
    same(before, less)
