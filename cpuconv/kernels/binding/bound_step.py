"""A step bound: its kernel, compiled, and its arguments as one block of words.

Addresses that are known later than the block is made are named in it: their words hold the offsets from their bases.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.kernels.binding.steps import Ref, Step, word_of
from cpuconv.runtime.code.cache import Code
from cpuconv.runtime.kernel import Kernel


@dataclass(frozen=True)
class BoundStep:
    """What a step is to a program.

    Attributes
    ----------
    code : Code
    block : numpy.ndarray
        Words.
    parts : int
    late : mapping of str to list of int
        By base: the places in `block` of its addresses, which hold offsets from it.
    """

    code: Code
    block: np.ndarray
    parts: int
    late: Mapping[str, list[int]]

    @property
    def row(self) -> tuple[Code, np.ndarray, int]:
        """As a `Program` takes it."""
        return self.code, self.block, self.parts


def bind(step: Step, kept: list[Any], known: Mapping[str, int] | None = None) -> BoundStep:
    """A step with an argument block of its own.

    Parameters
    ----------
    step : Step
    kept : list
        Is given what the block and the code need to stay valid.
    known : mapping of str to int, or None
        Addresses of bases, as far as they are known.
    """
    known, places = known or {}, _places(step.kernel)
    if step.args.keys() != places.keys():
        raise KeyError(f"{step.kernel.name}: {sorted(step.args.keys() ^ places.keys())}")
    words = [0] * len(places)
    late: dict[str, list[int]] = {}
    for name, value in step.args.items():
        if type(value) is int:
            words[places[name]] = value
        elif not isinstance(value, Ref):
            words[places[name]] = word_of(value, kept)
        else:
            words[places[name]] = known.get(value.name, 0) + value.offset
            if value.name not in known:
                late.setdefault(value.name, []).append(places[name])
    return BoundStep(step.kernel.entry(step.tile), np.array(words, np.int64), step.parts, late)


@functools.cache
def _places(kernel: Kernel) -> dict[str, int]:
    """Of the fields of a kernel's argument block."""
    return {name: at for at, name in enumerate(kernel.fields)}
