"""Recurrent layers: each time step multiplies the states by the weights and evaluates the cell's expressions.

The contributions of the inputs to the gates are computed beforehand. Sequences and directions are independent: workers
share them without synchronisation. Where there are fewer of them than workers, or where a direction's weights exceed a
worker's cache, workers share the hidden units of each time step and synchronise after it. Each worker then keeps its
part of the weights in its cache.

A time step writes its state to the output, where the next step reads it. Every second time step reads the weights from
last to first: where they exceed the cache, those that were read last are still in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from baselib.data_classes import dataclass
from cpuconv.elements import F32
from cpuconv.isa import Isa
from cpuconv.isa.vector import I32, I64, Vector
from cpuconv.kernels.binding.arguments import worker_args
from cpuconv.kernels.binding.machine import machine
from cpuconv.kernels.binding.processor import Processor
from cpuconv.kernels.binding.steps import Args, MicroRef, OneOf, Ref, Space, Step
from cpuconv.kernels.copies.rounding import PAIR, RoundTile, round_rows
from cpuconv.kernels.emit.intrinsics import copy_float, emitter, zero_float
from cpuconv.kernels.emit.product import BY_NAME, WORD
from cpuconv.kernels.recurrent.recurrent_bf16 import widens
from cpuconv.kernels.recurrent.recurrent_cell import PEEPHOLES, CellTile, Stage, call_cell, cell
from cpuconv.kernels.recurrent.recurrent_int8 import (
    NUMBERS,
    QuantizeStatesTile,
    call_quantize_states,
    quantize_states,
    row_bytes,
)
from cpuconv.memory.aligned import aligned
from cpuconv.problem.integers import divide
from cpuconv.runtime.kernel import inline, kernel
from cpuconv.symbolic.sizes import is_symbolic

_SHARED_BYTES = 1 << 18  # minimum bytes of weights per worker and time step; with fewer, synchronisation costs more


@dataclass(frozen=True)
class LayerTile:
    """Tile: `stages` of the cell; `lengths`: each sequence has its own; `made`: `state` converts the states."""

    lanes: int
    stages: int
    lengths: bool
    made: bool = False


@emitter
def _int32(tile: Any, vec: Vector, address: Any) -> Any:
    """Load an int32."""
    return vec.builder.sext(vec.builder.load(vec.builder.inttoptr(address, I32.as_pointer())), I64)


@inline
def _copy_rows(tile, source, source_step, target, target_step, rows, floats):
    for row in range(rows):
        for i in range(floats):
            copy_float(tile, source + row * source_step + 4 * i, target + row * target_step + 4 * i)


@kernel(
    "cell cell_last second_cell second_cell_last state units direction directions tiles shares cols cols_last steps "
    "backward turned hidden panels "
    "lengths lengths_b fed fed_t fed_d fed_b weights weights_d bias bias_d "
    "second_weights second_weights_d second_bias second_bias_d peepholes peepholes_d "
    "h0 h0_d h0_b c0 c0_d c0_b y y_t y_d y_b y_h y_h_d y_h_b y_c y_c_d y_c_b scratch scratch_step row"
)
def layer(tile, worker, before, part, parts, args):
    """Compute all time steps of units (share of the panels, direction, tile of sequences): y, and the last states.

    With shared panels a call is one time step and does not copy the last hidden state. With `turned`, the first time
    step reads the weights from last to first. `row`: bytes of a sequence's row in the worker's scratch memory, which
    has the states converted by `state`, and the tensors between two stages.
    """
    scratch = args.scratch + worker * args.scratch_step
    for unit in range(args.units * part // parts, args.units * (part + 1) // parts):
        number = unit % args.tiles
        d = args.direction + unit // args.tiles % args.directions
        share = unit // args.tiles // args.directions
        begin = args.panels * share // args.shares
        panels = args.panels * (share + 1) // args.shares - begin
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
            turned = (s + args.turned) % 2
            t = steps - 1 - s if args.backward + d > 0 else s
            fed_t, y_t = fed + t * args.fed_t, y + t * args.y_t
            x, x_b = h, h_b
            if tile.made:
                call_quantize_states(
                    args.state, h=h, h_step=h_b, depth=args.hidden, rows=cols, y=scratch, y_step=args.row
                )
                x, x_b = scratch, args.row
            if tile.stages == 1:
                call_cell(
                    micro, fed=fed_t, fed_step=args.fed_b, x=x, x_step=x_b, depth=args.hidden, weights=weights,
                    bias=bias, h=h, h_step=h_b, second=c, second_step=c_b, peepholes=peepholes, y=y_t, y_step=args.y_b,
                    kept=y_c, kept_step=args.y_c_b, begin=begin, panels=panels, turned=turned,
                )  # fmt: skip
                c, c_b = y_c, args.y_c_b
            else:
                middle = scratch + args.row * cols
                kept = middle + args.row * cols
                call_cell(
                    micro, fed=fed_t, fed_step=args.fed_b, x=x, x_step=x_b, depth=args.hidden, weights=weights,
                    bias=bias, h=h, h_step=h_b, second=h, second_step=h_b, peepholes=peepholes, y=middle,
                    y_step=args.row, kept=kept, kept_step=args.row, begin=begin, panels=panels, turned=turned,
                )  # fmt: skip
                x, x_b = middle, args.row
                if tile.made:
                    call_quantize_states(
                        args.state, h=middle, h_step=args.row, depth=args.hidden, rows=cols, y=scratch, y_step=args.row
                    )
                    x = scratch
                call_cell(
                    second, fed=fed_t, fed_step=args.fed_b, x=x, x_step=x_b, depth=args.hidden,
                    weights=args.second_weights + d * args.second_weights_d,
                    bias=args.second_bias + d * args.second_bias_d, h=h, h_step=h_b, second=kept, second_step=args.row,
                    peepholes=peepholes, y=y_t, y_step=args.y_b, kept=y_t, kept_step=args.y_b, begin=begin,
                    panels=panels, turned=turned,
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
    """Rows in memory, mostly of hidden units, with byte strides along time, directions and sequences."""

    ref: Ref | int
    t: int
    d: int
    b: int

    def at(self, times: tuple[int, int]) -> Rows:
        """The rows of one time step; `times` has an index for each direction."""
        first, second = times
        return replace(self, ref=self.ref + first * self.t, d=self.d + (second - first) * self.t)


_NONE = Rows(0, 0, 0, 0)


@dataclass(frozen=True)
class Layer:
    """A recurrent layer.

    Attributes
    ----------
    stages : tuple[Stage, ...]
    steps, directions, batch, hidden : int
    backward : bool
        Whether the first or only direction runs backwards in time; a second one does.
    weights, bias : list[Ref]
        Recurrent weights and bias of each stage, packed by `packed`; int8 by `recurrent_int8`, bfloat16 weights by
        `recurrent_bf16`.
    peepholes : Ref or None
        Packed likewise.
    lengths : Rows or None
        Time steps of each sequence, int32.
    fed : Rows
        Contributions of the inputs and their bias to the gates, in whole vectors for each gate of each panel; for int8
        gate after gate.
    first, y, last : tuple[Rows, ...], Rows, tuple[Rows, ...]
        Initial states, output, and last states; the last hidden state may be left out (address 0).
    product : str
        Dot-product instruction for int8 or bfloat16 weights, a name in `product.TABLE`; "": float32 weights.
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
    product: str = ""

    @property
    def rows(self) -> int:
        """Vectors of weights per gate of a panel."""
        if not self.product:
            return self.hidden
        product = BY_NAME[self.product]
        return divide(self.hidden, WORD) * product.parts if product.sum.integer else divide(self.hidden, PAIR)

    def step(self, number: int) -> Layer:
        """The layer of one time step, without the last hidden state; for `number` = `steps`, only that state's copy."""
        before, now = self._times(number - 1), self._times(number)
        h, *others = self.first if number == 0 else (self.y.at(before), *self.last[1:])
        if number == self.steps:
            return replace(self, steps=0, first=(h,), last=self.last[:1])
        return replace(
            self,
            steps=1,
            fed=self.fed.at(now),
            first=(h, *others),
            y=self.y.at(now),
            last=(_NONE, *self.last[1:]),
        )

    def _times(self, step: int) -> tuple[int, int]:
        """Time index of each direction in a step."""
        end = self.steps - 1 - step
        return end if self.backward else step, end


def packed(array: np.ndarray, gates: int, lanes: int, first: int = 0, count: int | None = None) -> np.ndarray:
    """Pack gates `first` … `first + count` - 1 of (directions, gates x hidden, depth), or without depth, in panels.

    Returns (directions, panels, depth, count, lanes), padded with zeros.
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
    """Number of tiles of sequences, and sequences per tile: as many as registers allow, or 1 where lengths differ."""
    count = divide(batch, _widest(isa, stages, lengths))
    return count, divide(batch, count)


def _widest(isa: Isa, stages: Sequence[Stage], lengths: bool) -> int:
    """Maximum sequences per tile."""
    return 1 if lengths else min(isa.pixels[min(stage.gates, len(isa.pixels)) - 1] for stage in stages)


def layer_steps(processor: Processor, space: Space, work: Layer) -> list[Step]:
    """Make the calls for all time steps of all sequences: one, or one per time step if workers share hidden units."""
    lanes, threads = processor.isa.lanes, processor.threads
    panels, (count, _) = divide(work.hidden, lanes), tiles(processor.isa, work.stages, work.batch, bool(work.lengths))
    weights = work.stages[0].gates * work.rows * panels * lanes * F32.bytes
    many = machine().is_far(weights)
    shares = min(panels, threads if many else threads // (work.directions * count))
    if len(work.stages) > 1 or work.lengths or shares < 2 or weights // shares < _SHARED_BYTES:
        return [_layer_step(processor, space, work)]
    groups = [range(d, d + 1) for d in range(work.directions)] if many else [range(work.directions)]
    made = [
        _layer_step(processor, space, work.step(number), directions, shares, number % 2)
        for directions in groups
        for number in range(work.steps)
    ]
    if work.last[0].ref:
        made.append(_layer_step(processor, space, work.step(work.steps)))
    return made


def _layer_step(
    processor: Processor, space: Space, work: Layer, directions: range | None = None, shares: int = 1, turned: int = 0
) -> Step:
    """Make one call for all time steps of `directions` (default: all), with hidden units cut into `shares`."""
    directions = directions or range(work.directions)
    lanes, stages, hidden = processor.isa.lanes, work.stages, work.hidden
    count, cols = tiles(processor.isa, stages, work.batch, work.lengths is not None)
    count = divide(work.batch, cols)
    rest = work.batch - (count - 1) * cols
    panels, total, vector = divide(hidden, lanes), sum(stage.gates for stage in stages), lanes * F32.bytes

    def micro(number: int, cols: int) -> int | MicroRef | OneOf:
        if number >= len(stages):
            return 0
        if is_symbolic(cols):
            options = range(1, 1 + _widest(processor.isa, stages, work.lengths is not None))
        else:
            options = range(cols, cols + 1)
        refs = [MicroRef(cell, CellTile(lanes, each, total, stages[number], work.product)) for each in options]
        return OneOf((*refs,), cols - 1) if is_symbolic(cols) else refs[0]

    is_int8 = bool(work.product) and BY_NAME[work.product].sum.integer
    state = _state(lanes, work.product)
    row = max(panels * vector, row_bytes(hidden) * is_int8)
    kept = cols * (3 if len(stages) > 1 else int(bool(state)))

    args: Args = {
        "cell": micro(0, cols),
        "cell_last": micro(0, rest),
        "second_cell": micro(1, cols),
        "second_cell_last": micro(1, rest),
        "state": state,
        "units": shares * len(directions) * count,
        "direction": directions.start,
        "directions": len(directions),
        "tiles": count,
        "shares": shares,
        "cols": cols,
        "cols_last": rest,
        "steps": work.steps,
        "backward": int(work.backward),
        "turned": turned,
        "hidden": hidden,
        "panels": panels,
        "lengths": work.lengths.ref if work.lengths else 0,
        "lengths_b": work.lengths.b if work.lengths else 0,
        "peepholes": work.peepholes or 0,
        "peepholes_d": panels * PEEPHOLES * vector,
        "row": row,
        **worker_args("scratch", space, kept * row, processor.threads),
    }
    for number, prefix in enumerate(("", "second_")):
        gates = stages[number].gates if number < len(stages) else 0
        args |= {
            f"{prefix}weights": work.weights[number] if gates else 0,
            f"{prefix}weights_d": panels * work.rows * gates * vector,
            f"{prefix}bias": work.bias[number] if gates else 0,
            f"{prefix}bias_d": panels * gates * vector * (NUMBERS if is_int8 else 1),
        }
    firsts, lasts = (*work.first, _NONE)[:2], (*work.last, _NONE)[:2]
    for name, rows in zip(("h0", "c0", "y_h", "y_c"), (*firsts, *lasts), strict=True):
        args |= {name: rows.ref, f"{name}_d": rows.d, f"{name}_b": rows.b}
    for name, rows in (("fed", work.fed), ("y", work.y)):
        args |= {name: rows.ref, f"{name}_t": rows.t, f"{name}_d": rows.d, f"{name}_b": rows.b}
    parts = divide(shares * len(directions) * count, processor.threads) if processor.threads > 1 else 0
    return Step(layer, LayerTile(lanes, len(stages), work.lengths is not None, bool(state)), args, parts)


def _state(lanes: int, product: str) -> int | MicroRef:
    """The kernel that converts states to the operand of the multiplication; 0: none is needed."""
    if not product or widens(BY_NAME[product]):
        return 0
    if BY_NAME[product].sum.integer:
        return MicroRef(quantize_states, QuantizeStatesTile(lanes, product))
    return MicroRef(round_rows, RoundTile(lanes))
