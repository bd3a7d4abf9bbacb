"""List scheduling of straight-line code for an in-order core: instructions in the order in which they should issue.

Registers are as LLVM assigned them, so an instruction stays behind all that read or write what it writes. Loads and
stores of places that may be equal keep their order. Of the instructions that are ready in a cycle, the one with the
longest path to the end of the code issues first.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from cpuconv.runtime.in_order.pipeline import ISSUED, Access, Instruction, cycles

_ROUNDS = 3  # schedules of a loop, each with the registers ready when the previous one leaves them
_ITERATIONS = 6  # iterations of a loop whose orders are compared
_MAX_INSTRUCTIONS = 2000  # longer code stays as it is: time grows with the square of its loads and stores


def order_of(body: Sequence[Instruction], loops: bool) -> list[int]:
    """Return the indices of instructions, none of them fixed, in a faster order; `loops`: it is a loop's body."""
    found = list(range(len(body)))
    if len(body) > _MAX_INSTRUCTIONS:
        return found
    best = cycles(body, _ITERATIONS)
    followers = _followers(body)
    for heights in _critical_paths(body, followers, loops):
        ready: dict[str, int] = {}
        for _ in range(_ROUNDS if loops else 1):
            order, left = _list_schedule(body, followers, heights, ready)
            if (taken := cycles([body[i] for i in order], _ITERATIONS)) < best:
                best, found = taken, order
            if left == ready:
                break
            ready = left
    return found


Followers = list[dict[int, int]]
"""By instruction, those that must issue later, and by how many cycles at least."""


def _followers(body: Sequence[Instruction]) -> Followers:
    found: Followers = [{} for _ in body]
    written: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    earlier: list[tuple[int, Access, tuple[str, int]]] = []  # memory accesses: with the version of the base register

    def wait(first: int, then: int, distance: int) -> None:
        if first != then:
            found[first][then] = max(distance, found[first].get(then, 0))

    for i, each in enumerate(body):
        for name in each.operands:
            if name in written:
                wait(written[name], i, body[written[name]].latency)
        if each.access:
            base = each.access.base, written.get(each.access.base, -1)
            for j, other, other_base in earlier:
                apart = base[0] and base == other_base and not _overlap(each.access, other)
                if (each.access.stores or other.stores) and not apart:
                    wait(j, i, int(other.stores))
            earlier.append((i, each.access, base))
        for name in each.results:
            for reader in readers.pop(name, ()):
                wait(reader, i, 0)
            if name in written:
                wait(written[name], i, 1)
        for name in each.operands:
            readers[name].append(i)
        written.update(dict.fromkeys(each.results, i))
    return found


def _overlap(one: Access, other: Access) -> bool:
    return one.offset < other.offset + other.bytes and other.offset < one.offset + one.bytes


def _critical_paths(body: Sequence[Instruction], followers: Followers, loops: bool) -> list[list[int]]:
    """Longest paths from each instruction to the end, in cycles: of one iteration and, of a loop, of two.

    What the next iteration waits for may issue earlier than its use by the time of an iteration.
    """
    found = [_paths(body, followers, 0)]
    if loops:
        vectors = sum(each.port == "vector" for each in body)
        alone = sum(each.cycles for each in body if each.alone)
        turn = max(vectors, len(body) // ISSUED) + alone
        twice = _followers([*body, *body])
        found += [_paths([*body, *body], twice, cycles)[: len(body)] for cycles in (turn, 0)]
    return found


def _paths(body: Sequence[Instruction], followers: Followers, turn: int) -> list[int]:
    """Longest paths of one iteration, or of two that begin `turn` cycles apart."""
    heights = [0] * len(body)
    half = len(body) // 2
    for i in reversed(range(len(body))):
        later = (distance + heights[j] - turn * (i < half <= j) for j, distance in followers[i].items())
        heights[i] = max(later, default=body[i].latency)
    return heights


def _list_schedule(
    body: Sequence[Instruction], followers: Followers, heights: Sequence[int], ready: dict[str, int]
) -> tuple[list[int], dict[str, int]]:
    """Issue all instructions; return their order, and when registers are ready after the last cycle.

    `ready`: the same for the start.
    """
    missing = [0] * len(body)
    for later in followers:
        for j in later:
            missing[j] += 1
    earliest = [max((ready.get(name, 0) for name in each.operands), default=0) for each in body]
    waiting = [(earliest[i], -heights[i], i) for i in range(len(body)) if not missing[i]]
    heapq.heapify(waiting)
    available: list[tuple[int, int]] = []
    free: dict[str, int] = defaultdict(int)
    order: list[int] = []
    left: dict[str, int] = {}
    now = 0
    while len(order) < len(body):
        issued = 0
        passed: list[tuple[int, int]] = []
        while issued < ISSUED:
            while waiting and waiting[0][0] <= now:
                _, height, i = heapq.heappop(waiting)
                heapq.heappush(available, (height, i))
            if not available:
                break
            height, i = heapq.heappop(available)
            each = body[i]
            if free[each.port] > now or each.alone and issued:
                passed.append((height, i))
                continue
            issued = ISSUED if each.alone else issued + 1
            if each.port != "integer":
                free[each.port] = now + each.cycles
            order.append(i)
            left.update(dict.fromkeys(each.results, now + each.latency))
            for j, distance in followers[i].items():
                missing[j] -= 1
                earliest[j] = max(earliest[j], now + distance)
                if not missing[j]:
                    heapq.heappush(waiting, (earliest[j], -heights[j], j))
            if each.alone:
                now += each.cycles - 1
        for item in passed:
            heapq.heappush(available, item)
        now += 1
    return order, {name: at - now for name, at in left.items() if at > now}
