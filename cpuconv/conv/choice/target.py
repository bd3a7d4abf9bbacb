"""Target: all settings for which convolutions are selected and compiled, alone or in a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.query import Tuner
from cpuconv.elements import BF16, F16, IN_PARTS, Element
from cpuconv.errors import ArgumentError, must
from cpuconv.isa import current
from cpuconv.isa.features import has_feature
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.tensor_view import BLOCKED, FLOAT32, NARROW
from cpuconv.kernels.copies.rounding import BF16_TYPES
from cpuconv.kernels.emit.product import matrix_product_of, product_of
from cpuconv.kernels.products.closed.closed_set import has_closed_set
from cpuconv.problem.types import Types

IN_NETWORK = Limits(cold=True)
IDLE_BYTES = 256 << 20  # default
PRECISION_F32, PRECISION_F16, PRECISION_BF16 = PRECISIONS = ("float32", "float16", "bfloat16")  # strictest first
_ROUNDED = {PRECISION_F16: F16, PRECISION_BF16: BF16}  # what float32 may be rounded to


PRECISION_ALIASES = {"f32": PRECISION_F32, "fp32": PRECISION_F32, "bf16": PRECISION_BF16}
PRECISION_ALIASES |= dict.fromkeys(("fp16", "f16", "half"), PRECISION_F16)
_INTEGERS = "int8", "uint8", "s8", "u8"


def check_precision(precision: object, argument: str = "precision", more: Sequence[str] = ()) -> None:
    """Raise `ArgumentError` for an unknown precision; messages name the `argument`, and `more` allowed values."""
    able = supported_precisions()
    allowed = f"one of {', '.join((*able, *more))}"
    if isinstance(precision, str) and precision in able:
        return
    if precision == "auto":
        allowed = f"one of {', '.join(able)} here: cpuconv.compile chooses precisions, by samples"
    elif isinstance(precision, str) and precision in _INTEGERS:
        allowed += ": cpuconv.quantize makes an int8 network from samples"
    elif isinstance(precision, str) and PRECISION_F16 in (precision, PRECISION_ALIASES.get(precision)):
        allowed += ": 16-bit arithmetic is bfloat16"
    raise ArgumentError(must(argument, allowed, repr(precision)))


def supported_precisions() -> tuple[str, ...]:
    """The precisions of networks on this CPU."""
    return PRECISIONS if has_float16_sums() else (PRECISION_F32, PRECISION_BF16)


def has_float16_sums() -> bool:
    """Whether convolutions may sum in float16 on this CPU."""
    return product_of(Types(F16, F16, F16, F16), current()) is not None


def narrow_precision() -> str:
    """The precision that `precision="auto"` tries on this CPU: float16 where bfloat16 is not multiplied."""
    multiplies = any(dot.x == BF16 and has_feature(dot.feature) for dot in current().dots)
    return PRECISION_F16 if has_float16_sums() and not multiplies else PRECISION_BF16


def precision_named(precision: object, argument: str = "precision", more: Sequence[str] = ()) -> str:
    """Resolve a user's precision, possibly an alias such as "bf16"; raises as `check_precision`."""
    named = PRECISION_ALIASES.get(precision, precision) if isinstance(precision, str) else precision
    if named == PRECISION_F16 and not has_float16_sums():
        named = precision  # messages repeat what was given
    check_precision(named, argument, more)
    return str(named)


def check_one_narrow_type(precision: str, node_precisions: Mapping[str, str]) -> None:
    """Raise `ArgumentError` if nodes of one network may round to different types: no copy converts between these."""
    narrow = {precision, *node_precisions.values()} - {PRECISION_F32}
    if len(narrow) > 1:
        raise ArgumentError(must("node_precisions", "of one 16-bit type", " and ".join(sorted(narrow))))


@dataclass(frozen=True)
class Target(Processor):
    """Settings for which a convolution or a network is compiled.

    Attributes
    ----------
    isa : Isa
    threads : int
    strategy : str
        How algorithms of convolutions are selected: "heuristic", "cached" or "profile".
    limits : Limits
        Limits of this selection.
    tuner : Tuner or None
        The module that times candidates, for "profile".
    idle_bytes : int
        Maximum memory that finished runs of a model keep for later ones, in bytes, without the memory of one run.
    precision : str
        "float32"; or "bfloat16" or "float16": float32 tensors may be stored, and multiplied, in this type.
    node_precisions : Mapping[str, str]
        Precisions of single nodes, by their names in the model.
    channels_last : bool
        Whether convolutions and elementwise operators may read and write tensors channels last.
    """

    strategy: str = "cached"
    limits: Limits = IN_NETWORK
    tuner: Tuner | None = None
    idle_bytes: int = IDLE_BYTES
    precision: str = PRECISION_F32
    node_precisions: Mapping[str, str] = field(default_factory=dict, hash=False)
    channels_last: bool = True

    @property
    def stored_parts(self) -> Element | None:
        """The bfloat16 parts in which float32 tensors may be stored, as many as the accuracy needs; None: in none."""
        if matrix_product_of(BF16_TYPES) is None:
            return None
        return IN_PARTS[max(IN_PARTS) if self.limits.accuracy == "exact" else min(IN_PARTS)]

    def of(self, names: Iterable[str]) -> Target:
        """The target for fused nodes of the model, with the strictest of their precisions."""
        if not self.node_precisions:
            return self
        return self.at(min((self.node_precisions.get(name, self.precision) for name in names), key=PRECISIONS.index))

    def closed(self) -> Target:
        """The target for networks with open sizes: with kernels of the closed set, if there is one."""
        if not has_closed_set(self.isa):
            return self
        return replace(self, isa=replace(self.isa, closed=True), limits=replace(self.limits, closed=True))

    def at(self, precision: str) -> Target:
        """The target with another precision."""
        return replace(self, precision=precision) if precision != self.precision else self

    @property
    def rounds(self) -> bool:
        """Whether any node may round to bfloat16 or float16."""
        return not {self.precision, *self.node_precisions.values()} <= {PRECISION_F32}

    def rounded(self) -> Target:
        """The target with the least strict of all precisions of nodes."""
        return self.at(max((self.precision, *self.node_precisions.values()), key=PRECISIONS.index))

    def blocks(self, dtype: np.dtype = FLOAT32) -> tuple[str, ...]:
        """The blocked forms in which a tensor of a dtype may be stored."""
        return self.forms(BLOCKED, dtype)

    def forms(self, form: str, dtype: np.dtype = FLOAT32) -> tuple[str, ...]:
        """A form, and the same in bfloat16 or float16 if a tensor of this dtype may be rounded."""
        rounded = _ROUNDED.get(self.precision) if dtype == FLOAT32 else None
        return (form, NARROW[rounded][form]) if rounded else (form,)
