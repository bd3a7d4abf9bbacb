"""Sizes that remember what they were computed from, so that a graph made for some sizes can be made for others.

A `Size` is a number in the place of an int (or of a float that was made of one). Sums, products and quotients of sizes
are sizes; what is asked of one, such as whether it equals another, is noted with the answer. Whatever needs the number
itself, such as NumPy, a format or a hash, gets it, and it is noted that it must be that number. What a program computed
from sizes therefore holds for all others that give the same answers: `Trace.numbers` says whether these do, and what
the sizes are then.

Constants that hold sizes, as shapes of Reshape do, are arrays of objects (`sizes_array`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from cpuconv.following.emitted import emitted

INT64 = np.dtype(np.int64)
SIZES = np.dtype(object)  # of a constant that holds sizes
_INTERPRETED = 8  # calls of a function before it is emitted: that takes as long as some 20 save


class _Step(NamedTuple):
    """One number that was computed: a function of earlier numbers."""

    function: Callable[..., Any] | None  # None: a constant, which `operands` holds
    operands: tuple[Any, ...]


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
        self._answers: dict[int, bool] = {}  # of the steps that are questions, by place
        self._known: dict[Hashable, int] = {}
        self._made: dict[int, Size] = {}
        self._strict = False
        self.inputs = [self._size(at, number) for at, number in enumerate(numbers)]

    def numbers(self, inputs: Sequence[int]) -> list[Any] | None:
        """All numbers for other sizes, by their places; None where something that was asked has another answer."""
        numbers: list[Any] = list(inputs)
        answers = self._answers
        try:
            for place, (function, operands) in enumerate(self._steps, self._count):
                if function is None:
                    numbers.append(operands[0])
                    continue
                result = function(*[numbers[at] for at in operands])
                if place in answers and answers[place] is not bool(result):
                    return None
                numbers.append(result)
        except ArithmeticError:
            return None
        return numbers

    def forked(self, numbers: Sequence[Any]) -> Trace:
        """A trace that goes on from here by itself, for other sizes; `numbers` are what `numbers` gave for these."""
        made = Trace(numbers[: self._count])
        made._steps, made._answers, made._known = [*self._steps], {**self._answers}, {**self._known}
        return made

    @contextlib.contextmanager
    def strictly(self) -> Iterator[None]:
        """Meanwhile what needs the very number of a size raises `TypeError`; then what was asked is not noted."""
        before, self._strict, answers = self._strict, True, {**self._answers}
        try:
            yield
        except Exception:
            self._answers = answers
            raise
        finally:
            self._strict = before

    def at(self, place: int, number: Any) -> Size:
        """The size at a place."""
        return self._size(place, number)

    def function(self, results: Sequence[Any]) -> Callable[[Sequence[int]], list[Any] | None]:
        """A function of other sizes: what `results` are then, or None as of `numbers`.

        `results` are sizes of this trace, or any other objects, which stay what they are.
        """
        return _Evaluated(self, results)

    def emitted(self, results: Sequence[Any]) -> Callable[[Sequence[int]], list[Any] | None]:
        """The same as a Python function, which takes a quarter of the time."""
        return emitted(self._count, self._steps, self._answers, results, is_followed)

    def computed(self, function: Callable[..., Any], *operands: Any) -> Any:
        """A function of sizes and plain numbers, as a size."""
        number = function(*map(_plain, operands))
        return self._size(self._place(_Step(function, self._places(operands))), number)

    def asked(self, function: Callable[..., Any], *operands: Any) -> bool:
        """The answer to a question of sizes and plain numbers, which is noted."""
        answer = bool(function(*map(_plain, operands)))
        self._answers[self._place(_Step(function, self._places(operands)))] = answer
        return answer

    def _size(self, place: int, number: Any) -> Size:
        made = self._made.get(place)
        if made is None:
            made = self._made[place] = Size(self, place, number)
        return made

    def _places(self, operands: Sequence[Any]) -> tuple[int, ...]:
        return tuple(each.place if type(each) is Size else self._place(_Step(None, (each,))) for each in operands)

    def _place(self, step: _Step) -> int:
        """Of a step, the same for equal ones."""
        key = (step.function, step.operands) if step.function else (None, _told(step.operands[0]))
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = self._count + len(self._steps)
            self._steps.append(step)
        return place


class _Evaluated:
    """Results of a trace for other sizes: interpreted at first, as many serve few sizes, then by an emitted function.

    Several threads may call it.
    """

    def __init__(self, trace: Trace, results: Sequence[Any]) -> None:
        self._source: tuple[Trace, Sequence[Any]] | None = (trace, results)
        self._calls = 0

    def __call__(self, sizes: Sequence[int]) -> list[Any] | None:
        source = self._source
        if source is not None:
            trace, results = source
            self._calls += 1
            if self._calls <= _INTERPRETED:
                known = trace.numbers(sizes)
                return None if known is None else [known[each.place] if is_followed(each) else each for each in results]
            self._emitted = trace.emitted(results)
            self._source = None  # after what takes its place is there
        return self._emitted(sizes)


def _told(constant: Any) -> Hashable:
    """What equals that of another constant where both are the same: 1, 1.0 and True are not, nor 0.0 and -0.0."""
    return type(constant), repr(constant)


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
        if self.trace._strict:
            raise TypeError("the very number of a size is needed")
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
    __or__, __ror__ = _computes(operator.or_), _computes(operator.or_, turned=True)
    __and__, __rand__ = _computes(operator.and_), _computes(operator.and_, turned=True)
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


# --- caches ---------------------------------------------------------------------------------------------------------

_traces = 0  # that are being made, by any thread


@contextlib.contextmanager
def following() -> Iterator[None]:
    """Meanwhile `remembered` functions compute anew: they would ask sizes for hashes."""
    global _traces
    _traces += 1
    try:
        yield
    finally:
        _traces -= 1


def remembered(maxsize: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: `functools.lru_cache` of a function of sizes; nothing is looked up while sizes are followed."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        known = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def asked(*arguments: Any) -> Any:
            return function(*arguments) if _traces else known(*arguments)

        return asked

    return decorated


# --- where sizes are ------------------------------------------------------------------------------------------------


def sizes_array(sizes: Iterable[Any]) -> np.ndarray:
    """Sizes as a constant: of int64, or of objects where one of them is followed."""
    sizes = list(sizes)
    followed = any(type(size) is Size for size in sizes)
    array = np.empty(len(sizes), SIZES) if followed else np.array(sizes, INT64)
    if followed:
        array[:] = sizes
    return array


def now(size: Any) -> Any:
    """The number that a size is now, without a note: for choices that are right for any other, if slower."""
    return _plain(size)


def least(first: Any, *others: Any) -> Any:
    """The least of some numbers; of sizes that are followed a size, of which nothing is asked."""
    return applied(min, first, *others)


def greatest(first: Any, *others: Any) -> Any:
    """The greatest of some numbers, as `least`."""
    return applied(max, first, *others)


def applied(function: Callable[..., Any], *operands: Any) -> Any:
    """A function of numbers; where one is a size that is followed, a size, for others of which it is called again."""
    hidden = (*function.args, *function.keywords.values()) if isinstance(function, functools.partial) else ()
    if any(type(each) is Size for each in hidden):
        raise TypeError("a function holds a size that is followed")
    followed = next((each for each in operands if type(each) is Size), None)
    return function(*operands) if followed is None else followed.trace.computed(function, *operands)


def item(numbers: Any, at: int) -> Any:
    """An element of a tuple, or of what is followed as one."""
    return applied(operator.getitem, numbers, at)


def items_of(numbers: Any) -> list[Any]:
    """The elements of a tuple, as `item`."""
    return [item(numbers, at) for at in range(len(now(numbers)))]


def is_followed(size: Any) -> TypeGuard[Any]:
    """Whether a size is one that a trace follows."""
    return type(size) is Size


def own(value: Hashable) -> Hashable:
    """What equals that of another value where both are the same; a size that is followed equals only itself."""
    return (Size.__name__, value.place) if type(value) is Size else value


def bits(array: np.ndarray) -> Hashable:
    """What equals that of another array where all elements are the same, bit by bit; as `own` of sizes."""
    return array.tobytes() if array.dtype != SIZES else tuple(map(own, array.ravel().tolist()))


class Affine(NamedTuple):
    """An array of int64 that follows from sizes by sums and products.

    Attributes
    ----------
    base : numpy.ndarray
        Its elements where all sizes are 0.
    terms : tuple of (Size, numpy.ndarray)
        What is added for each unit of a size.
    """

    base: np.ndarray
    terms: tuple[tuple[Size, np.ndarray], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.base.shape

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.base.itemsize

    @property
    def nbytes(self) -> int:
        """As of an array."""
        return self.base.nbytes


def affine(make: Callable[..., np.ndarray], *sizes: Any) -> Any:
    """`make(*sizes)`, an array that depends on them by sums and products alone."""
    followed = [at for at, size in enumerate(sizes) if type(size) is Size]
    if not followed:
        return make(*sizes)
    fixed = [0 if type(size) is Size else size for size in sizes]
    base = make(*fixed)
    units = ([int(other == at) if other in followed else size for other, size in enumerate(fixed)] for at in followed)
    return Affine(base, tuple((sizes[at], make(*unit) - base) for at, unit in zip(followed, units, strict=True)))
