"""Loads that widen and stores that narrow: every element type against NumPy, on whole vectors, masks and scalars."""

from __future__ import annotations

import ctypes
import functools
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from cpuconv.elements import BF16, F16, F32, S8, S16, S32, TABLE, U8, Element, from_bfloat16, to_bfloat16
from cpuconv.isa import current, typed
from cpuconv.isa.features import has_feature, rounds_to_half
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.loop import loop
from cpuconv.problem.arrays import address
from cpuconv.runtime import machine_code
from cpuconv.runtime.microkernel import MicroKernel
from support import guarded

ISA = current()
ALL = list(TABLE.values())
INTEGERS = [element for element in ALL if element.integer]
LANES = sorted({1, 4, 8, ISA.lanes} - ({8} if ISA.lanes < 8 else set()))
FIRST = 3  # elements that a mask lets through, where it is set


@dataclass(frozen=True)
class MoveTile:
    """Elements of one type to another, through floats or through int32; `first` of a masked vector, 0: all."""

    lanes: int
    source: Element
    target: Element
    through: str
    first: int


@MicroKernel
def move(tile, builder, source, target, vectors):
    """Vectors of `source`, which follow one another, to `target`."""
    vec = Vector(builder, tile.lanes)
    mask = vec.first_lanes_mask(tile.first) if tile.first else None
    load, store = {
        "float": (typed.load_as_float, typed.store_float),
        "int": (typed.load_as_int, typed.store_int),
    }[tile.through]

    def one(index):
        at = [builder.mul(index, I64(tile.lanes * element.bytes)) for element in (tile.source, tile.target)]
        places = [vec.offset(vec.pointer(word), offset) for word, offset in zip((source, target), at, strict=True)]
        store(vec, tile.target, load(vec, tile.source, places[0], mask), places[1], mask)

    loop(builder, 0, vectors, one)


@functools.cache
def compiled(tile: MoveTile):
    return machine_code.compiled(*move._written(tile))[2].function(ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3))


def moved(tile: MoveTile, source: np.ndarray) -> np.ndarray:
    """What the code makes of all of `source`, amid memory that ends."""
    assert source.dtype == tile.source.dtype and source.size % tile.lanes == 0
    spare = tile.lanes - (tile.first or tile.lanes)  # elements of the last vector that a mask leaves alone
    given = guarded.place(source[: source.size - spare], guarded.END)
    taken = guarded.room(given.size * tile.target.bytes, guarded.END).view(tile.target.dtype)
    with guarded.only(taken):
        compiled(tile)(address(given), address(taken), source.size // tile.lanes)
    return taken


def floats() -> np.ndarray:
    """Numbers of all magnitudes, ties between neighbours of the narrow types, infinities and NaN."""
    rng = np.random.default_rng(0)
    any_bits = rng.integers(0, 1 << 32, 4096, np.uint32).view(np.float32)
    ties = (rng.integers(0, 1 << 16, 1024, np.uint32) << 16 | 0x8000).view(np.float32)
    halves = rng.integers(0, 1 << 16, 1024, np.uint16).view(np.float16).astype(np.float32)
    between = (halves.view(np.uint32) + np.uint32(0x1000)).view(np.float32)  # ties of normal halves
    small = np.ldexp(rng.integers(-4096, 4096, 1024).astype(np.float32), -26)  # ties of subnormal halves
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.996, 65520, -65520, 1e-45, -1e-45, 3.3e38]
    patterns = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    found = np.concatenate([any_bits, ties, halves, between, small, np.array(special, np.float32), patterns])
    return np.resize(found, found.size + -found.size % 64)


def numbers_of(element: Element) -> np.ndarray:
    """Every number of a type of two bytes at most; of others, some of all."""
    if element.bytes <= 2:
        return np.arange(1 << 8 * element.bytes, dtype=f"u{element.bytes}").view(element.dtype)
    if element == F32:
        return floats()
    rng = np.random.default_rng(1)
    ends = [-(1 << 31), (1 << 31) - 1, 0, -1]
    return np.concatenate([rng.integers(-(1 << 31), 1 << 31, 1020), ends]).astype(np.int32)


def flushed(numbers: np.ndarray) -> np.ndarray:
    """Subnormal numbers as zeros of their sign, where the instruction that rounds to bfloat16 takes them so."""
    if not has_feature("avx512bf16"):
        return numbers
    tiny = np.abs(numbers) < np.finfo(np.float32).tiny
    return np.where(tiny, np.copysign(np.float32(0), numbers), numbers)


def narrowed(element: Element, numbers: np.ndarray) -> np.ndarray:
    """Floats as NumPy has them in that type."""
    if element == BF16:
        return to_bfloat16(flushed(numbers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return numbers.astype(element.dtype)


def assert_same(element: Element, found: np.ndarray, expected: np.ndarray) -> None:
    """The same bits, but for those of NaN."""
    as_floats = from_bfloat16 if element == BF16 else np.asarray
    nan = np.zeros(found.shape, bool) if element.integer else np.isnan(as_floats(expected))
    if not element.integer:
        np.testing.assert_array_equal(np.isnan(as_floats(found)), nan)
    kind = f"u{element.bytes}"
    np.testing.assert_array_equal(found.view(kind)[~nan], expected.view(kind)[~nan])


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("element", ALL, ids=str)
def test_elements_are_widened_to_floats(element: Element, lanes: int) -> None:
    source = numbers_of(element)
    expected = from_bfloat16(source) if element == BF16 else source.astype(np.float32)
    assert_same(F32, moved(MoveTile(lanes, element, F32, "float", 0), source), expected)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("element", [BF16, F16, F32], ids=str)
def test_floats_are_rounded_to_the_nearest_and_nan_stays(element: Element, lanes: int) -> None:
    source = floats()
    found = moved(MoveTile(lanes, F32, element, "float", 0), source)
    assert_same(element, found, narrowed(element, source))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("element", INTEGERS, ids=str)
def test_whole_floats_become_integers(element: Element, lanes: int) -> None:
    source = numbers_of(element).astype(np.float32)
    source = source[np.abs(source) < 2.0**31]
    source = np.resize(source, source.size + -source.size % lanes)
    found = moved(MoveTile(lanes, F32, element, "float", 0), source)
    np.testing.assert_array_equal(found, source.astype(element.dtype))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers_end_at_their_range(source: Element, target: Element, lanes: int) -> None:
    numbers = numbers_of(source)
    ends = np.iinfo(target.dtype)
    expected = np.clip(numbers.astype(np.int64), ends.min, ends.max).astype(target.dtype)
    np.testing.assert_array_equal(moved(MoveTile(lanes, source, target, "int", 0), numbers), expected)


@pytest.mark.parametrize("element", ALL, ids=str)
def test_a_mask_touches_no_other_elements(element: Element) -> None:
    """Of one vector, the others lie in memory that ends."""
    lanes = ISA.lanes
    numbers = numbers_of(element)
    source = numbers[numbers.size // 4 :][:lanes]
    tile = MoveTile(lanes, element, element, "float", FIRST)
    if element == S32:
        tile = MoveTile(lanes, element, element, "int", FIRST)
    assert_same(element, moved(tile, source), source[:FIRST])


@pytest.mark.parametrize("element", [F32, BF16, F16], ids=str)
def test_what_is_no_integer_is_refused(element: Element) -> None:
    with pytest.raises(TypeError, match=f"{element} is no integer"):
        move.assembly(MoveTile(ISA.lanes, element, S8, "int", 0))


@pytest.mark.skipif(ISA.name != "avx512", reason="these are instructions of AVX-512")
@pytest.mark.parametrize(
    ("tile", "told"),
    [
        ((S32, U8, "int", 0), "vpmovusdb"),
        ((S32, S8, "int", 0), "vpmovsdb"),
        ((S32, S16, "int", 0), "vpmovsdw"),
        ((F32, U8, "float", 0), "vpmovdb"),
        ((F32, S8, "float", FIRST), "vpmovdb"),
        ((U8, S32, "int", 0), "vpmovzxbd"),
        ((S8, F32, "float", 0), "vpmovsxbd"),
        ((BF16, F32, "float", FIRST), "vpmovzxwd"),
    ],
)
def test_vectors_change_their_size_by_one_instruction(tile: tuple, told: str) -> None:
    assembly = move.assembly(MoveTile(ISA.lanes, *tile))
    assert told in assembly and "call" not in assembly


def test_floats_are_rounded_by_instructions_where_there_are_some() -> None:
    bfloat, half = (move.assembly(MoveTile(ISA.lanes, F32, element, "float", 0)) for element in (BF16, F16))
    assert ("cvtneps2bf16" in bfloat) == has_feature("avx512bf16")
    assert ("cvtps2ph" in half or "fcvtn" in half) == rounds_to_half()
    assert "call" not in bfloat + half, "no function of that kind is there when kernels run"
