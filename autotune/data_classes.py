"""Frozen data classes as `dataclasses.dataclass` makes them, but at their first use.

`dataclass` compiles some six methods for each class, a tenth of a millisecond each: while a package of many small
classes is imported, that takes longer than all else, and most of the classes are never made an instance of. Here the
methods are made when the first of them is called, or when the fields are asked for. Until then stand-ins lie in their
place; what comes of a class is what the standard library makes of it. To be imported in the place of its decorator:
`from autotune.data_classes import dataclass`.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune.locks import Lock

_PUT_OFF = {"eq", "frozen", "init", "kw_only", "match_args", "order", "repr"}  # options; of others nothing is put off
_METHODS = {  # by option, with its default
    ("init", True): ("__init__",),
    ("repr", True): ("__repr__",),
    ("eq", True): ("__eq__", "__hash__"),
    ("order", False): ("__lt__", "__le__", "__gt__", "__ge__"),
}
_ALWAYS = ("__replace__",) if sys.version_info >= (3, 13) else ()
_ABOUT = ("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__signature__")
_REFUSED = {"__delattr__", "__setattr__", "__slots__"}  # the library says why, or makes another class
_OF_CREATION = {"__dict__", "__weakref__"}

_making = Lock()


def _dataclass(cls: type | None = None, /, **options: Any) -> Any:
    """The standard library's decorator of that name, put off where a class is frozen."""
    if cls is None:
        return lambda each: _dataclass(each, **options)
    if options.get("frozen") and options.keys() <= _PUT_OFF and _REFUSED.isdisjoint(vars(cls)):
        _Later(cls, options).stand_in()
        return cls
    return dataclasses.dataclass(cls, **options)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


class _Later:
    """The making of a class that is put off: what it was, and what stands in for what it lacks."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self._cls, self._options = cls, options
        self._was = {name: value for name, value in vars(cls).items() if name not in _OF_CREATION}
        self._put: dict[str, Any] = {}

    def stand_in(self) -> None:
        """Put stand-ins into the class, and what needs no making: defaults, and methods that refuse to set a field."""
        cls = self._cls
        for name in cls.__annotations__:
            value = self._was.get(name)
            if isinstance(value, dataclasses.Field):
                if value.default is dataclasses.MISSING:
                    delattr(cls, name)
                else:
                    setattr(cls, name, value.default)
        asked = [names for (option, default), names in _METHODS.items() if self._options.get(option, default)]
        for name in [name for names in (*asked, _ALWAYS) for name in names if self._was.get(name) is None]:
            self._put[name] = self._method(name)
        self._put |= {name: _Asked(self, name) for name in _ABOUT if name not in self._was}
        for name, value in {**self._put, **_refusals(cls)}.items():
            setattr(cls, name, value)

    def _method(self, name: str) -> Callable[..., Any]:
        cls = self._cls

        def stand_in(self_: Any, /, *given: Any, **named: Any) -> Any:
            self.make()
            return getattr(cls, name)(self_, *given, **named)

        stand_in.__name__, stand_in.__qualname__ = name, f"{cls.__qualname__}.{name}"
        return stand_in

    def make(self) -> None:
        """Put what the standard library makes into the class, once; each part at once, as other threads may use it."""
        with _making:
            if not self._put:
                return
            cls = self._cls
            made = vars(dataclasses.dataclass(type(cls)(cls.__name__, cls.__bases__, self._was), **self._options))
            for name in self._put:
                if name in made:
                    setattr(cls, name, made[name])
                else:
                    delattr(cls, name)
            cls.__doc__ = cls.__doc__ or made["__doc__"]
            self._put, self._was = {}, {}


class _Asked:
    """An attribute of a class that is made when it is asked for."""

    def __init__(self, later: _Later, name: str) -> None:
        self._later, self._name = later, name

    def __get__(self, instance: object, owner: type) -> Any:
        self._later.make()
        if instance is None and self._name == "__signature__":  # the class has none of its own: it follows from methods
            return inspect.signature(owner)
        return getattr(owner if instance is None else instance, self._name)


def _refusals(cls: Any) -> dict[str, Callable[..., None]]:
    """What keeps instances as they are; these are the library's own, but need no compiling."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}
