"""Random convolutions: mostly those of usual networks, and some unusual ones."""

from __future__ import annotations

import math
import random

import layouts
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem

KERNELS = ((1, 1),) * 4 + ((3, 3),) * 6 + ((5, 5), (7, 7), (1, 7), (7, 1), (2, 2))
CHANNELS = (3, 768)
SIZES = (7, 112)
BATCHES = (1, 1, 1, 1, 2, 4)
FLOPS = (1e6, 1e9)  # with fewer, overhead dominates; with more, timing takes long and shows the same
_DEPTHWISE, _GROUPED, _STRIDED, _DILATED, _BLOCKED, _RESIDUAL = 0.15, 0.1, 0.25, 0.05, 0.5, 0.2


def draw(count: int, seed: int, threads: int = 1) -> list[ConvProblem]:
    """Draw `count` different problems, equal for equal seeds; channels and sizes are log-uniform."""
    rng = random.Random(seed)
    found: dict[str, ConvProblem] = {}
    while len(found) < count:
        problem = _draw(rng, threads)
        if FLOPS[0] <= problem.flops <= FLOPS[1]:
            found[problem.key] = problem
    return list(found.values())


def _draw(rng: random.Random, threads: int) -> ConvProblem:
    def size(least: int, most: int) -> int:
        return round(math.exp(rng.uniform(math.log(least), math.log(most))))

    def happens(chance: float) -> bool:
        return rng.random() < chance

    r, s = rng.choice(KERNELS)
    c, k, groups = size(*CHANNELS), size(*CHANNELS), 1
    if happens(_DEPTHWISE):
        r, s, k, groups = max(r, 3), max(s, 3), c, c
    elif happens(_GROUPED):
        groups = rng.choice((2, 4, 8, 32))
        c, k = (-(-value // groups) * groups for value in (c, k))
    stride = (2, 2) if happens(_STRIDED) else (1, 1)
    dilation = (2, 2) if happens(_DILATED) and (r, s) != (1, 1) else (1, 1)
    h = size(*SIZES)
    w = h if happens(0.7) else size(*SIZES)
    high, wide = ((r - 1) * dilation[0]) // 2, ((s - 1) * dilation[1]) // 2
    layout = layouts.blocked(current().lanes).name if happens(_BLOCKED) and c > 4 else "NCHW"
    return ConvProblem(
        rng.choice(BATCHES), c, max(h, r * dilation[0]), max(w, s * dilation[1]), k, r, s,
        stride=stride, pads=(high, high, wide, wide), dilation=dilation, groups=groups,
        in_layout=layout, out_layout=layout, activation=rng.choice((None, ("relu",))),
        residual=happens(_RESIDUAL), threads=threads,
    )  # fmt: skip
