"""Kernel calls that do not depend on one another, side by side: one row of a program, whose workers meet once.

Each worker begins with its share of the first call, then does that of the next, so that what one call leaves uneven the
others even out. A call for one worker is a part of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.problem.arrays import address
from cpuconv.runtime.atomics import call_kernel, word
from cpuconv.runtime.code.cache import Code
from cpuconv.runtime.kernel import kernel

Rows = list[tuple[Code, np.ndarray, int]]
_ENTRY, _BLOCK, _START, _COUNT = range(4)  # words of a call: its parts for each worker are COUNT ones from START
_WORDS = 4


@dataclass(frozen=True)
class ParallelGroupTile:
    """There is one for all kernels."""


@kernel("calls count each")
def parallel_group(tile, worker, before, part, parts, args):
    """A part of one of `count` calls, which have `each` parts for a worker together; all of them if there is one part.

    Every call has a workspace of its own, so that what a worker left there is still there.
    """
    for at in range(args.count):
        call = args.calls + 8 * _WORDS * at
        entry, block = word(call, _ENTRY), word(call, _BLOCK)
        start, count = word(call, _START), word(call, _COUNT)
        if parts == 1:
            call_kernel(entry, worker, -1, 0, 1, block)
            continue
        workers = parts // args.each
        owner, place = part // args.each, part % args.each - start
        if place < 0 or place >= max(count, 1):
            continue
        if count == 0:
            if owner == at % workers:
                call_kernel(entry, worker, -1, 0, 1, block)
            continue
        last = -1
        left = before % args.each - start
        if before >= 0 and left >= 0 and left < count:
            last = before // args.each * count + left
        call_kernel(entry, worker, last, owner * count + place, count * workers, block)


def grouped(rows: Rows, sets: Sequence[int], kept: list[Any]) -> Rows:
    """Rows of which each runs the next `sets[i]` of the given ones; what these rows refer to goes to `kept`."""
    made: Rows = []
    given = iter(rows)
    for size in sets:
        members = [next(given) for _ in range(size)]
        if size == 1:
            made += members
            continue
        ends = np.cumsum([max(1, each) for _, _, each in members])
        calls = np.array(
            [
                [code.address_for(kept), address(block), end - max(1, each), each]
                for (code, block, each), end in zip(members, ends.tolist(), strict=True)
            ],
            np.int64,
        )
        kept += [calls, *(block for _, block, _ in members)]
        words = {"calls": address(calls), "count": size, "each": int(ends[-1])}
        made.append((parallel_group.entry(ParallelGroupTile()), parallel_group.pack(words), int(ends[-1])))
    return made
