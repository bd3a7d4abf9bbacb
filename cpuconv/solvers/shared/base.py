"""What solvers and plans share: operands, steps, workspace, cost; and the parts of a solver.

A solver is a module with the parts below, in this order. `Params` is a frozen dataclass; its text is the candidate's
name, in the store and in `plan.algorithm`.

    NAME, ACCURACY, ROUNDING
    Params
    applicable(problem, isa) -> str | None              why it cannot run this, or None
    candidates(problem, isa) -> Iterable[Params]        what is worth running, best guess first
    bound(problem, machine) -> float                    seconds that no candidate's estimate is below, found cheaply
    cost(problem, params, machine) -> Cost              lower bound and estimate
    layouts(problem, params, isa) -> (str | None, str | None)     layouts it needs in and out; None: any strides.
                                                        With params None: what every candidate needs
    packing(problem, params, isa) -> Packing            the form in which weights are read
    bind(problem, params, isa, space, operands) -> list[Step]

ROUNDING names the first fields of `Params` that change how sums are formed: candidates that agree in them give the
same result to the last bit, whatever the others are and however many workers share the work.

A `Packing` (shared/packing.py) holds only what packed weights depend on, so that plans of many sizes and candidates
can share one copy.

A choice asks every solver for `bound` first, and lists the candidates only of solvers whose bound is below the best
estimate so far. A bound should be as high as it can be while it holds: operations and memory traffic, once each, of the
best candidate with ideal tiles. A test checks that it holds.

What can run is kept apart from what is worth running. The workspace of a candidate is what `bind` reserves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import layouts
from cpuconv.problem.arrays import address
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.cache import Code
from cpuconv.runtime.kernel import Kernel
from cpuconv.runtime.microkernel import MicroKernel
from layouts import Strides

ALIGNMENT = 64
FLOAT = 4


@dataclass(frozen=True)
class Ref:
    """An address that is known when a plan is called.

    Attributes
    ----------
    name : str
        "x", "y", "residual", "w", "bias" or "workspace".
    offset : int
        Bytes from it.
    """

    name: str
    offset: int = 0

    def __add__(self, offset: int) -> Ref:
        return Ref(self.name, self.offset + offset)


@dataclass(frozen=True)
class Operand:
    """An activation in memory: where it starts and its strides in bytes."""

    ref: Ref
    strides: Strides


@dataclass(frozen=True)
class Operands:
    """The activations of a call: input, output, and what is added to it."""

    x: Operand
    y: Operand
    residual: Operand | None = None


@dataclass(frozen=True)
class MicroRef:
    """The address of a micro-kernel specialised for a tile."""

    kernel: MicroKernel
    tile: Any

    def entry(self) -> Code:
        """The micro-kernel (compiled at most once per machine)."""
        return self.kernel.entry(self.tile)


Args = dict[str, int | Ref | MicroRef | tuple[MicroRef, ...] | np.ndarray]


def word_of(value: int | MicroRef | tuple[MicroRef, ...] | np.ndarray, kept: list[Any]) -> int:
    """The word that says an argument to a kernel, valid as long as `kept` is, which is given what the word points to.

    For several micro-kernels it is the address of their addresses.
    """
    if isinstance(value, MicroRef):
        return value.entry().address_for(kept)
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
    parts: int = 1  # for each worker, of which others may take over some; 0: it is run by one
    clears_tail: bool = False  # writes zeros to the output's lanes that are no channels

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays among the arguments."""
        return sum(value.nbytes for value in self.args.values() if isinstance(value, np.ndarray))

    def compile(self) -> Code:
        """The kernel's entry; it and the micro-kernels it calls are compiled or loaded."""
        for value in self.args.values():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, MicroRef):
                    each.entry()
        return self.kernel.entry(self.tile)


@dataclass(frozen=True)
class Cost:
    """Seconds of a candidate.

    Attributes
    ----------
    bound : float
        No run is faster.
    estimate : float
        The time that the model expects.
    """

    bound: float
    estimate: float


class Space:
    """The workspace of a plan under construction."""

    def __init__(self) -> None:
        self.size = 0

    def reserve(self, size: int) -> Ref:
        """`size` bytes, aligned to a cache line and set off from multiples of 4 KB."""
        place = Ref("workspace", self.size)
        self.size += -(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        return place


def contiguous(layout: str, shape: tuple[int, int, int, int]) -> Strides:
    """Byte strides of a C-contiguous float32 activation of logical `shape` in `layout`."""
    physical = layouts.get(layout).shape(*shape)
    strides, step = [], FLOAT
    for size in reversed(physical):
        strides.append(step)
        step *= size
    return layouts.get(layout).strides(strides[::-1])


def is_plain(problem: ConvProblem) -> bool:
    """Whether the output plane is the input plane, pixel by pixel."""
    return (problem.r, problem.s, problem.stride) == (1, 1, (1, 1)) and not any(problem.pads)


def divide(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def aligned(shape: tuple[int, ...] | int, dtype: Any = np.float32) -> np.ndarray:
    """Uninitialised array that starts on a cache line."""
    size = (shape if isinstance(shape, int) else math.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, raw, -address(raw) % ALIGNMENT)
