"""The interface between operators and the compiler of networks: offers, and a node bound to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.select import Tuner
from cpuconv.elements import BF16, F32, Element
from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Node
from cpuconv.kernels.binding.constants import Constants
from cpuconv.kernels.binding.place import BLOCKED, BLOCKED_BF16, FLOAT32, Place
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Space, Step

IN_NETWORK = Limits(cold=True)
IDLE_BYTES = 256 << 20  # by default
FULL, HALF = PRECISIONS = ("float32", "bfloat16")


def check_precision(precision: object) -> None:
    """Raise `ArgumentError` for an unknown precision."""
    if precision not in PRECISIONS:
        raise ArgumentError(must("precision", f"one of {', '.join(PRECISIONS)}", repr(precision)))


@dataclass(frozen=True)
class Target(Processor):
    """What a network is compiled for.

    Attributes
    ----------
    isa : Isa
    threads : int
    strategy : str
        How convolutions are chosen: "heuristic", "cached" or "profile".
    limits : Limits
        What their choices keep to.
    tuner : Tuner or None
        What times candidates for "profile".
    idle_bytes : int
        Most bytes that runs of a program leave for the next ones, beside those of one run.
    precision : str
        "float32"; or "bfloat16": float32 tensors may be stored, and multiplied, as bfloat16.
    """

    strategy: str = "cached"
    limits: Limits = IN_NETWORK
    tuner: Tuner | None = None
    idle_bytes: int = IDLE_BYTES
    precision: str = FULL

    @property
    def weights(self) -> Element:
        """What constant matrices that are read once a run are stored as."""
        return BF16 if self.precision == HALF else F32

    def blocks(self, dtype: np.dtype = FLOAT32) -> tuple[str, ...]:
        """The forms of channel blocks that a tensor of that type may lie in."""
        return (BLOCKED, BLOCKED_BF16) if self.precision == HALF and dtype == FLOAT32 else (BLOCKED,)


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
