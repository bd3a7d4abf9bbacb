"""Lazy import of llvmlite: it is imported only when something is compiled.

`from cpuconv.runtime.code.llvm import ir` replaces `from llvmlite import ir`. Until llvmlite is imported, names of
`ir`, calls of them and attributes of the results are placeholders. So a module may define `I32 = ir.IntType(32)` at its
top. Before something is compiled, `imported()` replaces the placeholders in our modules by the real values.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_MODULE = "llvmlite.ir"
_OURS = __name__.partition(".")[0] + "."


class _Deferred:
    """A value of llvmlite, evaluated at first use."""

    __slots__ = ("_make", "_made")

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._made: Any = None

    def _value(self) -> Any:
        if self._make is not None:
            self._made = self._make()
            self._make = None
        return self._made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._value(), name) if _is_there() else _Deferred(lambda: getattr(self._value(), name))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if _is_there():
            return self._value()(*arguments, **named)
        return _Deferred(lambda: self._value()(*arguments, **named))

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for `isinstance`
        return type(self._value()) if _is_there() else _Deferred

    def __str__(self) -> str:
        return str(self._value()) if _is_there() else f"a value of {_MODULE}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return self is other or (_is_there() and self._value() == other)

    def __hash__(self) -> int:
        return hash(self._value())


def _is_there() -> bool:
    return _MODULE in sys.modules


@functools.cache
def imported() -> None:
    """Import llvmlite, and replace the placeholders in our modules by its values."""
    importlib.import_module(_MODULE)
    for module in [module for name, module in sys.modules.items() if name.startswith(_OURS)]:
        for name, value in list(vars(module).items()):
            if type(value) is _Deferred:
                setattr(module, name, value._value())


if TYPE_CHECKING:
    from llvmlite import ir
else:
    ir = _Deferred(lambda: importlib.import_module(_MODULE))
