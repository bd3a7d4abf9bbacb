"""Group small independent operators into groups that run concurrently, as one row of a recording.

Workers join at the end of a row. For two branches of a network, that is once per pair of operators, and load imbalance
of one operator is compensated by the other. Operators are grouped before memory is planned, so that their operands do
not overlap; a final check of their operands decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from baselib.data_classes import dataclass
from cpuconv.kernels.binding.processor import join_seconds
from cpuconv.kernels.binding.steps import Ref, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.network.running.arena import WORKSPACE
from cpuconv.network.selection.layout import NetworkPlan, NodePlan
from cpuconv.symbolic.sizes import is_symbolic, now

_SMALL = 1000  # join times; a longer operator has enough work units for all workers
_AHEAD = 32  # operators considered; values computed far ahead of their readers leave the caches


def scheduled(network_plan: NetworkPlan) -> tuple[NetworkPlan, list[int]]:
    """Reorder a network so that small independent operators are adjacent; return it and the stage of each node.

    Nodes of one stage may run concurrently.
    """
    threads = network_plan.target.threads
    if threads == 1:
        return network_plan, list(range(len(network_plan.nodes)))
    producers = {name: at for at, each in enumerate(network_plan.nodes) for name in each.node.outputs if name}
    needs = [{producers[name] for name in each.node.inputs if name in producers} for each in network_plan.nodes]
    stages: dict[int, int] = {}  # stage by node, in the new order
    left = dict.fromkeys(range(len(network_plan.nodes)))

    def ready(at: int, now: int) -> bool:
        return all(stages.get(need, now) < now for need in needs[at])

    now = 0
    while left:
        chosen = [next(iter(left))]
        if _is_small(network_plan.nodes[chosen[0]], threads):
            ahead = islice(left, 1, _AHEAD)
            chosen += [at for at in ahead if _is_small(network_plan.nodes[at], threads) and ready(at, now)]
        for at in chosen:
            stages[at] = now
            del left[at]
        now += 1
        for at in list(islice(left, _AHEAD)):
            if _is_view(network_plan.nodes[at]) and ready(at, now):
                stages[at] = now - 1
                del left[at]
    return replace(network_plan, nodes=[network_plan.nodes[at] for at in stages]), list(stages.values())


def _is_view(node_plan: NodePlan) -> bool:
    return node_plan.offer is not None and node_plan.offer.view


def _is_small(node_plan: NodePlan, threads: int) -> bool:
    """Whether a kernel takes less time than `_SMALL` joins."""
    offer = node_plan.offer
    return offer is not None and not offer.view and offer.seconds < _SMALL * join_seconds(threads)


@dataclass(frozen=True)
class Touched:
    """An operator's stage and kernel calls, and the memory that it reads and writes."""

    stage: int
    steps: Sequence[Step]
    read: Sequence[TensorView]
    written: Sequence[TensorView]

    def joins(self, other: Touched) -> bool:
        """Whether it may run concurrently with another one."""
        return (
            self.stage == other.stage
            and self._is_one_call()
            and other._is_one_call()
            and not _overlap(self.written, (*other.read, *other.written))
            and not _overlap(other.written, self.read)
        )

    def _is_one_call(self) -> bool:
        """Whether it has a single kernel call, which workers share or any one of them may run.

        In the latter case it must not use the workspace; calls that workers share for some sizes have one for each.
        """
        if len(self.steps) != 1:
            return False
        refs = [value for value in self.steps[0].args.values() if isinstance(value, Ref)]
        parts = self.steps[0].parts
        return is_symbolic(parts) or parts > 0 or all(ref.name != WORKSPACE for ref in refs)


def concurrent_groups(touched: Sequence[Touched]) -> list[list[int]]:
    """Indices of operators that run concurrently, in order; operators without shared work are not grouped."""
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


def _overlap(written: Sequence[TensorView], touched: Sequence[TensorView]) -> bool:
    """Whether elements of places may share memory."""
    return any(
        a.ref.name == b.ref.name and bounds(a)[0] < bounds(b)[1] and bounds(b)[0] < bounds(a)[1]
        for a in written
        for b in touched
    )


def bounds(place: TensorView) -> tuple[int, int]:
    """The offsets of the first byte of a place and of the byte after its last; strides may be negative."""
    spans = [(size - 1) * step for size, step in zip(place.physical, place.strides, strict=True)]
    ends = (sum(span for span in spans if span * sign > 0) for sign in (-1, 1))
    first, last = (place.ref.offset + end for end in ends)
    return first, last + place.dtype.itemsize
