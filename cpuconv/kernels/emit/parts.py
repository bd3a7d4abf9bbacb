"""Parts of a kernel's work: `part` of `parts` is the units from units·part // parts to units·(part+1) // parts."""

from __future__ import annotations

from cpuconv.runtime.kernel import inline


@inline
def last_unit(units, before, parts):
    """The unit that a worker computed last: the end of part `before`, or -1. Its packed data is in the workspace."""
    last = units * (before + 1) // parts - 1
    return last if last >= units * before // parts else -1
