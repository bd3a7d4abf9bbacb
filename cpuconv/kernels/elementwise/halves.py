"""Elementwise functions in float16, eight lanes at a time, on Arm CPUs that compute in it.

Networks in float16 compute expressions of float16 tensors so, and epilogues of float16 sums their activations. SiLU and
the sigmoid are u / (u + p), with u = 2^n for n = x·log2 e to the nearest integer, and p the polynomial of
2^(n - x·log2 e). Their error is that of a few roundings to float16 (3e-3 of the result); below -10.05, where the
sigmoid is less than 5e-5, they are zero. Other results are rounded to float16 after each function. Functions without an
emitter here are those of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cpuconv.elements import F16, Element
from cpuconv.isa import neon
from cpuconv.isa.calls import call
from cpuconv.isa.vector import F32 as FLOAT
from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.elementwise.expression import Apply, Constant, Expression, Operand, apply
from cpuconv.kernels.elementwise.functions import EMITTERS, Math
from cpuconv.runtime.code.llvm import ir

_HALF = ir.HalfType()
_EXPONENT, _FRACTION = 15, 10  # float16: bias of the exponent, bits of the fraction
_ROUNDER = 1.5 * 2.0**_FRACTION + _EXPONENT  # float16 of this magnitude are integers; the low bits are an exponent
_LARGEST = 10.4  # of |x|: n is within -15 and 15
_TERMS = (-0.05517167, 0.24261112, -0.69326099, 0.99992807)  # 2^-r for |r| <= 1/2: 7.5e-5


class Half(Math):
    """`Math` in float16."""

    halves = True

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        super().__init__(builder, lanes)
        self.size = 2 * lanes
        self.type = ir.VectorType(_HALF, lanes) if lanes > 1 else _HALF
        self.int_type = ir.VectorType(ir.IntType(16), lanes) if lanes > 1 else ir.IntType(16)
        self.emitters = HALF_EMITTERS

    def constant(self, value: float) -> Any:
        """Every lane = value, rounded."""
        rounded = float(_rounded(value))
        return ir.Constant(self.type, [rounded] * self.lanes if self.lanes > 1 else rounded)

    def broadcast(self, address: Any) -> Any:
        """Every lane = float32 at address, rounded."""
        number = self.builder.load(self.builder.bitcast(address, FLOAT.as_pointer()))
        return self.splat(self.builder.fptrunc(number, _HALF))

    def rounded(self, address: Any) -> Any:
        """lanes[i] = float32 at address + 4·i, rounded."""
        return self.builder.fptrunc(Vector(self.builder, self.lanes).load(address), self.type)

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger of two, NaN where either is NaN."""
        return self._intrinsic("maximum", [a, b])

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller of two, NaN where either is NaN."""
        return self._intrinsic("minimum", [a, b])

    def quotient_below_one(self, a: Any, b: Any) -> Any:
        """a / b for a <= b, by an estimate and a Newton step."""
        inverse = self._estimate("frecpe", b)
        return self.mul(self.mul(inverse, a), self._estimate("frecps", b, inverse))

    def _estimate(self, name: str, *arguments: Any) -> Any:
        suffix = f"v{self.lanes}f16" if self.lanes > 1 else "f16"
        return call(self.builder, f"llvm.aarch64.neon.{name}.{suffix}", self.type, arguments)


def _rounded(value: float) -> np.float16:
    with np.errstate(over="ignore"):
        return np.float16(value)


def half_emitter(vec: Vector, element: Element, able: bool = True) -> Vector:
    """An emitter in float16 for twice as many lanes, if elements are float16 and the CPU and the kernel are `able`."""
    return Half(vec.builder, 2 * vec.lanes) if able and element == F16 and neon.computes_halves() else vec


def _sigmoid(vec: Half, x: Any) -> Any:
    return _gate(vec, vec.maximum(vec.constant(-_LARGEST), x))


def _silu(vec: Half, x: Any) -> Any:
    x = vec.maximum(vec.constant(-_LARGEST), x)  # the product is zero there, of infinity too
    return vec.mul(x, _gate(vec, x))


def _gate(vec: Half, x: Any) -> Any:
    """The sigmoid of x >= -_LARGEST."""
    builder, scale, rounder = vec.builder, vec.constant(1 / math.log(2)), vec.constant(_ROUNDER)
    x = vec.minimum(vec.constant(_LARGEST), x)
    rounded = vec.fma(x, scale, rounder)
    r = vec.fma(x, scale, vec.sub(rounder, rounded))
    shift = ir.Constant(vec.int_type, [_FRACTION] * vec.lanes if vec.lanes > 1 else _FRACTION)
    power = builder.bitcast(builder.shl(builder.bitcast(rounded, vec.int_type), shift), vec.type)
    *terms, last = _TERMS
    total = vec.fma(vec.polynomial(r, terms), r, vec.add(power, vec.constant(last)))
    return vec.quotient_below_one(power, total)


def _hardsigmoid(vec: Half, x: Any) -> Any:
    return vec.mul(vec.clip(vec.add(x, vec.constant(3.0)), 0.0, 6.0), vec.constant(1 / 6))  # no difference cancels


_SELECTING = ("max", "min", "neg", "abs")  # of float16 they are float16, and rounding them is to round their operands
_ONCE = ("add", "sub", "mul", "div", "quotient", "prelu", "leaky_relu")  # float32 rounds them to the same float16
_SCALING = ("mul", "leaky_relu")
_BOUNDED = ("sigmoid", "hardsigmoid")  # at most 1
_INNER = (*_SELECTING, *_BOUNDED, "add", "sub", "silu")  # bounded by their operands, or sums of these
_MIN_NORMAL, _MAX_FINITE = 2.0**-14, 65504.0

HALF_EMITTERS: dict[str, Callable[..., Any]] = {
    **{name: EMITTERS[name] for name in (*_ONCE, "neg", "abs")},
    "max": Half.maximum,
    "min": Half.minimum,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "hardsigmoid": _hardsigmoid,
}
"""Emitters f(vector, values...) by name of a function."""


def is_float16_safe(tree: Expression, exact: bool = False) -> bool:
    """Whether float16 arithmetic is accurate enough for an expression of float16 operands.

    Products and quotients that may overflow, while the result does not, are left to float32, and so are numbers that
    float16 represents inexactly. Sums are not: they overflow above 65504, as in a float16 file that stores them.
    `exact`: the result must be that of float32, rounded.
    """
    applied = [node for node in tree.nodes if isinstance(node, Apply)]
    if not applied or not all(node.function in HALF_EMITTERS for node in applied):
        return False
    scaled = [node for node in applied if node.function not in ("max", "min")]
    numbers = [each.value for node in scaled for each in node.arguments if isinstance(each, Constant)]
    if exact:
        rounded = [node.function for node in applied if node.function not in _SELECTING]
        return len(rounded) <= 1 and {*rounded} <= {*_ONCE} and all(float(_rounded(each)) == each for each in numbers)
    last = {*_last(tree)}
    inner = [node for node in applied if node not in last and node.function not in _INNER]
    within = all(node.function in _SCALING and any(map(_is_bounded, node.arguments)) for node in inner)
    return within and all(each == 0 or _MIN_NORMAL <= abs(each) <= _MAX_FINITE for each in numbers)


def _last(tree: Expression) -> Iterable[Expression]:
    """The subtrees one of which, or its negative, is the result."""
    yield tree
    if isinstance(tree, Apply) and tree.function in _SELECTING:
        for each in tree.arguments:
            yield from _last(each)


def _is_bounded(tree: Expression) -> bool:
    """Whether the magnitude is at most 1."""
    if isinstance(tree, Constant):
        return abs(tree.value) <= 1
    return isinstance(tree, Apply) and tree.function in _BOUNDED


def computes_in_halves(tree: Expression, elements: Iterable[Element], exact: bool) -> bool:
    """Whether a kernel on tensors of these elements computes an expression in float16."""
    return {*elements} == {F16} and neon.computes_halves() and is_float16_safe(tree, exact)


def _activated(vec: Half, epilogue: Epilogue, value: Any) -> Any:
    """The activation of an epilogue; in float32 where float16 does not serve it."""
    if epilogue.activation is None:
        return value
    name, *scalars = epilogue.activation
    tree = apply(name, Operand(0), *scalars)
    if is_float16_safe(tree):
        return tree.emit(vec, {Operand(0): value})
    floats = Math(vec.builder, vec.lanes)
    floats.rounds_to_half = True
    return vec.builder.fptrunc(tree.emit(floats, {Operand(0): vec.builder.fpext(value, floats.type)}), vec.type)


def store_with_epilogue(vec: Half, epilogue: Epilogue, value: Any, target: Any, residual: Any, valid: int = 0) -> None:
    """Add the residual, `residual` bytes from the target, if there is one; compute the activation, and store.

    Lanes from `valid` on are stored as zero (0: none).
    """
    if epilogue.residual:
        value = vec.add(value, vec.load(vec.offset(target, residual), align=F16.bytes))
    value = _activated(vec, epilogue, value)
    if valid:
        value = vec.builder.select(vec.first_lanes_mask(valid), value, vec.constant(0.0))
    vec.store(value, target, align=F16.bytes)
