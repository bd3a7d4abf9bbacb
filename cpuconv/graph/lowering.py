"""The interface between operators and the compiler of networks: offers, and a node bound to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node
from cpuconv.kernels.binding.constants import Constants
from cpuconv.kernels.binding.steps import Space, Step
from cpuconv.kernels.binding.tensor_view import TensorView


@dataclass(frozen=True)
class Offer:
    """Candidate for computing a node by kernels.

    Attributes
    ----------
    inputs : tuple[str, ...]
        Form of each input: `DENSE`, `STRIDED` (any plain strides), `BLOCKED`, or one of `NARROW`; "" for an absent
        input, or one whose elements are read at compilation.
    outputs : tuple[str, ...]
        Form of each output. The operator writes to memory that it is given. Blocked outputs may have any distance
        between images. Plain outputs may have any strides if the form is `STRIDED`; `DENSE` ones, any stride of the
        first axis.
    seconds : float
        Time by a cost model, or measured.
    detail : object
        Data for `lower`, such as the selected algorithm of a convolution.
    view : bool
        Whether no kernel runs: the outputs are views of the first input, by the operator's `view`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seconds: float
    detail: Any = None
    view: bool = False

    def has_forms_of(self, other: Offer) -> bool:
        """Whether operands have the same forms as in another offer."""
        return (self.inputs, self.outputs, self.view) == (other.inputs, other.outputs, other.view)


@dataclass(frozen=True)
class Call:
    """A node with its operands in memory.

    Attributes
    ----------
    node : Node
    inputs : Sequence[TensorView or None]
        None for an absent input. Elements that are known at compilation are in `TensorView.array`.
    outputs : Sequence[TensorView]
    offer : Offer
    target : Target
    space : Space
        Workspace of the call.
    constants : Constants
    """

    node: Node
    inputs: Sequence[TensorView | None]
    outputs: Sequence[TensorView]
    offer: Offer
    target: Target
    space: Space
    constants: Constants

    @property
    def x(self) -> TensorView:
        """First input, for operators that always have one."""
        (x, *_) = self.inputs
        assert x is not None
        return x

    @property
    def y(self) -> TensorView:
        """First output."""
        return self.outputs[0]

    def given(self, position: int) -> TensorView | None:
        """Input by position; None if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None


Lower = Callable[[Call], list[Step]]
