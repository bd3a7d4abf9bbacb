"""Winograd convolution F(m×m, r×r) with fused tiles: r²·m²/(m+r-1)² times fewer multiplications.

Sources: Winograd, "Arithmetic Complexity of Computations" (1980); Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (CVPR 2016); points after Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd
Convolution" (TOMS 2020). A block of tiles is transformed, multiplied and transformed back while it is in L2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cpuconv.isa import Isa
from cpuconv.micro.winograd import WinogradTransform, winograd_in, winograd_out
from cpuconv.problem import ConvProblem
from cpuconv.solvers import blocked, transformed
from cpuconv.solvers.base import Cost, MicroRef, Operand, Space, Step
from cpuconv.solvers.machine import Machine, machine

NAME = "winograd"
ACCURACY = "standard"

_ROOT = math.sqrt(2)
POINTS: dict[int, tuple[float, ...]] = {  # by input tile size; infinity is always one more
    4: (0, 1, -1),
    6: (0, _ROOT / 2, -_ROOT / 2, _ROOT, -_ROOT),
    8: (0, 1, -1, 2, -2, 0.5, -0.5),
}
KERNELS = (3, 5)


@dataclass(frozen=True)
class Params:
    """Output tile m×m; v weight vectors × n tiles a GEMM tile; `block` tiles in L2; `chunk` weight panels at a time."""

    m: int
    v: int
    n: int
    block: int
    chunk: int


@functools.lru_cache(maxsize=16)
def matrices(m: int, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Aᵀ: m×a, G: a×r, Bᵀ: a×a) of F(m, r), a = m+r-1, by Toom-Cook interpolation at `POINTS`."""
    a = m + r - 1
    points = POINTS[a]
    at, g, bt = np.zeros((m, a)), np.zeros((a, r)), np.zeros((a, a))
    for j, p in enumerate(points):
        others = [q for q in points if q != p]
        at[:, j] = [p**i for i in range(m)]
        g[j] = [p**k / math.prod(p - q for q in others) for k in range(r)]
        bt[j, : a - 1] = np.poly(others)[::-1]
    at[m - 1, -1] = g[-1, r - 1] = 1
    bt[-1] = np.poly(points)[::-1]
    for matrix in (at, g, bt):  # np.poly and powers leave dust where the exact value is simple
        near = np.round(matrix * 360) / 360
        np.copyto(matrix, near, where=np.abs(matrix - near) < 1e-12)
    return at, g, bt


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Square kernels of 3 or 5, stride 1, no dilation, one group, planes of at least one smallest tile."""
    if problem.r != problem.s or problem.r not in KERNELS:
        return f"the kernel is {problem.r}x{problem.s}, not 3x3 or 5x5"
    if problem.stride != (1, 1):
        return f"the stride is {problem.stride}"
    if problem.dilation != (1, 1):
        return f"the dilation is {problem.dilation}"
    if problem.groups != 1:
        return f"there are {problem.groups} groups"
    if min(problem.oh, problem.ow) < 2:
        return f"the output plane is {problem.oh}x{problem.ow}, less than a tile"
    return None


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Each tile size that fits the plane, with a few GEMM tiles and block sizes."""
    for a in sorted(POINTS, reverse=True):
        m = a - problem.r + 1
        if 2 <= m <= min(problem.oh, problem.ow):
            for sizes in transformed.sizes(problem, isa, machine(), (m, m), planes=a * a):
                yield Params(m, *sizes)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """FMA slots of products, operations and memory of transforms, traffic of weights."""
    a = params.m + problem.r - 1
    one_dimensional = {4: (8, 6), 6: (24, 17), 8: (48, 36)}[a]  # operations of Bᵀ and Aᵀ on one column
    operations = (2 * a * one_dimensional[0], (a + params.m) * one_dimensional[1])
    return transformed.cost(problem, params, machine, (params.m, params.m), planes=a * a, operations=operations)


def layouts(problem: ConvProblem, params: Params, isa: Isa) -> tuple[str | None, str | None]:
    """Blocks in and out."""
    return blocked.layout(isa), blocked.layout(isa)


def pack(problem: ConvProblem, params: Params, isa: Isa, weight: np.ndarray) -> np.ndarray:
    """G·w·Gᵀ in float64, then [a·a][panel][C][v][lanes of K] in float32."""
    _, g, _ = matrices(params.m, problem.r)
    transformed_weight = np.tensordot(np.tensordot(g, weight.astype(np.float64), ([1], [2])), g, ([3], [1]))
    planes = transformed_weight.transpose(0, 3, 1, 2).reshape(g.shape[0] ** 2, problem.k, problem.c)
    return transformed.pack(problem, params.v, isa, planes.astype(np.float32))


def bind(
    problem: ConvProblem, params: Params, isa: Isa, space: Space, x: Operand, y: Operand, residual: Operand | None
) -> list[Step]:
    """One parallel call of the tiled kernel."""
    at, _, bt = (tuple(map(tuple, matrix.tolist())) for matrix in matrices(params.m, problem.r))
    forward = MicroRef(winograd_in, WinogradTransform(isa.lanes, bt))
    backward = MicroRef(winograd_out, WinogradTransform(isa.lanes, at, residual is not None, problem.activation))
    m, a = params.m, params.m + problem.r - 1
    return [transformed.step(problem, params, isa, space, x, y, residual, (m, m), (a, a), forward, backward, a * a)]
