"""Measure the speed of this CPU's low-precision instructions: vector dot products, and AMX.

    python -m bench.instructions [--json]

A loop of each instruction runs on registers alone; AMX's tiles are also loaded, from each cache level and with the row
strides of the layouts. The unit is a cycle: the time of one step in a chain of dependent complements, so that changes
of the clock do not matter. Instructions that the CPU or the system (AMX's permission) does not offer are listed.

Sources: Intel's optimisation reference manual (AMX, section 20) and software developer's manual (encodings).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
import time
from collections.abc import Callable, Iterator

import llvmlite.binding as llvm
import numpy as np
from tabulate import tabulate

from cpuconv.isa.dots import AMX, ARM, VECTORS, X86, Dot

ROUNDS = 7
SECONDS = 0.01  # duration of a timed call
CHAINS = 12  # independent sums: enough to hide a latency of 4 to 5 cycles on two ports
_REQUEST, _TILE_DATA, _ARCH_PRCTL = 0x1023, 18, 158  # arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
_TILE_BYTES = 1024  # 16 rows of 64 bytes
_KIB = 1024


COMPLEMENT = {X86: "not $0", ARM: "mvn $0, $0"}  # complement of a register: one cycle on every CPU, not optimised away
ROWS = (16, 14, 8, 4, 1)  # rows of a tile of pixels
TILES = tuple((tile.name, tile.feature, tile.macs) for tile in AMX)


def _compile(text: str, symbol: str, words: int) -> Callable[..., None]:
    """Compile a module of LLVM IR; return its C function `symbol` with `words` int64 arguments."""
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
    )
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * words)(engine.get_function_address(symbol))
    call.engine = engine  # type: ignore[attr-defined]  # the code is freed with it
    return call


def _loop(body: str, phis: str, before: str = "", after: str = "", arguments: str = "") -> str:
    return f"""
define void @run(i64 %count{arguments}) {{
entry:
  {before}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  {phis}
  {body}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  {after}
  ret void
}}
"""


def _fastest(call: Callable[[int], None]) -> float:
    """Return the seconds of one iteration: the fastest of several calls, each long enough for the clock."""
    count = 1000
    while True:
        start = time.perf_counter()
        call(count)
        took = time.perf_counter() - start
        if took > SECONDS / 2:
            break
        count *= 2
    best = took / count
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call(count)
        best = min(best, (time.perf_counter() - start) / count)
    return best


def cycle() -> float:
    """Return the seconds of a cycle, from a chain of dependent complements that LLVM cannot shorten."""
    length = 64
    chain = "\n  ".join(
        f'%a{n} = call i64 asm sideeffect "{COMPLEMENT[machine()]}", "=r,0"(i64 %{"a" + str(n - 1) if n else "sum"})'
        for n in range(length)
    )
    text = _loop(chain, f"%sum = phi i64 [ 0, %entry ], [ %a{length - 1}, %loop ]")
    return _fastest(_compile(text, "run", 1)) / length


def vector_loop(dot: Dot) -> str:
    """Write LLVM IR of a loop of the instruction with `CHAINS` accumulators in registers."""
    sums, operands = dot.sums, dot.operands
    before = ""
    if not dot.accumulates:  # it has no accumulator: its result is its next operand
        before = f"%b{{0}} = bitcast {sums} %s{{0}} to {operands}\n  "
        order, kinds = f"{operands} %b{{0}}, {operands} %y", [operands, operands]
    elif dot.intrinsic.startswith("llvm.fma"):
        order, kinds = f"{operands} %x, {operands} %y, {sums} %s{{0}}", [operands, operands, sums]
    else:
        order, kinds = f"{sums} %s{{0}}, {operands} %x, {operands} %y", [sums, operands, operands]
    calls = "\n  ".join(f"{before}%r{{0}} = call {sums} @{dot.intrinsic}({order})".format(n) for n in range(CHAINS))
    phis = "\n  ".join(f"%s{n} = phi {sums} [ zeroinitializer, %entry ], [ %r{n}, %loop ]" for n in range(CHAINS))
    stores = "\n  ".join(
        f"%p{n} = getelementptr i8, ptr %out, i64 {64 * n}\n  store {sums} %r{n}, ptr %p{n}, align 1"
        for n in range(CHAINS)
    )
    loads = f"""%out = inttoptr i64 %at to ptr
  %x = load {operands}, ptr %out, align 1
  %q = getelementptr i8, ptr %out, i64 {64 * CHAINS}
  %y = load {operands}, ptr %q, align 1"""
    return f"declare {sums} @{dot.intrinsic}({', '.join(kinds)})\n" + _loop(calls, phis, loads, stores, ", i64 %at")


def vector_rate(dot: Dot) -> float:
    """Return the seconds of one instruction."""
    call = _compile(vector_loop(dot), "run", 2)
    memory = _aligned(64 * (CHAINS + 1))
    return _fastest(lambda count: call(count, memory.ctypes.data)) / CHAINS


_DECLARED = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tileloaddt164(i8, ptr, i64)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare void @llvm.x86.tdpbusd(i8, i8, i8)
declare void @llvm.x86.tdpbf16ps(i8, i8, i8)
"""


def tile_leave() -> bool:
    """Request AMX tiles for this process; return whether the system grants them (Linux, x86-64)."""
    if sys.platform != "linux" or not llvm.get_host_cpu_features().get("amx-tile"):
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0


def configuration(rows: int = 16) -> np.ndarray:
    """Make the operand of `ldtilecfg`: palette 1, eight tiles of 64 bytes per row; sums and pixels have `rows` rows."""
    data = np.zeros(64, np.uint8)
    data[0] = 1
    data[16:32].view(np.uint16)[:] = 64
    data[48:54], data[54:56] = rows, 16
    return data


class Tiles:
    """A loop of AMX instructions. Tiles 0 to 3 are sums, 4 and 5 rows of pixels, 6 and 7 weights."""

    def __init__(self, turn: str, rows: int = 16) -> None:
        zero = "\n  ".join(f"call void @llvm.x86.tilezero(i8 {n})" for n in range(4))
        operands = "\n  ".join(f"call void @llvm.x86.tileloadd64(i8 {n}, ptr %o, i64 64)" for n in range(4, 8))
        before = f"""%c = inttoptr i64 %cfg to ptr
  %o = inttoptr i64 %out to ptr
  call void @llvm.x86.ldtilecfg(ptr %c)
  {zero}
  {operands}"""
        after = """call void @llvm.x86.tilestored64(i8 0, ptr %o, i64 64)
  call void @llvm.x86.tilerelease()"""
        arguments = ", i64 %cfg, i64 %out, i64 %a, i64 %b, i64 %stride, i64 %step, i64 %mask"
        text = _DECLARED + _loop(turn, "", before, after, arguments)
        self._call = _compile(text, "run", 8)
        self._configuration = configuration(rows)
        self._out = _aligned(8 * _TILE_BYTES)

    def seconds(self, a: int = 0, b: int = 0, stride: int = 64, step: int = 0, mask: int = 0) -> float:
        """Return seconds of one iteration; pixels at `a`, weights at `b`, moved by `step` bytes modulo `mask` + 1."""
        fixed = self._configuration.ctypes.data, self._out.ctypes.data
        return _fastest(lambda count: self._call(count, *fixed, a, b, stride, step, mask))


def products(name: str, kept: bool = True) -> str:
    """Write the multiplications of 2 x 2 tiles of sums; if `kept`, two consecutive ones use the same weights."""
    pairs = [(pixels, weights) for weights in (6, 7) for pixels in (4, 5)]
    order = pairs if kept else sorted(pairs)
    return "\n  ".join(
        f"call void @llvm.x86.{name}(i8 {2 * (weights - 6) + pixels - 4}, i8 {pixels}, i8 {weights})"
        for pixels, weights in order
    )


def load(tile: int, base: str, offset: str, stride: str = "64", temporal: bool = True) -> str:
    """Write a load of a tile from `base` + `offset`."""
    name = f"%l{tile}"
    call = "tileloadd64" if temporal else "tileloaddt164"
    return f"""{name}s = add i64 %{base}, {offset}
  {name} = inttoptr i64 {name}s to ptr
  call void @llvm.x86.{call}(i8 {tile}, ptr {name}, i64 {stride})"""


ZEROS = "\n  ".join(f"call void @llvm.x86.tilezero(i8 {n})" for n in range(4))
STORES = "\n  ".join(
    f"%s{n} = getelementptr i8, ptr %o, i64 {n * _TILE_BYTES}\n"
    f"  call void @llvm.x86.tilestored64(i8 {n}, ptr %s{n}, i64 64)"
    for n in range(4)
)
_OFFSET = """%far = mul i64 %i, %step
  %at = and i64 %far, %mask
  %at1 = add i64 %at, 1024"""
PIXELS = "\n  ".join((load(4, "a", "0", "%stride"), load(5, "a", "1024", "%stride")))
STREAM_A = "\n  ".join((load(4, "a", "%at", "%stride"), load(5, "a", "%at1", "%stride")))
STREAM_B = "\n  ".join((load(6, "b", "%at"), load(7, "b", "%at1")))


def _aligned(size: int) -> np.ndarray:
    raw = np.full(size + 4096, 0x3C, np.uint8)  # 60; as bf16 0.01: not zero, which hardware might optimise
    start = -raw.ctypes.data % 4096
    return raw[start : start + size]


def tile_rows(second: float) -> Iterator[tuple[str, float]]:
    """Yield the descriptions and cycles of AMX measurements."""
    for name, feature, _ in TILES:
        if not llvm.get_host_cpu_features().get(feature):
            continue
        yield f"{name}, 4 sums, no loads", Tiles(products(name)).seconds() / second / 4
        yield f"{name}, 1 sum (latency)", Tiles(f"call void @llvm.x86.{name}(i8 0, i8 4, i8 6)").seconds() / second
        for rows in ROWS:
            for kept in (True, False):
                what = f"{name} of {rows} rows, {'the same' if kept else 'other'} weights next"
                yield what, Tiles(products(name, kept), rows).seconds() / second / 4
        for level, size in (("L1", 16 * _KIB), ("L2", 512 * _KIB), ("L3", 16 * _KIB * _KIB)):
            memory = [_aligned(size + 2 * _TILE_BYTES) for _ in range(2)]
            a, b = (part.ctypes.data for part in memory)
            turn = "\n  ".join((_OFFSET, STREAM_A, STREAM_B, products(name)))
            took = Tiles(turn).seconds(a, b, 64, 2048, size - 1)
            yield f"{name}, 2 x 2 with 4 loads from {level}", took / second / 4
            turn = "\n  ".join((_OFFSET, PIXELS, STREAM_B, products(name)))
            took = Tiles(turn).seconds(a, b, 64, 2048, size - 1)
            yield f"{name}, 2 x 2, pixels from L1, weights from {level}", took / second / 4
    for name, feature, _ in TILES:
        for steps in (1, 4, 9, 18, 36):
            if llvm.get_host_cpu_features().get(feature):
                turn = "\n  ".join((ZEROS, *[products(name)] * steps, STORES))
                yield f"{name}, 2 x 2, sums of {steps} tiles stored", Tiles(turn).seconds() / second / 4 / steps
    for stride in (64, 128, 192, 256, 512, 1024, 2048, 4096, 4160):
        memory = [_aligned(32 * 4224)]
        turn = load(4, "a", "0", "%stride")
        yield f"tileloadd, rows {stride} bytes apart", Tiles(turn).seconds(memory[0].ctypes.data, 0, stride) / second
    yield "tilestored", Tiles(STORES).seconds() / second / 4
    yield "tilezero", Tiles(ZEROS).seconds() / second / 4
    again = "call void @llvm.x86.ldtilecfg(ptr %c)"
    yield "ldtilecfg", Tiles(again).seconds() / second
    yield "tilerelease and ldtilecfg", Tiles(f"call void @llvm.x86.tilerelease()\n  {again}").seconds() / second


def machine() -> str:
    """Return LLVM's name of this machine's architecture."""
    return llvm.get_default_triple().partition("-")[0]


def measure() -> tuple[list[tuple[str, float, float]], list[str]]:
    """Return rows (description, cycles, multiply-adds per cycle or 0), and the missing instructions."""
    features = llvm.get_host_cpu_features()
    rows: list[tuple[str, float, float]] = []
    absent = []
    for dot in VECTORS:
        if dot.machine != machine():
            continue
        if not features.get(dot.feature):
            absent.append(str(dot))
            continue
        second = cycle()
        cycles = vector_rate(dot) / second
        rows.append((str(dot), cycles, dot.macs / cycles))
    if tile_leave():
        macs = {name: 16 * 16 * width for name, _, width in TILES}
        for what, cycles in tile_rows(cycle()):
            products_of = re.match(r"(tdp\w+)(?: of (\d+) rows)?", what)
            product = macs[products_of[1]] * int(products_of[2] or 16) // 16 if products_of else 0
            rows.append((what, cycles, product / cycles))
    elif machine() == X86:
        absent += [name for name, *_ in TILES]
    return rows, absent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    rows, absent = measure()
    if options.json:
        print(json.dumps({"rows": rows, "absent": absent}, indent=1))
        return
    print(tabulate(rows, ["instruction", "cycles", "multiply-adds a cycle"], floatfmt=".2f"))
    if absent:
        print(f"Not offered here: {', '.join(absent)}")


if __name__ == "__main__":
    main()
