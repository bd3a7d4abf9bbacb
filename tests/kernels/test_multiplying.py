"""Instructions reach kernels from their table alone: a row that was made up is in the LLVM IR."""

from __future__ import annotations

from typing import Any

import pytest

from cpuconv.elements import BF16, F32, S8, S32, U8
from cpuconv.isa import dots
from cpuconv.isa.dots import ARM, X86, Dot, dot_of
from cpuconv.isa.vector import Vector
from cpuconv.kernels.emit.product import Product
from cpuconv.runtime.code.llvm import imported, ir

UNSIGNED = Dot("vpdpbuud", X86, "avxvnniint8", 256, U8, U8, S32, 4, 2, "llvm.x86.avx2.vpdpbuud.256")
WIDE = Dot("bftimes", ARM, "sve-bf16", 128, BF16, BF16, F32, 2, 2, "llvm.aarch64.neon.bftimes.v4f32.v8bf16")


def emitted(product: Product, lanes: int, triple: str) -> str:
    """LLVM IR of total + part·weight."""
    imported()
    module = ir.Module()
    module.triple = triple
    vector: Any = ir.VectorType(ir.IntType(32), lanes)
    total = ir.VectorType(ir.FloatType(), lanes) if product.sum == F32 else vector
    function = ir.Function(module, ir.FunctionType(total, [vector, vector, total]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(product.add(Vector(builder, lanes), *function.args))
    return str(module)


@pytest.mark.parametrize("made_up, triple", [(UNSIGNED, "x86_64-linux"), (WIDE, "aarch64-linux")])
def test_a_made_up_instruction_reaches_the_code(monkeypatch: pytest.MonkeyPatch, made_up: Dot, triple: str) -> None:
    product = Product(made_up.name, made_up.x, made_up.w, made_up.w, instruction=made_up.name)
    with pytest.raises(LookupError, match=f"no row for the instruction {made_up.name} on vectors of {made_up.bits}"):
        emitted(product, made_up.lanes, triple)
    monkeypatch.setattr(dots, "VECTORS", (*dots.VECTORS, made_up))
    text = emitted(product, made_up.lanes, triple)

    assert f'@"{made_up.intrinsic}"(' in text


def test_rows_are_told_apart_by_width() -> None:
    assert {dot_of("vpmaddubsw", bits).intrinsic for bits in (256, 512)} == {
        "llvm.x86.avx2.pmadd.ub.sw",
        "llvm.x86.avx512.pmaddubs.w.512",
    }
    assert len({(dot.name, dot.bits, dot.x, dot.sum) for dot in dots.VECTORS}) == len(dots.VECTORS)


def test_what_multiplies_alone_has_no_accumulator() -> None:
    dot = dot_of("vpmaddubsw", 256)
    assert not dot.accumulates and dot.saturates and (dot.x, dot.w) == (U8, S8)
    assert not dot_of("pmaddwd", 128).saturates
