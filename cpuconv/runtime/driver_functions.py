"""Functions that drivers call. `runtime.front_end` writes their IR into the driver without importing Numba. Where Numba
compiles a driver, `runtime.front_end.numba_types` maps them to Numba's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from baselib.locks import lazy
from cpuconv.runtime.code.llvm import ir

I64 = ir.IntType(64)

OPTIONS = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True}
_OVERLOADED = {"nogil": True, "error_model": "numpy", "forceinline": True}


class DriverFunction:
    """A function that drivers may call.

    Attributes
    ----------
    py_func : callable
        The decorated function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__, self.__doc__ = function.__module__, function.__doc__

    @lazy
    def numba_function(self) -> Any:
        """Return the corresponding Numba function."""
        raise NotImplementedError


class Inlined(DriverFunction):
    """A function that is inlined into its callers."""

    @lazy
    def numba_function(self) -> Any:
        from numba import njit

        return njit(no_cfunc_wrapper=True, forceinline=True, **OPTIONS)(self.py_func)


class Emitted(DriverFunction):
    """A function that emits its IR: `emit(builder, *given)` returns an int64 value.

    Attributes
    ----------
    takes_tile : bool
        Whether the first argument is the tile; all others are int64 words.
    """

    def __init__(self, function: Callable[..., Any], words: Sequence[str], *, takes_tile: bool = False) -> None:
        super().__init__(function)
        self.takes_tile = takes_tile
        self._words = words

    def in_order(self, given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call in the order of `emit`.

        Raises
        ------
        TypeError
            An argument is missing, unknown or given twice.
        """
        bound = dict(zip(self._words, given, strict=False))
        if len(given) + len(named) != len(self._words) or {*bound, *named} != {*self._words}:
            wrong = sorted({*self._words} ^ {*bound, *named}) or sorted({*bound} & {*named})
            raise TypeError(f"{self.__name__} takes each of {', '.join(self._words)} once; see {', '.join(wrong)}")
        return [(bound | dict(named))[name] for name in self._words]

    def emit(self, builder: Any, *given: Any) -> Any:
        """Emit a call at the builder's position; return 0 for a function without a result."""
        result = self.py_func(builder, *given)
        return I64(0) if result is None else result

    @lazy
    def numba_function(self) -> Any:
        from numba import types
        from numba.extending import intrinsic

        def typed(typingctx: Any, *kinds: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                tile = [kinds[0].tile] if self.takes_tile else []
                return self.emit(builder, *tile, *arguments[len(tile) :])

            return types.int64(*kinds), codegen

        listed = ", ".join(self._words)  # Numba reads argument names from a signature
        namespace: dict[str, Any] = {"typed": typed}
        exec(f"def {self.__name__}(typingctx, {listed}): return typed(typingctx, {listed})", namespace)
        return intrinsic(namespace[self.__name__])


class Specialised(DriverFunction):
    """A function with one implementation per tile.

    Attributes
    ----------
    choice : callable
        Returns the implementation for a tile.
    """

    def __init__(self, function: Callable[..., Any], choice: Callable[[Any], Callable[..., Any]]) -> None:
        super().__init__(function)
        self.choice = choice

    @lazy
    def numba_function(self) -> Any:
        from numba.extending import overload

        overload(self.py_func, jit_options=_OVERLOADED, strict=False)(lambda tile, *rest: self.choice(tile.tile))
        return self.py_func


def inline(function: Callable[..., Any]) -> Any:
    """Decorator for helpers that kernels call; they are always inlined.

    A call that is not inlined checks a status. The C entry would then contain code that raises exceptions, whose
    symbols may be missing where a kernel is loaded from disk.
    """
    return Inlined(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Decorator for `function(builder, *words)`, which emits IR and returns an int64 value or None."""
    code = function.__code__
    return Emitted(function, code.co_varnames[1 : code.co_argcount])


def specialise_on_tile(choice: Callable[[Any], Callable[..., Any]]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: in kernels, a call of the decorated (empty) function calls `choice(tile)` instead.

    The function is selected before compilation, so that only code that runs is compiled. `choice(tile)` takes the same
    arguments, the tile first.
    """
    return lambda function: Specialised(function, choice)
