"""What solvers and plans share: operands, steps, workspace, cost; and the parts of a solver.

A solver is a module with the parts below, in this order. `Params` is a frozen dataclass; its text is the candidate's
name, in the store and in `plan.algorithm`.

    NAME, ACCURACY, ROUNDING
    class Params
    applicable(problem, isa) -> str | None              why it cannot run this, or None
    candidates(problem, isa) -> Iterable[Params]        what is worth running, best guess first
    bound(problem, machine) -> float                    seconds that no candidate's estimate is below, found cheaply
    cost(problem, params, machine) -> Cost              lower bound and estimate
    layouts(problem, params, isa) -> (str | None, str | None)     layouts it needs in and out; None: any strides.
                                                        With params None: what every candidate needs
    packing(problem, params, isa) -> Packing            the form in which weights are read
    bind(problem, params, isa, space, x, y, residual) -> list[Step]

ROUNDING names the first fields of `Params` that change how sums are formed: candidates that agree in them give the
same result to the last bit, whatever the others are and however many workers share the work.

A `Packing` (solvers/shared/packing.py) holds only what packed weights depend on, so that plans of many sizes and
candidates can share one copy.

A choice asks every solver for `bound` first, and lists the candidates only of solvers whose bound is below the best
estimate so far. A bound should be as high as it can be while it holds: operations and memory traffic, once each, of the
best candidate with ideal tiles. A test checks that it holds.

What can run is kept apart from what is worth running. The workspace of a candidate is what `bind` reserves.
"""

from __future__ import annotations

import dataclasses
import math
import re
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
_MOST_PARTS = 8  # for each worker
_PART_FLOPS = 1e6  # some 10 µs: taking a part costs a hundredth of that


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
class MicroRef:
    """The address of a micro-kernel specialised for a tile."""

    kernel: MicroKernel
    tile: Any

    def entry(self) -> Code:
        """The address (compiled at most once per machine)."""
        return self.kernel.entry(self.tile)


Args = dict[str, int | Ref | MicroRef | np.ndarray]


@dataclass(frozen=True)
class Step:
    """One kernel call. Argument values are integers, addresses, or arrays (kept alive by the plan)."""

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
            if isinstance(value, MicroRef):
                value.entry()
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


def view_args(prefix: str, strides: Strides) -> dict[str, int]:
    """The stride arguments `<prefix>_block … <prefix>_w` of a kernel that takes any view."""
    return {f"{prefix}_{name}": getattr(strides, name) for name in ("block", "cb", "c", "h", "w")}


def window_args(problem: ConvProblem) -> dict[str, int]:
    """The arguments of a kernel that packs columns: channels of a group, and how the kernel's windows lie."""
    return {
        "group_kernels": problem.kg,
        "group_channels": problem.cg,
        "kernel_h": problem.r,
        "kernel_w": problem.s,
        "stride_h": problem.stride[0],
        "stride_w": problem.stride[1],
        "dilation_h": problem.dilation[0],
        "dilation_w": problem.dilation[1],
        "pad_top": problem.pads[0],
        "pad_left": problem.pads[2],
    }


def parts_each(problem: ConvProblem, units: int) -> int:
    """Parts for each worker of work in `units` units: enough for others to take over, and large enough to pay."""
    workers = max(1, problem.threads)
    return max(1, min(_MOST_PARTS, units // workers, int(problem.flops / _PART_FLOPS / workers)))


def span(problem: ConvProblem, strides: Strides) -> int:
    """Bytes from the first element of the input that all lie within its memory; 0 if a stride is negative."""
    if min(strides) < 0:
        return 0
    steps = (strides.n, strides.cb, strides.c, strides.h, strides.w)
    counts = (problem.n, divide(problem.c, strides.block), strides.block, problem.h, problem.w)
    return sum((count - 1) * step for count, step in zip(counts, steps, strict=True)) + FLOAT


def divide(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def aligned(shape: tuple[int, ...] | int, dtype: Any = np.float32) -> np.ndarray:
    """Uninitialised array that starts on a cache line."""
    size = (shape if isinstance(shape, int) else math.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, raw, -address(raw) % ALIGNMENT)


def params_text(params: Any) -> str:
    """The text of a Params dataclass, as in "v=2,n=14"."""
    return ",".join(f"{f.name}={getattr(params, f.name)}" for f in dataclasses.fields(params))


def parse_params(kind: type, text: str) -> Any:
    """A Params dataclass from the text that `params_text` makes; integers only.

    Raises
    ------
    ValueError
        Names or values that `kind` does not have.
    """
    names = [f.name for f in dataclasses.fields(kind)]
    found = re.findall(r"(\w+)=(-?\d+)(?:,|$)", text)
    if [name for name, _ in found] != names or params_text(kind(**{k: int(v) for k, v in found})) != text:
        raise ValueError(f"{text!r} does not name {', '.join(names)}")
    return kind(**{name: int(value) for name, value in found})
