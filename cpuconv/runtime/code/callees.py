"""Functions that drivers inline are optimised in the driver alone.

Numba optimises each function that another one calls, then the caller with all of them in it. Drivers inline what they
call: what was done to a callee alone is done once more where it is called, on code that the first time has made longer.
That was a third of the time that drivers take to compile, and a third of their machine code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cpuconv.runtime.target import target

_C_ENTRY = "cfunc"  # in the mangled name of a function's C entry, which drivers have


def codegen() -> Any:
    """Numba's code generator, for the CPU of `runtime.target`.

    It is made at first use, which initialises LLVM, and kept by Numba. Of a CPU that NUMBA_CPU_NAME names alone Numba
    would make it with the host's features, and of Arm's it knows fewer; a generator that somebody else made before
    stays as it is.
    """
    from numba.core import config
    from numba.core.registry import cpu_target

    stated = config.CPU_NAME, config.CPU_FEATURES
    _, config.CPU_NAME, config.CPU_FEATURES = target()
    try:
        return cpu_target.target_context.codegen()
    finally:
        config.CPU_NAME, config.CPU_FEATURES = stated


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
            with _operators_typed_once():
                yield
        finally:
            generator._library_class = usual


_typed: dict[tuple[Any, tuple[Any, ...]], Any] = {}  # signatures of operators for some operands


@contextlib.contextmanager
def _operators_typed_once() -> Iterator[None]:
    """Let Numba look up what an operator gives for operands of some types once, and not for each of the thousands of
    sums and comparisons in a driver: that was up to a fifth of the time."""
    from numba.core.types.functions import BaseFunction

    usual = BaseFunction.get_call_type

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws or getattr(self.key[0], "__module__", "") != "_operator":
            return usual(self, context, args, kws)
        key = self, tuple(args)
        found = _typed.get(key)
        if found is None:
            found = _typed[key] = usual(self, context, args, kws)
        return found

    BaseFunction.get_call_type = get_call_type  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseFunction.get_call_type = usual  # type: ignore[method-assign]


def _quick(usual: Any) -> Any:
    class Library(usual):
        def _optimize_final_module(self) -> None:
            if any(_C_ENTRY in each.name for each in self._final_module.functions if not each.is_declaration):
                super()._optimize_final_module()

    return Library
