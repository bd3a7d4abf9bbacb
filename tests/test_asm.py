"""The machine code of the hot loops: every FMA that was emitted and no other, and sums that stay in registers."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from asm import count_fma, hot_loop, vector_spills

from cpuconv.isa import current
from cpuconv.micro.gemm import GemmTile, gemm_strip
from cpuconv.micro.lanes import LaneTile
from cpuconv.micro.lanewise import LanewiseTile, lanewise
from cpuconv.micro.rows import BLOCKED, RowTile
from cpuconv.solvers import tiling

WHOLE = {  # (v, rows, cols) that stay in registers
    "avx512": [(1, 1, 31), (1, 2, 15), (2, 1, 12), (2, 2, 6), (3, 1, 8), (4, 1, 6), (4, 2, 3)],
    "avx2": [(1, 1, 8), (2, 1, 6), (2, 2, 3), (3, 1, 4), (4, 1, 2)],
}
FULL = {  # (v, rows, cols) that tiling.fits allows, yet LLVM spills
    "avx512": [(2, 1, 14), (2, 2, 7), (3, 1, 9), (3, 3, 3)],
    "avx2": [(1, 1, 12), (1, 1, 14), (1, 1, 15)],
}
ISA = current()


def gemm(v: int, rows: int, cols: int) -> GemmTile:
    return GemmTile(ISA.lanes, v, rows, cols, unroll=ISA.lanes, xs=ISA.lanes, ys=ISA.lanes)


@pytest.mark.parametrize("v, rows, cols", WHOLE.get(ISA.name, [(1, 1, 4), (2, 1, 4)]))
def test_gemm_loop(v, rows, cols):
    assert tiling.fits(ISA, v, rows * cols)
    tile = gemm(v, rows, cols)
    body = hot_loop(gemm_strip.assembly(tile))
    assert count_fma(body) == v * rows * cols * tile.unroll
    assert vector_spills(body) == []


@pytest.mark.parametrize("v, rows, cols", FULL.get(ISA.name, []))
def test_gemm_loop_of_full_tiles(v, rows, cols, request):
    if not tiling.fits(ISA, v, rows * cols):
        pytest.skip("not offered")
    tile = gemm(v, rows, cols)
    body = hot_loop(gemm_strip.assembly(tile))
    assert count_fma(body) == v * rows * cols * tile.unroll
    request.applymarker(pytest.mark.xfail(strict=True, reason="register allocation spills sums"))
    assert vector_spills(body) == []


def lanes(held: bool, rows: int, cols: int, stride: int = 1) -> LanewiseTile:
    """3 × 3 depthwise in place, without padding."""
    tile = LaneTile(
        lanes=ISA.lanes,
        rows=rows,
        cols=cols,
        r=3,
        s=3,
        stride=(stride, stride),
        dilation=(1, 1),
        first=0,
        last=(cols - 1) * stride + 3,
        held=held,
    )
    return LanewiseTile(
        ISA.lanes, tile, tile, tile, has_left=False, has_right=False, band=False, pack=RowTile(ISA.lanes, BLOCKED)
    )


@pytest.mark.parametrize("rows, cols, stride", [(1, 4, 1), (1, 8, 1), (1, 4, 2)])
def test_depthwise_loop_over_kernel_rows(rows, cols, stride):
    body = hot_loop(lanewise.assembly(lanes(False, rows, cols, stride)))
    assert count_fma(body) > 0 and count_fma(body) % (rows * cols * 3) == 0  # LLVM may take two kernel rows a turn
    assert vector_spills(body) == []


@pytest.mark.parametrize("rows, cols", [(1, 2), (1, 4)])
def test_depthwise_with_held_weights(rows, cols):
    body = hot_loop(lanewise.assembly(lanes(True, rows, cols)))
    assert count_fma(body) == rows * cols * 8  # the first tap of an output is a product
    assert vector_spills(body) == []


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86")
@pytest.mark.skipif("NUMBA_CPU_NAME" in os.environ, reason="a CPU is named already")
def test_avx2():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environ = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout


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
