"""float32 convolution by bfloat16 multiplications on AMX: products of the parts of both operands.

The input is split once per call. A segment of AMX's kernel multiplies all pairs of parts of a channel block.

Source: as of `shared.split_products`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import problem_args
from cpuconv.kernels.binding.machine import Cost, Machine
from cpuconv.kernels.binding.partition import parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operand, Operands, Space, Step
from cpuconv.kernels.copies.bf16_parts import PartsTile, split_activation
from cpuconv.kernels.copies.rounding import BF16_TYPES, SplitTile, split_rows
from cpuconv.kernels.emit.product import SPLIT, WORD, Product
from cpuconv.kernels.packing.packed_formats import PartPanels
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.solvers.shared import amx_tiles, blocked, gemm_call, images, transformed, words
from cpuconv.solvers.shared.merged import merged, packed
from cpuconv.solvers.shared.solver import Solver
from cpuconv.solvers.shared.split_products import ERROR, PART_CYCLES, label, why_not
from cpuconv.symbolic.sizes import greatest, least, memoised
from layouts import Strides


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


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Where AMX multiplies bfloat16; channels last in whole vectors, or channel blocks. Small groups are merged."""
    if (why := why_not() or blocked.aligned_groups(_merged(problem, isa), isa)) is not None:
        return why
    if _name(problem, isa) == "NHWC" and problem.k % isa.lanes:
        return f"{problem.k} output channels do not fill vectors of {isa.lanes}"
    return None


def _name(problem: ConvProblem, isa: Isa) -> str:
    return "NHWC" if "NHWC" in (problem.in_layout, problem.out_layout) else blocked.layout(isa)


def _merged(problem: ConvProblem, isa: Isa) -> ConvProblem:
    """The problem of bfloat16 with groups that fill channel blocks."""
    return merged(replace(problem, types=BF16_TYPES), isa, blocked.aligned_groups)


@memoised(64)
def _on_parts(problem: ConvProblem, isa: Isa, count: int) -> ConvProblem:
    """The problem of bfloat16 whose groups have the channels of `count` parts; padding is input."""
    problem = images.as_columns(_merged(problem, isa))
    h, w = problem.h, problem.w
    if not is_plain(problem):  # no more rows and columns than outputs read
        (stride_h, stride_w), (reach_h, reach_w) = problem.stride, problem.effective_kernel
        h, w = (problem.oh - 1) * stride_h + reach_h, (problem.ow - 1) * stride_w + reach_w
    block = isa.block(BF16)
    return replace(
        problem, c=count * problem.groups * divide(problem.cg, block) * block, h=h, w=w, pads=(0, 0, 0, 0),
        in_layout=blocked.layout(isa, BF16), out_layout=blocked.layout(isa),
    )  # fmt: skip


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Tiles of `amx_tiles`, for three and for six products; blocks of pixels hold all parts."""
    for products, each in SPLIT.items():
        for found in amx_tiles.candidates(_on_parts(problem, isa, each.parts), isa):
            yield Params(products, found.v, found.rows, found.cols, found.block, found.flat)


def _of_channels(products: int) -> Product:
    """The product for the model, to which parts of weights are channels."""
    return replace(SPLIT[products], parts=1)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of the time, that of three products."""
    least_products = min(SPLIT)
    on_parts = _on_parts(problem, machine.isa, SPLIT[least_products].parts)
    return amx_tiles.bound(on_parts, machine, _of_channels(least_products))


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Splitting, and the products as `amx_tiles` estimates them; and a charge for the error."""
    isa, parts = machine.isa, SPLIT[params.products].parts
    on_parts = _on_parts(problem, isa, parts)
    multiplied = amx_tiles.cost(on_parts, params.on_parts, machine, _of_channels(params.products))
    vectors = problem.n * problem.h * problem.w * divide(problem.c, isa.lanes)
    split = machine.seconds(vectors * parts * PART_CYCLES + machine.moving(problem.in_bytes), problem.threads)
    return Cost(multiplied.bound, (multiplied.estimate + split) * transformed.charge(ERROR[params.products]))


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """All products, and the parts of the weights that they read."""
    weight_bytes = SPLIT[params.products].parts * problem.weight_bytes // F32.bytes * BF16.bytes
    return params.products * problem.flops, weight_bytes


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Channels last, or blocks, in and out."""
    return _name(problem, isa), _name(problem, isa)


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """[group][panel][C block][R][S][part][words of the block][v][lanes of K]."""
    one = replace(_on_parts(problem, isa, 1), c=problem.c)
    form = amx_tiles.packing(one, params.on_parts, isa)
    parts = PartPanels(form, SPLIT[params.products].parts, isa.lanes * params.v * isa.lanes * WORD)
    return packed(parts, replace(problem, types=BF16_TYPES), isa, blocked.aligned_groups)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """A parallel call that splits the input, and one of the convolve kernel."""
    product = SPLIT[params.products]
    on_parts, parts = _on_parts(problem, isa, 1), product.parts
    operands, problem = images.operands_as_columns(problem, operands), images.as_columns(problem)
    if operands.x.strides.block == 1:
        added = operands.residual and words.in_vectors(operands.residual, isa, F32)
        operands = Operands(words.in_vectors(operands.x, isa, F32), words.in_vectors(operands.y, isa, F32), added)
    x, pixel, block = operands.x.strides, WORD * isa.lanes, isa.block(BF16)
    blocks, line = divide(problem.c, block), on_parts.w * pixel
    group_blocks = blocks // on_parts.groups
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
        "part_step": group_blocks * plane,
        "y_block": plane,
        "group_blocks": group_blocks,
    }  # fmt: skip
    each = parts_each(problem, problem.n * on_parts.h * blocks)
    split = Step(split_activation, PartsTile(isa.lanes, parts), args, each)
    on_split = Operands(split_x, operands.y, operands.residual)
    step = amx_tiles.bind(on_parts, params.on_parts, isa, space, on_split, product)
    step = gemm_call.with_pixel_distances(step, {"ys": operands.y.strides.w // WORD})
    of_parts: Args = {"part_step": group_blocks * plane, "x_group": parts * group_blocks * plane, "fill": 0}
    return [split, replace(step, args=step.args | of_parts)]


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
    accuracy=lambda params: "standard" if ERROR[params.products] else "exact",
    rounding=("products",),
    shared_vectors=True,
    least_work=least_work,
    multiplies=BF16,
    product_label=label,
)
