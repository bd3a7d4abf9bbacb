"""Independent kernel calls run in parallel: one row of a program, with one synchronisation of the workers.

Each worker begins with its share of the first call, then takes its share of the next. Uneven parts of one call are
balanced by the others. A serial call is one part of one worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.problem.arrays import address
from cpuconv.runtime.atomics import call_kernel, word
from cpuconv.runtime.code.cache import Code
from cpuconv.runtime.kernel import kernel

Rows = list[tuple[Code, np.ndarray, int]]
# fields of a call; its parts per worker are COUNT consecutive ones from START, COUNT = 0: serial
_ENTRY, _BLOCK, _START, _COUNT = range(4)
_WORDS = 4


@dataclass(frozen=True)
class ParallelGroupTile:
    """Empty tile: one kernel serves all groups."""


@kernel("calls count each")
def parallel_group(tile, worker, before, part, parts, args):
    """Run one part of one of `count` calls, which have `each` parts per worker in total; all calls if `parts` is 1.

    Every call has its own workspace, so that data which a worker prepared for earlier parts is still valid.
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
    """Merge consecutive rows into groups of `sets[i]` rows that run in parallel; adds what they point to to `kept`."""
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
