"""Recurrent layers: the steps of all sequences, each a product with the state and the cell's expressions of its sums.

What the inputs give to the gates is known beforehand. A cell has one stage or two; a stage multiplies a vector with the
weights of its gates, and computes its outputs from the sums while they are in registers. Weights are packed in the
order in which they are read: a panel for each vector of hidden units, in it a vector for each gate and element.

Sequences do not depend on one another, nor do directions: workers share them, and no step waits for another worker.
The state before a step is read where the step before has written it, in the output. Every other step goes through the
weights from their end: of those that are too many for a cache, it finds the ones that were read last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from cpuconv.graph.kernels.expression import Expression, Operand
from cpuconv.graph.kernels.fold import repeat
from cpuconv.graph.kernels.functions import Math
from cpuconv.graph.lowering import Target
from cpuconv.isa import Isa
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.micro.intrinsics import copy_float, emitter, zero_float
from cpuconv.micro.loop import loop
from cpuconv.micro.transpose import first_lanes
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.runtime.microkernel import MicroKernel
from cpuconv.solvers.shared.arguments import worker_args
from cpuconv.solvers.shared.base import FLOAT, Args, MicroRef, Ref, Space, Step, aligned, divide

PEEPHOLES = 3
_CHAINS = 8  # sums under way at once: the latency of an FMA times those of a cycle
_UNROLL = 4  # elements of the state in one turn of the loop


class Stage(NamedTuple):
    """A part of a cell: `gates` of its gates from number `first` on, and what it makes of their sums.

    Operands of the outputs, by position: what the inputs give to each of the gates; then their products with the state,
    or behind another stage with its first output; the state before the step; the second state of the cell, or the
    second output of the stage before; then the peepholes.
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
    """A stage for `cols` sequences at once; `total`: gates of the whole cell."""

    lanes: int
    cols: int
    total: int
    stage: Stage


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
    panels: Any,
    turned: Any,
) -> None:
    """One step of a stage: its outputs at y and `kept` from the vectors x, of `depth` hidden units.

    Names with `_step` are bytes from a sequence to the next. Panels are gone through from the last one on if `turned`.
    """
    vec = Math(builder, tile.lanes)
    starts = [vec.pointer(address) for address in (fed, x, weights, bias, h, second, peepholes, y, kept)]
    steps = _Steps(fed_step, x_step, h_step, second_step, (y_step, kept_step))
    backward = builder.icmp_signed("!=", turned, I64(0))

    def body(index: Any) -> None:
        panel = builder.select(backward, builder.sub(builder.sub(panels, I64(1)), index), index)
        _Panel(tile, vec, panel, depth, steps, starts).emit()

    loop(builder, 0, panels, body)


class _Steps(NamedTuple):
    fed: Any
    x: Any
    h: Any
    second: Any
    outputs: tuple[Any, Any]


class _Panel:
    """Emits what a stage does for one vector of hidden units."""

    def __init__(self, tile: CellTile, vec: Math, panel: Any, depth: Any, steps: _Steps, starts: Sequence[Any]) -> None:
        builder, gates = vec.builder, tile.stage.gates
        fed, self.x, weights, bias, h, second, peepholes, y, kept = starts
        self.tile, self.vec, self.depth, self.steps = tile, vec, depth, steps

        def of_panel(address: Any, vectors: Any) -> Any:
            return vec.offset(address, builder.mul(panel, builder.mul(vectors, I64(vec.size))))

        self.fed = vec.offset(of_panel(fed, I64(tile.total)), tile.stage.first * vec.size)
        self.weights = of_panel(weights, builder.mul(depth, I64(gates)))
        self.bias, self.peepholes = of_panel(bias, I64(gates)), of_panel(peepholes, I64(PEEPHOLES))
        self.h, self.second, *self.outputs = (of_panel(address, I64(1)) for address in (h, second, y, kept))
        left = builder.sub(depth, builder.mul(panel, I64(vec.lanes)))
        self.whole = builder.icmp_signed(">=", left, I64(vec.lanes))
        self.mask = first_lanes(vec, builder.select(self.whole, I64(vec.lanes), left))

    def emit(self) -> None:
        sums = self._sums()
        results = [self._results(col, gates) for col, gates in enumerate(sums)]
        with self.vec.builder.if_else(self.whole) as (whole, part):
            with whole:
                self._store(results, lambda value, address: self.vec.store(value, address))
            with part:
                self._store(results, lambda value, address: self.vec.store_first(value, address, self.mask))

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
                elements = [vec.offset(start, builder.mul(index, I64(count * FLOAT))) for start in starts]
                for k in range(count):
                    row = [vec.load(vec.offset(at, (k * gates + g) * vec.size)) for g in range(gates)]
                    for col in cols:
                        element = vec.broadcast(vec.offset(elements[col], k * FLOAT))
                        for g in range(gates):
                            place = (k % chains) * each + col * gates + g
                            values[place] = vec.fma(element, row[g], values[place])
                return values

            return body

        turns = builder.udiv(self.depth, I64(_UNROLL))
        values = repeat(vec, I64(0), turns, values, several(_UNROLL))
        values = repeat(vec, builder.mul(turns, I64(_UNROLL)), self.depth, values, several(1))
        for chain in range(1, chains):
            values[:each] = [vec.add(a, b) for a, b in zip(values[:each], values[chain * each :], strict=False)]
        return [values[col * gates : (col + 1) * gates] for col in cols]

    def _results(self, col: int, sums: Sequence[Any]) -> list[Any]:
        stage = self.tile.stage
        known: dict[Expression, Any] = {Operand(at): self._operand(at, col, sums) for at in sorted(stage.read)}
        return [output.emit(self.vec, known) for output in stage.outputs]

    def _operand(self, position: int, col: int, sums: Sequence[Any]) -> Any:
        """An operand of a stage's outputs, as `Stage` counts them."""
        vec, gates = self.vec, self.tile.stage.gates
        if position < gates:
            return vec.load(vec.offset(self._sequence(self.fed, self.steps.fed, col), position * vec.size))
        if position < 2 * gates:
            return sums[position - gates]
        states = (self.h, self.steps.h), (self.second, self.steps.second)
        at = position - 2 * gates
        if at < len(states):
            return vec.load_first(self._sequence(*states[at], col), self.mask)
        return vec.load(vec.offset(self.peepholes, (at - len(states)) * vec.size))

    def _store(self, results: Sequence[Sequence[Any]], store: Any) -> None:
        for col, values in enumerate(results):
            for value, address, step in zip(values, self.outputs, self.steps.outputs, strict=False):
                store(value, self._sequence(address, step, col))

    def _sequence(self, address: Any, step: Any, col: int) -> Any:
        return self.vec.offset(address, self.vec.builder.mul(step, I64(col))) if col else address


_call_cell = cell.caller()


# --- the driver -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerTile:
    """`stages` of the cell; `lengths`: each sequence has one of its own."""

    lanes: int
    stages: int
    lengths: bool


@emitter
def _int32(tile: Any, vec: Vector, address: Any) -> Any:
    """The int32 at an address."""
    return vec.builder.sext(vec.builder.load(vec.builder.inttoptr(address, I32.as_pointer())), I64)


@inline
def _copy_rows(tile, source, source_step, target, target_step, rows, floats):
    for row in range(rows):
        for i in range(floats):
            copy_float(tile, source + row * source_step + 4 * i, target + row * target_step + 4 * i)


@kernel(
    "cell cell_last second_cell second_cell_last units tiles cols cols_last steps backward hidden panels "
    "lengths lengths_b fed fed_t fed_d fed_b weights weights_d bias bias_d "
    "second_weights second_weights_d second_bias second_bias_d peepholes peepholes_d "
    "h0 h0_d h0_b c0 c0_d c0_b y y_t y_d y_b y_h y_h_d y_h_b y_c y_c_d y_c_b scratch scratch_step row"
)
def layer(tile, worker, before, part, parts, args):
    """All steps of units (direction, tile of sequences): y, the last state, and the last second state.

    `row`: bytes of a sequence's row in the worker's scratch memory, which lies between two stages.
    """
    scratch = args.scratch + worker * args.scratch_step
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        d = unit // args.tiles
        number = unit - d * args.tiles
        last = number == args.tiles - 1
        b = number * args.cols
        cols = args.cols_last if last else args.cols
        micro = args.cell_last if last else args.cell
        second = args.second_cell_last if last else args.second_cell
        fed = args.fed + d * args.fed_d + b * args.fed_b
        y = args.y + d * args.y_d + b * args.y_b
        h, h_b = args.h0 + d * args.h0_d + b * args.h0_b, args.h0_b
        c, c_b = args.c0 + d * args.c0_d + b * args.c0_b, args.c0_b
        y_c = args.y_c + d * args.y_c_d + b * args.y_c_b
        weights, bias = args.weights + d * args.weights_d, args.bias + d * args.bias_d
        peepholes = args.peepholes + d * args.peepholes_d
        steps = args.steps
        if tile.lengths:
            steps = max(0, min(steps, _int32(tile, args.lengths + b * args.lengths_b)))
        for s in range(steps):
            t = steps - 1 - s if args.backward + d > 0 else s
            fed_t, y_t = fed + t * args.fed_t, y + t * args.y_t
            if tile.stages == 1:
                _call_cell(
                    micro, fed_t, args.fed_b, h, h_b, args.hidden, weights, bias, h, h_b, c, c_b, peepholes,
                    y_t, args.y_b, y_c, args.y_c_b, args.panels, s % 2,
                )  # fmt: skip
                c, c_b = y_c, args.y_c_b
            else:
                kept = scratch + args.row * cols
                _call_cell(
                    micro, fed_t, args.fed_b, h, h_b, args.hidden, weights, bias, h, h_b, h, h_b, peepholes,
                    scratch, args.row, kept, args.row, args.panels, s % 2,
                )  # fmt: skip
                _call_cell(
                    second, fed_t, args.fed_b, scratch, args.row, args.hidden,
                    args.second_weights + d * args.second_weights_d, args.second_bias + d * args.second_bias_d,
                    h, h_b, kept, args.row, peepholes, y_t, args.y_b, y_t, args.y_b, args.panels, s % 2,
                )  # fmt: skip
            h, h_b = y_t, args.y_b
        for t in range(steps, args.steps):
            for i in range(args.hidden):
                zero_float(tile, y + t * args.y_t + 4 * i)
        if args.y_h != 0:
            _copy_rows(tile, h, h_b, args.y_h + d * args.y_h_d + b * args.y_h_b, args.y_h_b, cols, args.hidden)
        if steps == 0 and args.y_c != 0:
            _copy_rows(tile, c, c_b, y_c, args.y_c_b, cols, args.hidden)


# --- operands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows in memory, of hidden units mostly, with bytes between them along time, directions and sequences."""

    ref: Ref | int
    t: int
    d: int
    b: int


@dataclass(frozen=True)
class Layer:
    """A recurrent layer.

    Attributes
    ----------
    stages : tuple[Stage, ...]
    steps, directions, batch, hidden : int
    backward : bool
        Whether the first direction, or the only one, goes backwards; a second one does.
    weights, bias : list[Ref]
        For each stage, as `packed` makes them of what belongs to the state.
    peepholes : Ref or None
        Packed likewise.
    lengths : Rows or None
        The steps of each sequence, int32.
    fed : Rows
        What the inputs and their bias give to the gates, in whole vectors for each gate of each panel.
    first, y, last : tuple[Rows, ...], Rows, tuple[Rows, ...]
        The states before all steps, the output, and the states behind them; a last first state may be left out
        (address 0).
    """

    stages: tuple[Stage, ...]
    steps: int
    directions: int
    batch: int
    hidden: int
    backward: bool
    weights: list[Ref]
    bias: list[Ref]
    peepholes: Ref | None
    lengths: Rows | None
    fed: Rows
    first: tuple[Rows, ...]
    y: Rows
    last: tuple[Rows, ...]


def packed(array: np.ndarray, gates: int, lanes: int, first: int = 0, count: int | None = None) -> np.ndarray:
    """Gates `first` … `first + count` - 1 of (directions, gates x hidden, depth), or without depth, in panels.

    Gives (directions, panels, depth, count, lanes), zeros where there is no unit.
    """
    directions, rows, *depth = array.shape
    hidden = rows // gates
    panels = divide(hidden, lanes)
    chosen = array.reshape(directions, gates, hidden, -1)[:, first : first + (count or gates)]
    made = aligned((directions, panels, chosen.shape[-1], chosen.shape[1], lanes))
    made[:, -1] = 0
    for panel in range(panels):
        part = chosen[:, :, panel * lanes : (panel + 1) * lanes]
        made[:, panel, :, :, : part.shape[2]] = part.transpose(0, 3, 1, 2)
    return made


def tiles(isa: Isa, stages: Sequence[Stage], batch: int, lengths: bool) -> tuple[int, int]:
    """Tiles of sequences, and the sequences of one: as many as registers hold, or one each where lengths differ."""
    widest = 1 if lengths else min(isa.pixels[min(stage.gates, len(isa.pixels)) - 1] for stage in stages)
    count = divide(batch, widest)
    return count, divide(batch, count)


def layer_step(target: Target, space: Space, work: Layer) -> Step:
    """One call that runs all steps of all sequences."""
    lanes, stages, hidden = target.isa.lanes, work.stages, work.hidden
    count, cols = tiles(target.isa, stages, work.batch, work.lengths is not None)
    count = divide(work.batch, cols)
    rest = work.batch - (count - 1) * cols
    panels, total, vector = divide(hidden, lanes), sum(stage.gates for stage in stages), lanes * FLOAT

    def micro(number: int, cols: int) -> int | MicroRef:
        return MicroRef(cell, CellTile(lanes, cols, total, stages[number])) if number < len(stages) else 0

    args: Args = {
        "cell": micro(0, cols),
        "cell_last": micro(0, rest),
        "second_cell": micro(1, cols),
        "second_cell_last": micro(1, rest),
        "units": work.directions * count,
        "tiles": count,
        "cols": cols,
        "cols_last": rest,
        "steps": work.steps,
        "backward": int(work.backward),
        "hidden": hidden,
        "panels": panels,
        "lengths": work.lengths.ref if work.lengths else 0,
        "lengths_b": work.lengths.b if work.lengths else 0,
        "peepholes": work.peepholes or 0,
        "peepholes_d": panels * PEEPHOLES * vector,
        "row": panels * vector,
        **worker_args("scratch", space, 2 * cols * panels * vector if len(stages) > 1 else 0, target.threads),
    }
    for number, prefix in enumerate(("", "second_")):
        gates = stages[number].gates if number < len(stages) else 0
        args |= {
            f"{prefix}weights": work.weights[number] if gates else 0,
            f"{prefix}weights_d": panels * hidden * gates * vector,
            f"{prefix}bias": work.bias[number] if gates else 0,
            f"{prefix}bias_d": panels * gates * vector,
        }
    none = Rows(0, 0, 0, 0)
    firsts, lasts = (*work.first, none)[:2], (*work.last, none)[:2]
    for name, rows in zip(("h0", "c0", "y_h", "y_c"), (*firsts, *lasts), strict=True):
        args |= {name: rows.ref, f"{name}_d": rows.d, f"{name}_b": rows.b}
    for name, rows in (("fed", work.fed), ("y", work.y)):
        args |= {name: rows.ref, f"{name}_t": rows.t, f"{name}_d": rows.d, f"{name}_b": rows.b}
    parts = divide(work.directions * count, target.threads) if target.threads > 1 else 0
    return Step(layer, LayerTile(lanes, len(stages), work.lengths is not None), args, parts)
