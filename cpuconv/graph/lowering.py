"""The interface between operators and the compiler of networks: offers, and a node bound to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cpuconv.choice.model import Limits
from cpuconv.choice.select import Tuner
from cpuconv.graph.ir import Node
from cpuconv.graph.place import Place
from cpuconv.isa import Isa
from cpuconv.solvers.shared.base import Ref, Space, Step
from cpuconv.solvers.shared.machine import machine

IN_NETWORK = Limits(cold=True)
IDLE_BYTES = 256 << 20  # by default
PARALLEL_BYTES = 1 << 17  # read and written; below, one thread is done before others have started
_PAIR_SECONDS = 0.7e-6  # of a call that two threads share, beside its work
_EACH_SECONDS = 0.15e-6  # for each further one, asked in turn: two cache lines that another core has
PART_BYTES, MOST_PARTS = 1 << 15, 8  # of a part, at least, and for each thread: a thread that starts late leaves some


def join_seconds(threads: int) -> float:
    """Seconds for which so many threads begin and end a call together; measured for two, assumed for more."""
    return _PAIR_SECONDS + _EACH_SECONDS * (threads - 2) if threads > 1 else 0.0


@dataclass(frozen=True)
class Target:
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
    """

    isa: Isa
    threads: int = 1
    strategy: str = "cached"
    limits: Limits = IN_NETWORK
    tuner: Tuner | None = None
    idle_bytes: int = IDLE_BYTES

    def moving(self, size: float) -> float:
        """Seconds to read or write `size` bytes, by the model."""
        here = machine()
        return here.seconds(here.moving(size), self.threads)

    def computing(self, operations: float) -> float:
        """Seconds of so many vector operations on one float each, by the model."""
        return machine().seconds(operations / self.isa.lanes, self.threads)

    def parts(self, size: float) -> int:
        """Parts of a step (`Step.parts`) that moves so many bytes: some for each thread, or 0: run by one."""
        if self.threads == 1 or size < PARALLEL_BYTES:
            return 0
        return max(1, min(MOST_PARTS, int(size / self.threads / PART_BYTES)))


@dataclass(frozen=True)
class Offer:
    """One way to compute a node.

    Attributes
    ----------
    inputs : tuple[str, ...]
        How each input must lie: `DENSE`, `STRIDED` (any plain strides) or `BLOCKED`; "" for one left out, or whose
        elements are read when the network is compiled.
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


class Constants(Protocol):
    """Arrays that a program holds on to."""

    def keep(self, array: np.ndarray) -> Ref:
        """The address of a C-contiguous array, which the program keeps alive."""

    def packed(self, name: str, form: Any, make: Callable[[], np.ndarray]) -> Ref:
        """The address of what `make` packs of the constant `name` in a form; made once for all programs of a model."""

    def room(self, size: int) -> np.ndarray:
        """`size` uninitialised bytes for what is packed, behind those given before."""


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

    def given(self, position: int) -> Place | None:
        """An input by position, None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None


Lower = Callable[[Call], list[Step]]
