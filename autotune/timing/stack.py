"""Calls with a random stack offset.

The time of some kernels depends by up to 4% on the position of their stack within a page. So does which of two kernels
is faster. The environment and the callers shift it (Mytkowicz, Diwan, Hauswirth and Sweeney, "Producing Wrong Data
Without Doing Anything Obviously Wrong!", ASPLOS 2009). A random offset samples the positions that callers will have.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEPTH = 16  # max. nested calls, each about 512 bytes of stack: offsets over two pages


def with_random_stack_offset(run: Callable[[], T]) -> T:
    """Return the result of `run`, called from a random depth of calls."""
    return _deeper(run, random.randrange(DEPTH))


def _deeper(run: Callable[[], T], depth: int) -> T:
    """Call `run` from `depth` nested calls; through C, as calls from Python to Python do not use the C stack."""
    deeper: Callable[[Callable[[], T], int], T] = _deeper
    return run() if not depth else next(map(deeper, (run,), (depth - 1,)))
