"""Groups that share channel blocks, as one: each panel of weights reads what its channels need.

A panel of weights has output channels of some groups that follow one another. It reads the span of words that hold the
input channels of these groups; where one of its groups does not read a word of the span, the weights are zero.
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

_PREFETCHED = 1.0  # words that a segment takes beside its own: lines are asked for, and addresses computed


@dataclass(frozen=True)
class Spans:
    """The words of each panel.

    Attributes
    ----------
    first, words : tuple[int, ...]
        Of each panel, the first word, and how many: whole segments.
    segment : int
        Words that are read at once; they lie in one channel block.
    """

    first: tuple[int, ...]
    words: tuple[int, ...]
    segment: int

    @property
    def most(self) -> int:
        """Words of the longest span."""
        return max(self.words)

    @property
    def share(self) -> float:
        """Words of a span in the mean, as a share of the most."""
        return sum(self.words) / (len(self.words) * self.most)


def needed(problem: ConvProblem, isa: Isa) -> bool:
    """Whether groups start within channel blocks of the input or of the output."""
    types = problem.types
    apart = problem.groups == 1 or types == ALL_F32
    return not apart and bool(problem.cg % isa.block(types.x) or problem.kg % isa.block(types.y))


@memoised(256)
def spans(problem: ConvProblem, isa: Isa, v: int) -> Spans | None:
    """Those of panels of `v` weight vectors; None: not needed."""
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
    return min(cut, key=lambda each: (sum(each.words) * (1 + _PREFETCHED / each.segment), -each.segment))


def _in_one(ends: list[tuple[int, int]], at_once: int, block: int) -> Spans:
    """Spans of a single block, of one segment each."""
    most = max(divide(end - start // at_once * at_once, at_once) * at_once for start, end in ends)
    return Spans(tuple(min(start // at_once * at_once, block - most) for start, _ in ends), (most,) * len(ends), most)


def _in_segments(ends: list[tuple[int, int]], size: int) -> Spans:
    """Spans of whole segments; those of no panel end within a segment of channels that do not exist in their block."""
    first = tuple(start // size * size for start, _ in ends)
    words = tuple(divide(end, size) * size - start for (_, end), start in zip(ends, first, strict=True))
    return Spans(first, words, size)
