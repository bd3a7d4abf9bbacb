"""Multiplication of states in recurrent layers: in float32, or with bfloat16 weights if the cost model is lower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from baselib.data_classes import dataclass
from cpuconv.conv.choice.layout_candidates import LayoutCandidate
from cpuconv.conv.choice.rows import rows_problem
from cpuconv.conv.choice.target import Target
from cpuconv.elements import BF16, F32
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.emit.product import BY_NAME, Product
from cpuconv.kernels.recurrent.recurrent import tiles
from cpuconv.kernels.recurrent.recurrent_bf16 import bf16_instructions, cycles_of_step, widens
from cpuconv.kernels.recurrent.recurrent_cell import Stage


@dataclass(frozen=True)
class StateProducts(LayoutCandidate):
    """Multiplication of all inputs; `state`: instruction for states, a name in `product.TABLE`, or "" for float32."""

    state: str = ""

    def resized(self, shape: Sequence[int]) -> StateProducts | None:
        """Adapt to inputs of another shape; None if their problem has another layout."""
        made = rows_problem(shape, self.problem.k)
        if made.in_layout != self.problem.in_layout:
            return None
        return replace(self, problem=self.problem.changed(n=made.n, h=made.h, w=made.w))

    @property
    def multiplied(self) -> str:
        """Types of the state's multiplication, if they are not float32."""
        if not self.state:
            return ""
        return f"state {F32 if widens(BY_NAME[self.state]) else BF16}:{BF16}:{F32}"


class States(NamedTuple):
    """Multiplications of the states in one step of a recurrent layer."""

    target: Target
    directions: int
    hidden: int
    batch: int
    stages: tuple[Stage, ...]
    lengths: bool

    def seconds(self, product: Product | None) -> float:
        """Modelled seconds: the maximum of reading weights and multiplying."""
        target, gates = self.target, sum(stage.gates for stage in self.stages)
        count, cols = tiles(target.isa, self.stages, self.batch, self.lengths)
        element = F32 if product is None else BF16
        reading = target.moving(self.directions * gates * self.hidden**2 * element.bytes)
        cycles = self.directions * cycles_of_step(target.isa, cols, gates, self.hidden, product)
        return count * max(reading, machine().seconds(cycles, target.threads))

    def fastest(self) -> tuple[Product | None, float]:
        """The fastest instruction and its seconds; float32 is preferred among equal ones."""
        products = (None, *bf16_instructions(self.target.isa))
        return min(((each, self.seconds(each)) for each in products), key=lambda found: found[1])
