"""float32 convolution by bfloat16 multiplications on AMX: products of the parts of both operands.

A float32 is the sum of two or three bfloat16. Products of parts whose ranks add up to less than their number are
multiplied, the smallest first; the others are below the error of the parts. To AMX's kernel they are channels: the
input has as many channel blocks, of which products share the same memory, and so have the packed weights.

Source: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
Computations" (ARITH 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import problem_args
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.partition import parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operand, Operands, Space, Step
from cpuconv.kernels.copies.bf16_parts import PartsTile, split_activation
from cpuconv.kernels.copies.rounding import BF16_TYPES, SplitTile, split_rows
from cpuconv.kernels.emit.product import WORD, matrix_product_of
from cpuconv.kernels.packing.packed_formats import PartPanels
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared import amx_tiles, blocked, gemm_call, images, transformed, words
from cpuconv.solvers.shared.solver import Solver
from cpuconv.symbolic.sizes import Affine, greatest, least, memoised
from layouts import Strides

_PARTS = {3: 2, 6: 3}  # parts of a number, by products
_ERROR = {3: 6e-6, 6: 0.0}  # stated error, relative to the largest output, in addition to that of float32
_PART_CYCLES = 4.0  # to split a vector, for each part: instructions counted, not measured


@dataclass(frozen=True)
class Params:
    """Products of parts per product of float32 (3 or 6), and the fields of `amx_tiles.Params`."""

    products: int
    v: int
    rows: int
    cols: int
    block: int
    flat: int

    @property
    def on_parts(self) -> amx_tiles.Params:
        """Tiles that multiply the parts."""
        return amx_tiles.Params(self.v, self.rows, self.cols, self.block, self.flat)


def pairs(products: int) -> list[tuple[int, int]]:
    """Ranks of the parts of x and of w that are multiplied, the smallest products first; the largest part has rank 0.

    The last parts, which have NaN and infinities, are multiplied by the largest alone, as float32 multiplies them.
    """
    parts = _PARTS[products]
    found = [(i, j) for i in range(parts) for j in range(parts - i)]
    return sorted(found, key=lambda pair: (-sum(pair), pair))


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """One group, where AMX multiplies bfloat16; channels last in whole vectors, or channel blocks."""
    if matrix_product_of(BF16_TYPES) is None:
        return "AMX, where there is any, does not multiply bfloat16"
    if problem.groups > 1:
        return "there are several groups"
    if _name(problem, isa) == "NHWC" and problem.k % isa.lanes:
        return f"{problem.k} output channels do not fill vectors of {isa.lanes}"
    return None


def _name(problem: ConvProblem, isa: Isa) -> str:
    return "NHWC" if "NHWC" in (problem.in_layout, problem.out_layout) else blocked.layout(isa)


@memoised(64)
def _on_parts(problem: ConvProblem, isa: Isa, count: int) -> ConvProblem:
    """The problem of bfloat16 with the channels of `count` parts, one after another; padding is input."""
    problem = images.as_columns(problem)
    h, w = problem.h, problem.w
    if not is_plain(problem):  # no more rows and columns than outputs read
        (stride_h, stride_w), (reach_h, reach_w) = problem.stride, problem.effective_kernel
        h, w = (problem.oh - 1) * stride_h + reach_h, (problem.ow - 1) * stride_w + reach_w
    block = isa.block(BF16)
    return replace(
        problem, c=count * divide(problem.c, block) * block, h=h, w=w, pads=(0, 0, 0, 0), types=BF16_TYPES,
        in_layout=blocked.layout(isa, BF16), out_layout=blocked.layout(isa),
    )  # fmt: skip


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Tiles of `amx_tiles`, for three and for six products; blocks of pixels hold each part once."""
    for products, parts in _PARTS.items():
        for found in amx_tiles.candidates(_on_parts(problem, isa, parts), isa):
            yield Params(products, found.v, found.rows, found.cols, found.block, found.flat)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """That of three products."""
    return amx_tiles.bound(_on_parts(problem, machine.isa, min(_PARTS)), machine)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Splitting, and the products as `amx_tiles` estimates them; and a charge for the error."""
    isa, parts = machine.isa, _PARTS[params.products]
    multiplied = amx_tiles.cost(_on_parts(problem, isa, params.products), params.on_parts, machine)
    vectors = problem.n * problem.h * problem.w * divide(problem.c, isa.lanes)
    split = machine.seconds(vectors * parts * _PART_CYCLES + machine.moving(problem.in_bytes), problem.threads)
    return Cost(multiplied.bound, (multiplied.estimate + split) * transformed.charge(_ERROR[params.products]))


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """All products, and the parts of the weights that they read."""
    return params.products * problem.flops, params.products * problem.weight_bytes // F32.bytes * BF16.bytes


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Channels last, or blocks, in and out."""
    return _name(problem, isa), _name(problem, isa)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[panel][product][C block][R][S][words of the block][v][lanes of K]."""
    form = amx_tiles.packing(_on_parts(problem, isa, params.products), params.on_parts, isa)
    return PartPanels(form, tuple(part for _, part in pairs(params.products)), isa.block(BF16))


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """A parallel call that splits the input, and one of the convolve kernel."""
    on_parts, parts = _on_parts(problem, isa, params.products), _PARTS[params.products]
    operands, problem = images.operands_as_columns(problem, operands), images.as_columns(problem)
    if operands.x.strides.block == 1:
        added = operands.residual and words.in_vectors(operands.residual, isa, F32)
        operands = Operands(words.in_vectors(operands.x, isa, F32), words.in_vectors(operands.y, isa, F32), added)
    x, pixel, block = operands.x.strides, WORD * isa.lanes, isa.block(BF16)
    blocks, line = divide(problem.c, block), on_parts.w * pixel
    plane = on_parts.h * line + 64
    pad_left = least(problem.pads[2], on_parts.w)
    strides = Strides(parts * blocks * plane, block, plane, BF16.bytes, line, pixel)
    split_x = Operand(space.reserve(problem.n * strides.n), strides)
    args: Args = {
        "x": operands.x.ref,
        "y": split_x.ref,
        "split": MicroRef(split_rows, SplitTile(isa.lanes, parts)),
        "blocks": blocks,
        "height": on_parts.h,
        "width": on_parts.w,
        "inside": greatest(0, least(problem.w, on_parts.w - pad_left)),
        "channels": problem.c,
        **problem_args(split_activation, problem),
        "pad_left": pad_left,
        **{f"x_{name}": getattr(x, field) for name, field in (("image", "n"), ("cb", "cb"), ("h", "h"), ("w", "w"))},
        "y_image": strides.n,
        "part_step": blocks * plane,
        "y_block": plane,
    }  # fmt: skip
    each = parts_each(problem, problem.n * on_parts.h * blocks)
    split = Step(split_activation, PartsTile(isa.lanes, parts), args, each)
    step = amx_tiles.bind(on_parts, params.on_parts, isa, space, Operands(split_x, operands.y, operands.residual))
    step = gemm_call.with_pixel_distances(step, {"ys": operands.y.strides.w // WORD})
    table = _of_products(step.args["table"], params.products)
    return [split, replace(step, args=step.args | {"table": table, "inner_table": table, "fill": 0})]


def _of_products(table: Any, products: int) -> Any:
    """The table of segments in which each product reads its part of x, from that of as many parts."""
    if isinstance(table, Affine):
        terms = tuple((size, _of_products(each, products)) for size, each in table.terms)
        return Affine(_of_products(table.base, products), terms)
    return np.ascontiguousarray(table.reshape(products, -1)[[part for part, _ in pairs(products)]].reshape(1, -1))


SOLVER = Solver(
    name="split_bf16",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    accuracy=lambda params: "standard" if _ERROR[params.products] else "exact",
    rounding=("products",),
    least_work=least_work,
    multiplies=BF16,
    product_label=lambda params: f"{params.products} products of bfloat16",
)
