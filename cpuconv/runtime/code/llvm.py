"""llvmlite's language for code, imported when something is compiled and not before.

`from cpuconv.runtime.code.llvm import ir` stands for `from llvmlite import ir`: names of `ir`, calls of them and
attributes of what these give stand for themselves until llvmlite is there, so that a module may say
`I32 = ir.IntType(32)` at its top. An emitter runs with a builder of llvmlite's, so that all it asks for is real.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

_MODULE = "llvmlite.ir"


class _Deferred:
    """A value of llvmlite's, made when it is used."""

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
    def __class__(self) -> type:  # what `isinstance` asks
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


if TYPE_CHECKING:
    from llvmlite import ir
else:
    ir = _Deferred(lambda: importlib.import_module(_MODULE))
