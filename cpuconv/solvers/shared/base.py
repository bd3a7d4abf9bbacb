"""The parts of a solver, and what all solvers ask of a problem.

A solver is a module with the parts below, in this order. `Params` is a frozen dataclass; its text is the candidate's
name, in the store and in `plan.algorithm`.

    NAME, ACCURACY, ROUNDING
    Params
    applicable(problem, isa) -> str | None              why it cannot run this, or None
    candidates(problem, isa) -> Iterable[Params]        what is worth running, best guess first
    bound(problem, machine) -> float                    seconds that no candidate's estimate is below, found cheaply
    cost(problem, params, machine) -> Cost              lower bound and estimate
    least_work(problem, params) -> (int, int)           operations and bytes of weights that it cannot avoid, without
                                                        lanes that hold no channel; left out: those of the direct sum
    layouts(problem, params, isa) -> (str | None, str | None)     layouts it needs in and out; None: any strides.
                                                        With params None: what every candidate needs
    packing(problem, params, isa) -> Packing            the form in which weights are read
    bind(problem, params, isa, space, operands) -> list[Step]

A solver of other types than float32 says so (TYPED), and how much its kernels add to the numbers of an integer input
before they multiply by weights of at least zero, and by weights below: offset(problem, isa) -> (int, int).

ROUNDING names the first fields of `Params` that change how sums are formed: candidates that agree in them give the
same result to the last bit, whatever the others are and however many workers share the work.

MULTIPLIES, if a solver has it, is the element type of its products, whatever the problem's: what its roof is. Left out:
that of the problem's input.

SHARED_VECTORS, if a solver has it and it is true: output channels of several groups share a vector of its kernels.

A `Packing` (kernels/packing/packing.py) holds only what packed weights depend on, so that plans of many sizes and
candidates can share one copy.

A choice asks every solver for `bound` first, and lists the candidates only of solvers whose bound is below the best
estimate so far. A bound should be as high as it can be while it holds: operations and memory traffic, once each, of the
best candidate with ideal tiles. A test checks that it holds.

What can run is kept apart from what is worth running. The workspace of a candidate is what `bind` reserves.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import layouts
from cpuconv.elements import F32, Element
from cpuconv.problem.problem import ConvProblem
from layouts import Strides


def least_work(solver: ModuleType, problem: ConvProblem, params: Any) -> tuple[int, int]:
    """Operations and bytes of weights that a solver cannot avoid: its own, or those of the direct sum."""
    own = getattr(solver, "least_work", None)
    return (problem.flops, problem.weight_bytes) if own is None else own(problem, params)


def contiguous(layout: str, shape: tuple[int, int, int, int], element: Element = F32) -> Strides:
    """Byte strides of a C-contiguous activation of such elements, of logical `shape` in `layout`."""
    physical = layouts.get(layout).shape(*shape)
    strides, step = [], element.bytes
    for size in reversed(physical):
        strides.append(step)
        step *= size
    return layouts.get(layout).strides(strides[::-1])


def check_tile(rows: int, cols: int, height: int, width: int) -> None:
    """See that a plane of outputs has a whole tile: those at its ends overlap others.

    Raises
    ------
    ValueError
        It has not.
    """
    if rows > height or cols > width:
        raise ValueError("the tile is larger than the plane")
