"""Micro-kernels whose machine code is analysed: tiles that solvers choose, and the transforms of Winograd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from cpuconv.elements import F16, F32, S8, S32, U8
from cpuconv.isa import Isa
from cpuconv.kernels.binding.steps import Operand, Operands, Ref, Space
from cpuconv.kernels.emit import product
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.transforms.winograd import WinogradTransform, winograd_in, winograd_out
from cpuconv.kernels.windows.depthwise_tile import lane_strip
from cpuconv.kernels.windows.edges import NO_EDGES
from cpuconv.kernels.windows.lane_tile import LaneTile
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.solvers.shared import blocked, winograd_tiles
from cpuconv.solvers.shared.base import contiguous
from cpuconv.solvers.shared.lanes import lanewise

FIRST_LAYERS = ((3, 2), (7, 2), (11, 4))  # taps of a kernel row, stride
LOW_PRECISION = (Types(x=U8, w=S8, sum=S32, y=F32), Types(x=S8, w=S8, sum=S32, y=F32))
HALVES = Types(x=F16, w=F16, sum=F16, y=F16)
DEPTHWISE = {  # outputs of a plane, as a problem
    "depthwise 3x3": "g32ic32ih56oc32kh3ph1",
    "depthwise 3x3 s2": "g32ic32ih56oc32oh28kh3sh2ph1",
    "depthwise 5x5": "g32ic32ih28oc32kh5ph2",
    "depthwise 7x7": "g32ic32ih28oc32kh7ph3",
}


def gemm_tile(isa: Isa, v: int, n: int, **options: Any) -> GemmTile:
    """The tile of v weight vectors × n pixels of channel blocks."""
    block: dict[str, Any] = {"unroll": isa.lanes, "xs": isa.lanes, "ys": isa.lanes}
    return GemmTile(isa.lanes, v, 1, n, **(block | options))


def every(isa: Isa) -> Iterator[tuple[str, MicroKernel, object]]:
    """Yield the name, the micro-kernel and the tile of everything that is analysed."""
    widest = list(enumerate(isa.pixels, 1))
    for v, n in widest:
        yield f"GEMM {v}x{n}", gemm_strip, gemm_tile(isa, v, n)
    v, n = widest[1]
    streaming = {"stream": True, "fetch": 1, "resume": True, "suspend": True}
    yield f"GEMM {v}x{n}, weights from L2", gemm_strip, gemm_tile(isa, v, n, **streaming)
    for taps, stride in FIRST_LAYERS:
        yield f"first layer {v}x{n}, {taps} s{stride}", gemm_strip, gemm_tile(isa, v, n, unroll=taps, xs=stride)
    for v, n in widest[:2]:
        planar: dict[str, Any] = {"unroll": 8, "xs": 1, "ys": 0, "ks": n, "fetch": 1, "planar": True}
        yield f"planar {v}x{n}", gemm_strip, gemm_tile(isa, v, n, **planar)
    for types in LOW_PRECISION:
        if (kind := product.product_of(types, isa)) is not None:
            for v, n in list(enumerate(product.as_seen(isa, kind).pixels, 1))[1:]:
                tile = gemm_tile(isa, v, n, product=kind.name, x=types.x)
                yield f"GEMM {v}x{n} {kind.name}, {types.x}", gemm_strip, tile
    if (kind := product.product_of(HALVES, isa)) is not None:
        for v, n in enumerate(product.as_seen(isa, kind).pixels, 1):
            if n:  # two vectors of weights for 32-bit groups are one of float16 sums
                tile = gemm_tile(isa, v, n, product=kind.name, x=F16, y=F16)
                yield f"float16 tile {v // 2}x{n}", gemm_strip, tile
    for name, line in DEPTHWISE.items():
        yield name, lane_strip, lane_tile(isa, line)
        if product.product_of(HALVES, isa) is not None:
            yield f"{name}, float16", lane_strip, lane_tile(isa, line, HALVES)
    for a in (4, 6, 8):
        at, _, bt = (tuple(map(tuple, matrix.tolist())) for matrix in winograd_tiles.matrices(a - 2, 3))
        yield f"Winograd F({a - 2},3) input", winograd_in, WinogradTransform(isa.lanes, bt, bt)
        yield f"Winograd F({a - 2},3) output", winograd_out, WinogradTransform(isa.lanes, at, at)
        if a == 4 and product.product_of(HALVES, isa) is not None:
            options: dict[str, Any] = {"element": F16, "halves": True}
            yield f"Winograd F({a - 2},3) in, f16", winograd_in, WinogradTransform(isa.lanes, bt, bt, **options)
            yield (
                f"Winograd F({a - 2},3) out, f16",
                winograd_out,
                WinogradTransform(isa.lanes, at, at, **options),
            )


def lane_tile(isa: Isa, line: str, types: Types = ALL_F32) -> LaneTile:
    """The best tile, inside a plane, of a depthwise convolution in channel blocks."""
    layout = blocked.layout(isa, types.x)
    problem = ConvProblem.parse(line, in_layout=layout, out_layout=layout, types=types)
    x = Operand(Ref("x"), contiguous(layout, problem.in_shape))
    y = Operand(Ref("y"), contiguous(layout, problem.out_shape))
    shape = next(iter(lanewise.shapes(problem, isa, 1, most=1)))
    strip: Any = lanewise.step(problem, shape, isa, Space(), Operands(x, y)).args["strip"]
    return replace(cast(LaneTile, strip.tile), edges=NO_EDGES)
