"""Reorders of elements of one, two and four bytes between every pair of layouts, against NumPy's, bit by bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layouts
from cpuconv.elements import BF16, F32, U8, Element
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Operand, Ref, Space, Step
from cpuconv.kernels.copies.reorder import BOTH, LINES, PACK, UNPACK
from cpuconv.kernels.copies.reordering import reorder_step
from cpuconv.kernels.copies.rows import ANY
from cpuconv.kernels.elementwise.convert import ConvertTile, convert
from cpuconv.network.running.recording import Recording
from cpuconv.problem.arrays import address
from cpuconv.solvers.shared import blocked
from cpuconv.solvers.shared.base import contiguous
from support import guarded

pytestmark = pytest.mark.exhaustive

ISA = current()
ELEMENTS = (U8, BF16, F32)  # one of each size: elements are moved as they are
SPREADS: dict[str, Callable[[tuple[int, ...]], tuple[slice, ...]]] = {
    "dense": lambda shape: tuple(slice(size) for size in shape),
    "sliced": lambda shape: (*(slice(size) for size in shape[:-1]), slice(shape[-1])),
    "sparse": lambda shape: tuple(slice(0, 2 * size, 2) for size in shape),
    "flipped": lambda shape: tuple(slice(size - 1, None, -1) if size > 1 else slice(1) for size in shape),
}
names = st.sampled_from(layouts.NAMES)
quick = settings(max_examples=120, deadline=None)


def drawn(shape: tuple[int, ...], element: Element) -> np.ndarray:
    """Bytes that are no zeros: no element equals what fills up a block."""
    size = int(np.prod(shape)) * element.bytes
    return np.random.default_rng(size).integers(1, 255, size, np.uint8).view(element.dtype).reshape(shape)


def physical(logical: np.ndarray, layout: str) -> np.ndarray:
    """In a layout, whose last block is filled up with what is no zero."""
    x = layouts.from_nchw(logical, layout)
    block = layouts.get(layout).block
    if rest := logical.shape[1] % block:
        x[:, -1, ..., rest:] = drawn(x[:, -1, ..., rest:].shape, U8)
    return x


def spread(x: np.ndarray, spread: str, edge: str) -> np.ndarray:
    """The same elements in memory of other strides, which ends or begins where they do."""
    around = drawn(tuple(2 * size + 1 for size in x.shape), U8).astype(x.dtype)
    view = around[SPREADS[spread](x.shape)]
    view[...] = x
    return guarded.place(x if spread == "dense" else view, edge)


def step_of(x: np.ndarray, src: str, y: np.ndarray, dst: str, shape, element: Element, threads: int) -> tuple:
    """The reorder of memory to other memory."""
    views = [
        Operand(Ref(name), layouts.get(layout).strides(each.strides))
        for name, layout, each in (("x", src, x), ("y", dst, y))
    ]
    space = Space()
    return reorder_step(ISA, space, shape, *views, threads, element), space


def run(step: Step, space: Space, x: np.ndarray, y: np.ndarray, threads: int) -> None:
    """The step on these arrays."""
    workspace = np.empty(space.size + 64, np.uint8)
    at = {"x": address(x), "y": address(y), "workspace": address(workspace)}
    Recording([step], threads).bind(at).run()


def check(shape, src: str, dst: str, element: Element, x_spread="dense", y_spread="dense", threads=1, edge="end"):
    """A reorder of an activation of that shape, and all that it leaves alone."""
    logical = drawn(shape, element)
    x = spread(physical(logical, src), x_spread, edge)
    expected = layouts.from_nchw(logical, dst)
    y = spread(np.full_like(expected, 77), y_spread, edge)
    step, space = step_of(x, src, y, dst, shape, element, threads)
    about = f"reorder {shape} {element} {src} {x_spread} to {dst} {y_spread} {edge} {threads}"
    with guarded.only(y):
        guarded.named(about, lambda: run(step, space, x, y, threads))
    np.testing.assert_array_equal(y, expected, about)


def around(block: int) -> list[int]:
    """Channels around the edges of a block, and few."""
    return sorted({1, 3, 4, block - 1, block, block + 1, 2 * block + 3})


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
@pytest.mark.parametrize(("src", "dst"), list(itertools.product(layouts.NAMES, repeat=2)))
def test_every_pair_of_layouts_around_a_block(src: str, dst: str, element: Element) -> None:
    for number, channels in enumerate(around(ISA.block(element))):
        for plane in ((1, 1), (3, 5), (5, 7), (1, 67)):
            check((2, channels, *plane), src, dst, element, edge=guarded.EDGES[number % 2])


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
    check(shape, src, dst, element, x_spread, "dense" if y_spread == "flipped" else y_spread, threads, edge)


WAYS = {  # of whole blocks, by source and target: the instruction set's blocks are "blocked"
    ("NCHW", "blocked"): PACK,
    ("blocked", "NCHW"): UNPACK,
    ("NHWC", "blocked"): PACK,
    ("NCHW", "NHWC"): PACK,
    ("NHWC", "NCHW"): UNPACK,
    ("blocked", "NHWC"): UNPACK,
    ("NCHW", "NCHW"): LINES,
    ("NHWC", "NHWC"): LINES,
    ("blocked", "blocked"): LINES,
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
        tile = reorder_step(ISA, Space(), shape, *views, 1, element).tile
        assert tile.mode == mode, (src, dst)
        assert ANY not in (tile.source.kind, tile.target.kind), (src, dst)


@pytest.mark.skipif(ISA.name not in ("avx512", "avx2"), reason="these are instructions of x86")
def test_rows_are_interleaved_in_registers_and_narrowed_by_vectors() -> None:
    shape = (1, ISA.block(U8), 8, 8)
    views = (
        Operand(Ref(name), contiguous(layout, shape, U8))
        for name, layout in (("x", "NCHW"), ("y", blocked.layout(ISA, U8)))
    )
    step = reorder_step(ISA, Space(), shape, *views, 1, U8)
    assembly = step.kernel.assembly(step.tile)
    assert "vpunpcklbw" in assembly and "vpunpckhwd" in assembly
    narrowing = convert.assembly(ConvertTile(ISA.lanes, F32, U8))
    assert "vdivps" in narrowing and "vrndscaleps" in narrowing or "vroundps" in narrowing
    assert ISA.name != "avx512" or "vpmovdb" in narrowing
