"""Functions shared by int8 solvers for few output channels.

No lane is an output channel: weights may differ from lane to lane, and the dot-product kind must support that.
"""

from __future__ import annotations

from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Machine
from cpuconv.kernels.emit import product as products
from cpuconv.kernels.emit.product import Product
from cpuconv.problem.problem import ConvProblem, is_plain


def why_not(problem: ConvProblem, isa: Isa, pixels: int) -> str | None:
    """Why no tile of `pixels` pixels of a row computes the problem, or None; the epilogue reads one channel vector."""
    if not problem.types.sum.integer:
        return f"it computes integers, not {problem.types}"
    if products.single_product_of(problem.types, isa) is None:
        return f"no product takes words of {problem.types.x} and {problem.types.w} that differ from lane to lane"
    if problem.groups != 1 or problem.k > isa.lanes:
        return f"{problem.k} output channels in {problem.groups} groups are not one group of at most {isa.lanes}"
    if row(problem)[1] < pixels:
        return f"a row of {row(problem)[1]} output pixels does not fill a tile of {pixels}"
    return None


def product(problem: ConvProblem, isa: Isa) -> Product:
    """The dot-product kind of a problem that `why_not` accepts."""
    found = products.single_product_of(problem.types, isa)
    assert found is not None
    return found


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offset added to input numbers before multiplication by weights >= 0, and by weights < 0."""
    return product(problem, isa).added(problem.types.x)


def row(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of an output plane; the plane of a plain 1x1 convolution is one row."""
    return (1, problem.oh * problem.ow) if is_plain(problem) else (problem.oh, problem.ow)


def instructions(product: Product) -> int:
    """Instructions per group of pixels and its weights: flip, two multiplications, addition; or per half group."""
    if product.flipped:
        return 4
    return product.cuts * (1 if product.instruction else 3)


def cycles(problem: ConvProblem, isa: Isa, vectors: float) -> float:
    """Cycles to multiply `vectors` vectors of groups by the weights of all output channels, without loads."""
    used = product(problem, isa)
    return vectors * problem.k * used.cuts / products.rate(isa, used)


def traffic(problem: ConvProblem, machine: Machine) -> float:
    """Cycles to move activations and weights once."""
    return machine.moving(problem.in_bytes + problem.out_bytes + problem.weight_bytes)
