"""The interface between operators and the compiler of networks: offers, and a node bound to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.conv.choice.target import Target
from cpuconv.graph.ir import Node
from cpuconv.kernels.binding.constants import Constants
from cpuconv.kernels.binding.place import Place
from cpuconv.kernels.binding.steps import Space, Step


@dataclass(frozen=True)
class Offer:
    """One way to compute a node.

    Attributes
    ----------
    inputs : tuple[str, ...]
        How each input must lie: `DENSE`, `STRIDED` (any plain strides), `BLOCKED` or `BLOCKED_BF16`; "" for one
        left out, or whose elements are read when the network is compiled.
    outputs : tuple[str, ...]
        How each output lies. The operator writes into memory that it is given: images of a blocked output may lie
        apart; plain outputs may have any strides where this says `STRIDED`, of `DENSE` ones the first axis.
    seconds : float
        What it takes, by a model or as measured.
    detail : object
        Whatever `lower` needs to know of it, such as the choice of a convolution's algorithm.
    view : bool
        Whether nothing runs: the outputs are views of the first input, as the operator's `view` says.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seconds: float
    detail: Any = None
    view: bool = False

    def has_forms_of(self, other: Offer) -> bool:
        """Whether operands lie as in another offer."""
        return (self.inputs, self.outputs, self.view) == (other.inputs, other.outputs, other.view)


@dataclass(frozen=True)
class Call:
    """A node with its operands in memory.

    Attributes
    ----------
    node : Node
    inputs : Sequence[Place or None]
        None: left out. Elements that are known when the network is compiled are in `Place.array`.
    outputs : Sequence[Place]
    offer : Offer
    target : Target
    space : Space
        Workspace of this call.
    constants : Constants
    """

    node: Node
    inputs: Sequence[Place | None]
    outputs: Sequence[Place]
    offer: Offer
    target: Target
    space: Space
    constants: Constants

    @property
    def x(self) -> Place:
        """The first input, of operators that always have one."""
        (x, *_) = self.inputs
        assert x is not None
        return x

    @property
    def y(self) -> Place:
        """The first output."""
        return self.outputs[0]

    def given(self, position: int) -> Place | None:
        """An input by position, None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None


Lower = Callable[[Call], list[Step]]
