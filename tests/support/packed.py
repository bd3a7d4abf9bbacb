"""Packed weights in NumPy, one function for each form: the oracle of the packing kernel."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cpuconv.conv.recipe import Candidate
from cpuconv.isa import Isa
from cpuconv.kernels.packing.packed_formats import BlockPairs, Mixed, Panels, Scalars, Transformed
from cpuconv.kernels.transforms.fft import REGULAR
from cpuconv.kernels.transforms.winograd import winograd_weights
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.solvers import fft, winograd
from cpuconv.solvers.shared import winograd_tiles


def flushed(weight: np.ndarray) -> np.ndarray:
    """`weight` with denormals set to zero."""
    return np.where(np.abs(weight) < np.finfo(np.float32).tiny, np.float32(0), weight)


def panels(form: Panels, weight: np.ndarray) -> np.ndarray:
    """[group][panel][C/block][R][S][block of C][v·lanes of K], tail channels of K zero, and rows of zeros at the end.

    The last panel of a group overlaps the one before.
    """
    lanes, v, groups, kg = form.filters.lanes, form.filters.v, form.filters.groups, form.filters.k
    vectors = divide(kg, lanes)
    full = np.zeros((groups, vectors * lanes, form.c, form.r, form.s), np.float32)
    full[:, :kg] = weight.reshape(groups, kg, form.c, form.r, form.s)
    full = full.reshape(groups, vectors, lanes, form.c, form.r, form.s)
    packed = np.zeros((groups, divide(vectors, v), form.rows, v, lanes), np.float32)
    for panel in range(packed.shape[1]):
        first = min(panel * v, vectors - v)
        for channel in range(0, form.c, form.block):
            some = full[:, first : first + v, :, channel : channel + form.block].transpose(0, 4, 5, 3, 1, 2)
            start = channel * form.r * form.s
            packed[:, panel, start : start + math.prod(some.shape[1:4])] = some.reshape(groups, -1, v, lanes)
    return packed


def lanewise(problem: ConvProblem, isa: Isa, weight: np.ndarray) -> np.ndarray:
    """[block][i][R][S][lanes]: what output lane l takes from lane l ^ i; tail lanes zero."""
    lanes, mix = isa.lanes, problem.cg
    channel = np.arange(problem.k)
    packed = np.zeros((divide(problem.k, lanes), mix, problem.r, problem.s, lanes), np.float32)
    for i in range(mix):
        packed[channel // lanes, i, :, :, channel % lanes] = weight[channel, (channel % mix) ^ i]
    return packed


def transformed(problem: ConvProblem, v: int, isa: Isa, planes: np.ndarray, pairs: int = 0) -> np.ndarray:
    """Weights (planes, K, C of a group) as [group][plane][panel][channel][v][lanes of K], tails zero.

    The last `pairs` pairs of planes are [group][pair][panel][channel][2][v][lanes of K].
    """
    lanes, count, groups = isa.lanes, len(planes), problem.groups
    vectors, channels = divide(problem.kg, lanes), problem.cg
    full = np.zeros((count, groups, vectors * lanes, channels), np.float32)
    full[:, :, : problem.kg] = planes.reshape(count, groups, problem.kg, problem.cg)
    full = full.reshape(count, groups, vectors, lanes, channels)
    singles = count - 2 * pairs
    packed = np.empty((groups, count, divide(vectors, v), channels, v, lanes), np.float32)
    paired = packed[:, singles:].reshape(groups, pairs, packed.shape[2], channels, 2, v, lanes)
    for panel in range(packed.shape[2]):
        first = min(panel * v, vectors - v)
        some = full[:, :, first : first + v].transpose(1, 0, 4, 2, 3)
        packed[:, :singles, panel] = some[:, :singles]
        paired[:, :, panel] = some[:, singles:].reshape(groups, pairs, 2, channels, v, lanes).swapaxes(2, 3)
    return packed


def winograd_planes(problem: ConvProblem, params: winograd.Params, weight: np.ndarray) -> np.ndarray:
    """G·w·Gᵀ: (a·a, K, C), in float64."""
    down, across = (
        winograd_tiles.matrices(params.rows, problem.r)[1],
        winograd_tiles.matrices(params.cols, problem.s)[1],
    )
    planes = np.einsum("ar,kcrs,bs->abkc", down, weight.astype(np.float64), across, optimize=True)
    return planes.reshape(-1, problem.k, problem.cg)


def strassen_planes(lanes: int, weight: np.ndarray) -> np.ndarray:
    """Factors of the seven products: (7, K / 2, C / 2), in float64; halves are the even and the odd blocks."""
    blocks = weight.astype(np.float64).reshape(len(weight) // lanes, lanes, -1, lanes)
    (b11, b21), (b12, b22) = ([blocks[k::2, :, c::2].reshape(len(weight) // 2, -1) for c in range(2)] for k in range(2))
    return np.stack([b11, b21, b22, b22 - b12 + b11 - b21, b12 - b11, b22 - b12 + b11, b22 - b12])


def spectrum(weight: np.ndarray, dilation: tuple[int, int], rows: int, cols: int, products: int) -> np.ndarray:
    """Planes (count, K, C) in float64 of weights (K, C, R, S), in the order that `plane_count` names.

    Edge columns take the half that the forward transform leaves out of their doubled frequencies.
    """
    spread = np.zeros((*weight.shape[:2], rows, cols))
    reach = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilation, strict=True)]
    spread[:, :, : reach[0] : dilation[0], : reach[1] : dilation[1]] = weight
    found = np.conj(np.fft.rfft2(spread)).transpose(2, 3, 0, 1) / (rows * cols)
    edges = (0, cols // 2)
    planes = [found[u, column].real for u in (0, rows // 2) for column in edges]
    numbers = [found[u, column] / 2 for u in range(1, rows // 2) for column in edges]
    numbers += [found[u, column] for column in range(1, cols // 2) for u in range(rows)]
    for w in numbers:
        planes += (w.real, w.imag) if products == REGULAR else (w.real, w.imag - w.real, w.real + w.imag)
    return np.stack(planes)


def scalars(problem: ConvProblem, n: int, weight: np.ndarray) -> np.ndarray:
    """[group][tile][C·R·S][n of K]; the last tile of a group overlaps the one before."""
    full = weight.reshape(problem.groups, problem.kg, -1)
    starts = [min(first, problem.kg - n) for first in range(0, problem.kg, n)]
    return np.stack([full[:, first : first + n].swapaxes(1, 2) for first in starts], axis=1)


def expected(problem: ConvProblem, candidate: Candidate, isa: Isa, weight: np.ndarray) -> np.ndarray:
    """The packed form of a candidate, flat; transforms in float64, rounded once."""
    weight, params, form = flushed(weight), candidate.params, candidate.packing(problem)
    if isinstance(form, Panels):
        packed = panels(form, weight)
    elif isinstance(form, Scalars):
        packed = scalars(problem, params.n, weight)
    elif isinstance(form, Mixed):
        packed = lanewise(problem, isa, weight)
    elif isinstance(form, BlockPairs):
        halved = replace(problem, c=problem.c // 2, k=problem.k // 2)
        packed = transformed(halved, params.v, isa, strassen_planes(isa.lanes, weight))
    elif isinstance(form, Transformed) and form.transform.kernel is winograd_weights:
        packed = transformed(problem, params.v, isa, winograd_planes(problem, params, weight))
    else:
        size = params.rows, params.cols, params.products
        planes = spectrum(weight.astype(np.float64), problem.dilation, *size)
        packed = transformed(problem, params.v, isa, planes, fft.planes(*size).pairs)
    return packed.ravel()
