"""Products of bfloat16 parts on AMX in place of float32 products (`emit.product.SPLIT`): errors and cost of splitting.

A float32 is the sum of two or three bfloat16. Products of parts whose ranks add up to less than the number of parts
are computed; the others are smaller than the error of the parts. NaN and infinities are stored in the last part, which
is multiplied by the largest part only. This gives the result of float32.

Source: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
Computations" (ARITH 2019).
"""

from __future__ import annotations

from typing import Any

from cpuconv.kernels.copies.rounding import BF16_TYPES
from cpuconv.kernels.copies.rounding import PART_CYCLES as PART_CYCLES
from cpuconv.kernels.emit.product import matrix_product_of

ERROR = {3: 6e-6, 6: 0.0}  # by products: stated error, relative to the largest output, in addition to that of float32


def why_not() -> str | None:
    """Reason why the CPU cannot multiply parts, or None."""
    return None if matrix_product_of(BF16_TYPES) else "AMX, where there is any, does not multiply bfloat16"


def label(params: Any) -> str:
    """Label of a candidate's multiplications in reports."""
    return f"{params.products} products of bfloat16"
