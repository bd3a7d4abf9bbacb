"""Reorders of elements of one, two and four bytes between every pair of layouts, against NumPy's, bit by bit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.elements import BF16, F32, U8, Element
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Operand, Ref, Space
from cpuconv.kernels.copies import copying, reorder_steps
from cpuconv.kernels.copies.moving import move_image
from cpuconv.kernels.copies.reorder import BOTH, PACK, UNPACK
from cpuconv.kernels.copies.rows import ANY
from cpuconv.kernels.elementwise.convert import ConvertTile, convert
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.base import contiguous
from support import guarded
from support.moved import SPREADS, by, check

pytestmark = pytest.mark.exhaustive

ISA = current()
ELEMENTS = (U8, BF16, F32)  # one of each size: elements are moved as they are
names = st.sampled_from(layouts.NAMES)
in_loops = by(reorder_steps)
quick = settings(max_examples=120, deadline=None)


def around(block: int) -> list[int]:
    """Channels around the edges of a block, and few."""
    return sorted({1, 3, 4, block - 1, block, block + 1, 2 * block + 3})


@pytest.mark.exhaustive
@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize(("src", "dst"), list(itertools.product(layouts.NAMES, repeat=2)))
def test_every_pair_of_layouts_around_a_block(src: str, dst: str, element: Element) -> None:
    for number, channels in enumerate(around(ISA.block(element))):
        for plane in ((1, 1), (3, 5), (5, 7), (1, 67)):
            check(in_loops, (2, channels, *plane), src, dst, element, edge=guarded.EDGES[number % 2])


@quick
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 140), st.integers(1, 9), st.integers(1, 40)),
    names,
    names,
    st.sampled_from(ELEMENTS),
    st.sampled_from(sorted(SPREADS)),
    st.sampled_from(sorted(SPREADS)),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(guarded.EDGES),
)
def test_any_strides_and_threads(shape, src, dst, element, x_spread, y_spread, threads, edge) -> None:
    check(in_loops, shape, src, dst, element, x_spread, "dense" if y_spread == "flipped" else y_spread, threads, edge)


WAYS = {  # of whole blocks, by source and target: the instruction set's blocks are "blocked"
    ("NCHW", "blocked"): PACK,
    ("blocked", "NCHW"): UNPACK,
    ("NHWC", "blocked"): PACK,
    ("NCHW", "NHWC"): PACK,
    ("NHWC", "NCHW"): UNPACK,
    ("blocked", "NHWC"): UNPACK,
    ("NCHW", "NCHW4c"): BOTH,
}


@pytest.mark.parametrize("element", [U8, BF16], ids=str)
def test_elements_that_fill_words_are_moved_as_words(element: Element) -> None:
    block = ISA.block(element)
    shape = (1, 3 * block, 8, 8)
    for (src, dst), mode in WAYS.items():
        if dst == "NCHW4c" and element != U8:
            continue
        named = [blocked.layout(ISA, element) if name == "blocked" else name for name in (src, dst)]
        views = (Operand(Ref(each), contiguous(name, shape, element)) for each, name in zip("xy", named, strict=True))
        tile = in_loops(ISA, Space(), shape, *views, 1, element).tile
        assert tile.mode == mode, (src, dst)
        assert ANY not in (tile.source.kind, tile.target.kind), (src, dst)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NCHW8c"])
def test_between_equal_layouts_bytes_are_copied(layout: str) -> None:
    shape = (2, 24, 5, 20)
    for spread in SPREADS:
        step = check(move_image, shape, layout, layout, U8, x_spread=spread)
        assert spread in ("sparse", "flipped") or step.tile.mode == copying.RUNS


@pytest.mark.skipif(ISA.name not in ("avx512", "avx2"), reason="these are instructions of x86")
def test_rows_are_interleaved_in_registers_and_narrowed_by_vectors() -> None:
    shape = (1, ISA.block(U8), 8, 8)
    views = (
        Operand(Ref(name), contiguous(layout, shape, U8))
        for name, layout in (("x", "NCHW"), ("y", blocked.layout(ISA, U8)))
    )
    step = in_loops(ISA, Space(), shape, *views, 1, U8)
    assembly = step.kernel.assembly(step.tile)
    assert "vpunpcklbw" in assembly and "vpunpckhwd" in assembly
    narrowing = convert.assembly(ConvertTile(ISA.lanes, F32, U8))
    assert "vdivps" in narrowing and "vcvtps2dq" in narrowing
    assert ISA.name != "avx512" or "vpmovdb" in narrowing
