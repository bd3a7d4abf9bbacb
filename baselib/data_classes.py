"""Frozen data classes like those of `dataclasses.dataclass`, but created lazily and faster.

`dataclass` compiles six or seven functions per class, 0.1 ms each. In a package of many small classes this is most of
the import time, and most classes are never instantiated. Here each method is created at its first call. Only `__init__`
is compiled, once a class has several instances. Other attributes come from the standard library's decorator on first
access. Replacement for the standard import: `from baselib.data_classes import dataclass`. Classes get no automatic
docstring.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import reprlib
from collections.abc import Callable
from dataclasses import MISSING, Field
from typing import TYPE_CHECKING, Any

from baselib.locks import Lock

_OPTIONS = {"eq", "frozen", "kw_only", "repr"}  # with other options, or the names below, the library makes the class
_OTHER_ANNOTATIONS = ("ClassVar", "InitVar", "KW_ONLY")
_OTHER_NAMES = {"__delattr__", "__init__", "__setattr__", "__slots__"}
_OF_CREATION = {"__dict__", "__weakref__"}
_FIELD = "_FIELD"  # the library's type of a regular field
_OF_LIBRARY = ("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__replace__")

_UNCOMPILED_INSTANCES = 16  # instances created without a compiled `__init__`, in a few microseconds each
_NAME = "__lazy_parts__"  # class attribute with the `_LazyParts` object
_making = Lock(brief=False)  # a compiling thread takes it, so a fork that held it would wait for that thread


class _FactoryDefault:
    """Placeholder in a signature for a default that a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY_DEFAULT = _FactoryDefault()


def _dataclass(cls: type | None = None, /, **options: Any) -> Any:
    """Replace the standard library's decorator; lazy for frozen classes."""
    if cls is None:
        return lambda each: _dataclass(each, **options)
    if options.get("frozen") and options.keys() <= _OPTIONS and _is_usual(cls):
        _LazyParts(cls, options).put()
        return cls
    return dataclasses.dataclass(cls, **options)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


def _is_usual(cls: type) -> bool:
    annotations = cls.__annotations__.values()
    return _OTHER_NAMES.isdisjoint(vars(cls)) and all(
        isinstance(each, str) and not any(word in each for word in _OTHER_ANNOTATIONS) for each in annotations
    )


class _LazyParts:
    """Creates the parts of a class on demand."""

    def __init__(self, cls: Any, options: dict[str, Any]) -> None:
        self._cls, self._options = cls, options
        self._was = {name: value for name, value in vars(cls).items() if name not in _OF_CREATION}
        self._put: set[str] = set()  # names of parts that are placeholders
        self._known: dict[str, tuple[str, Field[Any]]] | None = None
        setattr(cls, _NAME, self)

    def put(self) -> None:
        """Set placeholders and all parts that need no creation."""
        cls, was = self._cls, self._was
        for name in cls.__annotations__:
            field = was.get(name)
            if isinstance(field, Field) and field.default is MISSING:
                delattr(cls, name)
            elif isinstance(field, Field):
                setattr(cls, name, field.default)
        wanted = {
            "__init__": True,
            "__repr__": self._options.get("repr", True) and "__repr__" not in was,
            "__eq__": self._options.get("eq", True) and "__eq__" not in was,
            "__hash__": self._options.get("eq", True) and was.get("__hash__") is None,
        }
        for name in (name for name, is_wanted in wanted.items() if is_wanted):
            self._put.add(name)
            setattr(cls, name, self._named(name, self._first() if name == "__init__" else self._stand_in(name)))
        cls.__signature__ = _LazyAttribute(self, "__signature__")
        for name in _OF_LIBRARY:
            if name not in was and (name != "__replace__" or hasattr(dataclasses, "_replace")):
                self._put.add(name)
                setattr(cls, name, _LazyAttribute(self, name))
        for name, method in _refusals(cls).items():
            setattr(cls, name, self._named(name, method))

    def _named(self, name: str, method: Any) -> Any:
        method.__name__, method.__qualname__ = name, f"{self._cls.__qualname__}.{name}"
        return method

    def _stand_in(self, name: str) -> Callable[..., Any]:
        def method(self_: Any, /, *given: Any, **named: Any) -> Any:
            return self.made(name)(self_, *given, **named)

        return method

    def _first(self) -> Callable[..., None]:
        """Return the `__init__` of the first instances; it passes unusual arguments to the compiled one."""
        left, put, ends = _UNCOMPILED_INSTANCES, object.__setattr__, hasattr(self._cls, "__post_init__")

        def __init__(self_: Any, /, *given: Any, **named: Any) -> None:
            nonlocal left
            left -= 1
            values = self._values(given, named) if left >= 0 else None
            if values is None:
                self.made("__init__")(self_, *given, **named)
                return
            for name, value in values.items():
                put(self_, name, value)
            if ends:
                self_.__post_init__()

        return __init__

    def _values(self, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any] | None:
        """Return the attributes that `__init__` sets for these arguments, in order; None if they do not match."""
        fields = self.fields()
        stated = [name for name, (_, field) in fields.items() if field.init and not field.kw_only][: len(given)]
        known = dict(zip(stated, given, strict=False)) | named
        values = {}
        for name, (_, field) in fields.items():
            if field.init and name in known:
                values[name] = known.pop(name)
            elif field.default_factory is not MISSING:
                values[name] = field.default_factory()
            elif field.init and field.default is not MISSING:
                values[name] = field.default
            elif field.init:
                return None
        return values if not known and len(stated) == len(given) and named.keys().isdisjoint(stated) else None

    def made(self, name: str) -> Any:
        """Return a part of the class; create and set it if necessary, while other threads wait."""
        cls = self._cls
        with _making:
            if name not in self._put:
                return vars(cls)[name]
            if name == "__dataclass_fields__" and hasattr(dataclasses, _FIELD):
                setattr(cls, name, self._library_fields())
                self._put.remove(name)
                return vars(cls)[name]
            if name in _OF_LIBRARY:
                found = vars(self._of_library())
                for each in _OF_LIBRARY:
                    if each in found and each in self._put:
                        setattr(cls, each, found[each])
                self._put -= {*_OF_LIBRARY}  # last, as the process may be forked at any time
                return vars(cls)[name]
            made = self._named(name, _MAKERS[name](self))
            if name == "__init__" and "__signature__" in vars(cls):
                del cls.__signature__
            setattr(cls, name, made)
            self._put.remove(name)
            return made

    def signature(self, cls: type) -> inspect.Signature:
        """Return the signature of this class or of a subclass."""
        self.made("__init__")
        return inspect.signature(cls)

    def _library_fields(self) -> dict[str, Any]:
        """Return the fields in the library's form, for `replace` and `fields`."""
        made: dict[str, Any] = {}
        for name, (annotation, field) in self.fields().items():
            made[name] = field
            if field.name is None:  # a new field
                field.name, field.type, field._field_type = name, annotation, getattr(dataclasses, _FIELD)
        return made

    def _of_library(self) -> type:
        """Return a copy of this class made by the standard library, without methods."""
        was = {**self._was, "__doc__": "It needs none."}  # else the library makes one
        like = type(self._cls)(self._cls.__name__, self._cls.__bases__, was)
        methods = {"init": False, "repr": False, "eq": False}
        follows = any(hasattr(base, "__dataclass_fields__") for base in self._cls.__bases__)
        dataclasses.dataclass(**{**self._options, "frozen": follows, **methods})(like)
        params: Any = vars(like)["__dataclass_params__"]
        for option, default in {"init": True, "repr": True, "eq": True, "frozen": False}.items():
            setattr(params, option, self._options.get(option, default))
        return like

    def fields(self) -> dict[str, tuple[str, Field[Any]]]:
        """Return annotations and fields by name, bases first, as the library does, but faster."""
        if self._known is None:
            found: dict[str, tuple[str, Field[Any]]] = {}
            for base in self._cls.__mro__[-1:0:-1]:
                lazy_parts: _LazyParts | None = vars(base).get(_NAME)
                if lazy_parts is not None:
                    found |= lazy_parts.fields()
                elif "__dataclass_fields__" in vars(base):
                    found |= {name: (field.type, field) for name, field in base.__dataclass_fields__.items()}
            for name, annotation in self._cls.__annotations__.items():
                value: Any = self._was[name] if name in self._was else getattr(self._cls, name, MISSING)
                field: Field[Any] = value if isinstance(value, Field) else dataclasses.field(default=value)
                if field.kw_only is MISSING:
                    field.kw_only = self._options.get("kw_only", False)
                found[name] = annotation, field
            self._known = found
        return self._known

    def _init(self) -> Callable[..., None]:
        """Return a compiled `__init__`, for `replace` and all later instances."""
        cls = self._cls
        names: dict[str, Any] = {"__name__": cls.__module__, "__set": object.__setattr__, "__left": _FACTORY_DEFAULT}
        positional, named, lines = ["__self"], list[str](), list[str]()
        for name, (_, field) in self.fields().items():
            parameters, value = named if field.kw_only else positional, name
            if field.default_factory is not MISSING:
                names[f"__make_{name}"] = field.default_factory
                value = f"__make_{name}() if {name} is __left else {name}" if field.init else f"__make_{name}()"
                parameters += [f"{name}=__left"] if field.init else []
            elif not field.init:
                continue
            elif field.default is not MISSING:
                names[f"__default_{name}"] = field.default
                parameters.append(f"{name}=__default_{name}")
            else:
                parameters.append(name)
            lines.append(f" __set(__self, {name!r}, {value})\n")
        if hasattr(cls, "__post_init__"):
            lines.append(" __self.__post_init__()\n")
        signature = ", ".join([*positional, *(["*"] if named else []), *named])
        exec(f"def __init__({signature}):\n{''.join(lines) or ' pass'}", names)
        made = names["__init__"]
        arguments = {name: annotation for name, (annotation, field) in self.fields().items() if field.init}
        made.__annotations__ = {**arguments, "return": None}
        return made

    def _repr(self) -> Callable[..., str]:
        names = [name for name, (_, field) in self.fields().items() if field.repr]

        def __repr__(self_: Any) -> str:
            texts = [f"{name}={getattr(self_, name)!r}" for name in names]
            return f"{type(self_).__qualname__}({', '.join(texts)})"

        return reprlib.recursive_repr()(__repr__)

    def _eq(self) -> Callable[..., Any]:
        values = _values([name for name, (_, field) in self.fields().items() if field.compare])

        def __eq__(self_: Any, other: Any) -> Any:
            if self_ is other:
                return True
            return values(self_) == values(other) if other.__class__ is self_.__class__ else NotImplemented

        return __eq__

    def _hash(self) -> Callable[..., int]:
        fields = self.fields().items()
        values = _values([name for name, (_, field) in fields if (field.compare if field.hash is None else field.hash)])

        def __hash__(self_: Any) -> int:
            return hash(values(self_))

        return __hash__


def field_names(instance: object) -> list[str] | None:
    """Return the field names of a data class's instance, in order; None for other objects.

    The standard library's `fields` would create more parts of the class.
    """
    lazy_parts: _LazyParts | None = vars(type(instance)).get(_NAME)
    if lazy_parts is not None:
        return [*lazy_parts.fields()]
    return [field.name for field in dataclasses.fields(instance)] if dataclasses.is_dataclass(instance) else None


_MAKERS = {
    "__init__": _LazyParts._init,
    "__repr__": _LazyParts._repr,
    "__eq__": _LazyParts._eq,
    "__hash__": _LazyParts._hash,
}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns a tuple of these attributes."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda of: tuple([getattr(of, name) for name in names])


class _LazyAttribute:
    """A class attribute that is created at the first access."""

    def __init__(self, lazy_parts: _LazyParts, name: str) -> None:
        self._lazy_parts, self._name = lazy_parts, name

    def __get__(self, instance: object, owner: type) -> Any:
        if self._name == "__signature__":
            if instance is None:
                return self._lazy_parts.signature(owner)
            raise AttributeError(f"{owner.__name__!r} object has no attribute '__signature__'")
        self._lazy_parts.made(self._name)
        return getattr(owner if instance is None else instance, self._name)


def _refusals(cls: Any) -> dict[str, Callable[..., None]]:
    """Return the methods that make instances immutable, as the library's do."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}
