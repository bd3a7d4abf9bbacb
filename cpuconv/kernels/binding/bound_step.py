"""Binding of a step: its compiled kernel, and its arguments as one block of int64 words.

Words of addresses that are not known yet hold offsets from their bases; the block lists them by base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.kernels.binding.steps import Ref, Step, word_of
from cpuconv.runtime.code.cache import Code


@dataclass(frozen=True)
class BoundStep:
    """A kernel call of a program.

    Attributes
    ----------
    code : Code
    block : numpy.ndarray
        Argument words.
    parts : int
    unresolved : mapping of str to list of int
        By base: indices of words in `block` that are unresolved addresses; they hold offsets from the base.
    """

    code: Code
    block: np.ndarray
    parts: int
    unresolved: Mapping[str, list[int]]

    @property
    def row(self) -> tuple[Code, np.ndarray, int]:
        """The row of a `Program`."""
        return self.code, self.block, self.parts


def bind(step: Step, kept: list[Any], known: Mapping[str, int] | None = None) -> BoundStep:
    """Bind a step to an argument block of its own.

    Parameters
    ----------
    step : Step
    kept : list
        Receives objects that the block and the code point to and that must outlive them.
    known : mapping of str to int, or None
        Addresses of bases that are already known.
    """
    known, (words, unresolved) = known or {}, words_of(step, kept)
    for base, places in unresolved.items():
        for at in places if base in known else ():
            words[at] += known[base]
    unresolved = {base: places for base, places in unresolved.items() if base not in known}
    return BoundStep(step.kernel.entry(step.tile), np.array(words, np.int64), step.parts, unresolved)


def words_of(step: Step, kept: list[Any]) -> tuple[list[Any], dict[str, list[int]]]:
    """The words of a step's argument block, and by base the indices of addresses, which hold offsets from the base.

    Traced sizes and arrays of traced sizes are returned unchanged.
    """
    fields = step.kernel.fields
    words: list[Any] = [step.args[name] for name in fields if name in step.args]
    if not len(words) == len(fields) == len(step.args):
        raise KeyError(f"{step.kernel.name}: {sorted(step.args.keys() ^ set(fields))}")
    unresolved: dict[str, list[int]] = {}
    for at, value in enumerate(words):
        if type(value) is int:
            continue
        if not isinstance(value, Ref):
            words[at] = word_of(value, kept)
        else:
            words[at] = value.offset
            unresolved.setdefault(value.name, []).append(at)
    return words, unresolved
