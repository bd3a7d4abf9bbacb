"""Sizes that are followed: what is computed from them holds for other sizes that answer the same questions alike."""

from __future__ import annotations

import functools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.symbolic import sizes
from cpuconv.symbolic.emitted import emitted as emit
from cpuconv.symbolic.sizes import (
    SIZES,
    Size,
    Trace,
    affine,
    applied,
    array_key,
    element_key,
    greatest,
    item,
    least,
    sizes_array,
)

SIZE = st.integers(1, 40)
COMPUTED = (
    lambda a, b: a + b,
    lambda a, b: 3 * a - b,
    lambda a, b: 7 - a,
    lambda a, b: a * b // 2,
    lambda a, b: -(-a // b),
    lambda a, b: a % b,
    lambda a, b: math.floor(a * 1.5),
    lambda a, b: math.ceil(a / b),
    lambda a, b: math.prod((a, b, 2)),
    lambda a, b: sum((a, b)),
    lambda a, b: max(a, b),
    lambda a, b: min(4, a, b),
    lambda a, b: abs(a - b),
    lambda a, b: a if a != b else 0,
    lambda a, b: b if a else a,
    lambda a, b: (a, 1) == (b, 1) and a,
    lambda a, b: a + np.int64(3),
)


def _followed(*numbers: int) -> tuple[Trace, list[Size]]:
    trace = Trace(numbers)
    return trace, trace.inputs


@given(st.sampled_from(COMPUTED), SIZE, SIZE, SIZE, SIZE)
def test_what_was_computed_holds_for_sizes_of_the_same_answers(compute, a, b, other_a, other_b):
    trace, (x, y) = _followed(a, b)
    made, _ = compute(x, y), compute(a, b)
    numbers = trace.numbers([other_a, other_b])
    if numbers is not None:
        assert (numbers[made.place] if type(made) is Size else made) == compute(other_a, other_b)
    same = trace.numbers([a, b])
    assert same is not None
    assert (same[made.place] if type(made) is Size else made) == compute(a, b)


def test_other_answers_are_other_graphs():
    trace, (x, y) = _followed(4, 9)
    assert x < y and (x + 5, 1) == (y, 1)
    assert trace.numbers([5, 10]) is not None and trace.numbers([5, 11]) is None
    assert trace.numbers([9, 4]) is None


@pytest.mark.parametrize(
    "needs",
    [hash, str, repr, "{:d}".format, int, float, range, [0, 1, 2, 3, 4].__getitem__, "ab".__mul__]
    + [round, np.zeros, lambda size: np.array([size], np.int64), lambda size: {size: 1}, lambda size: size.bit_length()]
    + [lambda size: np.broadcast_shapes((size,), (1,)), lambda size: 2**size, lambda size: divmod(size, 2)],
)
def test_whatever_needs_the_number_keeps_it(needs):
    trace, (x,) = _followed(3)
    needs(x)
    assert trace.numbers([3]) is not None and trace.numbers([4]) is None


def test_a_size_passes_for_a_number_of_its_type():
    _, (x,) = _followed(3)
    assert isinstance(x, int) and isinstance(x / 2, float) and not isinstance(x, str)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(x)


def test_what_fails_for_other_sizes_is_no_answer():
    trace, (x, y) = _followed(8, 2)
    assert type(x // y) is Size and trace.numbers([8, 0]) is None


def test_constants_of_sizes():
    trace, (x, y) = _followed(3, 3)
    array = sizes_array([x, 7, y])
    assert array.dtype == SIZES and [type(each) for each in array] == [Size, int, Size]
    assert sizes_array([3, 7]).dtype == np.int64
    assert array_key(array) == array_key(sizes_array([x, 7, y])) != array_key(sizes_array([y, 7, x]))
    assert element_key(x) != element_key(y) and element_key("x") == "x"
    assert trace.numbers([5, 6]) is not None  # nobody asked for a number


@given(st.sampled_from(COMPUTED), SIZE, SIZE, SIZE, SIZE)
def test_an_emitted_function_gives_what_the_trace_gives(compute, a, b, other_a, other_b):
    trace, (x, y) = _followed(a, b)
    made = compute(x, y)
    results = [made, 7, least(x, y, 5), greatest(x, 3), item(applied(divmod, x, y), 1)]
    numbers = trace.numbers([other_a, other_b])
    found = trace.emitted(results)([other_a, other_b])
    assert (numbers is None) == (found is None)
    if found is not None:
        right = [7, min(other_a, other_b, 5), max(other_a, 3), other_a % other_b]
        assert found == [compute(other_a, other_b), *right]


def test_a_function_that_is_called_often_is_emitted(monkeypatch):
    trace, (x, y) = _followed(6, 4)
    assert x > y
    function, emitted = trace.function([x + y, "kept"]), []
    monkeypatch.setattr(sizes, "emitted", lambda *told: emitted.append(told) or emit(*told))
    found = [function([at, 3]) for at in range(20)]
    assert found == [[at + 3, "kept"] if at > 3 else None for at in range(20)]
    assert len(emitted) == 1


def test_a_fork_goes_on_by_itself():
    trace, (x, y) = _followed(4, 9)
    assert x < y
    numbers = trace.numbers([5, 7])
    other = trace.forked(numbers)
    (a, b) = (other.at(0, 5), other.at(1, 7))
    assert a + b == 12
    assert other.numbers([6, 6]) is None and other.numbers([4, 8]) is not None
    assert trace.numbers([4, 9]) is not None


def test_strict_traces_refuse_numbers_and_forget_what_was_asked():
    trace, (x,) = _followed(3)
    with pytest.raises(TypeError, match="has no value"), trace.strictly():
        assert x > 2
        hash(x)
    assert trace.numbers([1]) is not None
    with trace.strictly():
        assert x > 2
    assert trace.numbers([1]) is None


def test_affine_arrays_follow_sizes():
    _, (x, y) = _followed(3, 5)
    made = affine(lambda plane, line: np.arange(4) * plane + np.arange(4)[::-1] * line + 1, x, y)
    base, terms = made.base, dict((size.place, factors) for size, factors in made.terms)
    np.testing.assert_array_equal(base + 3 * terms[0] + 5 * terms[1], [16, 14, 12, 10])
    assert isinstance(affine(lambda plane: np.arange(2) * plane, 3), np.ndarray)


def test_functions_that_hold_sizes_are_refused():
    _, (x, y) = _followed(3, 5)
    with pytest.raises(TypeError, match="bound arguments"):
        applied(functools.partial(min, x), y)
