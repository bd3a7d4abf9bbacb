"""What solvers and plans share: operands, steps, workspace, cost; and the shape of a solver.

A solver is a module with the parts below, in this order. `Params` is a frozen dataclass; its text is the candidate's
name, in the store and in `plan.algorithm`.

    NAME, ACCURACY, ROUNDING
    class Params
    applicable(problem, isa) -> str | None              why it cannot run this, or None
    candidates(problem, isa) -> Iterable[Params]        what is worth running, best guess first
    cost(problem, params, machine) -> Cost              lower bound and estimate
    layouts(problem, params, isa) -> (str | None, str | None)     layouts it needs in and out; None: any strides
    pack(problem, params, isa, weight) -> np.ndarray    weights in the order they are read
    bind(problem, params, isa, space, x, y, residual) -> list[Step]

ROUNDING names the first fields of `Params` that change how sums are formed: candidates that agree in them give the
same result to the last bit, whatever the others are and however many workers share the work.

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
from cpuconv.arrays import address
from cpuconv.problem import ConvProblem
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


def moved_bytes(problem: ConvProblem) -> tuple[int, int]:
    """Bytes of the input and of the output as they lie in memory, channels that fill up blocks included."""
    pairs = ((problem.in_layout, problem.in_shape), (problem.out_layout, problem.out_shape))
    return tuple(FLOAT * math.prod(layouts.get(layout).shape(*shape)) for layout, shape in pairs)  # type: ignore


def view_args(prefix: str, strides: Strides) -> dict[str, int]:
    """The stride arguments `<prefix>_block … <prefix>_w` of a kernel that takes any view."""
    return {f"{prefix}_{name}": getattr(strides, name) for name in ("block", "cb", "c", "h", "w")}


def parts_each(problem: ConvProblem, units: int) -> int:
    """Parts for each worker of work in so many units: enough for others to take over, and worth it."""
    workers = max(1, problem.threads)
    return max(1, min(_MOST_PARTS, units // workers, int(problem.flops / _PART_FLOPS / workers)))


def divide(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def aligned(shape: tuple[int, ...] | int, dtype: Any = np.float32) -> np.ndarray:
    """Uninitialised array that starts on a cache line."""
    size = (shape if isinstance(shape, int) else math.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -address(raw) % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


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
