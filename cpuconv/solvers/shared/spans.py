"""Groups that share channel blocks, run as one group: each weight panel reads only the channels it needs.

A weight panel holds output channels of adjacent groups. It reads the span of 32-bit groups with the input channels of
these groups. Where one of its groups does not use an element of the span, the weights are zero.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from baselib.data_classes import dataclass
from cpuconv.isa import Isa
from cpuconv.kernels.emit.product import WORD, product_of
from cpuconv.problem.integers import divide
from cpuconv.problem.types import ALL_F32

if TYPE_CHECKING:
    from cpuconv.problem.problem import ConvProblem
from cpuconv.symbolic.sizes import memoised

_SEGMENT_COST = 1.0  # cost of a segment in 32-bit groups, in addition to its own: prefetches and addresses


@dataclass(frozen=True)
class Spans:
    """Span of 32-bit groups that each panel reads.

    Attributes
    ----------
    first, words : tuple[int, ...]
            First 32-bit group of each panel's span, and its length in whole segments.
    segment : int
            32-bit groups read per iteration, all of one channel block.
    """

    first: tuple[int, ...]
    words: tuple[int, ...]
    segment: int

    @property
    def most(self) -> int:
        """Length of the longest span, in 32-bit groups."""
        return max(self.words)

    @property
    def share(self) -> float:
        """Mean length of a span, as a share of the longest."""
        return sum(self.words) / (len(self.words) * self.most)


def needed(problem: ConvProblem, isa: Isa) -> bool:
    """Whether groups start inside channel blocks of the input or output."""
    types = problem.types
    apart = problem.groups == 1 or types == ALL_F32
    return not apart and bool(problem.cg % isa.block(types.x) or problem.kg % isa.block(types.y))


@memoised(256)
def spans(problem: ConvProblem, isa: Isa, v: int) -> Spans | None:
    """Spans of panels of `v` weight vectors; None if they are not needed."""
    if not needed(problem, isa):
        return None
    product, group, panel = product_of(problem.types, isa), WORD // problem.types.x.bytes, v * isa.lanes
    assert product is not None
    ends = []
    for first in range(0, problem.k, panel):
        last = min(first + panel, problem.k) - 1
        channels = first // problem.kg * problem.cg, (last // problem.kg + 1) * problem.cg
        ends.append((channels[0] // group, divide(channels[1], group)))
    at_once = product.words_at_once(isa.lanes)
    sizes = itertools.takewhile(lambda size: size <= isa.lanes, (at_once << i for i in itertools.count()))
    cut = [_in_segments(ends, size) for size in sizes]
    if ends[-1][1] <= isa.lanes:
        cut.append(_in_one(ends, at_once, isa.lanes))
    return min(cut, key=lambda each: (sum(each.words) * (1 + _SEGMENT_COST / each.segment), -each.segment))


def _in_one(ends: list[tuple[int, int]], at_once: int, block: int) -> Spans:
    """Spans within a single block, of one segment each."""
    most = max(divide(end - start // at_once * at_once, at_once) * at_once for start, end in ends)
    return Spans(tuple(min(start // at_once * at_once, block - most) for start, _ in ends), (most,) * len(ends), most)


def _in_segments(ends: list[tuple[int, int]], size: int) -> Spans:
    """Spans of whole segments; no span ends in a segment of channels that its block does not have."""
    first = tuple(start // size * size for start, _ in ends)
    words = tuple(divide(end, size) * size - start for (_, end), start in zip(ends, first, strict=True))
    return Spans(first, words, size)
