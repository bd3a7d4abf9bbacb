"""Moves in strips, of elements of one, two and four bytes between every pair of layouts, and when they are chosen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import cpuconv
import layouts
from cpuconv.elements import BF16, F32, U8, Element
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Operand, Ref, Space
from cpuconv.kernels.copies import reorder_steps, strip_steps
from cpuconv.kernels.copies.movement import count_l1_sets
from cpuconv.kernels.copies.moving import move_image
from cpuconv.kernels.copies.strips import move_strips
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.base import contiguous
from support import guarded
from support.moved import by, check

ISA = current()
in_strips = by(strip_steps, reorder_steps)
ELEMENTS = (U8, BF16, F32)  # one of each size: elements are moved as they are
PAIRS = [
    *itertools.permutations(("NCHW", "NHWC", "native"), 2),
    *itertools.permutations(("NHWC", "NCHW64c"), 2),
    *itertools.permutations(("native", "NCHW64c"), 2),
    ("NHWC", "NCHW16c"),
    ("NCHW4c", "NHWC"),
]


def channels_around(element: Element) -> list[int]:
    """Whole bundles, with a vector more, and with channels that fill no vector; pixels 256 bytes apart or more."""
    least, vector = 256 // element.bytes, ISA.block(element)
    return [2 * least, 2 * least + vector, 2 * least + vector + 4 // element.bytes, 2 * least - 4 // element.bytes]


@pytest.mark.exhaustive
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize(("src", "dst"), PAIRS)
def test_every_kind_of_pair(src: str, dst: str, element: Element) -> None:
    src, dst = (blocked.layout(ISA, element) if name == "native" else name for name in (src, dst))
    planes = (1, 3), (3, 5), (4, 4), (1, 17), (5, 7)  # around what is moved at once, with what is left
    for number, channels in enumerate(channels_around(element)):
        for plane in planes[number % 2 :: 2]:
            check(in_strips, (2, channels, *plane), src, dst, element, edge=guarded.EDGES[number % 2])


@pytest.mark.parametrize("spread", ["sliced", "sparse", "flipped"])
@pytest.mark.parametrize(("src", "dst"), [("NHWC", "native"), ("native", "NHWC"), ("NCHW", "NHWC"), ("NHWC", "NCHW")])
def test_any_strides_and_threads(src: str, dst: str, spread: str) -> None:
    named = [blocked.layout(ISA, F32) if name == "native" else name for name in (src, dst)]
    for threads in (1, 2, 3):
        check(in_strips, (2, 150, 5, 9), *named, F32, x_spread=spread, threads=threads)


@pytest.mark.parametrize(("channels", "pixels"), [(1024, 49), (256, 64)])
def test_pixels_a_power_of_two_apart_and_planes_a_page_apart(channels: int, pixels: int) -> None:
    native = blocked.layout(ISA, F32)
    for src, dst in (("NHWC", native), (native, "NHWC"), ("NCHW", "NHWC"), ("NHWC", "NCHW")):
        check(in_strips, (1, channels, 1, pixels), src, dst, F32, threads=2)
        step = check(move_image, (1, channels, 1, pixels), src, dst, F32, threads=2)
        spread = dst == "NCHW" and pixels % 16 != 0  # channel planes share no sets: vectors along pixels do as well
        assert (step.kernel is move_strips) == (not spread), (src, dst)
    for src, dst in (("NCHW", "NHWC"), ("NHWC", "NCHW")):
        check(in_strips, (1, 80, 32, 32), src, dst, F32)


def test_bits_of_nan_are_kept() -> None:
    """Quiet and signalling, of any payload and sign."""
    shape = (1, 128, 4, 4)
    bits = np.random.default_rng(0).integers(1, 1 << 22, shape, np.uint32) | np.uint32(0x7F800000)
    bits |= np.random.default_rng(1).integers(0, 2, shape, np.uint32) << np.uint32(31)
    for src, dst in (("NHWC", "NCHW8c"), ("NCHW", "NHWC"), ("NHWC", "NCHW"), ("NCHW8c", "NCHW64c")):
        x = layouts.from_nchw(bits, src).view(np.float32)
        y = cpuconv.reorder(x, src, dst).view(np.uint32)
        np.testing.assert_array_equal(y, layouts.from_nchw(bits, dst))


@pytest.mark.parametrize(
    ("step", "lines"), [(4096, 1), (8192, 1), (2048, 2), (256, 16), (4000, 64), (196, 64), (-512, 8)]
)
def test_lines_apart(step: int, lines: int) -> None:
    assert count_l1_sets(step) == lines
    sets = [abs(step) * i // 64 % 64 for i in range(lines)]
    assert len(set(sets)) == lines or step % 64


@pytest.mark.parametrize(("channels", "pixels"), [(1024, 49), (2048, 49), (512, 196), (768, 49), (256, 3136)])
@pytest.mark.parametrize("threads", [1, 2])
def test_parts_of_two_threads_are_alike(channels: int, pixels: int, threads: int) -> None:
    """Units are ranges of equal numbers; the last strip of a row is shorter than two."""
    native = blocked.layout(ISA, F32)
    for src, dst in (("NHWC", native), (native, "NHWC"), ("NCHW", "NHWC"), ("NHWC", "NCHW")):
        shape = (1, channels, 1, pixels)
        views = (Operand(Ref(each), contiguous(name, shape, F32)) for each, name in (("x", src), ("y", dst)))
        args = in_strips(ISA, Space(), shape, *views, threads, F32).args
        strips = [args["strip"]] * (args["strips"] - 1) + [pixels - args["strip"] * (args["strips"] - 1)]
        spans = [min(args["span"], args["vectors"] - at) for at in range(0, args["vectors"], args["span"])]
        work = [strip * span for strip in strips for span in spans]
        parts = [sum(work[len(work) * part // threads : len(work) * (part + 1) // threads]) for part in range(threads)]
        assert len(work) == args["units"] and args["strip"] <= strips[-1] < 2 * args["strip"]
        assert max(parts) <= 1.15 * sum(parts) / threads, (src, dst, parts)


@pytest.mark.skipif(ISA.name not in ("avx512", "avx2"), reason="these are instructions of x86")
def test_bundles_are_copied_by_vectors_and_planes_transposed_in_registers() -> None:
    """For any CPU that is named, whether it runs here or not."""
    native, register = blocked.layout(ISA, F32), "zmm" if ISA.name == "avx512" else "ymm"
    for src, dst, shuffles in (
        ("NHWC", native, ()),
        ("NCHW", "NHWC", ("vunpcklp", "vunpckhp")),
        ("NHWC", "NCHW", ("vunpcklp",)),
    ):
        shape = (1, 1024, 7, 7)
        views = (Operand(Ref(each), contiguous(name, shape, F32)) for each, name in (("x", src), ("y", dst)))
        step = in_strips(ISA, Space(), shape, *views, 1, F32)
        assembly = step.kernel.assembly(step.tile)
        moves = sum(line.split()[:1] == ["vmovups"] and register in line for line in assembly.splitlines())
        assert moves >= 2 * step.tile.bundle, (src, dst)
        assert all(name in assembly for name in shuffles), (src, dst)
