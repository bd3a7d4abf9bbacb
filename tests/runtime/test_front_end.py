"""Drivers compiled from their syntax trees do what Python does."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpuconv.runtime.atomics import put
from cpuconv.runtime.code import kernel_files
from cpuconv.runtime.code.cache import Statistics
from cpuconv.runtime.driver_functions import intrinsic, specialise_on_tile
from cpuconv.runtime.front_end import source
from cpuconv.runtime.kernel import code_of, inline, kernel

_MOST = 64  # results of a function
_SMALL = st.integers(-(2**31), 2**31)
_FEW = st.integers(-9, 9)


def _compiled(function, words: int, *given: int) -> list[int]:
    """What a function puts at the address that it takes first."""
    out = np.zeros(_MOST, np.int64)
    code_of(function, words).function(ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * words))(out.ctypes.data, *given)
    return out.tolist()


def _in_python(function, *given: int) -> list[int]:
    out = [0] * _MOST

    def put(address, index, value):
        assert address == 0
        out[index] = int(value)

    names = {**function.__globals__, "put": put}
    names |= {
        name: FunctionType(each.py_func.__code__, names) for name, each in names.items() if type(each) is type(_both)
    }
    FunctionType(function.__code__, names)(0, *given)
    return out


@inline
def _both(a, b):
    """Gives two, from two places."""
    if a < b:
        return a - b, a + 1
    return b * 2, a ^ b


@inline
def _changed(a):
    """Sets its own parameter."""
    a += 3
    return a


@inline
def _first_multiple(a, limit):
    for i in range(1, limit):
        if i * a > 20:
            return i
    return -1


def _arithmetic(out, a, b):
    put(out, 0, a + b)
    put(out, 1, a - b * 3)
    put(out, 2, (a & b) | (a ^ 5))
    put(out, 3, (a >> 3) + (b << 2))
    put(out, 4, -a)
    put(out, 5, a // 7 + a % 7 + b // -4 + b % -4)
    put(out, 6, min(a, b) + max(a, b, 3) * 5 + min(2, 1))
    put(out, 7, a < b)
    put(out, 8, a if a >= b else b)
    put(out, 9, 0 < a <= b < 100)
    put(out, 10, a == b or (a > 3 and b > 3))
    put(out, 11, not a > b)
    put(out, 12, a in (1, 2, b))
    first, (second, third) = _changed(a), _both(a, b)
    put(out, 13, first + second * 5 + third * 11)
    pair = (a, b + 1) if a > 2 else (b, a)
    put(out, 14, pair[0] - 2 * pair[1])


def _division(out, a, b):
    if b != 0:
        put(out, 0, a // b)
        put(out, 1, a % b)


def _loops(out, a, b):
    total, last = 0, 0
    for i in range(a):
        for j in range(b, 3 * b, 2):
            if (i + j) % 3 == 0:
                continue
            if j > 15:
                break
            total += i * j
            last = j
    put(out, 0, total)
    put(out, 1, last)
    for i in range(a, -b, -3):
        i += 1  # the next is not told by it
        total += i
    put(out, 2, total)
    while True:
        total -= 7
        if total < 0:
            break
    put(out, 3, total)
    count = 0
    while count < a and not (count > 5 or count == b):
        count += 1
    put(out, 4, count)
    put(out, 5, _first_multiple(a, 9))


@pytest.mark.parametrize("function", [_arithmetic, _division])
@given(a=_SMALL, b=_SMALL | _FEW)
def test_arithmetic(function, a, b):
    assert _compiled(function, 3, a, b) == _in_python(function, a, b)


@given(a=_FEW, b=_FEW)
def test_loops(a, b):
    assert _compiled(_loops, 3, a, b) == _in_python(_loops, a, b)


def _by_zero(out, a, b):
    put(out, 0, a // b)
    put(out, 1, a % b)
    put(out, 2, a // 0)


def test_a_division_by_zero_gives_zero():
    """As Numba's with the error model of NumPy."""
    assert _compiled(_by_zero, 3, 7, 0)[:3] == [0, 0, 0]


@dataclass(frozen=True)
class _Inner:
    count: int


@dataclass(frozen=True)
class _Tile:
    inner: _Inner
    wide: bool


def _wide(tile, a):
    return a * tile.inner.count


def _narrow(tile, a):
    return a.no_such_attribute


@specialise_on_tile(lambda tile: _wide if tile.wide else _narrow)
def _of_tile(tile, a):
    """Another function for each tile."""


@kernel("out a")
def _with_tile(tile, worker, before, part, parts, args):
    inner = tile.inner
    if tile.wide:
        put(args.out, part, _of_tile(tile, args.a) + inner.count)
    else:
        put(args.out, part, tile.no_such_attribute)


def _run_kernel(made, tile, **words: int) -> list[int]:
    out = np.zeros(_MOST, np.int64)
    block = made.pack({"out": out.ctypes.data, **words})
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 4, ctypes.c_void_p)
    made.entry(tile).function(kind)(None, 0, -1, 3, 4, block.ctypes.data)
    return out.tolist()


def test_what_a_tile_leaves_out_is_not_compiled():
    assert _run_kernel(_with_tile, _Tile(_Inner(6), True), a=7)[3] == 48


# --- what is compiled by Numba --------------------------------------------------------------------------------------


def _powers(out, a):
    put(out, 0, a**3)


def test_numba_compiles_what_is_beyond_the_subset(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(kernel_files, "folder", lambda: kernel_files.Folder(tmp_path))
    before = Statistics.by_numba
    assert _compiled(_powers, 2, 5)[0] == 125
    assert Statistics.by_numba == before + 1
    Statistics.by_numba = before


TEXT = """
from cpuconv.runtime.atomics import put

def changing(out, a):
    put(out, 0, a + 1)
"""


def test_a_source_that_has_changed_since_the_import_is_not_read(tmp_path: Path, monkeypatch):
    file = tmp_path / "changing.py"
    file.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("changing", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "changing", module)
    spec.loader.exec_module(module)
    file.write_text(TEXT.replace("a + 1", "a + 2"))
    with pytest.raises(source.NotInSubsetError, match="not what was imported"):
        source.read(module.changing)
    file.write_text("\n")
    with pytest.raises(source.NotInSubsetError):
        source.read(module.changing)


def test_a_function_within_a_function_is_not_read():
    """Its names are elsewhere."""
    shift = 3
    with pytest.raises(source.NotInSubsetError):
        source.read(lambda out: put(out, 0, shift))


def test_arguments_of_emitted_functions_have_names() -> None:
    emitted = intrinsic(lambda builder, low, high, step: None)
    assert emitted.in_order([1], {"step": 3, "high": 2}) == [1, 2, 3]
    for values, named in (([1], {"high": 2}), ([1], {"high": 2, "stop": 3}), ([1, 2], {"high": 2}), ([1, 2, 3, 4], {})):
        with pytest.raises(TypeError, match="takes each of low, high, step once"):
            emitted.in_order(values, named)
