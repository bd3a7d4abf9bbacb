"""A step bound: its kernel, compiled, and its arguments as one block of words.

Addresses that are known later than the block is made are named in it: their words hold the offsets from their bases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autotune.data_classes import dataclass
from cpuconv.kernels.binding.steps import Ref, Step, word_of
from cpuconv.runtime.code.cache import Code


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
    known, (words, late) = known or {}, words_of(step, kept)
    for base, places in late.items():
        for at in places if base in known else ():
            words[at] += known[base]
    late = {base: places for base, places in late.items() if base not in known}
    return BoundStep(step.kernel.entry(step.tile), np.array(words, np.int64), step.parts, late)


def words_of(step: Step, kept: list[Any]) -> tuple[list[Any], dict[str, list[int]]]:
    """The words of a step's argument block, and by base the places of addresses, which hold offsets from it.

    Sizes that are followed, and arrays of these, are still themselves.
    """
    fields = step.kernel.fields
    words: list[Any] = [step.args[name] for name in fields if name in step.args]
    if not len(words) == len(fields) == len(step.args):
        raise KeyError(f"{step.kernel.name}: {sorted(step.args.keys() ^ set(fields))}")
    late: dict[str, list[int]] = {}
    for at, value in enumerate(words):
        if type(value) is int:
            continue
        if not isinstance(value, Ref):
            words[at] = word_of(value, kept)
        else:
            words[at] = value.offset
            late.setdefault(value.name, []).append(at)
    return words, late
