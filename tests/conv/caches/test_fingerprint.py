"""Fingerprints of weights: content decides, every bit of it."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpuconv.conv.caches.fingerprint import _LARGE, Fingerprinter
from cpuconv.isa import current
from cpuconv.kernels.streams.fingerprint import BLOCK
from support import oracle

VECTOR = current().lanes
EDGES = [0, 1, VECTOR - 1, VECTOR, VECTOR + 1, 8 * VECTOR + 3, BLOCK * VECTOR, BLOCK * VECTOR + 1, 3 * BLOCK * VECTOR]


@functools.cache
def made() -> Fingerprinter:
    return Fingerprinter()


def fingerprint(array: np.ndarray, threads: int = 1) -> object:
    """By the same keys in all tests."""
    return made()(array, threads)


def copied(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that starts `offset` floats after a cache line."""
    memory = np.empty(array.size + offset + 16, np.float32)
    start = -memory.ctypes.data // 4 % 16 + offset
    copy = memory[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("size", EDGES)
def test_equal_content_wherever_it_lies(size):
    array = oracle.normal((size,), 3)
    assert len({fingerprint(copied(array, offset)) for offset in (0, 1, 7)}) == 1
    assert fingerprint(np.append(array, np.float32(0))) != fingerprint(array)
    assert fingerprint(array.reshape(1, size)) != fingerprint(array)


@settings(max_examples=150)
@given(st.sampled_from(EDGES[1:]), st.data())
def test_every_bit_counts(size, data):
    array = oracle.normal((size,), 4)
    words = array.view(np.uint32)
    before = fingerprint(array)
    for place in data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4, unique=True)):
        words[place] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    assert fingerprint(array) != before


@settings(max_examples=60)
@given(st.integers(2, 5 * BLOCK), st.data())
def test_the_order_of_content_counts(vectors, data):
    array = oracle.normal((vectors, VECTOR), 5)
    before = fingerprint(array)
    a, b = data.draw(st.lists(st.integers(0, vectors - 1), min_size=2, max_size=2, unique=True))
    array[[a, b]] = array[[b, a]]
    assert fingerprint(array) != before


def test_kinds_of_zero_and_nan_differ():
    zeros = np.zeros(40, np.float32)
    assert fingerprint(zeros) != fingerprint(-zeros)
    assert fingerprint(zeros * np.nan) == fingerprint(zeros * np.nan)


@pytest.mark.parametrize("size", [_LARGE // 4 - 1, _LARGE // 4, _LARGE // 4 + 12345])
def test_large_arrays_on_any_number_of_threads(size):
    array = oracle.normal((size,), 6)
    found = fingerprint(array, oracle.THREADS)
    assert found == fingerprint(array, 1)
    for place in (0, size // 2, size - 1):
        changed = array.copy()
        changed[place] += 1
        assert fingerprint(changed, oracle.THREADS) != found


def test_strided_arrays():
    array = oracle.normal((6, 5, 3, 4), 7)
    plain = fingerprint(array)
    padded = np.zeros((6, 5, 3, 9), np.float32)
    padded[..., ::2][..., :4] = array
    assert fingerprint(padded[..., ::2][..., :4]) == plain  # gaps
    assert fingerprint(np.ascontiguousarray(array[::-1])[::-1]) == plain
    assert fingerprint(np.broadcast_to(array[:1], array.shape)) == fingerprint(np.repeat(array[:1], 6, axis=0))
    last = array.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    assert fingerprint(last) == fingerprint(last.copy(order="K"))
    turned = np.asfortranarray(array)
    turned[2, 3, 1, 1] += 1
    assert fingerprint(turned) != fingerprint(np.asfortranarray(array))
    square = oracle.normal((4, 4), 8)
    for first, second in ((square, square.T), (square.T, square)):
        fresh = Fingerprinter()
        assert fresh(first) != fresh(second)


def test_keys_are_drawn():
    array = oracle.normal((1000,), 9)
    assert Fingerprinter()(array) != Fingerprinter()(array)


def test_eight_threads():
    arrays = [oracle.normal((_LARGE // 4 + i,), i) for i in range(4)] + [oracle.normal((100 + i,), i) for i in range(4)]
    expected = [fingerprint(array) for array in arrays]
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda turn: [fingerprint(array, 1 + turn % 2) for array in arrays], range(32)):
            assert found == expected
