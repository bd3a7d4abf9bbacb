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

from autotune.data_classes import dataclass
from cpuconv.elements import F32, S8, S32, U8, Element
from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.expression import Operand, apply
from cpuconv.kernels.elementwise.float_epilogue import emit_float_epilogue
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.problem.problem import ConvProblem

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

    def load(self, vec: Vector, address: Any) -> dict[str, Any]:
        """Load the rows at an address as vectors; clamps are shifted to zero point 0."""
        rows = {name: vec.load(vec.offset(address, vec.size * at)) for at, name in enumerate(self.rows)}
        if self.sum.integer:
            rows["bias"] = vec.builder.bitcast(rows["bias"], vec.int_type)
        if self.requantizes:
            rows |= {name: vec.sub(rows[name], rows["zero"]) for name in ("low", "high")}
            rows["zero"] = vec.builder.fptosi(rows["zero"], vec.int_type)
        return rows

    def emit(self, vec: Vector, total: Any, rows: Mapping[str, Any], residual: Any = None) -> Any:
        """Emit the value to store for a vector of accumulators: float32, or int32 within the range of an integer y.

        `residual` is a vector of the stored residual, converted to float32.
        """
        if not self.sum.integer:
            return emit_float_epilogue(vec, total, rows["bias"], residual, self.activation)
        builder = vec.builder
        total = builder.add(total, rows["bias"])
        if self.y == S32:
            return total
        value = vec.mul(builder.sitofp(total, vec.type), rows["scale"])
        if not self.short:
            value = vec.add(value, rows["shift"])
            if residual is not None:
                value = vec.add(value, vec.mul(vec.sub(residual, rows["residual_zero"]), rows["residual_scale"]))
            if self.activation is not None:
                name, *scalars = self.activation
                value = apply(name, Operand(0), *scalars).emit(Math(builder, vec.lanes), {Operand(0): value})
        if not self.requantizes:
            return value
        if not self.short:
            value = vec.div(value, rows["divisor"])
        value = vec.minimum(rows["high"], vec.maximum(rows["low"], value))  # before conversion: sums can exceed int32
        return builder.add(vec.nearest_int(value), rows["zero"])
