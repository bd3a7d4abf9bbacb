"""Transposes of channel groups, and moves of pixels that fill no 32-bit groups, against NumPy bit by bit; selection."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.elements import BF16, F32, U8, Element
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Operand, Ref, Space
from cpuconv.kernels.copies.moving import move_image
from cpuconv.kernels.copies.pixels import move_pixels
from cpuconv.kernels.copies.transpose_groups import (
    NO_PARTIAL,
    PAD_ON_WRITE,
    TRIM_ON_READ,
    ZERO_FILL,
    transpose_groups,
)
from cpuconv.solvers.shared.base import contiguous
from support import guarded
from support.moved import check

ISA = current()
PAIRS = [
    *itertools.permutations(("NCHW", "NHWC", "NCHW4c"), 2),
    *itertools.permutations(("NHWC", "NCHW64c"), 2),
    ("NCHW4c", "NCHW8c"),
    ("NCHW16c", "NCHW4c"),
    ("NCHW64c", "NCHW"),
]


@pytest.mark.parametrize(("src", "dst"), PAIRS)
def test_pairs_with_channels_that_fill_words_and_that_do_not(src: str, dst: str) -> None:
    for number, channels in enumerate((3, 20, 71)):
        check(move_image, (2, channels, 5, 7), src, dst, U8, edge=guarded.EDGES[number % 2])


@pytest.mark.parametrize(("src", "dst"), [("NCHW", "NHWC"), ("NHWC", "NCHW4c"), ("NCHW4c", "NCHW")])
def test_elements_of_two_bytes(src: str, dst: str) -> None:
    for channels in (3, 21):
        check(move_image, (1, channels, 5, 7), src, dst, BF16)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 140), st.integers(1, 9), st.integers(1, 80)),
    st.sampled_from(PAIRS[:8]),
    st.sampled_from(["dense", "sliced", "flipped"]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(guarded.EDGES),
)
def test_any_shape_strides_and_threads(shape, pair, spread, threads, edge) -> None:
    check(move_image, shape, *pair, U8, x_spread=spread, threads=threads, edge=edge)


def step_of(src: str, dst: str, channels: int, element: Element, plane: tuple[int, int] = (9, 9)):
    shape = (1, channels, *plane)
    views = (Operand(Ref(each), contiguous(name, shape, element)) for each, name in (("x", src), ("y", dst)))
    return move_image(ISA, Space(), shape, *views, 1, element)


@pytest.mark.parametrize(
    ("src", "dst", "channels", "partial_group"),
    [
        ("NCHW", "NHWC", 33, NO_PARTIAL),
        ("NCHW", "NCHW8c", 33, NO_PARTIAL),
        ("NHWC", "NCHW4c", 33, PAD_ON_WRITE),
        ("NCHW4c", "NHWC", 33, TRIM_ON_READ),
        ("NCHW4c", "NCHW8c", 33, ZERO_FILL),
        ("NCHW16c", "NCHW8c", 33, ZERO_FILL),
    ],
)
def test_bytes_of_odd_channels_are_transposed(src: str, dst: str, channels: int, partial_group: int) -> None:
    step = step_of(src, dst, channels, U8)
    assert step.kernel is transpose_groups and step.tile.partial_group == partial_group


@pytest.mark.parametrize(("channels", "block"), [(33, 16), (255, 64), (3, 4), (5, 8)])
def test_pixels_that_fill_no_words_are_copied_to_blocks_and_back(channels: int, block: int) -> None:
    for src, dst in itertools.permutations(("NHWC", f"NCHW{block}c")):
        assert step_of(src, dst, channels, U8).kernel is move_pixels


def test_what_other_loops_do_better_is_left_to_them() -> None:
    assert step_of("NCHW", "NHWC", 64, F32).kernel is not transpose_groups
    assert step_of("NHWC", "NCHW", 1024, BF16).kernel is not transpose_groups  # pixels share sets of the cache
    assert step_of("NCHW", "NCHW16c", 33, U8).kernel is not transpose_groups
    assert step_of("NHWC", "NCHW", 3, U8).kernel is not transpose_groups  # a few lines are interleaved
    assert step_of("NCHW", "NHWC", 33, U8, (2, 3)).kernel is not transpose_groups  # too few pixels


@pytest.mark.skipif(ISA.name != "avx2", reason="these are instructions of AVX2")
def test_groups_are_interleaved_in_registers() -> None:
    for src, dst in itertools.permutations(("NCHW", "NHWC")):
        step = step_of(src, dst, 33, U8)
        assembly = step.kernel.assembly(step.tile)
        lines = [line.split() for line in assembly.splitlines()]
        shuffles = [words for words in lines if words and words[0].startswith("vpunpck")]
        assert len(shuffles) == 64 and all("ymm" in words[-1] for words in shuffles), (src, dst)
