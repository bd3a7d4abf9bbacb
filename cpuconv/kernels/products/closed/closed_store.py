"""Epilogues of the closed set: bias, scales, residual, clamp and activation from run-time words; store of a tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cpuconv.elements import F16, F32, S32
from cpuconv.isa.typed import load_as_float
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.elementwise.epilogue import quantized, shifted_clamps, store_vector
from cpuconv.kernels.elementwise.expression import Expression, Operand, apply
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.product import BY_NAME
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.products.closed.closed_tile import CALLED, HELD, MATRIX, PLANES, ClosedTile, bits, number_of
from cpuconv.problem.activation import scalars_of
from cpuconv.runtime.code.llvm import ir

_F32 = ir.FloatType()
_ALIGN = 16  # bytes; stack memory aligned to more needs a register for its address


@contextmanager
def _where(vec: Vector, condition: Any, values: list[Any]) -> Iterator[list[Any]]:
    """Replace `values` in the body of the context where a condition holds."""
    builder, kept, before = vec.builder, list(values), vec.builder.block
    with builder.if_then(condition):
        yield values
        after = builder.block
    for at, (old, new) in enumerate(zip(kept, values, strict=True)):
        if old is not new:
            phi = builder.phi(old.type)
            phi.add_incoming(old, before)
            phi.add_incoming(new, after)
            values[at] = phi


def _is_set(vec: Vector, word: Any) -> Any:
    return vec.builder.icmp_signed("!=", word, I64(0))


def _float(vec: Vector, word: Any) -> Any:
    """Broadcast the float32 bits of a word to all lanes."""
    return vec.splat(vec.builder.bitcast(vec.builder.trunc(word, I32), _F32))


def _hidden(builder: ir.IRBuilder, number: Any) -> Any:
    """Hide an int32 from LLVM, so that it does not unroll the loop that it counts."""
    return builder.asm(ir.FunctionType(I32, [I32]), "", "=r,0", [number], side_effect=False)


def _clamped(vec: Vector, words: dict[str, Any], values: list[Any]) -> None:
    """Clamp values; infinite bounds are skipped, NaN stays."""
    infinity = float("inf")
    for name, none, end in (("low", -infinity, vec.maximum), ("high", infinity, vec.minimum)):
        with _where(vec, vec.builder.icmp_signed("!=", words[name], I64(bits(none))), values):
            bound = _float(vec, words[name])
            values[:] = [end(bound, value) for value in values]


def _held(vec: Vector, words: dict[str, Any], values: list[Any]) -> None:
    """Apply an activation of a few instructions to values in registers."""
    for name in HELD:
        with _where(vec, vec.builder.icmp_signed("==", words["called"], I64(number_of(name))), values):
            values[:] = [_applied(name, vec, words, value) for value in values]


def _called(vec: Vector, words: dict[str, Any], values: list[Any]) -> None:
    """Apply a longer activation: values pass through memory, so that each is a short loop."""
    builder, count = vec.builder, len(values)
    with builder.goto_entry_block():
        room = builder.alloca(vec.type, count)
        room.align = _ALIGN
    with _where(vec, builder.icmp_signed(">", words["called"], I64(len(HELD))), values):
        for at, value in enumerate(values):
            builder.store(value, builder.gep(room, [I32(at)])).align = _ALIGN
        done = builder.append_basic_block("called")
        choice = builder.switch(words["called"], done)
        for name in CALLED:
            block = builder.append_basic_block(name)
            choice.add_case(I64(number_of(name)), block)
            builder.position_at_end(block)
            loop = builder.append_basic_block(f"{name}.each")
            builder.branch(loop)
            builder.position_at_end(loop)
            index = builder.phi(I32)
            index.add_incoming(I32(0), block)
            for at in range(step := 1 + (count % 2 == 0)):
                place = builder.gep(room, [builder.add(index, I32(at))])
                value = builder.load(place)
                value.align = _ALIGN
                builder.store(_applied(name, vec, words, value), place).align = _ALIGN
            following = _hidden(builder, builder.add(index, I32(step)))
            index.add_incoming(following, builder.block)
            builder.cbranch(builder.icmp_signed("<", following, I32(count)), loop, done)
        builder.position_at_end(done)
        for at in range(count):
            values[at] = builder.load(builder.gep(room, [I32(at)]))
            values[at].align = _ALIGN


def _applied(name: str, vec: Vector, words: dict[str, Any], value: Any) -> Any:
    operands = [Operand(at) for at in range(1 + len(scalars_of(name) or ()))]
    known: dict[Expression, Any] = dict(
        zip(operands, (value, *(_float(vec, words["slope"]) for _ in operands[1:])), strict=True)
    )
    math = Math(vec.builder, vec.lanes)
    math.rounds_to_half = vec.rounds_to_half
    return apply(name, *operands).emit(math, known)


def _activated(vec: Vector, words: dict[str, Any], values: list[Any]) -> None:
    _clamped(vec, words, values)
    _held(vec, words, values)
    _called(vec, words, values)


def store(tile: ClosedTile, vec: Vector, problem: Any, sums: list[Any], y: Any, bias: Any) -> None:
    """Apply the epilogue to the sums of a tile, pixel by pixel and vector by vector, and store them from `y` on."""
    words, builder, size = problem.words, vec.builder, vec.lanes * tile.y.bytes
    vec.rounds_to_half = tile.y == F16
    values = list(sums)
    places = []
    for row in range(tile.rows):
        for col in range(tile.cols):
            for j in range(tile.used):
                if tile.planar:
                    place = builder.add(builder.mul(problem.yrow, I64(col)), builder.mul(problem.yvec, I64(j)))
                else:
                    block, part = divmod(j, tile.vectors_per_pixel)
                    place = builder.add(builder.mul(problem.yvec, I64(block)), builder.mul(problem.yrow, I64(row)))
                    place = builder.add(place, builder.add(builder.mul(words["out"], I64(col)), I64(part * size)))
                places.append(vec.offset(y, place))
    masks = [tile.last and j == tile.used - 1 for _ in range(tile.rows * tile.cols) for j in range(tile.used)]
    mask = first_lanes(vec, problem.valid) if tile.last else None
    if tile.form not in (MATRIX,) and tile.rows == 1:
        finish = _of_integers if BY_NAME[tile.product].sum.integer else _of_floats

        def added(place: Any, masked: bool) -> Any:
            address = vec.offset(place, problem.residual)
            return load_as_float(vec, tile.y, address, mask if masked and tile.planar else None)

        finish(tile, vec, words, values, bias, lambda: list(map(added, places, masks)))
    for value, place, masked in zip(values, places, masks, strict=True):
        if tile.planar:
            vec.store_masked(value, place, mask if masked else vec.first_lanes_mask(vec.lanes))
            continue
        zero = ir.Constant(value.type, None)
        kept = builder.select(mask, value, zero) if masked else value
        store_vector(vec, tile.y, kept, place)
    if tile.last and tile.vectors_per_pixel > 1 and not tile.planar:
        _store_zeros(tile, vec, words["zeros"], places[tile.used - 1 :: tile.used])


def _store_zeros(tile: ClosedTile, vec: Vector, zeros: Any, places: list[Any]) -> None:
    """Store vectors of zeros behind the last vector of each pixel."""
    builder = vec.builder
    kind: Any = ir.VectorType(ir.IntType(8 * tile.y.bytes), vec.lanes)
    for part in range(1, tile.vectors_per_pixel):
        with builder.if_then(builder.icmp_signed("<=", I64(part), zeros)):
            for place in places:
                target = vec.offset(place, part * vec.lanes * tile.y.bytes)
                builder.store(ir.Constant(kind, None), builder.bitcast(target, kind.as_pointer())).align = 1


def _of_floats(
    tile: ClosedTile, vec: Vector, words: dict[str, Any], values: list[Any], bias: Any, residuals: Callable[[], list]
) -> None:
    """activation(sum + bias + residual)."""
    with _where(vec, vec.builder.icmp_signed("==", words["plain"], I64(0)), values):
        if tile.form == PLANES:
            loaded = [vec.broadcast(vec.offset(bias, 4 * col)) for col in range(tile.cols) for _ in range(tile.used)]
        else:
            each = [vec.load(vec.offset(bias, vec.size * j)) for j in range(tile.used)]
            loaded = each * tile.cols
        values[:] = map(vec.add, values, loaded)
        with _where(vec, _is_set(vec, words["residual"]), values):
            values[:] = map(vec.add, values, residuals())
        _activated(vec, words, values)


def _of_integers(
    tile: ClosedTile, vec: Vector, words: dict[str, Any], values: list[Any], bias: Any, residuals: Callable[[], list]
) -> None:
    """The epilogue of integer sums, as in `kernels/elementwise/epilogue.py`."""
    builder = vec.builder
    if tile.y == S32:
        with _where(vec, builder.icmp_signed("==", words["plain"], I64(0)), values):
            each = [vec.load_int(vec.offset(bias, builder.mul(words["rows"], I64(j)))) for j in range(tile.used)]
            values[:] = map(builder.add, values, each * tile.cols)
        return
    starts = [vec.offset(bias, builder.mul(words["rows"], I64(j))) for j in range(tile.used)]

    def row(at: int, behind: bool = False) -> list[Any]:
        """Load a row of every vector; `behind`: counted from the rows behind the residual's."""
        further = words["behind"] if behind else I64(0)
        return [vec.load(vec.offset(each, builder.add(further, I64(vec.size * at)))) for each in starts] * tile.cols

    totals = map(builder.add, values, [builder.bitcast(each, vec.int_type) for each in row(0)])
    values[:] = map(vec.mul, [builder.sitofp(each, vec.type) for each in totals], row(1))
    with _where(vec, _is_set(vec, words["long"]), values):
        values[:] = map(vec.add, values, row(2))
        with _where(vec, _is_set(vec, words["residual"]), values):
            numbers = map(vec.sub, residuals(), row(4))
            values[:] = map(vec.add, values, map(vec.mul, numbers, row(3)))
        _activated(vec, words, values)
        if tile.y != F32:
            values[:] = map(vec.div, values, row(-1, behind=True))
    if tile.y == F32:
        return
    zeros, lows, highs = (row(at, behind=True) for at in range(3))
    for at, clamps in enumerate(zip(zeros, lows, highs, strict=True)):
        values[at] = quantized(vec, values[at], *shifted_clamps(vec, *clamps))
