"""What stands for instructions that a CPU lacks (`support/lowered`): against NumPy, and against the instructions."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from cpuconv.elements import S8, from_bfloat16, to_bfloat16
from cpuconv.isa.dots import AMX, VECTORS, TileDot
from cpuconv.isa.features import amx_permitted
from cpuconv.isa.vector import Vector
from cpuconv.kernels.emit.multiplying import hidden
from cpuconv.runtime.code import kernel_files
from support import lowered
from support.lowered import text, tiles
from support.running import processes

HOST = llvm.get_host_cpu_features() if llvm.get_default_triple().startswith("x86_64") else {}
pytestmark = pytest.mark.skipif(not all(map(HOST.get, lowered.NEEDS)), reason="needs AVX2")

_PREFIX = "llvm.x86."
NAMES = sorted(name.removeprefix(_PREFIX) for name in text.ROWS.keys() - tiles.rows().keys())
DOTS = {dot.intrinsic.removeprefix(_PREFIX): dot for dot in VECTORS}
SETS = 40  # of operands, of each instruction
_NUMPY = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "float": np.float32}


def run(code: str, cpu: str, features: str, *arrays: np.ndarray) -> None:
    """Call @run, which takes pointers."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=cpu, features=features, opt=2, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(code), machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(engine.get_function_address("run"))
    call(*(array.ctypes.data for array in arrays))


def standing_in(code: str, *arrays: np.ndarray) -> None:
    run(text.lowered(code), lowered.HOST, "", *arrays)


def real(code: str, *arrays: np.ndarray) -> None:
    run(code, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), *arrays)


def operands(name: str) -> list[str]:
    """The types of those that are vectors; masks and rounding follow."""
    return [str(kind) for kind in text.ROWS[_PREFIX + name].arguments if str(kind).startswith("<")]


def code_of(name: str) -> str:
    """Of operands that follow one another, set by set."""
    row = text.ROWS[_PREFIX + name]
    kinds, constants = operands(name), {"i16": "i16 -1", "i32": "i32 4"}
    loads = "\n".join(
        f"%p{i} = getelementptr {kind}, ptr %a{i}, i64 %i\n%v{i} = load {kind}, ptr %p{i}, align 1"
        for i, kind in enumerate(kinds)
    )
    given = [f"{kind} %v{i}" for i, kind in enumerate(kinds)]
    given += [constants[str(kind)] for kind in row.arguments[len(kinds) :]]
    return f"""
declare {row.result} @"{_PREFIX}{name}"({", ".join(map(str, row.arguments))})
define void @run(ptr %r, {", ".join(f"ptr %a{i}" for i in range(len(kinds)))}) {{
  br label %loop
loop:
  %i = phi i64 [0, %0], [%next, %loop]
{loads}
  %value = call {row.result} @"{_PREFIX}{name}"({", ".join(given)})
  %place = getelementptr {row.result}, ptr %r, i64 %i
  store {row.result} %value, ptr %place, align 1
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {SETS}
  br i1 %more, label %loop, label %end
end:
  ret void
}}"""


def shape(kind: str) -> tuple[int, type]:
    count, element = kind.strip("<>").split(" x ")
    return int(count), _NUMPY[element]


def floats(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Numbers of all magnitudes and usual ones, halves between integers, infinities, NaN, subnormal numbers."""
    some = rng.integers(0, 1 << 32, size, np.uint64).astype(np.uint32).view(np.float32)
    usual = rng.normal(0, 50, size).astype(np.float32)
    ends = rng.choice(np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 2.0**31, -(2.0**31), 3e9]), size)
    choices = [some, usual, np.round(usual) + np.float32(0.5), ends]
    return np.choose(rng.choice(4, size, p=[0.3, 0.4, 0.2, 0.1]), choices).astype(np.float32)


def integers(rng: np.random.Generator, size: tuple[int, ...], kind: type) -> np.ndarray:
    """Of the whole range, their ends often."""
    ends = np.iinfo(kind)
    numbers = rng.integers(ends.min, ends.max, size, endpoint=True)
    return np.where(rng.random(size) < 0.4, rng.choice([ends.min, ends.max], size), numbers).astype(kind)


def bfloats(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Two in a word, most of usual magnitude."""
    usual = (rng.normal(0, 3, (*size, 2)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    some = (floats(rng, (*size, 2)).view(np.uint32) >> 16).astype(np.uint16)
    return np.where(rng.random((*size, 2)) < 0.8, usual, some).view(np.int32)[..., 0]


def drawn(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = []
    for at, (count, kind) in enumerate(map(shape, operands(name))):
        if name.startswith("avx512bf16.dp") and at:
            found.append(bfloats(rng, (SETS, count)))
        else:
            found.append(floats(rng, (SETS, count)) if kind is np.float32 else integers(rng, (SETS, count), kind))
    if "scalef" in name:  # exponents at which numbers leave the floats, too
        found[1][::2] = rng.normal(0, 150, found[1][::2].shape)
    return found


def result(name: str) -> np.ndarray:
    count, kind = shape(str(text.ROWS[_PREFIX + name].result))
    return np.zeros((SETS, count), kind)


# --- in NumPy --------------------------------------------------------------------------------------------------------


def flushed(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values)


@functools.cache
def _fused() -> Callable[[float, float, float], float]:
    function = ctypes.CDLL("libm.so.6").fmaf
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    return function


def fused(x: np.ndarray, w: np.ndarray, total: np.ndarray) -> np.ndarray:
    x, w, total = map(flushed, (x, w, total))
    return flushed(np.vectorize(_fused(), otypes=[np.float32])(x, w, total))


def parts(words: np.ndarray) -> list[np.ndarray]:
    """Even and odd bfloat16 elements of words."""
    bits = words.view(np.uint32)
    return [each.view(np.float32) for each in (bits << np.uint32(16), bits & np.uint32(0xFFFF0000))]


def dot_of_bfloats(total: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    (x_even, x_odd), (w_even, w_odd) = parts(x), parts(w)
    return fused(x_even, w_even, fused(x_odd, w_odd, total))


def packed(kind: type) -> Callable[..., np.ndarray]:
    """Of each 128 bits, those of the first operand and then of the second."""

    def pack(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        quarters = [each.reshape(SETS, 4, 1, -1) for each in (x, y)]
        ends = np.iinfo(kind)
        return np.clip(np.concatenate(quarters, axis=2), ends.min, ends.max).astype(kind).reshape(SETS, -1)

    return pack


def nearest(x: np.ndarray, kept: np.ndarray) -> np.ndarray:
    wide = np.rint(x.astype(np.float64))
    inside = (wide >= -(2.0**31)) & (wide < 2.0**31)
    return np.where(inside, np.where(inside, wide, 0).astype(np.int64), -(1 << 31)).astype(np.int32)


def scaled(a: np.ndarray, n: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Of NaN and an infinite exponent it is that of one."""
    with np.errstate(all="ignore"):
        power = np.exp2(np.clip(np.floor(n.astype(np.float64)), -600, 600))
        power = np.where(np.isinf(n), np.where(n > 0, np.inf, 0.0), power)
        made = (a.astype(np.float64) * power).astype(np.float32)
    return np.where(np.isnan(a) & np.isinf(n), np.where(n > 0, np.float32(np.inf), np.float32(0)), made)


def picked(low: np.ndarray, index: np.ndarray, high: np.ndarray) -> np.ndarray:
    table = np.concatenate([low, high], axis=1)
    return np.take_along_axis(table, index.astype(np.int64) % table.shape[1], axis=1)


def pairs(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return (x.astype(np.int64) * w).reshape(SETS, -1, 2).sum(2).astype(np.int32)


TWINS: dict[str, Callable[..., np.ndarray]] = {
    "avx512.pmaddw.d.512": pairs,
    "avx512.packssdw.512": packed(np.int16),
    "avx512.packsswb.512": packed(np.int8),
    "avx512.packuswb.512": lambda x, y: packed(np.uint8)(x, y).view(np.int8),
    "avx512.mask.cvtps2dq.512": nearest,
    "avx512.mask.scalef.ps.512": scaled,
    "avx512.vpermi2var.ps.512": picked,
    "avx512.vpermi2var.qi.512": picked,
    "avx512bf16.dpbf16ps.512": dot_of_bfloats,
    "avx512bf16.cvtneps2bf16.512": lambda x: to_bfloat16(flushed(x)).view(np.int16),
    "avx512bf16.cvtneps2bf16.256": lambda x: to_bfloat16(flushed(x)).view(np.int16),
}


def by_dot(name: str, given: list[np.ndarray]) -> np.ndarray:
    """By the twin of an instruction that adds products of integers."""
    dot = DOTS[name]
    sums, x, w = given if len(given) == 3 else (result(name), *given)
    views = x.view(dot.x.dtype), w.view(dot.w.dtype)
    return np.stack([dot.twin(*each) for each in zip(sums, *views, strict=True)])


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_the_instruction_is_said_to(name: str) -> None:
    given, found = drawn(name), result(name)
    standing_in(code_of(name), found, *given)
    if "rcp14" in name:
        a = given[0]
        with np.errstate(all="ignore"):
            exact = 1 / a
            usual = np.isfinite(exact) & (np.abs(exact) >= 2.0**-126)
            assert usual.sum() > SETS and (np.abs(found[usual] / exact[usual] - 1) < 2.0**-14).all()
        ends = np.isinf(exact) | np.isnan(exact) | (exact == 0)
        np.testing.assert_array_equal(found[ends], exact[ends])
        return
    expected = TWINS[name](*given) if name in TWINS else by_dot(name, given)
    if "cvtneps2bf16" in name:
        found, expected = (from_bfloat16(each.view(np.uint16)) for each in (found, expected))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_the_instruction_does(name: str) -> None:
    feature = text.ROWS[_PREFIX + name].feature
    if not HOST.get(feature):
        pytest.skip(f"{feature} is not offered here")
    given = [
        np.where(np.isnan(each), np.float32(1), each) if each.dtype == np.float32 else each for each in drawn(name)
    ]
    ours, theirs = result(name), result(name)
    standing_in(code_of(name), ours, *given)
    real(code_of(name), theirs, *given)
    if "rcp14" in name:
        np.testing.assert_allclose(ours, theirs, rtol=2.0**-13, atol=2.0**-126)
    elif "dpbf16ps" in name:  # which may add in another order, and round once
        (x, w), sizes = (parts(each) for each in given[1:]), np.abs(given[0])
        with np.errstate(all="ignore"):
            for pair in zip(x, w, strict=True):
                sizes = sizes + np.abs(pair[0] * pair[1])
            near = np.abs(ours - theirs) <= sizes * 2.0**-22
            assert (near | ~np.isfinite(sizes) | (sizes < 2.0**-120)).all()
    else:
        np.testing.assert_array_equal(ours, theirs)


# --- tiles -----------------------------------------------------------------------------------------------------------

PRODUCTS = (*AMX, replace(AMX[0], name="tdpbssd", x=S8))
HEIGHT = 5  # of pixels and of sums


def code_of_tiles(name: str) -> str:
    register = "i8 {}, ptr %{}, i64 64".format
    return f"""
declare void @"{_PREFIX}ldtilecfg"(ptr)
declare void @"{_PREFIX}tilerelease"()
declare void @"{_PREFIX}tileloadd64"(i8, ptr, i64)
declare void @"{_PREFIX}tilestored64"(i8, ptr, i64)
declare void @"{_PREFIX}{name}"(i8, i8, i8)
define void @run(ptr %c, ptr %s, ptr %x, ptr %w) {{
call void @"{_PREFIX}ldtilecfg"(ptr %c)
call void @"{_PREFIX}tileloadd64"({register(0, "s")})
call void @"{_PREFIX}tileloadd64"({register(3, "x")})
call void @"{_PREFIX}tileloadd64"({register(7, "w")})
call void @"{_PREFIX}{name}"(i8 0, i8 3, i8 7)
call void @"{_PREFIX}tilestored64"({register(0, "s")})
call void @"{_PREFIX}tilerelease"()
ret void
}}"""


@pytest.mark.parametrize("dot", PRODUCTS, ids=lambda dot: dot.name)
def test_products_of_tiles(dot: TileDot) -> None:
    tiles.reserve()
    rng = np.random.default_rng(1)
    size = HEIGHT * 16
    if dot.sum.integer:
        x, w, sums = (integers(rng, (count,), np.int32) for count in (size, 256, size))
    else:  # whole numbers, whose sums are exact in any order
        x, w = (to_bfloat16(rng.integers(-7, 8, 2 * count).astype(np.float32)) for count in (size, 256))
        sums = rng.integers(-99, 99, size).astype(np.float32)
    setup = np.zeros(64, np.uint8)
    setup[0] = 1
    setup[16:32].view(np.uint16)[:] = 64
    setup[48:56] = [HEIGHT, 16, 16, HEIGHT, 16, 16, 16, 16]
    operands_ = x.view(dot.x.dtype).reshape(HEIGHT, -1), w.view(dot.w.dtype).reshape(16, -1)
    expected = dot.twin(sums.reshape(HEIGHT, 16), *operands_)
    runs = [standing_in] + [real] * (amx_permitted() and not lowered.cpu())
    for each in runs:
        found = sums.copy()
        each(code_of_tiles(dot.name), setup, found, x, w)
        np.testing.assert_array_equal(found.reshape(HEIGHT, 16), expected)


def test_what_nothing_stands_for_is_refused() -> None:
    known = 'declare <16 x i32> @"llvm.x86.avx512.conflict.d.512"(<16 x i32>)\n'
    with pytest.raises(text.Unknown, match=r"avx512\.conflict"):
        text.lowered(known)
    with pytest.raises(text.Unknown, match="rounded"):
        text.lowered(code_of("avx512.mask.cvtps2dq.512").replace("i32 4)", "i32 11)"))
    plain = 'declare <8 x i32> @"llvm.x86.avx2.packssdw"(<8 x i32>, <8 x i32>)\n'
    assert text.lowered(plain) == plain


@pytest.mark.parametrize("ordered", [False, True])
def test_wide_registers_that_the_optimiser_knows_nothing_of(ordered: bool) -> None:
    module = ir.Module()
    kinds = [ir.VectorType(ir.IntType(32), count) for count in (16, 8)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [kind.as_pointer() for kind in kinds]), "run")
    builder = ir.IRBuilder(function.append_basic_block())
    for place, kind in zip(function.args, kinds, strict=True):
        value = builder.load(place)
        value.align = 4
        builder.store(hidden(Vector(builder, kind.count), value, ordered), place).align = 4
    builder.ret_void()
    arrays = [np.arange(kind.count, dtype=np.int32) for kind in kinds]
    once = text.lowered(str(module))
    assert once.count(" asm ") == 1 and text.lowered(once).split() == once.split()  # of 256 bits
    standing_in(str(module), *arrays)
    assert all((each == np.arange(each.size)).all() for each in arrays)


PROCESS = """
import ctypes, sys
import numpy as np
from cpuconv.isa import current
from cpuconv.isa.features import has_feature
from cpuconv.kernels.elementwise.lookup import LookupTile, look_up
from cpuconv.problem.arrays import address
from cpuconv.runtime.code import kernel_files
from support.running import processes

assert current().name == "avx512" and has_feature("avx512vnni") and not has_feature("amx-tile")
assert "support/lowered/child" in processes.PATH
permuted = LookupTile("avx512vbmi")
assert has_feature("avx512vbmi") and "%zmm" in look_up.assembly(permuted)
x, table = (np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8) for seed, size in ((0, 200), (1, 256)))
y = np.zeros_like(x)
look_up.entry(permuted).function(ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4))(*map(address, (x, y, table)), x.size)
assert (y == table[x]).all()
print(kernel_files.folder().path)
"""


def test_a_process_believes_in_another_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    path = os.pathsep.join([processes.PATH, str(lowered.CHILD)])
    said = processes.run("-c", PROCESS, **{lowered.VARIABLE: "znver4", "PYTHONPATH": path}).stdout
    assert said.strip() != str(kernel_files.folder().path) or lowered.cpu() == "znver4"
