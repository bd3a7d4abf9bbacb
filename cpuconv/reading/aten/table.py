"""Adapters by the names of ATen operators: one table for modules, exported programs and torch.compile."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from cpuconv.reading.aten import indexing, layers, numbers, quantised, recurrent, reductions, shapes, vision
from cpuconv.reading.aten.emitter import INT64, Emitter, Size, fixed

Adapter = Callable[..., Any]

ATEN: dict[str, Adapter | None] = {
    **layers.ADAPTERS,
    **numbers.ADAPTERS,
    **quantised.ADAPTERS,
    **recurrent.ADAPTERS,
    **reductions.ADAPTERS,
    **shapes.ADAPTERS,
    **indexing.ADAPTERS,
    **vision.ADAPTERS,
    "sym_size": lambda b, x, axis: b.size_of(x, axis),
}
"""Adapters by name, or by name and overload. They take the emitter, and all arguments of the operator's schema.

Operands are names with properties (`Operand`) or constant tensors; sizes are integers or names (`Size`).
"""


def _of_sizes(op: str) -> Adapter:
    """Make an adapter for integer arithmetic on sizes."""
    return lambda b, x, y: b.add(op, _int64(b, x), _int64(b, y))


def _int64(b: Emitter, x: Any) -> str:
    return x if isinstance(x, Size) else b.number(fixed(x), INT64)


def _floor_divided(b: Emitter, x: Any, y: Any) -> str:
    """Quotient of sizes, rounded down."""
    x, y = _int64(b, x), _int64(b, y)
    return b.add("Div", b.add("Sub", x, b.add("Mod", x, y)), y)


SIZES: dict[Any, Adapter] = {
    operator.add: _of_sizes("Add"),
    operator.sub: _of_sizes("Sub"),
    operator.mul: _of_sizes("Mul"),
    operator.mod: _of_sizes("Mod"),
    operator.floordiv: _floor_divided,
    operator.neg: lambda b, x: b.add("Neg", x),
    torch.sym_max: _of_sizes("Max"),
    torch.sym_min: _of_sizes("Min"),
    operator.truediv: lambda b, x, y: b.add("Div", *(b.cast(each, torch.float64) for each in (x, y))),
    math.floor: lambda b, x: b.add("Cast", b.add("Floor", x), to=INT64),
    math.trunc: lambda b, x: b.add("Cast", x, to=INT64),
    torch.sym_int: lambda b, x: b.add("Cast", x, to=INT64),
    torch.sym_float: lambda b, x: b.cast(x, torch.float64),
}
"""Adapters for functions of open sizes."""
