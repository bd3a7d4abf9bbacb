"""Sizes that remember what they were computed from, so that a graph made for some sizes can be made for others.

A `Size` is a number in the place of an int (or of a float that was made of one). Sums, products and quotients of sizes
are sizes; what is asked of one, such as whether it equals another, is noted with the answer. Whatever needs the number
itself, such as NumPy, a format or a hash, gets it, and it is noted that it must be that number. What a program computed
from sizes therefore holds for all others that give the same answers: `Trace.numbers` says whether these do, and what
the sizes are then.

Constants that hold sizes, as shapes of Reshape do, are arrays of objects (`sizes_array`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

INT64 = np.dtype(np.int64)
SIZES = np.dtype(object)  # of a constant that holds sizes


class _Step(NamedTuple):
    """One thing that was computed or asked: a function of earlier numbers, and the answer where it was a question."""

    function: Callable[..., Any] | None  # None: a constant, which `operands` holds
    operands: tuple[Any, ...]
    answer: bool | None = None


class Trace:
    """What was computed from some sizes, and what was asked of it.

    Parameters
    ----------
    numbers : sequence of int
        The sizes that everything follows from.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._count = len(numbers)
        self._steps: list[_Step] = []
        self._known: dict[Hashable, int] = {}
        self._made: dict[int, Size] = {}
        self.inputs = [self._size(at, number) for at, number in enumerate(numbers)]

    def numbers(self, inputs: Sequence[int]) -> list[Any] | None:
        """All numbers for other sizes, by their places; None where something that was asked has another answer."""
        numbers: list[Any] = list(inputs)
        try:
            for function, operands, answer in self._steps:
                if function is None:
                    numbers.append(operands[0])
                    continue
                result = function(*[numbers[at] for at in operands])
                if answer is not None and result is not answer:
                    return None
                numbers.append(result)
        except ArithmeticError:
            return None
        return numbers

    def computed(self, function: Callable[..., Any], *operands: Any) -> Any:
        """A function of sizes and plain numbers, as a size."""
        number = function(*map(_plain, operands))
        return self._size(self._place(_Step(function, self._places(operands))), number)

    def asked(self, function: Callable[..., Any], *operands: Any) -> bool:
        """The answer to a question of sizes and plain numbers, which is noted."""
        answer = bool(function(*map(_plain, operands)))
        self._place(_Step(function, self._places(operands), answer))
        return answer

    def _size(self, place: int, number: Any) -> Size:
        return self._made.setdefault(place, Size(self, place, number))

    def _places(self, operands: Sequence[Any]) -> tuple[int, ...]:
        return tuple(each.place if type(each) is Size else self._place(_Step(None, (each,))) for each in operands)

    def _place(self, step: _Step) -> int:
        """Of a step, the same for equal ones."""
        key = (step.function, tuple((type(each), repr(each)) for each in step.operands))
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = self._count + len(self._steps)
            self._steps.append(step)
        return place


def _computes(function: Callable[..., Any], turned: bool = False) -> Any:
    def method(self: Size, *others: Any) -> Any:
        if not all(map(_is_number, others)):
            return NotImplemented
        return self.trace.computed(function, *((*others, self) if turned else (self, *others)))

    return method


def _asks(function: Callable[..., Any]) -> Any:
    def method(self: Size, other: Any) -> Any:
        return self.trace.asked(function, self, other) if _is_number(other) else NotImplemented

    return method


def _needs(function: Callable[..., Any]) -> Any:
    """What depends on the very number."""

    def method(self: Size, *others: Any) -> Any:
        return function(self.exact(), *others)

    return method


def _not_equal_zero(number: Any) -> bool:
    return number != 0


class Size:
    """A number that a trace follows. It passes for one of its type, but is none: what is written in C asks for it.

    Attributes
    ----------
    trace : Trace
    place : int
        Where `Trace.numbers` has it.
    """

    __slots__ = ("_number", "place", "trace")

    def __init__(self, trace: Trace, place: int, number: Any) -> None:
        self.trace, self.place, self._number = trace, place, number

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._number)

    def exact(self) -> Any:
        """The number, which others must equal from now on."""
        self.trace.asked(operator.eq, self, self._number)
        return self._number

    def __bool__(self) -> bool:
        return self.trace.asked(_not_equal_zero, self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a size that is followed cannot be kept")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # NumPy asks whether it is an array
            raise AttributeError(name)
        return getattr(self.exact(), name)

    __add__, __radd__ = _computes(operator.add), _computes(operator.add, turned=True)
    __sub__, __rsub__ = _computes(operator.sub), _computes(operator.sub, turned=True)
    __mul__, __rmul__ = _computes(operator.mul), _computes(operator.mul, turned=True)
    __truediv__, __rtruediv__ = _computes(operator.truediv), _computes(operator.truediv, turned=True)
    __floordiv__, __rfloordiv__ = _computes(operator.floordiv), _computes(operator.floordiv, turned=True)
    __mod__, __rmod__ = _computes(operator.mod), _computes(operator.mod, turned=True)
    __neg__, __abs__, __pos__ = _computes(operator.neg), _computes(operator.abs), _computes(operator.pos)
    __floor__, __ceil__, __trunc__ = _computes(math.floor), _computes(math.ceil), _computes(math.trunc)
    __eq__, __ne__ = _asks(operator.eq), _asks(operator.ne)
    __lt__, __le__ = _asks(operator.lt), _asks(operator.le)
    __gt__, __ge__ = _asks(operator.gt), _asks(operator.ge)
    __hash__ = _needs(hash)
    __index__, __int__, __float__ = _needs(operator.index), _needs(int), _needs(float)
    __str__, __repr__, __format__ = _needs(str), _needs(repr), _needs(format)
    __round__, __pow__, __divmod__ = _needs(round), _needs(operator.pow), _needs(divmod)
    __rpow__ = _needs(lambda number, other: other**number)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool, Size) or isinstance(value, np.number)


def _plain(value: Any) -> Any:
    return value._number if type(value) is Size else value.item() if isinstance(value, np.number) else value


# --- where sizes are ------------------------------------------------------------------------------------------------


def sizes_array(sizes: Iterable[Any]) -> np.ndarray:
    """Sizes as a constant: of int64, or of objects where one of them is followed."""
    sizes = list(sizes)
    followed = any(type(size) is Size for size in sizes)
    array = np.empty(len(sizes), SIZES) if followed else np.array(sizes, INT64)
    if followed:
        array[:] = sizes
    return array


def is_followed(size: Any) -> bool:
    """Whether a size is one that a trace follows."""
    return type(size) is Size


def own(value: Hashable) -> Hashable:
    """What equals that of another value where both are the same; a size that is followed equals only itself."""
    return (Size.__name__, value.place) if type(value) is Size else value


def bits(array: np.ndarray) -> Hashable:
    """What equals that of another array where all elements are the same, bit by bit; as `own` of sizes."""
    return array.tobytes() if array.dtype != SIZES else tuple(map(own, array.ravel().tolist()))
