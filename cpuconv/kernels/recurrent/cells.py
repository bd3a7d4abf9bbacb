"""Expressions of the cells of recurrent layers: RNN, GRU and LSTM as ONNX defines them.

Attributes of a layer are read by name from its node, or from any mapping.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from cpuconv.kernels.recurrent.recurrent_cell import Stage

Function = Callable[[Expression], Expression]

Cells = Callable[..., tuple[Stage, ...]]  # of the node, whether it has peepholes, and its activations


class Cell(NamedTuple):
    """Type of layer: number of gates and states, default activations, and the maker of a step's stages."""

    gates: int
    states: int
    activations: tuple[str, ...]
    stages: Cells


def _sum(*terms: Expression) -> Expression:
    return reduce(lambda a, b: apply("add", a, b), terms)


def _gates(count: int) -> tuple[list[Expression], Expression, Expression]:
    """Sums of `count` gates, the state, and the second state or the previous stage's second output."""
    sums = [_sum(Operand(gate), Operand(count + gate)) for gate in range(count)]
    return sums, Operand(2 * count), Operand(2 * count + 1)


def _rnn(node: Any, peepholes: bool, f: Function) -> tuple[Stage, ...]:
    (gate,), *_ = _gates(1)
    return (Stage(0, 1, (f(gate),)),)


def _gru(node: Any, peepholes: bool, f: Function, g: Function) -> tuple[Stage, ...]:
    """Gates: update, reset, hidden. The reset is applied before or after the multiplication of the state."""

    def mixed(z: Expression, hidden: Expression, h: Expression) -> Expression:
        return _sum(apply("mul", apply("sub", 1, z), g(hidden)), apply("mul", z, h))

    if node["linear_before_reset"]:
        (z, r, _), h, _ = _gates(3)
        hidden = _sum(Operand(2), apply("mul", f(r), Operand(5)))
        return (Stage(0, 3, (mixed(f(z), hidden, h),)),)
    (z, r), h, _ = _gates(2)
    before = Stage(0, 2, (apply("mul", f(r), h), f(z)))
    (hidden,), h, kept = _gates(1)
    return before, Stage(2, 1, (mixed(kept, hidden, h),))


def _lstm(node: Any, peepholes: bool, f: Function, g: Function, h: Function) -> tuple[Stage, ...]:
    """Gates: input, output, forget, cell. Peepholes add the cell to the gates; the output gate reads the new cell."""
    (i, o, forget, new), _, cell = _gates(4)

    def seen(gate: Expression, peephole: int, cell: Expression) -> Expression:
        return _sum(gate, apply("mul", Operand(10 + peephole), cell)) if peepholes else gate

    i = f(seen(i, 0, cell))
    forget = apply("sub", 1, i) if node["input_forget"] else f(seen(forget, 2, cell))
    cell = _sum(apply("mul", forget, cell), apply("mul", i, g(new)))
    return (Stage(0, 4, (apply("mul", f(seen(o, 1, cell)), h(cell)), cell)),)


CELLS = {
    "RNN": Cell(1, 1, ("Tanh",), _rnn),
    "GRU": Cell(3, 1, ("Sigmoid", "Tanh"), _gru),
    **dict.fromkeys(("LSTM", "QuantizedLSTM"), Cell(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm)),
}
