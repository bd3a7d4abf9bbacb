"""float32 convolution by bfloat16 multiplications on AMX: products of the parts of both operands.

A float32 input is split once per call; an input in parts is read in place, and the output may be in parts. A segment of
AMX's kernel multiplies all pairs of parts of a channel block. For the kernel, each part of a pixel is a pixel: strides,
dilations and padding along rows are multiplied by the number of parts.

Source: that of `shared.split_products`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32, IN_PARTS, PART_STEP
from cpuconv.isa import Isa
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import parts_each
from cpuconv.kernels.binding.steps import Args, Operand, Operands, Ref, Space, Step
from cpuconv.kernels.copies.bf16_parts import parts_step
from cpuconv.kernels.copies.rounding import BF16_TYPES
from cpuconv.kernels.emit.product import SPLIT, WORD
from cpuconv.kernels.packing.packed_formats import PartPanels, SlicedPanels
from cpuconv.kernels.packing.packing import Packing
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem, is_plain
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.solvers.shared import amx_tiles, blocked, gemm_call, images, transformed, words
from cpuconv.solvers.shared.merged import merged, packed
from cpuconv.solvers.shared.solver import Solver
from cpuconv.solvers.shared.split_products import ERROR, PART_CYCLES, label, why_not
from cpuconv.symbolic.sizes import least, memoised, now
from layouts import Strides

_BLOCK_PIXELS = 128  # pixels that use a block of weights once it is in L1, at least
_LARGEST_PLANE = 2 * _BLOCK_PIXELS  # pixels of a plane that is one block


@dataclass(frozen=True)
class Params:
    """Products of parts per float32 product (3 or 6), slices of channels, and the fields of `amx_tiles.Params`.

    The sums of a slice are added to the output of the slices before, whose pixels stay in L2 under all of its weights.
    """

    products: int
    slices: int
    v: int
    rows: int
    cols: int
    block: int
    flat: int

    @property
    def on_parts(self) -> amx_tiles.Params:
        """Tile parameters of the convolution of parts."""
        return amx_tiles.Params(self.v, self.rows, self.cols, self.block, self.flat)


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require bfloat16 on AMX, and channels last in whole vectors or channel blocks. Small groups are merged."""
    if (why := why_not() or blocked.aligned_groups(_merged(problem, isa), isa)) is not None:
        return why
    if problem.types.w != F32:
        return f"it computes {ALL_F32}, not {problem.types}"
    need_in, need_out = layouts(problem, None, isa)
    if need_out == "NHWC" and problem.k % isa.lanes:
        return f"{problem.k} output channels do not fill vectors of {isa.lanes}"
    if problem.types != ALL_F32:
        ends = (problem.types.x, problem.in_layout, need_in), (problem.types.y, problem.out_layout, need_out)
        if images.are_pixels(problem) or any(each.parts > 1 and layout != need for each, layout, need in ends):
            return "parts are in channel blocks, of images of several pixels"
    return None


def _merged(problem: ConvProblem, isa: Isa) -> ConvProblem:
    """bfloat16 problem whose groups fill channel blocks."""
    return merged(replace(problem, types=Types(BF16, BF16, F32, problem.types.y)), isa, blocked.aligned_groups)


@memoised(64)
def _on_parts(problem: ConvProblem, isa: Isa, count: int) -> ConvProblem:
    """bfloat16 problem whose pixels are `count` parts each; padding of a float32 input becomes part of the input."""
    split, problem = problem.types.x == F32, images.as_columns(_merged(problem, isa))
    h, w, pads, (stride_h, stride_w) = problem.h, problem.w, problem.pads, problem.stride
    if split and not is_plain(problem):  # only rows and columns that outputs read
        reach_h, reach_w = problem.effective_kernel
        h, w, pads = (problem.oh - 1) * stride_h + reach_h, (problem.ow - 1) * stride_w + reach_w, (0, 0, 0, 0)
    (top, bottom, left, right), (dilation_h, dilation_w), y = pads, problem.dilation, problem.types.y
    return replace(
        problem,
        h=h,
        w=count * w,
        stride=(stride_h, count * stride_w),
        pads=(top, bottom, count * left, count * right),
        dilation=(dilation_h, count * dilation_w),
        types=Types(BF16, IN_PARTS[count], F32, y),
        in_layout=blocked.layout(isa, BF16),
        out_layout=blocked.layout(isa, y),
    )


def _products(problem: ConvProblem) -> list[int]:
    """Possible numbers of products: given by the input's parts, or all if the input is float32."""
    return [products for products, each in SPLIT.items() if problem.types.x.parts in (1, each.parts)]


def _slices(problem: ConvProblem, isa: Isa, products: int, count: int) -> list[ConvProblem]:
    """Problems of parts for `count` slices of whole channel blocks, or fewer."""
    whole, block = _on_parts(problem, isa, SPLIT[products].parts), isa.block(BF16)
    if count == 1:
        return [whole]
    size = divide(divide(whole.c, block), count) * block
    return [
        replace(
            whole,
            c=min(size, whole.c - first),
            residual=whole.residual or first > 0,
            activation=whole.activation if first + size >= whole.c else None,
        )
        for first in range(0, whole.c, size)
    ]


def _slice_counts(problem: ConvProblem, products: int) -> Iterator[int]:
    """One slice; for long 1x1 sums also as many slices as keep many pixels, or a small plane, in half of L2."""
    yield 1
    if is_plain(problem) and problem.groups == 1 and problem.types.y == F32:
        plane = now(problem.h * problem.w)
        pixels = plane if plane <= _LARGEST_PLANE else _BLOCK_PIXELS
        count = divide(pixels * problem.c * SPLIT[products].parts * BF16.bytes, machine().l2 // 2)
        if count > 1:
            yield count


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Tiles of `amx_tiles` for three and for six products; blocks of pixels hold all parts."""
    for products in _products(problem):
        for slices in _slice_counts(problem, products):
            yield from _sliced(problem, isa, products, slices)


def alike(problem: ConvProblem, isa: Isa, params: Params) -> Iterator[Params]:
    """Candidates that give equal bits: those with the same numbers of products and slices."""
    return _sliced(problem, isa, params.products, params.slices)


def _sliced(problem: ConvProblem, isa: Isa, products: int, slices: int) -> Iterator[Params]:
    for found in amx_tiles.candidates(_slices(problem, isa, products, slices)[0], isa):
        yield Params(products, slices, found.v, found.rows, found.cols, found.block, found.flat)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Lower bound of `cost`, in seconds: that of the fewest products."""
    product = SPLIT[min(_products(problem))]
    return amx_tiles.bound(_on_parts(problem, machine.isa, product.parts), machine, product)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: splitting, products as estimated by `amx_tiles`, and a charge for the error."""
    isa, product, split = machine.isa, SPLIT[params.products], 0.0
    slices = _slices(problem, isa, params.products, params.slices)
    multiplied = [amx_tiles.cost(each, params.on_parts, machine, product) for each in slices]
    bound, estimate = (sum(getattr(each, name) for each in multiplied) for name in ("bound", "estimate"))
    if problem.types.x == F32:
        vectors = problem.n * problem.h * problem.w * divide(problem.c, isa.lanes)
        cycles = vectors * product.parts * PART_CYCLES + machine.moving(problem.in_bytes)
        split = machine.seconds(cycles, problem.threads)
    return Cost(bound, (estimate + split) * transformed.charge(ERROR[params.products]))


def least_work(problem: ConvProblem, params: Params) -> tuple[int, int]:
    """Operations of all products, and bytes of the parts of the weights."""
    weight_bytes = SPLIT[params.products].parts * problem.weight_bytes // F32.bytes * BF16.bytes
    return params.products * problem.flops, weight_bytes


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channels last, or channel blocks; equal for input and output."""
    types = problem.types
    ends = (problem.in_layout, types.x), (problem.out_layout, types.y)
    found = ["NHWC" if layout == "NHWC" else blocked.layout(isa, element) for layout, element in ends]
    return found[0], found[1]


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: [slice][group][panel][C block][R][S][part][32-bit groups of the block][v][lanes of K]."""
    parts, segment = SPLIT[params.products].parts, isa.lanes * params.v * isa.lanes * WORD
    slices = [replace(each, types=BF16_TYPES) for each in _slices(problem, isa, params.products, params.slices)]
    panels = [PartPanels(amx_tiles.packing(each, params.on_parts, isa), parts, segment) for each in slices]
    if len(panels) > 1:
        return SlicedPanels(tuple(panels), slices[0].c)
    typed = replace(problem, types=Types(BF16, BF16, F32, problem.types.y))
    return packed(panels[0], typed, isa, blocked.aligned_groups)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the convolution driver per slice, after one that splits a float32 input."""
    product = SPLIT[params.products]
    on_parts = _on_parts(problem, isa, product.parts)
    operands, problem = images.operands_as_columns(problem, operands), images.as_columns(problem)
    x, y, added = (
        words.in_vectors(each, isa, F32) if each and each.strides.block == 1 else each
        for each in (operands.x, operands.y, operands.residual)
    )
    assert x is not None and y is not None
    steps, block = list[Step](), isa.block(BF16)
    if problem.types.x == F32:
        line, width = on_parts.w * PART_STEP, divide(on_parts.w, product.parts)
        plane, blocks = on_parts.h * line + PART_STEP, divide(problem.c, block)
        strides = Strides(blocks * plane, block, plane, BF16.bytes, line, PART_STEP)
        whole, x = x, Operand(space.reserve(problem.n * strides.n), strides)
        pads = problem.pads[0], least(problem.pads[2], width)
        element = IN_PARTS[product.parts]
        split = parts_step(isa.lanes, problem.in_shape, whole, x, element, pads, (on_parts.h, width))
        steps.append(replace(split, parts=parts_each(problem, problem.n * on_parts.h * blocks)))
    else:
        x = replace(x, strides=x.strides._replace(c=BF16.bytes, w=PART_STEP))
    slices, weights = _slices(problem, isa, params.products, params.slices), 0
    for each in slices:
        step = amx_tiles.bind(each, params.on_parts, isa, space, Operands(x, y, added), product)
        step = gemm_call.with_pixel_distances(step, {"ys": y.strides.w // WORD})
        args: Args = {"fill": 0, "w": Ref("w") + weights}
        if each is not slices[-1]:
            args["bias"] = np.zeros(divide(problem.k, 2 * block) * 2 * block, F32.dtype)
        steps.append(replace(step, args=step.args | args))
        x, added = replace(x, ref=x.ref + each.c // block * x.strides.cb), y
        weights += packing(replace(problem, c=each.c), replace(params, slices=1), isa).size
    return steps


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
    rounding=("products", "slices"),
    shared_vectors=True,
    in_parts=True,
    least_work=least_work,
    multiplies=BF16,
    product_label=label,
    alike=alike,
)
