"""The machine code of the hot loops: exactly the FMAs that were emitted, and sums that stay in registers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.mca.assembly import count_fma, hot_loop, vector_spills
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Operand, Operands, Ref, Space
from cpuconv.kernels.products import tiling
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.windows.depthwise_tile import lane_strip
from cpuconv.kernels.windows.edges import NO_EDGES
from cpuconv.kernels.windows.lane_tile import LaneTile
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.target import target
from cpuconv.solvers import planar
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.base import contiguous
from cpuconv.solvers.shared.lanes import lanewise
from support.asm import needs_fma

ISA = current()
FULL = [(v, 1, most) for v, most in enumerate(ISA.pixels, 1)]  # the largest tiles that solvers may choose
FLAT = [(v, rows, most // rows) for v, most in enumerate(ISA.pixels, 1) for rows in (2, 3) if most >= rows]
MAX_HELD_SPILLS = 0.1  # a FMA: straight-line code of hundreds of them, where smaller tiles were slower
MAX_LOOPED_SPILLS = 0.1 if ISA.name == "neon" else 0  # a FMA: ordered for the other kind, which gains far more
MAX_SPILLS = 0.01  # a FMA
MAX_STREAM_SPILLS = 0.1  # a FMA, where prefetches of weights crowd the schedule


def gemm(v: int, rows: int, cols: int, **options: int) -> GemmTile:
    return GemmTile(ISA.lanes, v, rows, cols, **{"unroll": ISA.lanes, "xs": ISA.lanes, "ys": ISA.lanes, **options})


def lines(vectors: int) -> int:
    """Cache lines of so many vectors side by side."""
    return -(-vectors * 4 * ISA.lanes // 64)


def gemm_tiles() -> Iterator[tuple[GemmTile, int, float, int | None]]:
    """Tiles, each with the FMAs of a turn of its loop, the most spills a FMA, and its prefetches if it has any."""
    for v, rows, cols in FULL + FLAT:
        assert tiling.fits(ISA, v, rows * cols)
        yield gemm(v, rows, cols), v * rows * cols * ISA.lanes, MAX_SPILLS, None
    for v, rows, cols in FULL:
        ahead = lines(v * ISA.lanes) + ISA.lanes + lines(cols)
        tile = gemm(v, rows, cols, stream=True, fetch=True, resume=True, suspend=True)
        yield tile, v * rows * cols * ISA.lanes, MAX_STREAM_SPILLS, ahead
        for unroll, stride in ((3, 1), (3, 2), (7, 2), (11, 4), (4, 4)):
            yield gemm(v, rows, cols, unroll=unroll, xs=stride), v * cols * unroll, MAX_STREAM_SPILLS, None
    for v, n in enumerate(ISA.pairs, 1):
        ahead = lines(2 * v * ISA.lanes) + 2 * ISA.lanes + 2 * lines(n)
        tile = gemm(v, 2, n, stream=True, fetch=2, has_epilogue=False, complex=True)
        yield tile, 4 * v * n * ISA.lanes, MAX_SPILLS, ahead
    for v, loose in itertools.product(range(1, len(ISA.pixels) + 1), range(ISA.lanes)):
        n = planar.most_channels(ISA, v, loose)
        if n > 0 and loose <= ISA.lanes // planar._SCALAR_SHARE:
            tile = gemm(v, 1, n, unroll=8, xs=1, ys=0, ks=n, fetch=1, planar=True, loose=loose)
            yield tile, (v * n + loose) * 8, MAX_SPILLS, None


def name(value: object) -> str | None:
    return f"{value.v}x{value.rows}x{value.cols}" if isinstance(value, GemmTile) else None


@needs_fma
@pytest.mark.parametrize("tile, fmas, spills, prefetches", [*gemm_tiles()], ids=name)
def test_gemm_loop(request, tile, fmas, spills, prefetches):
    if target()[1] == "neoverse-n1" and (tile.v, tile.cols) == (1, 16) and fmas in (128, 176):
        reason = "LLVM's schedule for this CPU loads weights far ahead in the long bodies of one vector"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    body = hot_loop(gemm_strip.assembly(tile))
    assert count_fma(body) == fmas
    assert len(vector_spills(body)) <= spills * fmas
    text = "\n".join(body)
    if prefetches and "prefetch" in text:  # x86; other targets have other names
        assert text.count("prefetcht") == prefetches


def lane_tiles(line: str, mix: int) -> list[LaneTile]:
    """The code inside a plane of the solver's shapes for a problem in channel blocks."""
    layout = blocked.layout(ISA)
    problem = ConvProblem.parse(line, in_layout=layout, out_layout=layout)
    x = Operand(Ref("x"), contiguous(layout, problem.in_shape))
    y = Operand(Ref("y"), contiguous(layout, problem.out_shape))
    shapes = lanewise.shapes(problem, ISA, mix, most=4)
    tiles = (lanewise.step(problem, shape, ISA, Space(), Operands(x, y)).args["strip"].tile for shape in shapes)
    return [replace(tile, edges=NO_EDGES) for tile in tiles]


@needs_fma
@pytest.mark.parametrize(
    "line, mix",
    [
        ("g32ic32ih56oc32kh3ph1", 1),
        ("g32ic32ih56oc32oh28kh3sh2ph1", 1),
        ("g32ic32ih28oc32kh5ph2", 1),
        ("g32ic32ih28oc32kh7ph3", 1),
        ("g32ic128ih28oc128kh3ph1", 4),
    ],
)
def test_lane_loops(line, mix):
    tiles = lane_tiles(line, mix)
    assert tiles
    for tile in tiles:
        body = hot_loop(lane_strip.assembly(tile))
        fmas, spills = count_fma(body), len(vector_spills(body))
        if tile.weights_in_registers:
            products = int(ISA.memory_operand)  # a first tap is a product where sums do not start from their bias
            each = max(tile.rows, 1) * tile.cols * (tile.r * tile.s - products)
            assert each <= fmas and (fmas % each == 0 or tile.rows)  # LLVM may take two turns of the loop over rows
            assert spills <= MAX_HELD_SPILLS * fmas
        else:  # LLVM may take two kernel rows a turn
            assert fmas > 0 and fmas % (tile.rows * tile.cols * tile.s) == 0
            assert spills <= MAX_LOOPED_SPILLS * fmas


ATT = """
outer:
.LBB0_1:
    movq (%rdx), %rbp  # table
.LBB0_2:
    vmovaps (%rbp), %zmm1
    vmovups -72(%rsp), %zmm0 # 64-byte Reload
    vfmadd231ps (%r10,%r11){1to16}, %zmm1, %zmm0
    vfmadd231ps %zmm2, %zmm1, %zmm3
    addq $64, %rbp
    jl .LBB0_2
    vfmadd231ps %zmm2, %zmm1, %zmm3
    jne .LBB0_1
    jmp .LBB0_9
.LBB0_5:
    vfmadd231ps %zmm2, %zmm1, %zmm3
    jb .LBB0_5
.LBB0_9:
    retq
"""
INTEL = """
.LBB0_2:
    vmovaps ymm1, ymmword ptr [rbp - 64]
    vfmadd231ps ymm3, ymm1, ymmword ptr [rsp + 32]
    vfnmadd213ss xmm3, xmm1, dword ptr [rbx + rbp]
    jl .LBB0_2
"""
AARCH64 = """
LBB0_2:
    ldr q1, [x9], #16
    ldr q2, [sp, #32]  // 16-byte Folded Reload
    fmla v0.4s, v1.4s, v2.s[0]
    fmla v3.4s, v1.4s, v2.s[1]
    str q3, [x29, #-16]
    subs x8, x8, #1
    b.ne LBB0_2
"""


def test_reads_att_syntax():
    body = hot_loop(ATT)
    assert body[0] == "vmovaps (%rbp), %zmm1" and body[-1] == "jl .LBB0_2"
    assert count_fma(body) == 2
    assert vector_spills(body) == ["vmovups -72(%rsp), %zmm0"]  # rbp changes: not the frame's


def test_reads_intel_syntax():
    body = hot_loop(INTEL)
    assert count_fma(body) == 2
    assert vector_spills(body) == body[:2]


def test_reads_aarch64_syntax():
    body = hot_loop(AARCH64)
    assert count_fma(body) == 2
    assert vector_spills(body) == ["ldr q2, [sp, #32]", "str q3, [x29, #-16]"]


def test_code_without_loops():
    assert hot_loop("f:\n    vfmadd231ps %zmm2, %zmm1, %zmm3\n    retq\n") == []
