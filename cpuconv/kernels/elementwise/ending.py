"""How a sum of products ends: bias, scales, residual, activation, and the type that it is stored in.

What an ending reads for a vector of output channels lies in rows of `lanes` numbers of four bytes. So scales, zero
points and clamps are data, not code. In the order of `Ending.rows`:

| row | sums of | is |
|---|---|---|
| bias | floats: float32; integers: int32 | added to the sum |
| scale | integers | of a sum; in the short form over the output's scale |
| shift | integers, long form | added after the scale: a float32 bias |
| residual_scale, residual_zero | integers, with a residual | what a residual's numbers mean |
| divisor | integers to bytes, long form | the output's scale |
| zero, low, high | integers to bytes | the output's zero point, and where it is clamped |

Short, where nothing but a clamp comes between: y = clamp(rint(f(sum + bias)·scale) + zero), as ONNX Runtime computes
QLinearConv. Long: r = activation(f(sum + bias)·scale + shift + (residual − residual_zero)·residual_scale), which is
stored as float32, or as bytes: clamp(rint(r / divisor) + zero). Products and sums are rounded each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.elements import F32, S8, S32, U8, Element
from cpuconv.isa.vector import Vector
from cpuconv.kernels.elementwise.epilogue import finish
from cpuconv.kernels.elementwise.expression import Operand, apply
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.problem.problem import ConvProblem

_CLAMPS = (None, "relu", "clip")  # activations that are nothing but a narrower clamp


@dataclass(frozen=True)
class Ending:
    """What happens to sums of a type before they are stored as another."""

    sum: Element = F32
    y: Element = F32
    residual: bool = False
    activation: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, problem: ConvProblem, residual: bool | None = None) -> Ending:
        """The ending of a problem; `residual` in place of its own."""
        added = problem.residual if residual is None else residual
        return cls(problem.types.sum, problem.types.y, added, problem.activation)

    @property
    def bytes_(self) -> bool:
        """Whether integers are scaled and stored as bytes."""
        return self.sum.integer and self.y in (U8, S8)

    @property
    def short(self) -> bool:
        """Whether the form is the short one."""
        name = None if self.activation is None else self.activation[0]
        return self.bytes_ and not self.residual and name in _CLAMPS

    @property
    def rows(self) -> tuple[str, ...]:
        """What is read for each vector of output channels, in order."""
        if not self.sum.integer or self.y == S32:
            return ("bias",)
        rows = ["bias", "scale"]
        if not self.short:
            rows += ["shift", *(("residual_scale", "residual_zero") if self.residual else ())]
        if self.bytes_:
            rows += [*(() if self.short else ("divisor",)), "zero", "low", "high"]
        return tuple(rows)

    def load(self, vec: Vector, address: Any) -> dict[str, Any]:
        """The rows at an address, as vectors; the clamps are brought to where the zero point is 0."""
        rows = {name: vec.load(vec.offset(address, vec.size * at)) for at, name in enumerate(self.rows)}
        if self.sum.integer:
            rows["bias"] = vec.builder.bitcast(rows["bias"], vec.int_type)
        if self.bytes_:
            rows |= {name: vec.sub(rows[name], rows["zero"]) for name in ("low", "high")}
            rows["zero"] = vec.builder.fptosi(rows["zero"], vec.int_type)
        return rows

    def emit(self, vec: Vector, total: Any, rows: Mapping[str, Any], residual: Any = None) -> Any:
        """What is stored of a vector of sums: floats, or int32 that fit y where that is one of integers.

        `residual` is a vector of its numbers as floats.
        """
        if not self.sum.integer:
            return finish(vec, total, rows["bias"], residual, self.activation)
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
        if not self.bytes_:
            return value
        if not self.short:
            value = vec.div(value, rows["divisor"])
        value = vec.minimum(rows["high"], vec.maximum(rows["low"], value))  # before it is converted: sums can be large
        return builder.add(vec.nearest_int(value), rows["zero"])
