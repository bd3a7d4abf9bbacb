"""Functions that drivers call, as they stand before Numba is imported: they are made when a driver is compiled.

`runtime.numba_types` tells Numba what each becomes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from autotune.locks import lazy

OPTIONS = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True}
_OVERLOADED = {"nogil": True, "error_model": "numpy", "forceinline": True}


class Described:
    """A function for drivers.

    Attributes
    ----------
    py_func : callable
        What was described.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__, self.__doc__ = function.__module__, function.__doc__

    @lazy
    def real(self) -> Any:
        """What Numba knows it by."""
        raise NotImplementedError


class _Inlined(Described):
    @lazy
    def real(self) -> Any:
        from numba import njit

        return njit(no_cfunc_wrapper=True, forceinline=True, **OPTIONS)(self.py_func)


class _Intrinsic(Described):
    @lazy
    def real(self) -> Any:
        from numba.extending import intrinsic

        return intrinsic(self.py_func)


class _Specialised(Described):
    def __init__(self, function: Callable[..., Any], choice: Callable[[Any], Callable[..., Any]]) -> None:
        super().__init__(function)
        self._choice = choice

    @lazy
    def real(self) -> Any:
        from numba.extending import overload

        overload(self.py_func, jit_options=_OVERLOADED, strict=False)(lambda tile, *rest: self._choice(tile.tile))
        return self.py_func


def inline(function: Callable[..., Any]) -> Any:
    """Decorator of helpers that kernels call, always inlined: a call that is left checks a status, and the C entry then
    keeps the code that raises exceptions, whose symbols may be missing where a kernel is loaded from disk."""
    return _Inlined(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Decorator of `function(typingctx, *types)`, which gives a signature and a code generator, as Numba's is."""
    return _Intrinsic(function)


def specialise_on_tile(choice: Callable[[Any], Callable[..., Any]]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: in kernels, a call of the decorated (empty) function is a call of `choice(tile)`.

    A function is chosen before compilation, so that only what runs is compiled. `choice(tile)` is a function of the
    same arguments, of which the tile is the first.
    """
    return lambda function: _Specialised(function, choice)


def with_words(body: Callable[..., Any], name: str, words: Sequence[str], doc: str | None = None) -> Any:
    """`body(typingctx, *arguments)` as an intrinsic with these parameters, which Numba reads off a signature."""
    listed = ", ".join(words)
    namespace: dict[str, Any] = {"body": body}
    exec(f"def {name}(typingctx, {listed}): return body(typingctx, {listed})", namespace)
    namespace[name].__doc__ = None if doc is None else inspect.cleandoc(doc)
    return intrinsic(namespace[name])
