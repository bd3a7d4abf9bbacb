"""Functions that drivers inline are optimised in the driver alone.

Numba optimises each function that another one calls, then the caller with all of them in it. Drivers inline what they
call: what was done to a callee alone is done once more where it is called, on code that the first time has made longer.
That was a third of the time that drivers take to compile, and a third of their machine code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cpuconv.runtime.target import codegen

_C_ENTRY = "cfunc"  # in the mangled name of a function's C entry, which drivers have


@contextlib.contextmanager
def unoptimised() -> Iterator[None]:
    """Let functions without an entry for C be, while something is compiled; without effect on a Numba that does not
    work so."""
    from numba.core.compiler_lock import global_compiler_lock

    generator = codegen()
    usual = getattr(generator, "_library_class", None)
    if usual is None or not hasattr(usual, "_optimize_final_module"):
        yield
        return
    with global_compiler_lock:  # nobody else's functions are compiled meanwhile
        generator._library_class = _quick(usual)
        try:
            yield
        finally:
            generator._library_class = usual


def _quick(usual: Any) -> Any:
    class Library(usual):
        def _optimize_final_module(self) -> None:
            if any(_C_ENTRY in each.name for each in self._final_module.functions if not each.is_declaration):
                super()._optimize_final_module()

    return Library
