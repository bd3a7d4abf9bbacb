"""Activations moved from one layout to another by a step, against NumPy's, bit by bit, at the edges of memory."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

import layouts
from cpuconv.elements import F32, U8, Element
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Operand, Ref, Space, Step
from cpuconv.kernels.copies.movement import image_movements
from cpuconv.network.running.recording import Recording
from cpuconv.problem.arrays import address
from support import guarded

SPREADS: dict[str, Callable[[tuple[int, ...]], tuple[slice, ...]]] = {
    "dense": lambda shape: tuple(slice(size) for size in shape),
    "sliced": lambda shape: (*(slice(size) for size in shape[:-1]), slice(shape[-1])),
    "sparse": lambda shape: tuple(slice(0, 2 * size, 2) for size in shape),
    "flipped": lambda shape: tuple(slice(size - 1, None, -1) if size > 1 else slice(1) for size in shape),
}


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


def step_of(make, x: np.ndarray, src: str, y: np.ndarray, dst: str, shape, element: Element, threads: int) -> tuple:
    """The move of memory to other memory that `make` gives."""
    views = [
        Operand(Ref(name), layouts.get(layout).strides(each.strides))
        for name, layout, each in (("x", src, x), ("y", dst, y))
    ]
    space = Space()
    return make(current(), space, shape, *views, threads, element), space


def by(*kinds: ModuleType) -> Callable[..., Step]:
    """Moves by the first of these kinds of loops that supports a movement, whatever it costs; for `check`."""

    def make(isa, space, shape, x, y, threads, element=F32):
        movement, *_ = image_movements(isa, shape, x, y, threads, element)
        kind, tile = next((kind, tile) for kind in kinds if (tile := kind.supports(movement)) is not None)
        return kind.bind(movement, tile, space)

    return make


def run(step: Step, space: Space, x: np.ndarray, y: np.ndarray, threads: int) -> None:
    """The step on these arrays."""
    workspace = np.empty(space.size + 64, np.uint8)
    at = {"x": address(x), "y": address(y), "workspace": address(workspace)}
    Recording.of([step], threads).bind(at).run()


def check(
    make: Callable[..., Step],
    shape: tuple[int, int, int, int],
    src: str,
    dst: str,
    element: Element,
    x_spread: str = "dense",
    y_spread: str = "dense",
    threads: int = 1,
    edge: str = "end",
) -> Step:
    """A move of an activation of that shape, and all that it leaves alone; the step that `make` gave."""
    logical = drawn(shape, element)
    x = spread(physical(logical, src), x_spread, edge)
    expected = layouts.from_nchw(logical, dst)
    y = spread(np.full_like(expected, 77), y_spread, edge)
    step, space = step_of(make, x, src, y, dst, shape, element, threads)
    about = f"reorder {shape} {element} {src} {x_spread} to {dst} {y_spread} {edge} {threads}"
    with guarded.only(y):
        guarded.named(about, lambda: run(step, space, x, y, threads))
    np.testing.assert_array_equal(y, expected, about)
    return step
