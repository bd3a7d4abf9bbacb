"""What solvers and plans share: operands, steps, workspace, cost; and the shape of a solver.

A solver is a module with the parts below, in this order. `Params` is a frozen dataclass; its text is the candidate's
name, in the store and in `plan.algorithm`.

    NAME, ACCURACY, ROUNDING
    class Params
    applicable(problem, isa) -> str | None              why it cannot run this, or None
    candidates(problem, isa) -> Iterable[Params]        what is worth running, best guess first
    bound(problem, machine) -> float                    seconds that no candidate's estimate is below, found cheaply
    cost(problem, params, machine) -> Cost              lower bound and estimate
    layouts(problem, params, isa) -> (str | None, str | None)     layouts it needs in and out; None: any strides.
                                                        Of params None: what every candidate needs
    packing(problem, params, isa) -> Packing            the form in which weights are read
    bind(problem, params, isa, space, operands) -> list[Step]

ROUNDING names the first fields of `Params` that change how sums are formed: candidates that agree in them give the
same result to the last bit, whatever the others are and however many workers share the work.

A `Packing` (solvers/packing.py) holds only what packed weights depend on, so that plans of many sizes and candidates
can share one copy.

A choice asks for `bound` first, and for the candidates only of solvers whose bound is not above the best estimate yet:
what is true of the best candidate with ideal tiles (operations, memory once) is worth most; a test holds it to be true.

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


@dataclass(frozen=True)
class Ref:
    """An address known when a plan is called: `name` is x, y, residual, w, bias or workspace; `offset` in bytes."""

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

    @property
    def added(self) -> Operand:
        """The residual; without one the output, whose distance from itself is 0."""
        return self.residual or self.y


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
    """Seconds: no run is faster than `bound`; `estimate` is what the model expects."""

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


def is_plain(problem: ConvProblem) -> bool:
    """Whether the output plane is the input plane, pixel by pixel."""
    return (problem.r, problem.s, problem.stride) == (1, 1, (1, 1)) and not any(problem.pads)


def span(problem: ConvProblem, strides: Strides) -> int:
    """Bytes from the first element of the input that are all within its memory; 0 if some stride runs backwards."""
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
    """ "v=2,n=14" from a Params dataclass."""
    return ",".join(f"{f.name}={getattr(params, f.name)}" for f in dataclasses.fields(params))


def parse_params(kind: type, text: str) -> Any:
    """The reverse of `params_text`: integers only.

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
