"""Convolutions of narrow elements, drawn at random: geometry, operands, and candidates of all that solvers offer."""

from __future__ import annotations

import functools
import re
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import cpuconv
import layouts
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.elements import S8, S16, TABLE
from cpuconv.isa import current
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization, bounds
from cpuconv.problem.requested_types import signed
from cpuconv.problem.types import Types
from cpuconv.solvers import TABLE as SOLVERS
from cpuconv.solvers import why_not
from support import oracle, quantized
from support.typed import Given, judge

FAMILIES = ("int8", "bf16", "f16")
LAYOUTS = ("NCHW", "NHWC", "NCHW4c", "NCHW8c", "NCHW16c", "NCHW64c")
MOST = 3e7  # products of a batch, roughly
SPREAD = 2  # orders of preference among candidates, so that tiles are compiled once and used often
GEOMETRIES = 500  # of a run with their types and endings, for the same reason; the same ones in each layout

_KERNELS = ((1, 1), (1, 1), (3, 3), (3, 3), (2, 3), (5, 5), (1, 3), (7, 1), (1, 7), (4, 4), (7, 7), (2, 2))
_EXACT_ENDS = (None, None, "relu", "relu6", ("clip", -0.5, 2.0), ("leaky_relu", 0.25))
_FUNCTIONS = ("silu", "hardswish", "gelu", "sigmoid")
_SCALES = {  # factors of the scales of x, w, y and the residual
    "usual": (1, 1, 1, 1),
    "opposite": (1e25, 1e-25, 1, 1),
    "clamped": (1, 1, 1e-4, 1),
    "vanishing": (1, 1, 1e4, 1e4),
    "subnormal": (1e-17, 1e-17, 1e-37, 1e-35),
    "huge": (1e20, 1e16, 1e36, 1e30),
    "beyond": (1e20, 1e16, 1e4, 1),
}
_CALM = ("usual", "opposite", "clamped", "vanishing")  # by which no function sees an infinity
_SIZES = {"bf16": (0, 0, 0, -12, 12), "f16": (0, 0, 0, -6, 3)}  # powers of ten, of all floats but weights
_VALUES = ("all", "all", "ends", "largest", "points")
_WEIGHTS = ("s8", "s8", "u8 of 128", "u8", "s8 of a point")  # those that have zero points are of int16, most of them


@dataclass(frozen=True)
class Drawn:
    """A problem, its operands as users give them, and whether candidates that are less exact count."""

    problem: ConvProblem
    given: Given
    accuracy: str


def draw(family: str, layout: str, seed: int, number: int) -> Drawn:
    """Problem `number` of a family of types, with inputs, and mostly outputs, in a layout."""
    rng = np.random.default_rng([seed, FAMILIES.index(family), LAYOUTS.index(layout), number])
    kind = number % GEOMETRIES
    of_kind = np.random.default_rng([seed, FAMILIES.index(family), kind])
    problem = _geometry(rng, of_kind, layout)
    make = _integers if family == "int8" else functools.partial(_halves, family)
    return Drawn(*make(rng, of_kind, kind, problem), _one(rng, ("exact", "standard", "fast")))


def candidates(drawn: Drawn, seed: int, number: int, count: int) -> list[Candidate]:
    """Up to `count` candidates, each of another solver, of those that can run the problem."""
    rng = np.random.default_rng([seed, 7, number])
    able = [solver for solver in SOLVERS if why_not(solver, drawn.problem, current()) is None]
    order, found = f"{seed} {rng.integers(SPREAD)}", []

    def rank(candidate: Candidate) -> tuple[int, int]:
        """By its tile, then by how many channels it takes at a time, which no tile depends on."""
        texts = re.sub(r"\bblock=\d+", "", str(candidate)), f"{number} {candidate}"
        first, second = (zlib.crc32(f"{order} {text}".encode()) for text in texts)
        return first, second

    for at in rng.permutation(len(able))[:count]:
        offered = [Candidate(able[at], params) for params in able[at].candidates(drawn.problem, current())]
        found += [min(offered, key=rank)] if offered else []
    return found


def check(drawn: Drawn, candidate: Candidate | None) -> Plan:
    """Plan a problem as users do, by a candidate or, None, by the model, and judge what it computes."""
    p, given = drawn.problem, drawn.given
    top, bottom, left, right = p.pads
    made = cpuconv.plan(
        p.in_shape, given.w, given.bias, p.stride, ((top, bottom), (left, right)), p.dilation, p.groups,
        activation=p.activation, residual=p.residual, in_layout=p.in_layout, out_layout=p.out_layout,
        threads=p.threads, strategy="heuristic", accuracy="fast" if candidate else drawn.accuracy,
        algorithm=None if candidate is None else str(candidate),
        x_dtype=p.types.x.label, y_dtype=p.types.y.label, quantization=given.scales,
    )  # fmt: skip
    assert made.problem == p, f"planned {made.problem}, not {p}"
    judge(made, given)
    return made


def _one(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def _channels(rng: np.random.Generator, most: int) -> int:
    """Any number, or one around the ends of blocks."""
    if _chance(rng, 0.5):
        return int(rng.integers(1, most + 1))
    block = int(_one(rng, [16, 32, 64, 128]))
    return min(most, max(1, block + int(rng.integers(-1, 2))))


def _geometry(rng: np.random.Generator, of_kind: np.random.Generator, layout: str) -> ConvProblem:
    """Batch, threads and the layout of the output are drawn for each problem, all else for each geometry."""
    kind = _one(of_kind, ("dense",) * 4 + ("few", "first", "grouped", "grouped", "depthwise", "depthwise"))
    r, s = (int(each) for each in _one(of_kind, _KERNELS))
    dilation = _pair(of_kind, 1, 4) if _chance(of_kind, 0.2) else (1, 1)
    stride = _pair(of_kind, 1, 4) if _chance(of_kind, 0.3) else (1, 1)
    pads = [int(each) for each in of_kind.integers(0, 4, 4)] if _chance(of_kind, 0.6) else [0] * 4
    h = max(dilation[0] * (r - 1) + 1 - pads[0] - pads[1], int(of_kind.integers(1, 21)))
    w = max(dilation[1] * (s - 1) + 1 - pads[2] - pads[3], int(of_kind.integers(1, _one(of_kind, (8, 20, 41)))))
    c, k, groups = _channels(of_kind, 160), _channels(of_kind, 160), 1
    if kind == "first":
        c = int(of_kind.integers(1, 5))
    elif kind == "few":
        k = int(of_kind.integers(1, 9))
    elif kind == "depthwise":
        c = groups = k
        k *= int(_one(of_kind, (1, 1, 1, 2)))
    elif kind == "grouped":
        groups = int(of_kind.integers(2, 10))
        c, k = groups * max(1, c // groups), groups * max(1, k // groups)
    work = h * w * r * s * k * (c // groups) / stride[0] / stride[1]
    return ConvProblem(
        int(_one(rng, (1, 1, 1, 2, 3))) if work < MOST / 3 else 1, c, h, w, k, r, s, stride, tuple(pads), dilation,
        groups, layout, layout if _chance(rng, 0.7) else str(_one(rng, LAYOUTS)),
        threads=int(rng.integers(1, oracle.THREADS + 1)),
    )  # fmt: skip


def _pair(rng: np.random.Generator, least: int, end: int) -> tuple[int, int]:
    return int(rng.integers(least, end)), int(rng.integers(least, end))


def _integers(
    rng: np.random.Generator, of_kind: np.random.Generator, kind: int, problem: ConvProblem
) -> tuple[ConvProblem, Given]:
    x, y = ("u8", "s8")[kind % 2], ("u8", "s8", "f32", "s32")[kind // 2 % 4]
    w, _, points = str(_one(of_kind, _WEIGHTS)).partition(" of ")
    calm = _chance(of_kind, 0.15)
    if y != "s32":
        end = _one(of_kind, _FUNCTIONS if calm else _EXACT_ENDS)
        problem = replace(problem, activation=end, residual=_chance(of_kind, 0.4))
    problem = replace(problem, types=Types.parse(f"{x}:s8:{y}"))
    made = quantized.operands(problem, int(rng.integers(1 << 30)), w, _chance(rng, 0.6))
    scales = _scaled(made.scales, _SCALES[str(_one(rng, _CALM if calm else [*_SCALES]))])
    if points:
        scales = replace(scales, w_zero_point=128 if w == "u8" else int(rng.integers(-128, 128)))
    weights = _values(rng, made.w, w, scales.w_zero_point)
    if w == "s8" and not points and _chance(rng, 0.5):  # kernels tell small ones
        weights = weights >> np.int8(rng.integers(3))
    bias = _one(rng, (made.bias, made.float_bias, None))
    if y == "s32" and w == "s8" and not points and _chance(rng, 0.3):  # sums that nobody scales
        scales, bias = Quantization(x_scale=1, x_zero_point=scales.x_zero_point, w_scale=1), made.bias
    if bias is made.bias and _chance(rng, 0.2):  # sums leave int32
        bias = rng.integers(-(1 << 31), 1 << 31, problem.k).astype(np.int32)
    image = _values(rng, layouts.to_nchw(made.x, problem.in_layout, problem.c), x, scales.x_zero_point)
    kept = S16 if signed(weights, TABLE[w], scales).dtype == S16.dtype else S8
    problem = replace(problem, types=replace(problem.types, w=kept))
    return problem, Given(layouts.from_nchw(image, problem.in_layout), weights, bias, made.residual, scales)


def _scaled(scales: Quantization, factors: tuple[float, ...]) -> Quantization:
    """Scales times factors, as far as float32 holds what follows from them."""
    x, w, y, residual = (float(each) for each in factors)
    made = replace(scales, x_scale=scales.x_scale * x, w_scale=(np.float64(scales.w_scale) * w).tolist())
    if scales.y_scale is not None:
        made = replace(made, y_scale=scales.y_scale * y)
    if scales.residual_scale is not None:
        made = replace(made, residual_scale=scales.residual_scale * residual)
    return made


def _values(rng: np.random.Generator, drawn: np.ndarray, name: str, points: Any) -> np.ndarray:
    """Numbers of an array's range: as drawn, the least and the largest, all the largest, or mostly zero points."""
    least, most = bounds(TABLE[name])
    kind = _one(rng, _VALUES)
    if kind == "ends":
        return np.where(rng.random(drawn.shape) < 0.5, least, most).astype(drawn.dtype)
    if kind == "largest":
        return np.full_like(drawn, most)
    if kind == "points":
        zeros = np.reshape(points, (-1,) + (1,) * (drawn.ndim - 1))  # one, or one for each output channel
        return np.where(rng.random(drawn.shape) < 0.9, zeros, drawn).astype(drawn.dtype)
    return drawn


def _halves(
    family: str, rng: np.random.Generator, of_kind: np.random.Generator, kind: int, problem: ConvProblem
) -> tuple[ConvProblem, Given]:
    """Problems and operands of a float of 16 bits."""
    y, outside = (family, family, "f32")[kind % 3], TABLE[family].outside
    end = _one(of_kind, _FUNCTIONS if _chance(of_kind, 0.25) else _EXACT_ENDS)
    problem = replace(
        problem, types=Types.parse(f"{family}:{family}:{y}"), activation=end, residual=_chance(of_kind, 0.4)
    )
    size = 10.0 ** int(_one(rng, _SIZES[family]))

    def normal(shape: tuple[int, ...], scale: float) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    x = normal(problem.in_shape, size)
    if _chance(rng, 0.3):  # as behind a Relu
        x = np.maximum(x, 0)
    w = normal(problem.weight_shape, (problem.cg * problem.r * problem.s) ** -0.5).astype(outside)
    bias = normal((problem.k,), size) if _chance(rng, 0.7) else None
    if bias is not None and _chance(rng, 0.5):
        bias = bias.astype(outside).astype(np.float32)
    residual = None
    if problem.residual:
        residual = layouts.from_nchw(
            normal(problem.out_shape, size).astype(problem.types.y.outside), problem.out_layout
        )
    return problem, Given(layouts.from_nchw(x.astype(outside), problem.in_layout), w, bias, residual, None)
