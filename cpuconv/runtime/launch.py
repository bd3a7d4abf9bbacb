"""The launcher: a program is an int64 table of (entry, argument block, parallel?), walked by one compiled function.

A parallel row is handed to the threading layer's `parallel_for` (the function Numba's own parallel loops end in), so
no kernel is compiled with `parallel=True`, and a row costs one fork-join. Signature of that function, the same in
all three layers: parallel_for(body, args, dims, steps, data, inner_ndim, array_count, threads), which calls
body(args, dims, steps, data) for chunks of `dims[0]` items that start at address `args[0]`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cpuconv.runtime.cache import Code, load_or_compile
from cpuconv.runtime.kernel import compile_entry
from cpuconv.runtime.threads import pool, usable_threads
from cpuconv.runtime.types import I64

_BYTES = ir.IntType(8).as_pointer()
_WORDS = I64.as_pointer()
_ENTRY = ir.FunctionType(_BYTES, [_BYTES, I64, I64, _WORDS])
_BODY = ir.FunctionType(ir.VoidType(), [_BYTES.as_pointer(), _WORDS, _WORDS, _BYTES])


def _call_entry(builder: ir.IRBuilder, entry: Any, worker: Any, workers: Any, args: Any) -> None:
    function = builder.inttoptr(entry, _ENTRY.as_pointer())
    builder.call(function, [ir.Constant(_BYTES, None), worker, workers, builder.inttoptr(args, _WORDS)])


def _body(module: ir.Module) -> ir.Function:
    """body(args, dims, steps, data): run workers args[0] … args[0]+dims[0]-1 of the row described by data."""
    function = ir.Function(module, _BODY, "cpuconv_parallel_body")
    function.linkage = "internal"
    args, dims, _, data = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    first = builder.ptrtoint(builder.load(args), I64)
    count = builder.load(dims)
    words = builder.bitcast(data, _WORDS)
    entry, block, workers = (builder.load(builder.gep(words, [ir.Constant(I64, i)])) for i in range(3))
    start = builder.block
    loop = builder.append_basic_block()
    done = builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), start)
    _call_entry(builder, entry, builder.add(first, index), workers, block)
    following = builder.add(index, ir.Constant(I64, 1))
    index.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)
    builder.ret_void()
    return function


@intrinsic
def _word(typingctx: Any, address: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(builder.inttoptr(arguments[0], _WORDS), [arguments[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _serial(typingctx: Any, entry: Any, block: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call_entry(builder, arguments[0], ir.Constant(I64, 0), ir.Constant(I64, 1), arguments[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _parallel(typingctx: Any, parallel_for: Any, entry: Any, block: Any, workers: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        parallel_for, entry, block, workers = arguments

        def words(*values: Any) -> Any:
            with builder.goto_entry_block():
                space = builder.alloca(I64, size=len(values))
            for position, value in enumerate(values):
                builder.store(value, builder.gep(space, [ir.Constant(I64, position)]))
            return builder.bitcast(space, _BYTES)

        zero, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
        function_type = ir.FunctionType(ir.VoidType(), [_BYTES] * 5 + [I64, I64, I64])
        function = builder.inttoptr(parallel_for, function_type.as_pointer())
        body = builder.bitcast(_body(builder.module), _BYTES)
        data = words(entry, block, workers)
        builder.call(function, [body, words(zero), words(workers), words(one), data, zero, one, workers])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen


def _run(record):  # compiled below, for the address of: table, rows, workers, parallel_for
    table = _word(record, 0)
    workers = _word(record, 2)
    parallel_for = _word(record, 3)
    for row in range(_word(record, 1)):
        entry = _word(table, 3 * row)
        block = _word(table, 3 * row + 1)
        if workers > 1 and _word(table, 3 * row + 2) != 0:
            _parallel(parallel_for, entry, block, workers)
        else:
            _serial(entry, block)


_SIGNATURE = (types.int64,)
_launcher: Any = None


def _launch_function() -> Any:
    global _launcher
    if _launcher is None:
        dispatcher = njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)(_run)
        code = load_or_compile("launch", __name__, "record", lambda: compile_entry(dispatcher, _SIGNATURE))
        _launcher = ctypes.CFUNCTYPE(None, ctypes.c_int64)(code.address)  # releases the GIL while it runs
        _launcher.code = code
    return _launcher


class Program:
    """A recorded sequence of kernel calls with their argument blocks (both kept alive here)."""

    def __init__(self, rows: Sequence[tuple[Code, np.ndarray, bool]], threads: int) -> None:
        self._rows = rows
        self._table = np.array([[code.address, block.ctypes.data, wide] for code, block, wide in rows], np.int64)
        self._threads = threads if any(wide for _, _, wide in rows) else 1
        self._call = _launch_function()
        self._serial = self._record(1, 0)
        self._serial_address = self._serial.ctypes.data
        self._parallel: np.ndarray | None = None

    def _record(self, threads: int, parallel_for: int) -> np.ndarray:
        return np.array([self._table.ctypes.data, len(self._table), threads, parallel_for], np.int64)

    def run(self) -> None:
        """Run all rows in order; returns when the last is done. Not to be called twice at once."""
        if self._threads == 1 or usable_threads(self._threads) == 1:
            self._call(self._serial_address)
            return
        workers = pool()
        if self._parallel is None:
            self._parallel = self._record(self._threads, workers.parallel_for)
        with workers.guard:
            self._call(self._parallel.ctypes.data)
