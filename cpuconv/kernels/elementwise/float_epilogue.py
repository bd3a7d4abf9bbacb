"""float32 epilogue of an accumulator, as an expression. NaN is propagated by all activations."""

from __future__ import annotations

from typing import Any

from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.runtime.code.llvm import ir


def epilogue_expression(residual: bool, activation: tuple[Any, ...] | None) -> Expression:
    """The expression activation(x0 + x1 + x2), of an accumulator, a bias and optionally a residual."""
    tree = apply("add", Operand(0), Operand(1))
    if residual:
        tree = apply("add", tree, Operand(2))
    if activation is None:
        return tree
    name, *scalars = activation
    return apply(name, tree, *scalars)


def emit_float_epilogue(
    vec: Vector, x: Any, bias: Any, residual: ir.Value | None, activation: tuple[Any, ...] | None
) -> Any:
    """Emit activation(x + bias + residual)."""
    operands = (x, bias) if residual is None else (x, bias, residual)
    tree = epilogue_expression(residual is not None, activation)
    return tree.emit(Math(vec.builder, vec.lanes), {Operand(at): value for at, value in enumerate(operands)})
