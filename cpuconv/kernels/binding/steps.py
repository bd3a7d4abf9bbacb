"""Steps: kernel calls whose addresses are known when a plan or a network is bound to memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.memory.aligned import ALIGNMENT
from cpuconv.problem.arrays import address
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.cache import Code
from cpuconv.runtime.kernel import Kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.symbolic.sizes import SIZES, Affine, applied, is_symbolic, now
from layouts import Strides


@dataclass(frozen=True)
class Ref:
    """An address that is known when a plan is called.

    Attributes
    ----------
    name : str
        Base: "x", "y", "residual", "w", "bias" or "workspace"; "fill" is not an address but the value of padding.
    offset : int
        Bytes from the base.
    """

    name: str
    offset: int = 0

    def __add__(self, offset: int) -> Ref:
        return Ref(self.name, self.offset + offset)


@dataclass(frozen=True)
class Operand:
    """An activation in memory: its address, and its strides in bytes."""

    ref: Ref
    strides: Strides


@dataclass(frozen=True)
class Operands:
    """The activations of a call: input, output, and the residual that is added to the output."""

    x: Operand
    y: Operand
    residual: Operand | None = None


@dataclass(frozen=True)
class MicroRef:
    """The address of a micro-kernel specialised for a tile."""

    kernel: MicroKernel
    tile: Any

    def entry(self) -> Code:
        """Compile or load the micro-kernel (compiled at most once per machine)."""
        return self.kernel.entry(self.tile)


@dataclass(frozen=True)
class OneOf:
    """The address of one of several micro-kernels, selected by a size that a trace follows.

    The first `ready` of them are loaded for any size, the others when a size selects them.
    """

    refs: tuple[MicroRef, ...]
    index: Any
    ready: int = 0

    def loaded(self) -> list[MicroRef]:
        """The micro-kernels that are loaded for the current size."""
        return list(dict.fromkeys((self.refs[now(self.index)], *self.refs[: self.ready])))


Args = dict[str, int | Ref | MicroRef | OneOf | tuple[MicroRef, ...] | np.ndarray]


class _Entries:
    """Addresses of micro-kernels, loaded at first use; the first `ready` are loaded at once."""

    def __init__(self, refs: tuple[MicroRef, ...], ready: int, kept: list[Any]) -> None:
        self._refs, self._kept = refs, kept
        self._known: dict[int, int] = {}
        for index in range(ready):
            self(index)

    def __call__(self, index: int) -> int:
        address = self._known.get(index)
        if address is None:
            address = self._known[index] = self._refs[index].entry().address_for(self._kept)
        return address


def word_of(value: Any, kept: list[Any]) -> Any:
    """Convert an argument of a kernel to its int64 word; adds to `kept` what the word points to and must outlive it.

    For several micro-kernels, the word is the address of a table of their addresses. Traced sizes and arrays of traced
    sizes are returned unchanged.
    """
    if isinstance(value, MicroRef):
        return value.entry().address_for(kept)
    if isinstance(value, OneOf):
        return applied(_Entries(value.refs, value.ready, kept), value.index)
    if type(value) is Affine or is_symbolic(value) or type(value) is np.ndarray and value.dtype == SIZES:
        return value
    if isinstance(value, tuple):
        value = np.array([each.entry().address_for(kept) for each in value], np.int64)
    if isinstance(value, np.ndarray):
        kept.append(value)
        return address(value)
    return int(value)


@dataclass(frozen=True)
class Step:
    """One kernel call. Argument values are integers, addresses, micro-kernels, or arrays (kept alive by the plan)."""

    kernel: Kernel
    tile: Any
    args: Args
    parts: int = 1  # per worker, idle workers may take over some; 0: serial
    clears_tail: bool = False  # zeros the output's lanes without a channel

    @property
    def nbytes(self) -> int:
        """Size of the arrays among the arguments, in bytes."""
        return sum([value.nbytes for value in self.args.values() if type(value) is np.ndarray])

    def kernels(self) -> Iterator[tuple[Any, Any]]:
        """Kernels of the call with their tiles: the micro-kernels, then their driver."""
        for each in micro_kernels(self):
            yield each.kernel, each.tile
        yield self.kernel, self.tile

    def compile(self) -> Code:
        """Compile or load the kernel and its micro-kernels; returns the kernel's entry."""
        *_, entry = [kernel.entry(tile) for kernel, tile in self.kernels()]
        return entry


def micro_kernels(step: Step) -> Iterator[MicroRef]:
    """The micro-kernels that a step's driver may call."""
    for value in step.args.values():
        if type(value) is MicroRef:
            yield value
        elif type(value) is tuple:
            yield from value
        elif type(value) is OneOf:
            yield from value.loaded()


class Space:
    """The workspace of a plan under construction."""

    def __init__(self) -> None:
        self.size = 0

    def reserve(self, size: int) -> Ref:
        """Reserve `size` bytes, aligned to a cache line and offset from multiples of 4 KB."""
        place = Ref("workspace", self.size)
        self.size += divide(size, ALIGNMENT) * ALIGNMENT + ALIGNMENT
        return place
