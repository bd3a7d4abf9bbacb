"""AMX: tile registers in memory of each thread, 16 rows of 64 bytes as all of ours have, and what is done with them.

Rows are those of the configuration, and rows beyond them are zeros; a configuration of other bytes a row stops the
process. Products of bytes have the instruction's bits. Those of bfloat16 are summed as it is documented: even and odd
elements apart, each by fused multiply-adds from zero, then both sums, then that to the tile's; subnormal numbers are
zeros in and out.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from support.lowered.instructions import (
    F32,
    I8,
    I16,
    I32,
    I64,
    Row,
    bfloat_parts,
    by_halves,
    call,
    every,
    fused,
    quads,
    vector,
)

ROWS, ROW_BYTES, REGISTERS = 16, 64, 8
TILE_BYTES = ROWS * ROW_BYTES
_STATE = TILE_BYTES * REGISTERS + ROW_BYTES  # bytes of a thread: registers, then the configuration
_ROW_BYTES_AT, _ROWS_AT = 16, 48  # in a configuration: two bytes, and one, for each register
_KEY = 900  # of pthreads', which is in the machine code: of 1024 keys, given one after the other from 0
_POINTER = I8.as_pointer()
_WORDS = vector(I32, ROWS)


@functools.cache
def reserve() -> None:
    """Have the key of pthreads for this process; memory of threads that end is freed."""
    system, key = ctypes.CDLL(None), ctypes.c_uint(0)
    passed = []
    while key.value != _KEY or not passed:
        if system.pthread_key_create(ctypes.byref(key), system.free) != 0 or key.value > _KEY:
            raise OSError(f"key {_KEY} of pthreads is taken")
        passed.append(key.value)
    for each in passed[:-1]:
        system.pthread_key_delete(ctypes.c_uint(each))


def _state(builder: ir.IRBuilder) -> Any:
    """The registers of this thread, which are made when they are first asked for."""
    found = call(builder, "pthread_getspecific", _POINTER, [I32(_KEY)])
    before, none = builder.block, ir.Constant(_POINTER, None)
    missing = builder.icmp_unsigned("==", builder.ptrtoint(found, I64), I64(0))
    with builder.if_then(missing):
        made = call(builder, "calloc", _POINTER, [I64(1), I64(_STATE)])
        call(builder, "pthread_setspecific", I32, [I32(_KEY), made])
        after = builder.block
    state = builder.phi(none.type)
    state.add_incoming(found, before)
    state.add_incoming(made, after)
    return state


def _at(builder: ir.IRBuilder, place: Any, offset: Any, kind: Any = _WORDS) -> Any:
    return builder.bitcast(builder.gep(place, [offset]), kind.as_pointer())


def _load(builder: ir.IRBuilder, place: Any, offset: Any) -> Any:
    value = builder.load(_at(builder, place, offset))
    value.align = 1
    return value


def _store(builder: ir.IRBuilder, value: Any, place: Any, offset: Any) -> None:
    builder.store(value, _at(builder, place, offset)).align = 1


def _register(builder: ir.IRBuilder, state: Any, number: Any) -> tuple[Any, Any]:
    """The place of a register, and how many rows it has."""
    number = builder.zext(number, I64)
    settings = builder.gep(state, [I64(TILE_BYTES * REGISTERS)])
    sizes = builder.add(builder.mul(number, I64(2)), I64(_ROW_BYTES_AT))
    size = builder.load(_at(builder, settings, sizes, I16))
    with builder.if_then(builder.icmp_unsigned("!=", size, I16(ROW_BYTES))):
        call(builder, "llvm.trap", ir.VoidType(), [])
    rows = builder.load(builder.gep(settings, [builder.add(number, I64(_ROWS_AT))]))
    return builder.gep(state, [builder.mul(number, I64(TILE_BYTES))]), builder.zext(rows, I64)


def _times(builder: ir.IRBuilder, count: Any, body: Callable[[Any], None]) -> None:
    """body(i) for i = 0, 1, … below `count`."""
    before = builder.block
    loop, end = builder.append_basic_block("loop"), builder.append_basic_block("end")
    builder.cbranch(builder.icmp_unsigned(">", count, I64(0)), loop, end)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    index.add_incoming(I64(0), before)
    body(index)
    following = builder.add(index, I64(1))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, count), loop, end)
    builder.position_at_end(end)


def _row(builder: ir.IRBuilder, index: Any) -> Any:
    return builder.mul(index, I64(ROW_BYTES))


def _configure(builder: ir.IRBuilder, source: Any) -> None:
    state = _state(builder)
    _store(builder, _load(builder, source, I64(0)), state, I64(TILE_BYTES * REGISTERS))
    _times(builder, I64(ROWS * REGISTERS), lambda i: _store(builder, every(_WORDS, 0), state, _row(builder, i)))


def _release(builder: ir.IRBuilder) -> None:
    _store(builder, every(_WORDS, 0), _state(builder), I64(TILE_BYTES * REGISTERS))


def _zero(builder: ir.IRBuilder, number: Any) -> None:
    place, _ = _register(builder, _state(builder), number)
    _times(builder, I64(ROWS), lambda i: _store(builder, every(_WORDS, 0), place, _row(builder, i)))


def _read(builder: ir.IRBuilder, number: Any, source: Any, stride: Any) -> None:
    _zero(builder, number)
    place, rows = _register(builder, _state(builder), number)

    def one(i: Any) -> None:
        _store(builder, _load(builder, source, builder.mul(i, stride)), place, _row(builder, i))

    _times(builder, rows, one)


def _write(builder: ir.IRBuilder, number: Any, target: Any, stride: Any) -> None:
    place, rows = _register(builder, _state(builder), number)

    def one(i: Any) -> None:
        _store(builder, _load(builder, place, _row(builder, i)), target, builder.mul(i, stride))

    _times(builder, rows, one)


def _product(sums: Callable[..., Any]) -> Callable[..., None]:
    """Each row of the first tile by all columns of the second: `sums(builder, total, words)` of all words at once."""

    def emit(builder: ir.IRBuilder, total: Any, first: Any, second: Any) -> None:
        state = _state(builder)
        (place, rows), (pixels, _), (weights, _) = (
            _register(builder, state, number) for number in (total, first, second)
        )

        def one(i: Any) -> None:
            at, words = _row(builder, i), []
            row = _load(builder, pixels, at)
            for word in range(ROW_BYTES // 4):
                same = ir.Constant(_WORDS, [word] * ROWS)
                words.append((builder.shuffle_vector(row, row, same), _load(builder, weights, I64(word * ROW_BYTES))))
            _store(builder, sums(builder, _load(builder, place, at), words), place, at)

        _times(builder, rows, one)

    return emit


def _bytes(signed: bool) -> Callable[..., Any]:
    def sums(builder: ir.IRBuilder, total: Any, words: list[tuple[Any, Any]]) -> Any:
        for x, w in words:
            total = by_halves(quads(signed))(builder, total, x, w)
        return total

    return sums


def _bfloats(builder: ir.IRBuilder, total: Any, words: list[tuple[Any, Any]]) -> Any:
    floats = vector(F32, ROWS)
    parts = [every(floats, 0.0)] * 2
    for x, w in words:
        pairs = zip(bfloat_parts(builder, x), bfloat_parts(builder, w), strict=True)
        parts = [fused(builder, part, *pair) for part, pair in zip(parts, pairs, strict=True)]
    one = every(floats, 1.0)
    both = fused(builder, parts[0], parts[1], one)  # sums that are rounded and flushed as products are
    return builder.bitcast(fused(builder, builder.bitcast(total, floats), both, one), _WORDS)


def rows() -> dict[str, Row]:
    """By LLVM's name."""
    nothing, product = ir.VoidType(), (I8, I8, I8)
    made = {
        "ldtilecfg": Row("amx-tile", nothing, (_POINTER,), _configure, False),
        "tilerelease": Row("amx-tile", nothing, (), _release, False),
        "tilezero": Row("amx-tile", nothing, (I8,), _zero, False),
        "tileloadd64": Row("amx-tile", nothing, (I8, _POINTER, I64), _read, False),
        "tilestored64": Row("amx-tile", nothing, (I8, _POINTER, I64), _write, False),
        "tdpbusd": Row("amx-int8", nothing, product, _product(_bytes(False)), False),
        "tdpbssd": Row("amx-int8", nothing, product, _product(_bytes(True)), False),
        "tdpbf16ps": Row("amx-bf16", nothing, product, _product(_bfloats), False),
    }
    return {f"llvm.x86.{name}": row for name, row in made.items()}
