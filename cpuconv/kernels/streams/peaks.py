"""Peak rates of dot-product instructions: independent chains in vector registers, and AMX in its tile registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.isa.calls import call
from cpuconv.isa.dots import ROW_BYTES, TILE_ROWS
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.intrinsics import emitter
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.streams.probe import loop
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.kernel import kernel

TILE_BYTES = TILE_ROWS * ROW_BYTES
SUMS, PIXELS, WEIGHTS = (0, 1, 2, 3), (4, 5), (6, 7)  # tile registers
_I8 = ir.IntType(8)


@dataclass(frozen=True)
class PeakTile:
    """Independent chains in the loop, of an instruction by its name in `emit/product.py` or by LLVM's x86 intrinsic."""

    lanes: int
    chains: int
    name: str
    group: int  # multiply-adds per accumulator lane and instruction

    @property
    def macs(self) -> int:
        """Multiply-adds per loop iteration."""
        return self.lanes * self.group * self.chains


@dataclass(frozen=True)
class MatrixTile:
    """Loop over AMX instructions: each tile of pixels times each tile of weights."""

    lanes: int
    name: str  # LLVM's name of the instruction
    macs_each: int  # multiply-adds per instruction
    unroll: int

    @property
    def macs(self) -> int:
        """Multiply-adds per loop iteration."""
        return self.macs_each * len(SUMS) * self.unroll


@emitter
def product_chains(tile: Any, vec: Vector, turns: Any, seeds: Any, target: Any) -> None:
    """Run `turns` (1 or more) iterations of one instruction per chain; chain i starts from vector i at `seeds`.

    An iteration multiplies the two vectors of `seeds` after the chains'. The sum of all chains is stored at `target`.
    """
    builder, product = vec.builder, BY_NAME.get(tile.name)
    if builder.module.triple.startswith("x86"):
        # for other CPUs LLVM splits vpdpwssd in two instructions
        set.add(builder.function.attributes, '"tune-cpu"="znver4"')
    base = vec.pointer(seeds)
    kind = product.sums_type(vec) if product else vec.int_type
    *starts, part, weight = (vec.load_int(vec.offset(base, i * vec.size)) for i in range(tile.chains + 2))
    starts = [builder.bitcast(start, kind) for start in starts]

    def body(_: Any, state: list[Any]) -> list[Any]:
        *chains, factor = state
        for i, chain in enumerate(chains):
            factor = _hidden(vec, factor)
            operands = part, [factor, factor] if product and product.flipped else factor, chain
            chains[i] = product.add(vec, *operands) if product else _named(vec, tile.name, *operands)
        return [*chains, factor]

    *values, _ = loop(vec, turns, I64(0), 0, [*starts, weight], body)
    total = values[0]
    for value in values[1:]:
        total = builder.add(total, value) if kind == vec.int_type else builder.fadd(total, value)
    vec.store(builder.bitcast(total, vec.type), vec.pointer(target))


def _hidden(vec: Vector, value: Any) -> Any:
    """The same vector, opaque to the optimiser, which therefore hoists no multiplication out of the loop."""
    register = "v" if vec.builder.module.triple.startswith("x86") else "w"
    kind = ir.FunctionType(value.type, [value.type])
    return vec.builder.asm(kind, "", f"={register},0", [value], side_effect=True)


def _named(vec: Vector, intrinsic: str, part: Any, weight: Any, total: Any) -> Any:
    """Emit an x86 instruction on int32 accumulators, by LLVM's name."""
    return call(vec.builder, intrinsic, total.type, [total, part, weight])


@emitter
def matrix_chains(tile: Any, vec: Vector, turns: Any, configuration: Any, operands: Any, target: Any) -> None:
    """Run `turns` (1 or more) iterations of 4 × unroll tile multiplications; two in a row use the same weights.

    Pixels and weights are the first two tiles of 1,024 bytes at `operands`; one tile of sums is stored at `target`.
    """
    builder = vec.builder
    stride, source = I64(ROW_BYTES), vec.pointer(operands)
    _call(builder, "ldtilecfg", vec.pointer(configuration))
    for register in SUMS:
        _call(builder, "tilezero", _I8(register))
    for registers, place in ((PIXELS, 0), (WEIGHTS, TILE_BYTES)):
        for register in registers:
            _call(builder, "tileloadd64", _I8(register), vec.offset(source, place), stride)
    pairs = [(pixels, weights) for weights in WEIGHTS for pixels in PIXELS]

    def body(_: Any, __: list[Any]) -> list[Any]:
        for _ in range(tile.unroll):
            for register, (pixels, weights) in zip(SUMS, pairs, strict=True):
                _call(builder, tile.name, _I8(register), _I8(pixels), _I8(weights))
        return []

    loop(vec, turns, I64(0), 0, [], body)
    _call(builder, "tilestored64", _I8(SUMS[0]), vec.pointer(target), stride)
    _call(builder, "tilerelease")


def configuration() -> np.ndarray:
    """Operand of `ldtilecfg`: palette 1, every tile of 16 rows of 64 bytes."""
    data, registers = np.zeros(ROW_BYTES, np.uint8), len((*SUMS, *PIXELS, *WEIGHTS))
    data[0] = 1
    data[16 : 16 + 2 * registers].view(np.uint16)[:] = ROW_BYTES
    data[48 : 48 + registers] = TILE_ROWS
    return data


def _call(builder: ir.IRBuilder, name: str, *arguments: Any) -> None:
    call(builder, f"llvm.x86.{name}", ir.VoidType(), arguments)


@kernel("turns seeds y y_step")
def product_peak(tile, worker, before, part, parts, args):
    """Run turns × chains instructions per part; the result is stored at y + part·y_step."""
    product_chains(tile, args.turns, args.seeds, args.y + part * args.y_step)


@kernel("turns configuration operands y y_step")
def matrix_peak(tile, worker, before, part, parts, args):
    """Run turns × 4 × unroll tile multiplications per part; a tile of sums is stored at y + part·y_step."""
    matrix_chains(tile, args.turns, args.configuration, args.operands, args.y + part * args.y_step)
