"""Which operators run side by side, in one row of a recording: small ones that do not depend on one another.

The workers of a row meet at its end. For two branches of a network that is once for an operator of each, and what one
of them leaves uneven the other evens out. Operators are brought together before memory is planned, so that what they
touch does not overlap; what they touch also has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from autotune.data_classes import dataclass
from cpuconv.following.sizes import is_followed, now
from cpuconv.kernels.binding.place import Place
from cpuconv.kernels.binding.processor import join_seconds
from cpuconv.kernels.binding.steps import Ref, Step
from cpuconv.network.running.arena import WORKSPACE
from cpuconv.network.selection.layout import NetworkPlan, NodePlan

_SMALL = 1000  # joins: an operator that takes longer has units enough for every worker
_AHEAD = 32  # operators that are looked at: values computed far ahead of their readers leave the caches


def scheduled(network_plan: NetworkPlan) -> tuple[NetworkPlan, list[int]]:
    """The network with small independent operators brought together, and for each node its moment: those of one moment
    may run side by side."""
    threads = network_plan.target.threads
    if threads == 1:
        return network_plan, list(range(len(network_plan.nodes)))
    producers = {name: at for at, each in enumerate(network_plan.nodes) for name in each.node.outputs if name}
    needs = [{producers[name] for name in each.node.inputs if name in producers} for each in network_plan.nodes]
    moments: dict[int, int] = {}  # by node, in the new order
    left = dict.fromkeys(range(len(network_plan.nodes)))

    def ready(at: int, now: int) -> bool:
        return all(moments.get(need, now) < now for need in needs[at])

    now = 0
    while left:
        chosen = [next(iter(left))]
        if _is_small(network_plan.nodes[chosen[0]], threads):
            ahead = islice(left, 1, _AHEAD)
            chosen += [at for at in ahead if _is_small(network_plan.nodes[at], threads) and ready(at, now)]
        for at in chosen:
            moments[at] = now
            del left[at]
        now += 1
        for at in list(islice(left, _AHEAD)):
            if _is_view(network_plan.nodes[at]) and ready(at, now):
                moments[at] = now - 1
                del left[at]
    return replace(network_plan, nodes=[network_plan.nodes[at] for at in moments]), list(moments.values())


def _is_view(node_plan: NodePlan) -> bool:
    return node_plan.offer is not None and node_plan.offer.view


def _is_small(node_plan: NodePlan, threads: int) -> bool:
    """Whether a kernel takes less than `_SMALL` joins."""
    offer = node_plan.offer
    return offer is not None and not offer.view and offer.seconds < _SMALL * join_seconds(threads)


@dataclass(frozen=True)
class Touched:
    """An operator's moment and kernel calls, and the memory that it reads and writes."""

    moment: int
    steps: Sequence[Step]
    read: Sequence[Place]
    written: Sequence[Place]

    def joins(self, other: Touched) -> bool:
        """Whether it may run beside another one."""
        return (
            self.moment == other.moment
            and self._is_one_call()
            and other._is_one_call()
            and not _overlap(self.written, (*other.read, *other.written))
            and not _overlap(other.written, self.read)
        )

    def _is_one_call(self) -> bool:
        """Whether there is one kernel call, which workers share or any of them may run: with workspace of its own for
        each, as calls that any size may share have it."""
        if len(self.steps) != 1:
            return False
        refs = [value for value in self.steps[0].args.values() if isinstance(value, Ref)]
        parts = self.steps[0].parts
        return is_followed(parts) or parts > 0 or all(ref.name != WORKSPACE for ref in refs)


def sets(touched: Sequence[Touched]) -> list[list[int]]:
    """Places of operators that run side by side, in order; none where one worker would do for all of them."""
    made: list[list[int]] = []
    for at, each in enumerate(touched):
        if made and all(each.joins(touched[other]) for other in made[-1]):
            made[-1].append(at)
        else:
            made.append([at])
    shared = [any(now(step.parts) for at in each for step in touched[at].steps) for each in made]
    return [
        part
        for each, is_shared in zip(made, shared, strict=True)
        for part in ([each] if is_shared else [[at] for at in each])
    ]


def _overlap(written: Sequence[Place], touched: Sequence[Place]) -> bool:
    """Whether elements of places may lie in the same memory."""
    return any(
        a.ref.name == b.ref.name and bounds(a)[0] < bounds(b)[1] and bounds(b)[0] < bounds(a)[1]
        for a in written
        for b in touched
    )


def bounds(place: Place) -> tuple[int, int]:
    """The offsets of the first byte of a place and of that behind the last; strides may be negative."""
    spans = [(size - 1) * step for size, step in zip(place.physical, place.strides, strict=True)]
    ends = (sum(span for span in spans if span * sign > 0) for sign in (-1, 1))
    first, last = (place.ref.offset + end for end in ends)
    return first, last + place.dtype.itemsize
