"""Epilogue of an accumulator: bias, scales, residual, activation, and conversion to the stored type.

The parameters for a vector of output channels are rows of `lanes` 4-byte numbers. So scales, zero points and clamps are
data, not code. In the order of `Epilogue.rows`:

| row | accumulators | use |
|---|---|---|
| bias | float32 or int32, as the accumulators | added to the accumulator |
| scale | int32 | multiplies the accumulator; in the short form it includes 1 / output scale |
| shift | int32, long form | float32 bias, added after the scale |
| residual_scale, residual_zero | int32, with a residual | dequantise the residual |
| divisor | int32 to int8, long form | output scale |
| zero, low, high | int32 to int8 | output zero point, and clamps |

Short form, where only a clamp is in between: y = clamp(rint(f(sum + bias)·scale) + zero), as ONNX Runtime computes
QLinearConv. Long form: r = activation(f(sum + bias)·scale + shift + (residual − residual_zero)·residual_scale), stored
as float32, or as int8 or uint8: clamp(rint(r / divisor) + zero). Each multiplication and addition is rounded by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.elements import F16, F32, S8, S32, U8, Element
from cpuconv.isa.typed import I8, load_as_float, store_float, store_int, store_narrow
from cpuconv.isa.vector import I32, Vector
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.code.llvm import ir

_CLAMPS = (None, "relu", "clip")  # activations that only narrow the clamp


@dataclass(frozen=True)
class Epilogue:
    """Epilogue from accumulators of type `sum` to outputs of type `y`."""

    sum: Element = F32
    y: Element = F32
    residual: bool = False
    activation: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, problem: ConvProblem, residual: bool | None = None) -> Epilogue:
        """The epilogue of a problem; `residual` overrides the problem's."""
        added = problem.residual if residual is None else residual
        return cls(problem.types.sum, problem.types.y, added, problem.activation)

    @property
    def requantizes(self) -> bool:
        """Whether int32 is requantised to int8 or uint8."""
        return self.sum.integer and self.y in (U8, S8)

    @property
    def short(self) -> bool:
        """Whether the short form applies."""
        name = None if self.activation is None else self.activation[0]
        return self.requantizes and not self.residual and name in _CLAMPS

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the parameter rows of a vector of output channels, in order."""
        if not self.sum.integer or self.y == S32:
            return ("bias",)
        rows = ["bias", "scale"]
        if not self.short:
            rows += ["shift", *(("residual_scale", "residual_zero") if self.residual else ())]
        if self.requantizes:
            rows += [*(() if self.short else ("divisor",)), "zero", "low", "high"]
        return tuple(rows)

    def load(self, vec: Vector, address: Any, number: int = 0, *, started: bool = False) -> dict[str, Any]:
        """Load the rows of vector `number` as vectors; clamps are shifted to zero point 0.

        `address`: that of the rows of vector 0. `started`: integer sums start from their bias; it is not added again.
        """
        address = vec.offset(address, vec.size * len(self.rows) * number)
        rows = {name: vec.load(vec.offset(address, vec.size * at)) for at, name in enumerate(self.rows)}
        if self.sum.integer:
            bias = vec.builder.bitcast(rows["bias"], vec.int_type)
            rows["bias"] = vec.int_constant(0) if started else bias
        if self.requantizes:
            clamps = shifted_clamps(vec, *(rows[name] for name in ("zero", "low", "high")))
            rows |= zip(("zero", "low", "high"), clamps, strict=True)
        return rows

    def emit(self, vec: Vector, total: Any, rows: Mapping[str, Any], residual: Any = None) -> Any:
        """Emit the value to store for a vector of accumulators: float32, or int32 within the range of an integer y.

        `residual` is a vector of the stored residual, converted to float32.
        """
        builder = vec.builder
        if not self.sum.integer:
            tree = apply("add", Operand(0), Operand(1))
            if residual is not None:
                tree = apply("add", tree, Operand(2))
            return self._activated(vec, tree, total, rows["bias"], residual)
        total = builder.add(total, rows["bias"])
        if self.y == S32:
            return total
        value = vec.mul(builder.sitofp(total, vec.type), rows["scale"])
        if not self.short:
            value = vec.add(value, rows["shift"])
            if residual is not None:
                value = vec.add(value, vec.mul(vec.sub(residual, rows["residual_zero"]), rows["residual_scale"]))
            value = self._activated(vec, Operand(0), value)
        if not self.requantizes:
            return value
        if not self.short:
            value = vec.div(value, rows["divisor"])
        return quantized(vec, value, rows["zero"], rows["low"], rows["high"])

    def _activated(self, vec: Vector, tree: Expression, *operands: Any) -> Any:
        """Emit the activation of an expression of operands."""
        if self.activation is not None:
            name, *scalars = self.activation
            tree = apply(name, tree, *scalars)
        math = Math(vec.builder, vec.lanes)
        math.rounds_to_half = self.y == F16
        return tree.emit(math, {Operand(at): value for at, value in enumerate(operands)})

    def store(
        self,
        vec: Vector,
        total: Any,
        rows: Mapping[str, Any],
        target: Any,
        residual: Any = None,
        *,
        valid: int = 0,
        zeros: int = 0,
    ) -> None:
        """Emit the epilogue of a vector of accumulators and store the result at `target`.

        Parameters
        ----------
        residual
            Distance in bytes from `target` to the residual.
        valid : int
            Lanes that are channels; the others are stored as zero; 0: all.
        zeros : int
            Vectors of zeros stored after the vector.
        """
        added = load_as_float(vec, self.y, vec.offset(target, residual)) if self.residual else None
        store_vector(vec, self.y, self.emit(vec, total, rows, added), target, valid)
        for number in range(1, zeros + 1):
            store_vector(vec, self.y, None, vec.offset(target, self.y.part_bytes * vec.lanes * number))


def shifted_clamps(vec: Vector, zero: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Convert a zero point to int32, and shift clamps to zero point 0."""
    low, high = vec.sub(low, zero), vec.sub(high, zero)
    return vec.builder.fptosi(zero, vec.int_type), low, high


def quantized(vec: Vector, value: Any, zero: Any, low: Any, high: Any) -> Any:
    """Clamp and round float32, and add the zero point; the operands are those of `shifted_clamps`."""
    value = vec.minimum(high, vec.maximum(low, value))  # before conversion: sums can exceed int32
    return vec.builder.add(vec.nearest_int(value), zero)


def store_vector(vec: Vector, y: Element, value: Any, target: Any, valid: int = 0) -> None:
    """Store a vector of outputs (None: zeros); lanes from `valid` on are zeroed (0: none)."""
    zero = vec.int_constant(0) if y.integer else vec.constant(0.0)
    if value is None:
        value = zero
    elif valid:
        value = vec.builder.select(vec.first_lanes_mask(valid), value, zero)
    if y.integer:
        store_int(vec, y, value, target, fits=True)
    else:
        store_float(vec, y, value, target)


def store_first(vec: Vector, y: Element, value: Any, target: Any, count: int) -> None:
    """Store the first `count` lanes of int32 within the range of an 8-bit `y`, in one store per set bit of `count`."""
    narrow = vec.builder.trunc(value, ir.VectorType(I8, vec.lanes))
    first = 0
    while first < count:
        size = 1 << ((count - first).bit_length() - 1)
        lanes = range(first, first + size)
        piece = vec.shuffle(narrow, narrow, lanes) if size > 1 else vec.builder.extract_element(narrow, I32(first))
        store_narrow(Vector(vec.builder, size), y, piece, vec.offset(target, first))
        first += size
