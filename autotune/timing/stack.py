"""Running with the stack at a random offset.

How long some kernels take depends on where their stack lies within a page, by up to 4%, and so does which of two is
faster; what the environment holds and who calls shifts it (Mytkowicz, Diwan, Hauswirth and Sweeney, "Producing Wrong
Data Without Doing Anything Obviously Wrong!", ASPLOS 2009). A random offset is one sample of what callers will meet.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEPTH = 16  # calls, of some 512 bytes of stack each: offsets over two pages


def with_random_stack_offset(run: Callable[[], T]) -> T:
    """What `run` returns, called from a random depth of calls."""
    return _deeper(run, random.randrange(DEPTH))


def _deeper(run: Callable[[], T], depth: int) -> T:
    """`run` so many calls further down; through C, as calls from Python to Python take nothing of its stack."""
    deeper: Callable[[Callable[[], T], int], T] = _deeper
    return run() if not depth else next(map(deeper, (run,), (depth - 1,)))
