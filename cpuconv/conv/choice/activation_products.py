"""How two activations are multiplied, in MatMul and attention: the fastest kind that accuracy and precision permit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from baselib.data_classes import dataclass
from cpuconv.conv.choice.target import PRECISION_BF16, Target
from cpuconv.elements import F32
from cpuconv.kernels.copies.rounding import BF16_TYPES
from cpuconv.kernels.emit.product import BY_NAME, FMA, SPLIT, Product, matrix_product_of
from cpuconv.kernels.products.matmul_pairs import bf16_instruction
from cpuconv.solvers.shared.split_products import ERROR
from cpuconv.solvers.shared.transformed import charge
from cpuconv.symbolic.sizes import now

_MIN_DEPTH = 16  # of a sum for the stated errors of split products: those of few products do not average out


@dataclass(frozen=True)
class Narrowed:
    """Detail of an offer that multiplies operands as bfloat16: rounded, or split into parts, when they are packed."""

    products: tuple[str, ...]  # names in `emit.product.BY_NAME`: of MatMul; of attention's scores and of its values

    @property
    def kinds(self) -> tuple[Product, ...]:
        """The kind of each product."""
        return tuple(BY_NAME[name] for name in self.products)

    @property
    def rounds(self) -> bool:
        """Whether operands are rounded, not split."""
        return not self.kinds[0].pairs

    @property
    def multiplied(self) -> str:
        """Types of the multiplication, for reports."""
        numbers = " and ".join(dict.fromkeys(str(len(kind.pairs)) for kind in self.kinds))
        return str(BF16_TYPES) if self.rounds else f"{F32}, {numbers} products of bfloat16"


def kinds(target: Target, depth: int) -> Iterator[tuple[Product, float]]:
    """Permitted kinds of sums of `depth` products, float32's first, with a charge for the error: a factor on the time.

    Where the depth is open, its current size decides.
    """
    yield FMA, 1.0
    matrix = matrix_product_of(BF16_TYPES)
    if target.precision == PRECISION_BF16:
        yield from ((each, 1.0) for each in (bf16_instruction(target.isa), matrix) if each is not None)
    elif matrix is not None:
        for products, kind in SPLIT.items():
            error = ERROR[products]
            if not error or now(depth) >= _MIN_DEPTH and target.limits.admits_accuracy("standard"):
                yield kind, charge(error)


def fastest(
    target: Target, seconds: Callable[..., float], depth: int, attention: bool = False
) -> tuple[float, Narrowed | None]:
    """The fastest kind's modelled time with its charge, and the detail of its offer; None for float32.

    `seconds` takes a kind for each product. In attention, `depth` is that of the second product, and three products of
    parts multiply only there: softmax turns absolute errors of scores into relative errors of weights.
    """
    times = {}
    for kind, price in kinds(target, depth):
        each = (SPLIT[6] if kind.pairs else kind, kind) if attention else (kind,)
        times[each] = price * seconds(*each)
    best = min(times, key=times.__getitem__)
    return times[best], None if FMA in best else Narrowed(tuple(kind.name for kind in best))
