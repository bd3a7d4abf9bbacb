"""Data classes that are made at their first use are those of the standard library."""

from __future__ import annotations

import abc
import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from threading import Barrier
from typing import Any, ClassVar

import pytest

from baselib import data_classes
from support.running.processes import ROOT, SHIPPED


def plain(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True)
    class Plain:
        """Three fields."""

        x: int
        y: tuple[int, ...] = (1, 2)
        z: list[int] = field(default_factory=list, compare=False)
        told = "not a field"

        @property
        def double(self) -> int:
            return 2 * self.x

    return Plain


def with_others(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True)
    class WithOthers:
        """A field and what is none."""

        x: int
        shared: ClassVar[int] = 7

    return WithOthers


def partly(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True)
    class Partly:
        """Fields that are not arguments, not told, not compared, and not hashed."""

        self: int
        told: int = field(default=2, repr=False)
        made: list[int] = field(default_factory=list, init=False, hash=False)
        set: int = field(init=False, compare=False)
        later: int = field(default=4, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "set", self.told + 1)

    return Partly


def empty(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True)
    class Empty:
        """No field."""

    return Empty


def checked(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True)
    class Checked(plain(dataclass)):  # type: ignore[misc]
        """One more."""

        w: int = field(default=3, repr=False)

        def __post_init__(self) -> None:
            if self.w < 0:
                raise ValueError("w is below zero")

    return Checked


def ordered(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True, order=True)
    class Ordered:
        """Those are in an order."""

        x: int
        y: int = 2

    return Ordered


def by_name(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True, kw_only=True)
    class ByName:
        """Arguments have names."""

        x: int
        y: int = 2

    return ByName


def own_methods(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True)
    class OwnMethods:
        """Methods of its own."""

        x: int

        def __repr__(self) -> str:
            return f"own {self.x}"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OwnMethods)

    return OwnMethods


def own_hash(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True)
    class OwnHash:
        """A hash of its own."""

        x: int

        def __hash__(self) -> int:
            return 5

    return OwnHash


def by_identity(dataclass: Callable[..., Any]) -> type:
    @dataclass(frozen=True, eq=False, repr=False)
    class ByIdentity:
        """Nothing is compared."""

        x: int

    return ByIdentity


def abstract(dataclass: Callable[..., Any]) -> type:
    class Base(abc.ABC):
        @abc.abstractmethod
        def size(self) -> int: ...

    @dataclass(frozen=True)
    class Derived(Base):
        """It may be made."""

        x: int

        def size(self) -> int:
            return self.x

    return Derived


KINDS = (plain, with_others, partly, empty, checked, ordered, by_name, own_methods, own_hash, by_identity, abstract)
PUT_OFF = tuple(kind for kind in KINDS if kind not in (with_others, ordered))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_class_is_as_the_standard_library_makes_it(kind) -> None:
    ours, theirs = kind(data_classes.dataclass), kind(dataclasses.dataclass)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert [repr(each) for each in dataclasses.fields(ours)] == [repr(each) for each in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    assert vars(ours).keys() - {"__annotations__", "__lazy_parts__"} == vars(theirs).keys() - {"__annotations__"}
    assert (ours.__name__, ours.__qualname__, ours.__doc__) == (theirs.__name__, theirs.__qualname__, theirs.__doc__)
    for name, value in vars(theirs).items():
        mine = vars(ours)[name]
        assert type(mine) is type(value), name
        assert getattr(mine, "__qualname__", None) == getattr(value, "__qualname__", None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "call",
    [
        lambda each: each(),
        lambda each: each(1),
        lambda each: each(x=1),
        lambda each: each(1, 2),
        lambda each: each(x=1, y=2),
        lambda each: each(1, 2, [3]),
        lambda each: each(1, x=1),
        lambda each: each(1, v=1),
        lambda each: each(1, 2, 3, 4, 5, 6),
        lambda each: each(1, w=-1),
        lambda each: each(1, w=5),
        lambda each: each(1, later=5),
        lambda each: dataclasses.replace(each(x=1), x=7),
        lambda each: (each(x=1) == each(x=1), each(x=1) == each(x=2), each(x=1) != 1),
        lambda each: hash(each(1, 2)) == hash(each(1, 2)),
        lambda each: each(x=1) < each(x=2),
        lambda each: setattr(each(x=1), "x", 2),
        lambda each: setattr(each(x=1), "another", 2),
        lambda each: delattr(each(x=1), "x"),
        lambda each: dataclasses.asdict(each(x=1)),
        lambda each: copy.deepcopy(each(1)).__dict__,
    ],
)
def test_instances_are_as_the_standard_librarys(kind, call) -> None:
    def seen(each: type) -> str:
        try:
            return re.sub("at 0x[0-9a-f]+", "", repr(call(each)))
        except (AttributeError, TypeError, ValueError) as error:
            return repr(error)

    first, compiled = kind(data_classes.dataclass), kind(data_classes.dataclass)
    inspect.signature(compiled)  # makes `__init__`
    assert seen(first) == seen(compiled) == seen(kind(dataclasses.dataclass))


@pytest.mark.parametrize("kind", PUT_OFF, ids=lambda kind: kind.__name__)
def test_nothing_is_made_before_the_first_use(kind, monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the library makes it")

    monkeypatch.setattr(dataclasses, "dataclass", refuse)
    ours = kind(data_classes.dataclass)
    stands_in = vars(ours)["__init__"]
    arguments = inspect.signature(kind(data_classes.dataclass)).parameters  # of another class: it makes `__init__`
    for at in range(data_classes._UNCOMPILED_INSTANCES + 1):
        assert (vars(ours)["__init__"] is stands_in) == (at <= data_classes._UNCOMPILED_INSTANCES)
        ours(**dict.fromkeys(list(arguments)[:1], 1))
    assert vars(ours)["__init__"] is not stands_in
    assert data_classes.field_names(object.__new__(ours)) == [each.name for each in dataclasses.fields(ours)]
    with pytest.raises(AssertionError, match="the library makes it"):
        ours.__dataclass_params__  # noqa: B018
    monkeypatch.undo()
    assert ours.__dataclass_fields__ is ours.__dataclass_fields__


def test_instances_are_as_ever() -> None:
    one = checked(data_classes.dataclass)(1)
    assert (one.x, one.y, one.z, one.w, one.told, one.double) == (1, (1, 2), [], 3, "not a field", 2)
    assert one == dataclasses.replace(one, z=[4])
    assert one != dataclasses.replace(one, w=4)
    assert hash(one) == hash(copy.copy(one))
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'w'"):
        del one.w
    with pytest.raises(ValueError, match="w is below zero"):
        type(one)(1, w=-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'v'"):
        type(one)(1, v=1)


def test_a_class_that_follows_without_a_decorator_sets_what_it_likes() -> None:
    class Follower(plain(data_classes.dataclass)):  # type: ignore[misc]
        def __init__(self, x: int) -> None:
            super().__init__(x)
            self.more = 1

    one = Follower(1)
    assert (one.x, one.more) == (1, 1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2


def test_what_is_made_without_init_is_whole() -> None:
    for use in (repr, hash, lambda one: one == one, lambda one: one.__dataclass_fields__):
        ours = plain(data_classes.dataclass)
        one = ours.__new__(ours)  # as pickle does
        vars(one).update(x=1, y=(), z=[])
        assert use(one) == use(ours(1, (), one.z))


@data_classes.dataclass(frozen=True)
class Sent:
    """A class that pickle finds."""

    x: int


def test_instances_are_pickled() -> None:
    assert {pickle.loads(pickle.dumps(Sent(3)))} == {Sent(3)}


def test_a_class_may_be_used_first_by_many_threads() -> None:
    count = 8
    barrier = Barrier(count)

    def make(ours: type) -> Any:
        barrier.wait()
        return ours(x=1)

    with ThreadPoolExecutor(count) as pool:
        for _ in range(30):
            ours = checked(data_classes.dataclass)
            assert {*pool.map(make, [ours] * count)} == {ours(1)}


def test_what_the_standard_library_refuses_is_refused() -> None:
    def wrong(dataclass: Callable[..., Any]) -> type:
        @dataclass(frozen=True)
        class Wrong:
            x: int

            def __setattr__(self, name: str, value: Any) -> None: ...

        return Wrong

    with pytest.raises(TypeError, match="Cannot overwrite attribute __setattr__"):
        wrong(data_classes.dataclass)


def test_every_class_of_the_packages_can_be_made() -> None:
    """What the library refuses of a class it refuses at the first use."""
    for package in SHIPPED:
        for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ModuleNotFoundError as error:
                    assert error.name in ("mlserver", "torch"), error  # optional
    todo, found = [object], set()
    while todo:
        new = {each for each in type.__subclasses__(todo.pop())} - found
        found |= new
        todo += [each for each in new if each is not type]
    ours = [each for each in found if each.__module__.partition(".")[0] in SHIPPED]
    made = [each for each in ours if dataclasses.is_dataclass(each)]
    assert len(made) > 200
    for each in made:
        assert {field.name for field in dataclasses.fields(each)} >= set(inspect.signature(each).parameters) - {"self"}


def test_frozen_classes_of_the_packages_are_put_off() -> None:
    early = re.compile(r"^from dataclasses import .*\bdataclass\b", re.MULTILINE)
    for package in ("autotune", "baselib", "cpuconv"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            at_once = "@dataclass(frozen=True" in text and early.search(text)
            assert not at_once or path.name == "data_classes.py", path
