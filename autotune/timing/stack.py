"""Running with the stack in another place.

How long some kernels take depends on where their stack lies within a page, by up to 4%, and so does who of two wins:
what the environment holds and who calls shifts it (Mytkowicz, Diwan, Hauswirth and Sweeney, "Producing Wrong Data
Without Doing Anything Obviously Wrong!", ASPLOS 2009; docs/decisions/0019-stack.md). A place is one sample of what
callers will meet, as data's is.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEPTH = 16
"""Calls between which and none the stack is moved by: of some 512 bytes each, two pages in all."""


def displaced(run: Callable[[], T]) -> T:
    """What `run` returns, called with the stack in a place drawn at random."""
    return _deeper(run, random.randrange(DEPTH))


def _deeper(run: Callable[[], T], depth: int) -> T:
    """`run` so many calls further down; through C, as calls from Python to Python take nothing of its stack."""
    return run() if not depth else next(map(_deeper, (run,), (depth - 1,)))
