"""Nodes of a template that are lowered again for each size, as their kernel calls are not arithmetic in the sizes.

Examples are poolings and resizes, whose tables have one row per row of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.target import Target
from cpuconv.graph import ops
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.lowering import Call, Offer
from cpuconv.kernels.binding.constants import Constants
from cpuconv.kernels.binding.steps import Args, Ref, Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView
from cpuconv.network.running.arena import WORKSPACE
from cpuconv.symbolic.filled import Number, filled, held
from cpuconv.symbolic.sizes import SIZES


@dataclass(frozen=True)
class PerSizeNode:
    """A placeholder step for the kernel calls of a node with symbolic sizes.

    Attributes
    ----------
    node : Node
    offer : Offer
    inputs, outputs : sequence of TensorView or None
    raw : mapping of str to numpy.ndarray
        The constants that the node reads.
    target : Target
    """

    node: Node
    offer: Offer
    inputs: Sequence[TensorView | None]
    outputs: Sequence[TensorView]
    raw: Mapping[str, np.ndarray]
    target: Target

    nbytes = 0
    parts = 0

    @property
    def args(self) -> Args:
        """The arguments of a step that uses the workspace, so that no other step runs concurrently."""
        return {WORKSPACE: Ref(WORKSPACE)}

    @property
    def sizes(self) -> list[Any]:
        """The symbolic sizes whose numbers `steps` takes."""
        return held(self._filled)

    def steps(self, numbers: Iterator[Any], constants: Constants, space: Space) -> list[Step]:
        """Lower the node to kernel calls for the numbers of other sizes."""
        node, offer, inputs, outputs = self._filled(lambda size: next(numbers))
        op = ops.TABLE[node.op]
        assert op.lower is not None and op.offers is not None
        if not isinstance(offer.detail, LayoutCandidate):
            operands = [None if place is None else Value(place.shape, place.number, place.array) for place in inputs]
            if not any(each.has_forms_of(offer) for each in op.offers(node, operands, self.target)):
                raise ValueError(f"the offer of {node.label} does not apply to these sizes")
        return op.lower(Call(node, inputs, outputs, offer, self.target, space, constants))

    def _filled(self, number: Callable[[Any], Any]) -> tuple[Node, Offer, list[TensorView | None], list[TensorView]]:
        """Replace each symbolic size in the node by the result of `number`, in order."""
        attributes = {name: filled(value, number) for name, value in self.node.attributes.items()}
        node = self.node if attributes == self.node.attributes else replace(self.node, attributes=attributes)
        offer = self.offer
        if isinstance(offer.detail, LayoutCandidate):
            problem = offer.detail.problem
            fields = {name: filled(getattr(problem, name), number) for name in problem.__dataclass_fields__}
            offer = replace(offer, detail=replace(offer.detail, problem=problem.changed(**fields)))
        return (
            node,
            offer,
            [None if place is None else filled_place(place, number) for place in self.inputs],
            [filled_place(place, number) for place in self.outputs],
        )


def filled_place(place: TensorView, number: Number) -> TensorView:
    """Replace each symbolic size in a place by `number(size)`, in order."""
    ref = replace(place.ref, offset=filled(place.ref.offset, number))
    shape, strides = filled(place.shape, number), filled(place.strides, number)
    array = place.array
    if array is not None and array.dtype == SIZES:
        array = filled(array, number)
    return TensorView(ref, shape, strides, place.block, place.dtype, array)
