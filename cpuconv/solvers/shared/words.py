"""Problems of any element type as blocked kernels see them: channels are counted in 32-bit groups.

A pixel of a channel block is one vector register for every type. So tables, bands and strides of float32 apply to all
types, with a 32-bit group in place of a channel. `product.py` defines how a group is multiplied by weights.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from cpuconv.elements import Element
from cpuconv.isa import Isa
from cpuconv.kernels.binding.steps import MicroRef, Operand, Operands, Ref
from cpuconv.kernels.emit.product import FEW, WORD, Product, as_seen, of_few, product_of
from cpuconv.kernels.packing.packed_formats import Panels
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.packing.word_panels import SpanPanels, WordPanels
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32
from cpuconv.solvers.shared import segments, spans


def group(problem: ConvProblem) -> int:
    """Input channels per 32-bit group."""
    return WORD // problem.types.x.bytes


def vectors_per_pixel(problem: ConvProblem) -> int:
    """Vectors of sums per pixel of an output block."""
    return WORD // problem.types.y.part_bytes


def product(problem: ConvProblem, isa: Isa) -> Product:
    """Dot-product kind for the problem's types and plane size, which `why_not` has checked."""
    found = product_of(problem.types, isa)
    assert found is not None
    return of_few(found) if not isa.closed and problem.oh * problem.ow <= FEW else found


@functools.lru_cache(maxsize=64)
def seen(isa: Isa, product: Product) -> Isa:
    """`as_seen`, memoised for candidates."""
    return as_seen(isa, product)


def why_not(problem: ConvProblem, isa: Isa) -> str | None:
    """Reason why no kernel multiplies these types, or None."""
    return None if product_of(problem.types, isa) else f"no product takes {problem.types.x} and {problem.types.w}"


def words(problem: ConvProblem, block: int = 1) -> int:
    """32-bit groups of a group's channels, in whole blocks of `block`."""
    return divide(divide(problem.cg, group(problem)), block) * block


def in_words(problem: ConvProblem, block: int = 1) -> ConvProblem:
    """Problem whose input channels are 32-bit groups, in whole blocks of `block`."""
    counted = problem.groups * words(problem, block)
    return problem if counted == problem.c else replace(problem, c=counted)


def operand(each: Operand, channels: int) -> Operand:
    """Blocked view whose channels are counted in groups of `channels`."""
    strides = each.strides
    return replace(each, strides=strides._replace(block=strides.block // channels, c=WORD)) if channels > 1 else each


def operands_in_words(problem: ConvProblem, operands: Operands) -> Operands:
    """Operands whose input channels are counted in 32-bit groups."""
    return replace(operands, x=operand(operands.x, group(problem)))


def in_vectors(operand: Operand, isa: Isa, element: Element) -> Operand:
    """View of adjacent channels as channel blocks of one vector."""
    strides, block = operand.strides, isa.block(element)
    return replace(operand, strides=strides._replace(block=block, cb=block * strides.cb, c=strides.cb))


def vector_counts(problem: ConvProblem, isa: Isa) -> tuple[int, ...] | None:
    """Possible weight vectors per tile, so that it ends with a pixel of an output block; None: any."""
    side, vectors = vectors_per_pixel(problem), divide(problem.kg, isa.lanes)
    if problem.types == ALL_F32:
        return None
    fitting = [v for v in range(1, len(isa.pixels) + 1) if v % side == 0 or side % v == 0]
    return tuple(v for v in fitting if problem.groups == 1 or vectors % v == 0)


def packing(problem: ConvProblem, isa: Isa, v: int, by: Product | None = None) -> Packing:
    """Panels of `v` weight vectors for a dot-product kind (None: the problem's)."""
    if problem.types == ALL_F32:
        return Panels.of(problem, isa, v)
    by = by or product(problem, isa)
    if (parts := spans.spans(problem, isa, v)) is not None:
        whole = replace(problem, c=parts.most * group(problem), groups=1)
        starts = tuple(first * group(problem) for first in parts.first)
        return SpanPanels(WordPanels.of(whole, isa.lanes, v, by, parts.segment), starts, problem.cg, problem.kg)
    block = segments.segment(in_words(problem, by.words_at_once(isa.lanes)), isa)[0]
    return WordPanels.of(problem, isa.lanes, v, by, block, segments.rows_first(problem, isa, by))


def offset(problem: ConvProblem, isa: Isa, by: Product | None = None) -> tuple[int, int]:
    """Offsets added to input elements before multiplication by weights >= 0, and by weights < 0, for a dot-product kind
    (None: the problem's). Dot products take int8 of one sign, or flip it."""
    return (by or product(problem, isa)).added(problem.types.x)


def last_of(problem: ConvProblem, isa: Isa, backward: MicroRef) -> MicroRef | None:
    """Inverse transform of the last vector of output channels, for types other than float32."""
    if problem.types == ALL_F32:
        return None
    valid, zeros = last_vector(problem, isa)
    return MicroRef(backward.kernel, replace(backward.tile, valid=valid, zeros=zeros))


def last_vector(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Lanes of the last vector of output channels that hold channels (0: all), and vectors that its block lacks."""
    side = vectors_per_pixel(problem)
    return problem.kg % isa.lanes, -divide(problem.kg, isa.lanes) % side if problem.groups == 1 else 0


FILL = Ref("fill")
"""32-bit group of padding: the input's zero point in each element."""
