"""Graphs written as expressions: ``graph(x * op.Sigmoid(x))`` with ``x = feed(2, 3)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cpuconv.graph.ir import Graph, Node, Value
from cpuconv.graph.ops import TABLE
from cpuconv.network.sizes.specialise import specialise


@dataclass(eq=False)
class Expression:
    """What a node computes; without an operator, an input of a shape or a constant."""

    op: str = ""
    operands: tuple[Expression | None, ...] = ()
    attributes: dict[str, object] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    array: np.ndarray | None = None

    __array_ufunc__ = None  # an array times an expression is an expression

    def __add__(self, other: object) -> Expression:
        return op.Add(self, other)

    def __radd__(self, other: object) -> Expression:
        return op.Add(other, self)

    def __sub__(self, other: object) -> Expression:
        return op.Sub(self, other)

    def __mul__(self, other: object) -> Expression:
        return op.Mul(self, other)

    def __rmul__(self, other: object) -> Expression:
        return op.Mul(other, self)

    def __matmul__(self, other: object) -> Expression:
        return op.MatMul(self, other)

    def __truediv__(self, other: object) -> Expression:
        return op.Div(self, other)

    def __pow__(self, other: object) -> Expression:
        return op.Pow(self, other)


class _Operators:
    """``op.Relu(x)``: any operator of the table; numbers and arrays are constants, lists those of integers."""

    def __getattr__(self, name: str) -> Callable[..., Expression]:
        def apply(*operands: object, **attributes: object) -> Expression:
            return Expression(name, tuple(map(_expression, operands)), attributes)

        return apply


op = _Operators()


def feed(*shape: int) -> Expression:
    """An input of the graph."""
    return Expression(shape=shape)


def _expression(operand: object) -> Expression | None:
    if operand is None or isinstance(operand, Expression):
        return operand
    array = np.array(operand, np.int64 if isinstance(operand, list) else None)
    return Expression(array=array.astype(np.float32) if array.dtype == np.float64 else array)


def graph(*outputs: Expression, dtype: type = np.float32) -> Graph:
    """The specialised graph that computes expressions, whose outputs are y0, y1 and so on, its inputs x0, x1."""
    names: dict[int, str] = {id(output): f"y{at}" for at, output in enumerate(outputs)}
    inputs: dict[str, Value] = {}
    constants: dict[str, np.ndarray] = {}
    nodes: list[Node] = []
    done: set[int] = set()

    def visit(expression: Expression | None) -> str:
        if expression is None:
            return ""
        if id(expression) in done:
            return names[id(expression)]
        done.add(id(expression))
        read = [visit(operand) for operand in expression.operands]
        if expression.op:
            name = names.setdefault(id(expression), f"v{len(nodes)}")
            while not read[-1]:
                read.pop()
            nodes.append(TABLE[expression.op].node(read, [name], **expression.attributes))
        elif expression.array is not None:
            name = names.setdefault(id(expression), f"c{len(constants)}")
            array = expression.array
            constants[name] = array.astype(dtype) if array.dtype.kind == "f" else array
        else:
            name = names.setdefault(id(expression), f"x{len(inputs)}")
            inputs[name] = Value(expression.shape, np.dtype(dtype))
        return name

    results = [visit(output) for output in outputs]
    return specialise(Graph(tuple(inputs), tuple(results), tuple(nodes), constants, inputs))


SECOND = {  # shapes of a second operand, for (2, C, 3, 5)
    "same": lambda c: (2, c, 3, 5),
    "channels": lambda c: (1, c, 1, 1),
    "channels of images": lambda c: (2, c, 1, 1),
    "columns of channels": lambda c: (1, c, 1, 5),
    "pixels": lambda c: (2, 1, 3, 5),
    "rows": lambda c: (3, 1),
    "images": lambda c: (2, 1, 1, 1),
    "number": lambda c: (),
}
