"""Symbolic sizes: numbers with a record of their computation, so that a graph made for some sizes serves others.

A `Size` replaces an int (or a float computed from one). Sums, products and quotients of sizes are sizes. The result of
each comparison of sizes is recorded. Code that needs the number itself, such as NumPy, formatting or hashing, gets it,
and the trace records that the size must equal this number. Results computed from sizes are therefore valid for all
other sizes with the same recorded answers. `Trace.numbers` checks these answers, and computes all numbers for other
sizes.

Constants that contain sizes, such as shapes for Reshape, are arrays of objects (`sizes_array`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from cpuconv.symbolic.emitted import emitted

INT64 = np.dtype(np.int64)
SIZES = np.dtype(object)  # dtype of a constant that contains sizes
_INTERPRETED = 8  # interpreted calls before a function is compiled, which costs as much as about 20 calls save


class _Step(NamedTuple):
    """One computed number: a function of earlier numbers."""

    function: Callable[..., Any] | None  # None: a constant, stored in `operands`
    operands: tuple[Any, ...]


class Trace:
    """Computations on symbolic sizes, and the answers of comparisons.

    Parameters
    ----------
    numbers : sequence of int
        The sizes from which everything is computed.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._count = len(numbers)
        self._steps: list[_Step] = []
        self._answers: dict[int, bool] = {}  # answers of the steps that are comparisons, by place
        self._known: dict[Hashable, int] = {}
        self._made: dict[int, Size] = {}
        self._strict = False
        self.inputs = [self._size(at, number) for at, number in enumerate(numbers)]

    def numbers(self, inputs: Sequence[int]) -> list[Any] | None:
        """Compute all numbers for other sizes, by place; None if a comparison has another answer."""
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
        """Copy the trace, to continue it separately for other sizes; `numbers`: the result of `numbers` for these."""
        made = Trace(numbers[: self._count])
        made._steps, made._answers, made._known = [*self._steps], {**self._answers}, {**self._known}
        return made

    @contextlib.contextmanager
    def strictly(self) -> Iterator[None]:
        """Raise `TypeError` in this context where code needs a size's number; answers are then not recorded."""
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
        """Make a function of other sizes that returns `results`, or None if an answer differs, as `numbers`.

        `results` are sizes of this trace, or other objects, which are returned unchanged.
        """
        return _Evaluated(self, results)

    def emitted(self, results: Sequence[Any]) -> Callable[[Sequence[int]], list[Any] | None]:
        """Compile `function` to Python code, which takes a quarter of the time."""
        return emitted(self._count, self._steps, self._answers, results, is_symbolic)

    def computed(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Apply a function to sizes and plain numbers, and record the result as a size."""
        number = function(*map(_plain, operands))
        return self._size(self._place(_Step(function, self._places(operands))), number)

    def compared(self, function: Callable[..., Any], *operands: Any) -> bool:
        """Answer a comparison of sizes and plain numbers, and record the answer."""
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
        """The place of a step; equal steps share one."""
        key = (step.function, step.operands) if step.function else (None, _told(step.operands[0]))
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = self._count + len(self._steps)
            self._steps.append(step)
        return place


class _Evaluated:
    """Results of a trace for other sizes: interpreted in the first calls, then computed by a compiled function.

    Most traces serve only few sizes. Several threads may call it.
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
                return None if known is None else [known[each.place] if is_symbolic(each) else each for each in results]
            self._emitted = trace.emitted(results)
            self._source = None  # only after its replacement is set
        return self._emitted(sizes)


def _told(constant: Any) -> Hashable:
    """A key that is equal for identical constants only: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    return type(constant), repr(constant)


def _computes(function: Callable[..., Any], turned: bool = False) -> Any:
    def method(self: Size, *others: Any) -> Any:
        if not all(map(_is_number, others)):
            return NotImplemented
        return self.trace.computed(function, *((*others, self) if turned else (self, *others)))

    return method


def _asks(function: Callable[..., Any]) -> Any:
    def method(self: Size, other: Any) -> Any:
        return self.trace.compared(function, self, other) if _is_number(other) else NotImplemented

    return method


def _needs(function: Callable[..., Any]) -> Any:
    """Make a method that needs the number itself."""

    def method(self: Size, *others: Any) -> Any:
        return function(self.exact(), *others)

    return method


def _not_equal_zero(number: Any) -> bool:
    return number != 0


class Size:
    """A number whose computation a trace records.

    `isinstance` accepts it as an int or float, but C code gets the number by `__index__` or `__float__`.

    Attributes
    ----------
    trace : Trace
    place : int
        Index in the result of `Trace.numbers`.
    """

    __slots__ = ("_number", "place", "trace")

    def __init__(self, trace: Trace, place: int, number: Any) -> None:
        self.trace, self.place, self._number = trace, place, number

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._number)

    def exact(self) -> Any:
        """The number itself; the trace records that other sizes must equal it."""
        if self.trace._strict:
            raise TypeError("a symbolic size has no value")
        self.trace.compared(operator.eq, self, self._number)
        return self._number

    def __bool__(self) -> bool:
        return self.trace.compared(_not_equal_zero, self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a symbolic size cannot be pickled")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # NumPy queries array interfaces
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

_traces = 0  # traces being recorded, by all threads


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Bypass the caches of `memoised` functions in this context, as they would hash sizes."""
    global _traces
    _traces += 1
    try:
        yield
    finally:
        _traces -= 1


def memoised(maxsize: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: `functools.lru_cache` for a function of sizes; the cache is bypassed while sizes are traced."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        known = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def wrapper(*arguments: Any) -> Any:
            return function(*arguments) if _traces else known(*arguments)

        return wrapper

    return decorated


# --- helpers for sizes ------------------------------------------------------------------------------------------------


def sizes_array(sizes: Iterable[Any]) -> np.ndarray:
    """Make a constant of sizes: int64, or objects if one of them is symbolic."""
    sizes = list(sizes)
    is_any_symbolic = any(type(size) is Size for size in sizes)
    array = np.empty(len(sizes), SIZES) if is_any_symbolic else np.array(sizes, INT64)
    if is_any_symbolic:
        array[:] = sizes
    return array


def now(size: Any) -> Any:
    """The current number of a size, without a record: for choices that are valid, if slower, for other sizes."""
    return _plain(size)


def least(first: Any, *others: Any) -> Any:
    """The minimum of numbers; symbolic if one of them is, without a recorded comparison."""
    return applied(min, first, *others)


def greatest(first: Any, *others: Any) -> Any:
    """The maximum of numbers, as `least`."""
    return applied(max, first, *others)


def applied(function: Callable[..., Any], *operands: Any) -> Any:
    """Apply a function to numbers; if one is a symbolic size, the result is a size, and the call is recorded."""
    hidden = (*function.args, *function.keywords.values()) if isinstance(function, functools.partial) else ()
    if any(type(each) is Size for each in hidden):
        raise TypeError("a function has a symbolic size among its bound arguments")
    symbolic = next((each for each in operands if type(each) is Size), None)
    return function(*operands) if symbolic is None else symbolic.trace.computed(function, *operands)


def item(numbers: Any, at: int) -> Any:
    """An element of a tuple, or of a symbolic tuple."""
    return applied(operator.getitem, numbers, at)


def items_of(numbers: Any) -> list[Any]:
    """The elements of a tuple, as `item`."""
    return [item(numbers, at) for at in range(len(now(numbers)))]


def is_symbolic(size: Any) -> TypeGuard[Any]:
    """Whether a size is symbolic."""
    return type(size) is Size


def element_key(value: Hashable) -> Hashable:
    """A key that is equal for equal values; a symbolic size equals only itself."""
    return (Size.__name__, value.place) if type(value) is Size else value


def array_key(array: np.ndarray) -> Hashable:
    """A key that is equal for bit-identical arrays; symbolic sizes as in `element_key`."""
    return array.tobytes() if array.dtype != SIZES else tuple(map(element_key, array.ravel().tolist()))


class Affine(NamedTuple):
    """An int64 array that is an affine function of sizes.

    Attributes
    ----------
    base : numpy.ndarray
        The array for sizes of 0.
    terms : tuple of (Size, numpy.ndarray)
        Symbolic sizes with their coefficients.
    """

    base: np.ndarray
    terms: tuple[tuple[Size, np.ndarray], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.base.shape

    @property
    def itemsize(self) -> int:
        """Size of an element, in bytes."""
        return self.base.itemsize

    @property
    def nbytes(self) -> int:
        """Size of the array, in bytes."""
        return self.base.nbytes


def affine(make: Callable[..., np.ndarray], *sizes: Any) -> Any:
    """Call `make(*sizes)`, which must be affine in the sizes."""
    symbolic = [at for at, size in enumerate(sizes) if type(size) is Size]
    if not symbolic:
        return make(*sizes)
    fixed = [0 if type(size) is Size else size for size in sizes]
    base = make(*fixed)
    units = ([int(other == at) if other in symbolic else size for other, size in enumerate(fixed)] for at in symbolic)
    return Affine(base, tuple((sizes[at], make(*unit) - base) for at, unit in zip(symbolic, units, strict=True)))
