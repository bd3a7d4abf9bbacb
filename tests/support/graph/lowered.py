"""One node through its kernels: what `offers` and `lower` of an operator make of it, against its reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import layouts
from cpuconv.conv.choice.target import PRECISION_F32, Target
from cpuconv.elements import join_parts, split_to_parts
from cpuconv.graph import ops
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import Ref, Space
from cpuconv.kernels.binding.tensor_view import (
    BLOCKED,
    CHANNELS_LAST,
    DENSE,
    FLOAT32,
    STRIDED,
    TensorView,
    contiguous_strides,
    image_shape,
    narrow_element,
    stored_as,
    unrounded,
)
from cpuconv.memory.aligned import aligned
from cpuconv.network.running.recording import Recording
from cpuconv.problem.arrays import address
from cpuconv.problem.error_bound import MAX_ROUNDING_ERROR
from support import guarded
from support.guarded import END, START
from support.running import sharing

_GAP = 192  # bytes between images that lie apart
_LEFT = 0xFF, 0x55  # of what a workspace holds beforehand: NaN, or a number


class Kept:
    """Constants of a call: arrays that stay alive, at fixed addresses and at that edge of memory."""

    def __init__(self, edge: str = END) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._edge = edge

    def keep(self, array: np.ndarray) -> Ref:
        assert array.flags.c_contiguous
        name = f"constant {len(self.arrays)}"
        self.arrays[name] = guarded.place(array, self._edge)
        return Ref(name)

    def packed(self, name: str, form: Any, make: Callable[[], np.ndarray]) -> Ref:
        return self.keep(make())

    def room(self, size: int) -> np.ndarray:
        return aligned(size, np.uint8)


def target(threads: int = 1, precision: str = PRECISION_F32) -> Target:
    """This machine, algorithms chosen by the model."""
    return Target(current(), threads, "heuristic", precision=precision)


def offers(
    node: Node,
    arrays: Sequence[np.ndarray | None],
    constant: Sequence[int] = (),
    threads: int = 1,
    precision: str = PRECISION_F32,
) -> Any:
    """What the node's operator offers for operands like these; `constant`: positions of elements known beforehand."""
    values = values_of(arrays, constant)
    offered = ops.TABLE[node.op].offers
    return offered(node, values, target(threads, precision)) if offered else []


def values_of(arrays: Sequence[np.ndarray | None], constant: Sequence[int]) -> list[Value | None]:
    return [
        None if array is None else Value.of(array) if at in constant else Value(array.shape, array.dtype)
        for at, array in enumerate(arrays)
    ]


class _Memory:
    """The bytes of the operands, at an edge of memory."""

    def __init__(self, edge: str) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._edge = edge

    def place(self, name: str, shape: tuple[int, ...], lies: str, dtype: np.dtype, apart: bool) -> TensorView:
        """Room for a tensor, filled with NaN; `apart`: its images, or for a dense tensor its first axis, with gaps."""
        dtype = stored_as(lies, dtype)
        form = unrounded(lies)
        if form == BLOCKED:
            place = TensorView.blocked(Ref(name), shape, target().block(dtype), None, dtype)
        elif form == DENSE:
            place = TensorView.plain(Ref(name), shape, dtype)
        elif form == CHANNELS_LAST:
            place = TensorView.channels_last(Ref(name), shape, dtype)
        else:  # the last two axes change places
            turned = (*shape[:-2], *shape[-2:][::-1])
            steps = list(contiguous_strides(turned, dtype.itemsize))
            steps[-2:] = steps[-2:][::-1]
            place = TensorView(Ref(name), shape, tuple(steps), 1, dtype)
        if apart and form != STRIDED and place.physical and shape[0] > 1:
            step = place.strides[0] + _GAP
            place = TensorView(place.ref, shape, (step, *place.strides[1:]), place.block, place.dtype)
        span = sum(max(0, size - 1) * step for size, step in zip(place.physical, place.strides, strict=True))
        size = span + place.dtype.itemsize if 0 not in place.physical else 0
        self.arrays[name] = guarded.room(size, self._edge)
        return place

    def view(self, place: TensorView) -> np.ndarray:
        """The elements of a place, by its physical axes."""
        return np.ndarray(place.physical, place.dtype, self.arrays[place.ref.name], place.ref.offset, place.strides)


def _write(view: np.ndarray, array: np.ndarray, place: TensorView) -> None:
    if place.block == 1:
        view[...] = array.astype(place.dtype)
        return
    in_parts = place.element.parts > 1
    elements = array if in_parts else array.astype(place.dtype)
    stored = layouts.from_nchw(elements.reshape(image_shape(array.shape)), layouts.blocked(place.block))
    view[...] = split_to_parts(stored, place.element) if in_parts else stored


def _read(view: np.ndarray, place: TensorView, dtype: np.dtype | None) -> np.ndarray:
    """The elements of a place, as a tensor of that dtype has them."""
    if place.block == 1:
        return view.copy()
    if dtype == FLOAT32:  # they may be stored in 16 bits, or in parts
        view = join_parts(view) if place.element.parts > 1 else view.astype(np.float32)
    nchw = layouts.to_nchw(view, layouts.blocked(place.block), place.shape[1])
    tail = view[:, -1, :, :, (place.shape[1] - 1) % place.block + 1 :]
    assert not tail.any() and not np.isnan(tail).any(), "lanes without a channel must be zero"
    return nchw.reshape(place.shape)


def run_offer(
    node: Node,
    arrays: Sequence[np.ndarray | None],
    offer: Offer,
    constant: Sequence[int] = (),
    threads: int = 1,
    apart: bool = False,
    edge: str = END,
) -> list[np.ndarray]:
    """The outputs of one offer of a node, operands as it says; `apart`: images with gaps between them.

    All but the outputs must be left as it was. edge: of the memory of each operand and constant.
    """
    op, memory, kept, space = ops.TABLE[node.op], _Memory(edge), Kept(edge), Space()
    inputs: list[TensorView | None] = []
    for at, (array, lies) in enumerate(zip(arrays, offer.inputs, strict=True)):
        if array is None:
            inputs.append(None)
            continue
        place = memory.place(f"input {at}", array.shape, lies or DENSE, array.dtype, apart and bool(lies))
        _write(memory.view(place), array, place)
        if at in constant:
            place = TensorView(place.ref, place.shape, place.strides, place.block, place.dtype, array)
        inputs.append(place)
    results = op.infer(node, values_of(arrays, constant))
    before = {name: guarded.pages(array).tobytes() for name, array in memory.arrays.items()}
    if offer.view:
        assert op.view is not None
        outputs = op.view(node, inputs, results)
        return [_read(memory.view(place), place, value.dtype) for place, value in zip(outputs, results, strict=False)]
    outputs = [
        memory.place(f"output {at}", value.shape, lies, value.dtype or FLOAT32, apart)  # type: ignore[arg-type]
        for at, (value, lies) in enumerate(zip(results, offer.outputs, strict=True))
    ]
    assert op.lower is not None
    steps = op.lower(Call(node, inputs, outputs, offer, target(threads), space, kept))
    workspace = aligned(space.size + 64, np.uint8)
    workspace[:] = _LEFT[edge == START]
    bases = memory.arrays | kept.arrays | {"workspace": workspace}
    bound = Recording.of(steps, threads).bind({name: address(array) for name, array in bases.items()})
    views = [memory.view(place) for place in outputs]
    with guarded.only(*views):
        guarded.named(f"{node} by {offer.inputs} -> {offer.outputs}, {threads} threads", bound.run)
    for name, pages in before.items():
        assert guarded.pages(memory.arrays[name]).tobytes() == pages, f"{name} was written to, or what lies around it"
    found = [_read(view, place, value.dtype) for view, place, value in zip(views, outputs, results, strict=True)]
    if node.op.startswith("Bounded"):  # kernels write a stated number of results
        rows = found[0].T if node.op == "BoundedNonZero" else found[0]
        rows[found[1].item() :] = -1
    return found


def check(
    node: Node,
    arrays: Sequence[np.ndarray | None],
    constant: Sequence[int] = (),
    threads: int = 1,
    apart: bool = False,
    tolerance: float = 1e-5,
    made: Sequence[Offer] | None = None,
    least: float = 1e-30,
    precision: str = PRECISION_F32,
    ties: bool = False,
) -> int:
    """Compare every offer of a node, or those `made`, with its reference; gives the number of offers.

    Errors are relative to the largest output, and to no less than `least`; an output in bfloat16 or float16 may be off
    by half a unit in its last place more. `arrays` are to be numbers of this type where offers store them so.
    `ties`: one in a hundred integers, and one, may be the other of the two that a number lies between.
    """
    results = ops.TABLE[node.op].infer(node, values_of(arrays, constant))
    wide = [np.dtype(np.float64) if value.dtype == FLOAT32 else value.dtype for value in results]
    expected = ops.TABLE[node.op].evaluate(node, arrays, wide)
    made = offers(node, arrays, constant, threads, precision) if made is None else made
    for offer in made:
        found = run_offer(node, arrays, offer, constant, threads, apart)
        for got, again in zip(found, run_offer(node, arrays, offer, constant, threads, apart, START), strict=True):
            bits = [each.view(f"u{each.itemsize}") for each in (got, again)]  # which also compares NaN of bfloat16
            assert np.array_equal(*bits), f"{offer}: depends on where arrays lie"
        for got, wanted, form in zip(found, expected, offer.outputs, strict=False):
            assert got.shape == wanted.shape
            if wanted.dtype.kind != "f":
                steps = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
                assert steps.max(initial=0) <= ties and steps.sum() <= ties * (1 + steps.size / 100), offer
                continue
            finite = np.isfinite(wanted)
            scale = max(least, float(np.abs(wanted[finite]).max(initial=0)))
            assert np.array_equal(got[~finite], wanted[~finite].astype(got.dtype), equal_nan=True), offer
            narrow = narrow_element((form,))
            spare = MAX_ROUNDING_ERROR[narrow.name] * np.abs(wanted[finite]) if narrow else 0
            error = (np.abs(got[finite] - wanted[finite]) - spare).max(initial=0) / scale
            assert error <= tolerance, (offer, error)
    return len(made)


@pytest.fixture(autouse=True, scope="module")
def small_work_is_shared() -> Iterator[None]:
    """Threads share work of any size, in a module that imports this."""
    with sharing.small_work_is_shared():
        yield
