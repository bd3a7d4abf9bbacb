"""How many random problems a property is tried on."""

from __future__ import annotations

import os

VARIABLE = "CPUCONV_EXAMPLES"  # so many times as many


def examples(count: int) -> int:
    """The number of a run of all tests, times what the environment asks for."""
    return count * int(os.environ.get(VARIABLE, "1"))
