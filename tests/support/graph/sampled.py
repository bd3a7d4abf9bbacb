"""Strategies of cases for operators that sample at computed positions."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from support.graph.draws import GENERATORS, LANES, SIZES, numbers
from support.graphs import Case


@st.composite
def deformed(draw, columns=False):
    """A deformable convolution, or its columns alone, whose groups fill channel blocks."""
    rng, (group, offset_group) = draw(GENERATORS), draw(st.sampled_from(((1, 1), (2, 1), (1, 2), (2, 4))))
    kernel, strides, dilations = ([draw(st.integers(1, 2)) for _ in range(2)] for _ in range(3))
    pads, sizes = [draw(st.integers(0, 1)) for _ in range(4)], [draw(st.integers(4, 7)) for _ in range(2)]
    span = [(taps - 1) * gap for taps, gap in zip(kernel, dilations, strict=True)]
    plane = [(sizes[i] + pads[i] + pads[i + 2] - span[i] - 1) // strides[i] + 1 for i in range(2)]
    n, count = draw(st.integers(1, 2)), offset_group * math.prod(kernel)
    channels = math.lcm(group, offset_group) * (LANES if columns else 1)
    moved = [numbers(rng, (n, 2 * count, *plane)), numbers(rng, (n, count, *plane))]
    arrays = [numbers(rng, (n, channels, *sizes)), *moved[: draw(st.integers(1, 2))]]
    if not columns:
        filters = 2 * group
        bias = numbers(rng, (filters,)) if len(arrays) > 2 or draw(st.booleans()) else None
        arrays[1:] = [numbers(rng, (filters, channels // group, *kernel)), arrays[1], bias, *arrays[2:]]
    stated = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    return Case(arrays, {**stated, "group": group, "offset_group": offset_group})


@st.composite
def attention(draw):
    """Multi-scale deformable attention of one to three levels."""
    rng, heads, items = draw(GENERATORS), draw(st.integers(1, 2)), 2 * draw(st.integers(1, 2))
    channels, queries, levels = draw(SIZES), draw(SIZES), []
    for _ in range(draw(st.integers(1, 3))):
        grid = rng.uniform(-1.3, 1.3, (items, queries, draw(SIZES), 2)).astype(np.float32)
        levels += [numbers(rng, (items, channels, draw(SIZES), draw(SIZES))), grid]
    samples = sum(grid.shape[2] for grid in levels[1::2])
    return Case([numbers(rng, (items, 1, queries, samples)), *levels], {"heads": heads})


@st.composite
def regions(draw):
    """Regions of which some reach over the edge."""
    rng, count = draw(GENERATORS), draw(SIZES)
    x = numbers(rng, (2, draw(st.sampled_from((1, 3, LANES))), draw(st.integers(2, 9)), draw(st.integers(2, 9))))
    start = rng.uniform(-3, 9, (count, 2))
    rois = np.concatenate([start, start + rng.uniform(0.2, 9, (count, 2))], 1).astype(np.float32)
    stated = {"output_height": draw(st.integers(1, 3)), "output_width": draw(st.integers(1, 3))}
    stated |= {"sampling_ratio": draw(st.integers(0, 2)), "mode": draw(st.sampled_from(("avg", "max")))}
    moved = draw(st.sampled_from(("half_pixel", "output_half_pixel")))
    return Case([x, rois, rng.integers(0, 2, count)], {**stated, "coordinate_transformation_mode": moved})
