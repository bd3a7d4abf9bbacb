"""The record of a solver: what an algorithm for convolutions defines, and the defaults of what it need not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.steps import Operands, Space, Step
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.problem import ConvProblem


def _direct_work(problem: ConvProblem, params: Any) -> tuple[int, int]:
    return problem.flops, problem.weight_bytes


def _no_offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    return 0, 0


def _no_label(params: Any) -> str:
    return ""


@dataclass(frozen=True, eq=False)
class Solver:
    """An algorithm for convolutions; a file of `cpuconv/solvers` defines one, and ends with it.

    Attributes
    ----------
    name : str
        Its name in `algorithm=`, in stores and in `plan.algorithm`.
    params : type
        A frozen dataclass of integers, the parameters of a candidate. It prints as in
        `direct(v=4,rows=1,cols=6,block=15)`.
    applicable : (problem, isa) -> str or None
        The reason why it cannot run a problem, in words, or None.
    candidates : (problem, isa) -> iterable of params
        The parameters worth trying, best guess first. What can run is separate from what is worth running.
    bound : (problem, machine) -> float
        Lower bound of the estimates of all candidates, in seconds, without reorders around them, found cheaply. A
        solver that cannot win by its bound is not asked for candidates.
    cost : (problem, params, machine) -> Cost
        Lower bound and estimate of a candidate's time, in seconds, without reorders around it.
    layouts : (problem, params, isa) -> (str or None, str or None)
        The layouts that it needs of input and output; None: any strides. Other layouts are reordered around it. With
        `params` None: what every candidate needs.
    packing : (problem, params, isa) -> Packing
        The packed form of weights that its kernels read, one of `kernels/packing/packed_formats.py`. It holds only what
        packed weights depend on, so that plans of many sizes share one copy.
    bind : (problem, params, isa, space, operands) -> list of Step
        The kernel calls with named arguments. What it reserves of `space` is its workspace.
    accuracy : str or (params) -> str
        The class of its errors: "exact", "standard" or "fast". Default: "exact".
    rounding : tuple of str
        The first fields of `params` that change the order or form of sums. Candidates that agree in them give equal
        bits, whatever their other parameters and threads. Default: none.
    low_precision : bool
        Whether it takes other types than float32, too. One driver for all types is one solver. Default: float32 alone.
    in_parts : bool
        Whether input and output may be float32 in bfloat16 parts. Default: no.
    offset : (problem, isa) -> (int, int)
        What its kernels add to elements of an int8 or uint8 input before they multiply by weights of at least zero, and
        by weights below zero. Default: nothing.
    least_work : (problem, params) -> (int, int)
        Operations and bytes of weights that no run avoids, for the roofline. Default: those of the direct sum.
    multiplies : Element or None
        The element type that it multiplies, whatever the input's type; it decides which roof counts. Default: the
        input's.
    product_label : (params) -> str
        Label of its multiplications in reports. Default: the problem's types.
    shared_vectors : bool
        Whether output channels of several groups share a vector of its kernels. Default: no.
    alike : (problem, isa, params) -> iterable of params, or None
        Candidates that give equal bits to `params` of another size. Default: those of `candidates` that agree in
        `rounding`.
    is_closed : (problem, params, isa) -> bool, or None
        Whether its micro-kernels other than GEMM strips belong to the closed kernel set. Default: they do.
    """

    name: str
    params: type[Any]
    applicable: Callable[[ConvProblem, Isa], str | None]
    candidates: Callable[[ConvProblem, Isa], Iterable[Any]]
    bound: Callable[[ConvProblem, Machine], float]
    cost: Callable[[ConvProblem, Any, Machine], Cost]
    layouts: Callable[[ConvProblem, Any, Isa], tuple[str | None, str | None]]
    packing: Callable[[ConvProblem, Any, Isa], Packing]
    bind: Callable[[ConvProblem, Any, Isa, Space, Operands], list[Step]]
    accuracy: str | Callable[[Any], str] = "exact"
    rounding: tuple[str, ...] = ()
    low_precision: bool = False
    in_parts: bool = False
    offset: Callable[[ConvProblem, Isa], tuple[int, int]] = _no_offset
    least_work: Callable[[ConvProblem, Any], tuple[int, int]] = _direct_work
    multiplies: Element | None = None
    product_label: Callable[[Any], str] = _no_label
    shared_vectors: bool = False
    alike: Callable[[ConvProblem, Isa, Any], Iterable[Any]] | None = None
    is_closed: Callable[[ConvProblem, Any, Isa], bool] | None = None

    @property
    def module(self) -> str:
        """Name of the module that defines it."""
        return self.bind.__module__

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that its calls depend on: its own, and that of a solver derived from it."""
        return tuple(dict.fromkeys((self.module, self.applicable.__module__)))

    def __repr__(self) -> str:
        return f"<solver {self.name}>"
