"""Cells of recurrent layers: one time step of a few sequences, a matrix multiplication with fused cell expressions.

A cell has one or two stages. A stage multiplies vectors by the weights of its gates, and computes its outputs from the
sums in registers. Weights are packed in the order in which they are read: a panel per vector of hidden units, and in
each panel a vector per gate and element.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from baselib.data_classes import dataclass
from cpuconv.elements import BF16, F32
from cpuconv.isa.vector import I32, I64
from cpuconv.kernels.copies.rounding import PAIR
from cpuconv.kernels.elementwise.expression import Expression, Operand
from cpuconv.kernels.elementwise.functions import Math
from cpuconv.kernels.emit.fold import repeat
from cpuconv.kernels.emit.loop import loop
from cpuconv.kernels.emit.product import BY_NAME, WORD, Product
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.recurrent.recurrent_bf16 import widens
from cpuconv.kernels.recurrent.recurrent_int8 import HEADER, LACKING, NUMBERS, SUM, UNIT
from cpuconv.problem.integers import divide
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

PEEPHOLES = 3
_CHAINS = 8  # independent accumulators: the latency of an FMA times FMAs per cycle
_UNROLL = 4  # elements of the state per loop iteration


class Stage(NamedTuple):
    """A part of a cell: `gates` gates from number `first` on, and the outputs computed from their sums.

    Operands of the outputs, by position: the inputs' contribution to each gate; the gates' dot products with the state,
    or in a second stage with the first stage's first output; the previous state; the second state of the cell, or the
    second output of the previous stage; the peepholes.
    """

    first: int
    gates: int
    outputs: tuple[Expression, ...]

    @property
    def read(self) -> frozenset[int]:
        """Positions of the operands that the outputs read."""
        return frozenset(position for output in self.outputs for position in output.operands)


# --- the micro-kernel -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellTile:
    """Tile of a stage for `cols` sequences; `total`: gates of the whole cell.

    `product`: instruction for int8 or bfloat16, a name in `product.TABLE`; "": float32. For int8, x, weights and bias
    are in the format of `recurrent_int8`, and the inputs' contributions to a gate are contiguous. For bfloat16, x and
    weights are in the format of `recurrent_bf16`.
    """

    lanes: int
    cols: int
    total: int
    stage: Stage
    product: str = ""

    @property
    def multiplies(self) -> Product | None:
        """The instruction that `product` names."""
        return BY_NAME[self.product] if self.product else None

    @property
    def is_int8(self) -> bool:
        """Whether int8 is multiplied."""
        return self.multiplies is not None and self.multiplies.sum.integer


@MicroKernel
def cell(
    tile: CellTile,
    builder: ir.IRBuilder,
    fed: Any,
    fed_step: Any,
    x: Any,
    x_step: Any,
    depth: Any,
    weights: Any,
    bias: Any,
    h: Any,
    h_step: Any,
    second: Any,
    second_step: Any,
    peepholes: Any,
    y: Any,
    y_step: Any,
    kept: Any,
    kept_step: Any,
    begin: Any,
    panels: Any,
    turned: Any,
) -> None:
    """Compute one time step of a stage: outputs at y and `kept` from the vectors x, of `depth` hidden units.

    Names with `_step` are bytes between sequences. The panels are `panels` ones from number `begin` on; `turned`: from
    last to first.
    """
    vec = Math(builder, tile.lanes)
    starts = [vec.pointer(address) for address in (fed, x, weights, bias, h, second, peepholes, y, kept)]
    steps = _Steps(fed_step, x_step, h_step, second_step, (y_step, kept_step))
    backward, last = builder.icmp_signed("!=", turned, I64(0)), builder.sub(panels, I64(1))

    def body(index: Any) -> None:
        panel = builder.add(begin, builder.select(backward, builder.sub(last, index), index))
        _Panel(tile, vec, panel, depth, steps, starts).emit()

    loop(builder, 0, panels, body)


class _Steps(NamedTuple):
    fed: Any
    x: Any
    h: Any
    second: Any
    outputs: tuple[Any, Any]


class _Panel:
    """Emitter of a stage for one vector of hidden units."""

    def __init__(self, tile: CellTile, vec: Math, panel: Any, depth: Any, steps: _Steps, starts: Sequence[Any]) -> None:
        builder, gates = vec.builder, tile.stage.gates
        fed, self.x, weights, bias, h, second, peepholes, y, kept = starts
        self.tile, self.vec, self.depth, self.steps = tile, vec, depth, steps

        def of_panel(address: Any, vectors: Any) -> Any:
            return vec.offset(address, builder.mul(panel, builder.mul(vectors, I64(vec.size))))

        def words(elements: int) -> Any:
            return builder.udiv(builder.add(depth, I64(elements - 1)), I64(elements))

        self.fed_gate: Any = I64(vec.size)
        product = tile.multiplies
        if product is not None and tile.is_int8:
            self.fed_gate, self.words = builder.mul(depth, I64(F32.bytes)), words(WORD)
            self.fed = of_panel(fed, I64(1))
            self.weights = of_panel(weights, builder.mul(self.words, I64(gates * product.parts)))
            self.bias = of_panel(bias, I64(NUMBERS * gates))
        else:
            self.words = words(1 if product is None else PAIR)
            self.fed = vec.offset(of_panel(fed, I64(tile.total)), tile.stage.first * vec.size)
            self.weights = of_panel(weights, builder.mul(self.words, I64(gates)))
            self.bias = of_panel(bias, I64(gates))
        self.peepholes = of_panel(peepholes, I64(PEEPHOLES))
        self.h, self.second, *self.outputs = (of_panel(address, I64(1)) for address in (h, second, y, kept))
        left = builder.sub(depth, builder.mul(panel, I64(vec.lanes)))
        self.whole = builder.icmp_signed(">=", left, I64(vec.lanes))
        self.mask = first_lanes(vec, builder.select(self.whole, I64(vec.lanes), left))

    def emit(self) -> None:
        product = self.tile.multiplies
        if product is None:
            sums = self._sums()
        else:
            sums = self._int8_sums(product) if self.tile.is_int8 else self._bf16_sums(product)
        results = [self._results(col, gates) for col, gates in enumerate(sums)]
        with self.vec.builder.if_else(self.whole) as (whole, part):
            with whole:
                self._store(results, lambda value, address: self.vec.store(value, address))
            with part:
                self._store(results, lambda value, address: self.vec.store_masked(value, address, self.mask))

    def _sums(self) -> list[list[Any]]:
        """bias + weights · x, by sequence and gate."""
        tile, vec, builder = self.tile, self.vec, self.vec.builder
        gates, cols = tile.stage.gates, range(tile.cols)
        each = gates * tile.cols
        chains = min(_UNROLL, divide(_CHAINS, each))
        starts = [self._sequence(self.x, self.steps.x, col) for col in cols]
        biases = [vec.load(vec.offset(self.bias, g * vec.size)) for g in range(gates)]
        values = [*biases * tile.cols, *[vec.constant(0.0)] * (each * (chains - 1))]

        def several(count: int) -> Any:
            def body(index: Any, values: list[Any]) -> list[Any]:
                at = vec.offset(self.weights, builder.mul(index, I64(count * gates * vec.size)))
                elements = [vec.offset(start, builder.mul(index, I64(count * F32.bytes))) for start in starts]
                for k in range(count):
                    row = [vec.load(vec.offset(at, (k * gates + g) * vec.size)) for g in range(gates)]
                    for col in cols:
                        element = vec.broadcast(vec.offset(elements[col], k * F32.bytes))
                        for g in range(gates):
                            place = (k % chains) * each + col * gates + g
                            values[place] = vec.fma(element, row[g], values[place])
                return values

            return body

        values = self._folded(self.words, values, several, each, vec.add)
        return [values[col * gates : (col + 1) * gates] for col in cols]

    def _bf16_sums(self, product: Product) -> list[list[Any]]:
        """bias + weights · x, by sequence and gate, of pairs of bfloat16 weights and of bfloat16 pairs or float32 x."""
        tile, vec, builder = self.tile, self.vec, self.vec.builder
        gates, cols, widened = tile.stage.gates, range(tile.cols), widens(product)
        each = gates * tile.cols
        chains = min(_UNROLL, divide(_CHAINS, each))
        word = PAIR * F32.bytes if widened else WORD
        rows = [self._sequence(self.x, self.steps.x, col) for col in cols]
        biases = [vec.load(vec.offset(self.bias, g * vec.size)) for g in range(gates)]
        values = [*biases * tile.cols, *[vec.constant(0.0)] * (each * (chains - 1))]

        def several(count: int, halves: int = PAIR) -> Any:
            def body(index: Any, values: list[Any]) -> list[Any]:
                at = vec.offset(self.weights, builder.mul(index, I64(count * gates * vec.size)))
                starts = [vec.offset(row, builder.mul(index, I64(count * word))) for row in rows]
                for k in range(count):
                    weights = [vec.load_int(vec.offset(at, (k * gates + g) * vec.size)) for g in range(gates)]
                    parts = [product.split(vec, each, BF16)[:halves] if widened else [each] for each in weights]
                    for part, col in itertools.product(range(len(parts[0])), cols):
                        address = vec.offset(starts[col], k * word + part * F32.bytes)
                        element = vec.broadcast(address) if widened else product.word(vec, address, False)
                        for g in range(gates):
                            place = (k % chains) * each + col * gates + g
                            add = vec.fma if widened else functools.partial(product.add, vec)
                            values[place] = add(element, parts[g][part], values[place])
                return values

            return body

        whole = builder.udiv(self.depth, I64(PAIR)) if widened else self.words
        if widened:  # x has no full pair at its end
            values = repeat(vec, whole, self.words, values, several(1, 1))
        values = self._folded(whole, values, several, each, vec.add)
        return [values[col * gates : (col + 1) * gates] for col in cols]

    def _int8_sums(self, product: Product) -> list[list[Any]]:
        """Σ (weights - zero points) · x, times scales, by sequence and gate; int8 sums are exact."""
        tile, vec, builder = self.tile, self.vec, self.vec.builder
        gates, cols = tile.stage.gates, range(tile.cols)
        each, size = gates * tile.cols, vec.size * product.parts
        chains = min(_UNROLL, divide(_CHAINS, each))
        rows = [self._sequence(self.x, self.steps.x, col) for col in cols]
        first = [vec.load_int(vec.offset(self.bias, g * vec.size)) for g in range(gates)]
        values = [*first * tile.cols, *[vec.int_constant(0)] * (each * (chains - 1))]
        if product.compact:
            lacking = [builder.load(builder.bitcast(vec.offset(row, LACKING), I32.as_pointer())) for row in rows]
            values[:each] = [builder.add(values[at], vec.splat(lacking[at // gates])) for at in range(each)]

        def several(count: int) -> Any:
            def body(index: Any, values: list[Any]) -> list[Any]:
                at = vec.offset(self.weights, builder.mul(index, I64(count * gates * size)))
                words = builder.add(builder.mul(index, I64(count * WORD)), I64(HEADER))
                for k in range(count):
                    for col in cols:
                        address = vec.offset(rows[col], builder.add(words, I64(k * WORD)))
                        parts = product.split(vec, product.word(vec, address, False), product.x)
                        for g, (p, part) in itertools.product(range(gates), enumerate(parts)):
                            weight = product.load(vec, vec.offset(at, (k * gates + g) * size + p * vec.size), vec.size)
                            place = (k % chains) * each + col * gates + g
                            values[place] = product.add(vec, part, weight, values[place])
                return values

            return body

        values = self._folded(self.words, values, several, each, builder.add)
        scales, points = (
            [vec.load(vec.offset(self.bias, (row * gates + g) * vec.size)) for g in range(gates)] for row in (1, 2)
        )

        def number(col: int, g: int) -> Any:
            unit, total = (vec.broadcast(vec.offset(rows[col], place)) for place in (UNIT, SUM))
            whole = vec.sub(builder.sitofp(values[col * gates + g], vec.type), vec.mul(points[g], total))
            return vec.mul(whole, vec.mul(scales[g], unit))

        return [[number(col, g) for g in range(gates)] for col in cols]

    def _folded(
        self, count: Any, values: list[Any], several: Callable[[int], Any], each: int, add: Callable[[Any, Any], Any]
    ) -> list[Any]:
        """Emit the loops of `several` over `count` elements, and add up the independent accumulators to `each` sums."""
        vec, builder = self.vec, self.vec.builder
        turns = builder.udiv(count, I64(_UNROLL))
        values = repeat(vec, I64(0), turns, values, several(_UNROLL))
        values = repeat(vec, builder.mul(turns, I64(_UNROLL)), count, values, several(1))
        total = values[:each]
        for first in range(each, len(values), each):
            total = [add(a, b) for a, b in zip(total, values[first : first + each], strict=True)]
        return total

    def _results(self, col: int, sums: Sequence[Any]) -> list[Any]:
        stage = self.tile.stage
        known: dict[Expression, Any] = {Operand(at): self._operand(at, col, sums) for at in sorted(stage.read)}
        return [output.emit(self.vec, known) for output in stage.outputs]

    def _operand(self, position: int, col: int, sums: Sequence[Any]) -> Any:
        """An operand of a stage's outputs, by the positions of `Stage`."""
        vec, gates = self.vec, self.tile.stage.gates
        if position < gates:
            address = self._sequence(self.fed, self.steps.fed, col)
            address = vec.offset(address, vec.builder.mul(self.fed_gate, I64(position)))
            return vec.load_masked(address, self.mask) if self.tile.is_int8 else vec.load(address)
        if position < 2 * gates:
            return sums[position - gates]
        states = (self.h, self.steps.h), (self.second, self.steps.second)
        at = position - 2 * gates
        if at < len(states):
            return vec.load_masked(self._sequence(*states[at], col), self.mask)
        return vec.load(vec.offset(self.peepholes, (at - len(states)) * vec.size))

    def _store(self, results: Sequence[Sequence[Any]], store: Any) -> None:
        for col, values in enumerate(results):
            for value, address, step in zip(values, self.outputs, self.steps.outputs, strict=False):
                store(value, self._sequence(address, step, col))

    def _sequence(self, address: Any, step: Any, col: int) -> Any:
        return self.vec.offset(address, self.vec.builder.mul(step, I64(col))) if col else address


call_cell = cell.caller()
