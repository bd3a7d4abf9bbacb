"""The instructions of low precision as data: their shapes, and twins that compute what this CPU computes."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

from cpuconv.elements import BF16, F32, S8, S32, U8, Element
from cpuconv.isa import table
from cpuconv.isa.dots import AMX, ARM, ROW_BYTES, VECTORS, X86, Dot, values
from cpuconv.solvers.shared import blocked
from support.machines import MACHINES

FMA_RATES = {"zen4": 1, "generic": 1}  # of all others 2


def drawn(element: Element, count: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers whose products and sums are exact in every type: integers up to 7, of both signs where there are."""
    low = 0 if element.dtype.kind == "u" and element is not BF16 else -7
    numbers = rng.integers(low, 8, count)
    if element is BF16:
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(element.dtype)


def whole(element: Element, count: int, rng: np.random.Generator) -> np.ndarray:
    """Integers of the whole range, their ends often."""
    ends = np.iinfo(element.dtype)
    numbers = rng.integers(ends.min, ends.max, count, endpoint=True)
    return np.where(rng.random(count) < 0.6, rng.choice([ends.min, ends.max], count), numbers).astype(element.dtype)


@pytest.mark.parametrize("dot", VECTORS, ids=str)
def test_a_twin_is_the_sum_of_products(dot: Dot) -> None:
    rng = np.random.default_rng(0)
    sums, x, w = (drawn(e, n, rng) for e, n in ((dot.sum, dot.lanes), (dot.x, dot.elements), (dot.w, dot.elements)))
    expected = sums.astype(np.int64) if dot.accumulates else np.zeros(dot.lanes, np.int64)
    first, second = ([int(v) for v in values(e, a)] for e, a in ((dot.x, x), (dot.w, w)))
    for lane in range(dot.lanes):
        for i in range(dot.group):
            row, column = (lane // 2, lane % 2) if dot.matrix else (lane, lane)
            expected[lane] += first[row * dot.group + i] * second[column * dot.group + i]
    found = dot.twin(sums, x, w)
    assert found.dtype == dot.sum.dtype
    np.testing.assert_array_equal(found, expected)


def test_sums_that_saturate_end_at_the_ends_of_their_type() -> None:
    dot = next(dot for dot in VECTORS if dot.saturates)
    x, nothing = np.full(dot.elements, 255, np.uint8), np.zeros(dot.lanes, np.int16)
    for weight, end in ((127, 2**15 - 1), (-128, -(2**15)), (64, 255 * 128), (-64, -255 * 128)):
        assert (dot.twin(nothing, x, np.full(dot.elements, weight, np.int8)) == end).all()


@pytest.mark.parametrize("tile", AMX, ids=lambda tile: tile.name)
def test_a_twin_of_tiles_is_a_product_of_matrices(tile) -> None:
    rng = np.random.default_rng(1)
    sums = drawn(tile.sum, 5 * 16, rng).reshape(5, 16)
    x, w = (drawn(e, n * tile.macs, rng).reshape(n, -1) for e, n in ((tile.x, 5), (tile.w, 16)))
    expected = sums.astype(np.int64)
    first, second = values(tile.x, x).astype(np.int64), values(tile.w, w).astype(np.int64)
    for row in range(5):
        for column in range(16):
            for k in range(tile.macs):
                expected[row, column] += first[row, k] * second[k // tile.group, column * tile.group + k % tile.group]
    np.testing.assert_array_equal(tile.twin(sums, x, w), expected)


def test_integers_wrap_around() -> None:
    dot = next(dot for dot in VECTORS if dot.name == "vpdpbusd")
    most = np.full(dot.lanes, 2**31 - 1, np.int32)
    ones = np.ones(dot.elements, np.uint8), np.ones(dot.elements, np.int8)
    assert (dot.twin(most, *ones) == -(2**31) + 3).all()


def on_this_cpu(dot: Dot, sums: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What one instruction computes here."""
    fused = dot.intrinsic.startswith("llvm.fma")
    order = (("x", dot.operands), ("w", dot.operands), ("s", dot.sums))
    order = order[:2] if not dot.accumulates else order if fused else (order[2], *order[:2])
    loads = "\n".join(f"%{name} = load {kind}, ptr %{name}p, align 1" for name, kind in order)
    text = f"""
declare {dot.sums} @{dot.intrinsic}({", ".join(kind for _, kind in order)})
define void @run(ptr %sp, ptr %xp, ptr %wp) {{
{loads}
%r = call {dot.sums} @{dot.intrinsic}({", ".join(f"{kind} %{name}" for name, kind in order)})
store {dot.sums} %r, ptr %sp, align 1
ret void
}}"""
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    result = sums.copy()
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(engine.get_function_address("run"))
    call(*(array.ctypes.data for array in (result, x, w)))
    return result


@pytest.mark.parametrize("dot", VECTORS, ids=str)
def test_a_twin_computes_what_the_instruction_does(dot: Dot) -> None:
    if llvm.get_default_triple().partition("-")[0] != dot.machine or not llvm.get_host_cpu_features().get(dot.feature):
        pytest.skip(f"{dot} is not offered here")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    rng = np.random.default_rng(2)
    sums, x, w = (drawn(e, n, rng) for e, n in ((dot.sum, dot.lanes), (dot.x, dot.elements), (dot.w, dot.elements)))
    np.testing.assert_array_equal(on_this_cpu(dot, sums, x, w), dot.twin(sums, x, w))
    if dot.sum.integer:
        for _ in range(20):
            sums, x, w = (
                whole(e, n, rng) for e, n in ((dot.sum, dot.lanes), (dot.x, dot.elements), (dot.w, dot.elements))
            )
            np.testing.assert_array_equal(on_this_cpu(dot, sums, x, w), dot.twin(sums, x, w))


@pytest.mark.parametrize("isa", table.TABLE, ids=lambda isa: isa.name)
def test_the_first_row_of_a_set_is_its_fma(isa: table.Isa) -> None:
    fma = isa.dots[0]
    assert str(fma.x) == str(fma.w) == str(fma.sum) == "f32" and fma.group == 1
    assert fma.lanes == isa.lanes
    assert {dot.machine for dot in isa.dots} == {ARM if isa.name == "neon" else X86}


@pytest.mark.parametrize("name", MACHINES)
def test_the_models_count_by_the_rate_of_the_fma(name: str) -> None:
    isa = MACHINES[name].isa
    assert isa.fma_rate == isa.dots[0].rate == FMA_RATES.get(name, 2)


@pytest.mark.parametrize("name", MACHINES)
def test_a_pixel_of_a_block_is_a_vector_and_with_amx_a_row_of_a_tile(name: str) -> None:
    isa = MACHINES[name].isa
    assert isa.block(F32) == isa.block(S32) == isa.lanes
    for element in (BF16, U8, S8):
        assert isa.block(element) * element.bytes == 4 * isa.lanes
        assert blocked.layout(isa, element) == f"NCHW{isa.block(element)}c"
    assert name != "xeon-amx" or isa.block(U8) == ROW_BYTES
    assert blocked.layout(isa) == blocked.layout(isa, F32) == f"NCHW{isa.lanes}c"


@pytest.mark.parametrize(
    "cpu, features, against_fma",
    [
        ("znver4", "", 2.0),
        ("znver5", "", 2.0),
        ("cooperlake", "", 1.0),
        ("sapphirerapids", "+avx512f,+amx-tile", 0.5),
        ("rocketlake", "+avx512f,+amx-tile,+avx10.1", 0.5),  # a Granite Rapids behind a virtual machine
    ],
)
def test_the_rate_of_bfloat16_is_the_microarchitectures(monkeypatch, cpu, features, against_fma):
    monkeypatch.setattr(table, "target", lambda: ("x86_64", cpu, features or "+avx512f"))
    isa = table._found()
    rates = {dot.name: dot.rate * dot.macs for dot in isa.dots if dot.name in ("vdpbf16ps", "vpdpbusd")}
    fma = isa.dots[0].rate * isa.dots[0].macs
    assert rates["vdpbf16ps"] / fma == against_fma and rates["vpdpbusd"] / fma == 4
