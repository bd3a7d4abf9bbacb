"""Depthwise convolution of bytes in channel blocks, four or two taps of a kernel's column to a product.

Products add four bytes that lie side by side. In channel blocks those are of different channels, which depthwise
convolution does not add. So rows of the input are interleaved, byte by byte, in registers: a word is a channel of four
rows or, where no instruction adds products of four bytes to sums, of two rows, widened to 16 bits. Sums are exact,
modulo 2^32.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterator

from baselib.data_classes import dataclass
from cpuconv.elements import S8, S16, U8
from cpuconv.isa import Isa
from cpuconv.kernels.binding.arguments import operand_args, output_args, problem_args, worker_args
from cpuconv.kernels.binding.machine import Cost, Machine, machine
from cpuconv.kernels.binding.partition import Grid, best_partition, parts_each
from cpuconv.kernels.binding.steps import Args, MicroRef, Operands, Space, Step
from cpuconv.kernels.elementwise.epilogue import Epilogue
from cpuconv.kernels.emit import product as products
from cpuconv.kernels.emit.product import WORD, Product
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.packing.tap_weights import Taps, TapWords
from cpuconv.kernels.windows.edges import Edges
from cpuconv.kernels.windows.tap_tile import TapTile, tap_strip
from cpuconv.kernels.windows.taps import TapsTile, taps
from cpuconv.problem.integers import divide
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import Types
from cpuconv.solvers.shared import blocked, words
from cpuconv.solvers.shared.base import check_tile
from cpuconv.solvers.shared.lanes import lane_tiles, lanewise
from cpuconv.solvers.shared.solver import Solver
from cpuconv.symbolic.sizes import greatest

_MOST_ROWS = 2
_MOST_COLUMNS = 16
_MOST_PRODUCTS = 640  # straight-line products of a tile: they bound code size and compile time
_MOST_INSTRUCTIONS = 900  # of those products: tiles of an edge beside those within leave L1 for instructions
_ALIKE = 3  # candidates of as many rows
_VECTORS = 2  # of sums that are computed side by side: channels of half a pixel of bytes
CLOSED_COLUMNS = (1, 2, 4, 7, 12)  # of tiles of networks with open sizes
_LATER = 1  # columns of the window that an output's epilogue is put off by, where there are registers
_MANY_REGISTERS = 32
_SUMS = 1 / 2  # of many registers: others hold rows of the input, words, and what an epilogue reads
_SUMS_OF_FEW = 3 / 4  # of few: two rows share words, which is worth more than sums that wait in memory
_ISSUE = 4  # vector instructions a cycle
_L1_SHARE = 0.5  # for lines of the input that the pieces of a block share
_OVERHEAD = 40.0  # cycles a tile, beside its instructions: its first products and its last endings wait
_SHORT, _LONG = 7, 14  # instructions to end a vector of sums, by form


@dataclass(frozen=True)
class Params:
    """A tap tile.

    Attributes
    ----------
    rows, cols : int
        Outputs of a tile.
    """

    rows: int
    cols: int


@functools.lru_cache(maxsize=64)
def _product(types: Types, isa: Isa) -> Product | None:
    """The product of words for those types, or None: of four bytes by one instruction, else of two as 16 bits."""
    if types.x not in (U8, S8) or types.w not in (S8, S16):
        return None
    able = [each for each in products.TABLE if each.takes(types) and products.usable(isa, each) and not each.paired]
    whole = [each for each in able if each.instruction and each.parts == 1]
    pairs = products.pair_product(isa)
    return max(whole, key=lambda each: (products.rate(isa, each), each.x == types.x), default=pairs)


def _each(product: Product) -> int:
    """Taps of a word."""
    return WORD // product.x.bytes


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """One input and one output channel a group, of bytes."""
    if _product(problem.types, isa) is None:
        return f"no product takes words of {problem.types.x} and {problem.types.w}"
    if (problem.cg, problem.kg) != (1, 1):
        return f"groups are of {problem.cg} input and {problem.kg} output channels, not 1 and 1"
    return None


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """As `words.offset`."""
    return words.offset(problem, isa, _product(problem.types, isa))


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """The best tiles by the model, and the best one for open sizes."""
    shapes = itertools.product(range(1, min(_MOST_ROWS, problem.oh) + 1), range(1, min(_MOST_COLUMNS, problem.ow) + 1))
    able = [shape for shape in itertools.starmap(Params, shapes) if _fits(problem, shape, isa)]
    seen = collections.Counter[int]()
    closed = False
    for params in sorted(able, key=lambda shape: (_all_cycles(problem, shape, isa), -shape.cols)):
        seen[params.rows] += 1
        member = is_closed(problem, params, isa)
        if seen[params.rows] <= _ALIKE or member and not closed:
            yield params
            closed |= member


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether its micro-kernel is of the set for networks with open sizes."""
    return params.cols in CLOSED_COLUMNS


def _instructions(product: Product | None) -> int:
    """Instructions of a product: one that does not add is followed by an addition."""
    return 1 if product and product.instruction else 2


def _taps(problem: ConvProblem, rows: int, isa: Isa) -> Taps:
    product = _product(problem.types, isa)
    assert product is not None
    return Taps(rows, problem.r, problem.stride[0], problem.dilation[0], _each(product))


def _met(problem: ConvProblem, rows: int, isa: Isa) -> int:
    """Pairs of an output row of a tile and a word that it meets."""
    form = _taps(problem, rows, isa)
    return sum(form.pattern(row, word) is not None for word in range(len(form.words)) for row in range(rows))


def _later(isa: Isa) -> int:
    return _LATER if isa.registers >= _MANY_REGISTERS else 0


def _fits(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether a tile's sums stay in registers and its code is small; the least tile always does."""
    columns = (problem.s - 1) * problem.dilation[1] + _later(isa)
    alive = min(params.cols, columns // problem.stride[1] + 1)
    sums = alive * params.rows * _VECTORS
    code = params.cols * problem.s * _VECTORS * _met(problem, params.rows, isa)
    small = code <= _MOST_PRODUCTS and code * _instructions(_product(problem.types, isa)) <= _MOST_INSTRUCTIONS
    share = _SUMS if isa.registers >= _MANY_REGISTERS else _SUMS_OF_FEW
    return params == Params(1, 1) or sums <= share * isa.registers and small


def _cycles(problem: ConvProblem, params: Params, isa: Isa) -> float:
    """Modelled cycles of one tile."""
    product = _product(problem.types, isa)
    assert product is not None
    form, outputs = _taps(problem, params.rows, isa), params.rows * params.cols
    columns = min(lane_tiles.window(problem, 1, params.cols)[1], params.cols * problem.s)
    multiplied = outputs // params.rows * problem.s * _met(problem, params.rows, isa) * _VECTORS * product.parts
    read = columns * sum(map(len, form.words))
    shuffled = columns * len(form.words) * 2 * _VECTORS * product.cuts
    flipped = columns * len(form.words) * _VECTORS if product.flips(problem.types.x) else 0
    ended = outputs * _VECTORS * (_SHORT if Epilogue.of(problem).short else _LONG)
    made = multiplied * _instructions(product)
    busiest = max(
        multiplied / products.rate(isa, product) + ended / isa.fma_rate / 2,
        (read + multiplied + 2 * outputs * _VECTORS) / isa.load_rate,
        (made + read + shuffled + flipped + ended) / _ISSUE,
    )
    return busiest + _OVERHEAD


def _all_cycles(problem: ConvProblem, params: Params, isa: Isa) -> float:
    """Modelled cycles of all tiles."""
    pieces = divide(divide(problem.k, isa.lanes), _VECTORS)
    tiles = divide(problem.oh, params.rows) * divide(problem.ow, params.cols)
    return problem.n * pieces * tiles * _cycles(problem, params, isa)


def bound(problem: ConvProblem, machine: Machine) -> float:
    """Seconds that no `cost` is below: products of whole words, and the traffic."""
    isa = machine.isa
    product = _product(problem.types, isa)
    assert product is not None
    pixels = problem.n * divide(problem.k, isa.lanes) * problem.oh * problem.ow
    each = problem.s * divide(problem.r, _each(product)) * product.parts / products.rate(isa, product)
    return machine.seconds(lanewise.together(pixels * each, _traffic(problem, machine)), problem.threads)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Products, shuffles and endings of the tiles, and the traffic of activations."""
    compute = _all_cycles(problem, params, machine.isa)
    floor = problem.flops / (2 * WORD * machine.isa.lanes * machine.isa.fma_rate)
    return machine.cost(floor, lanewise.together(compute, _traffic(problem, machine)), problem.threads)


def _traffic(problem: ConvProblem, machine: Machine) -> float:
    return machine.moving(problem.in_bytes + problem.out_bytes)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Channel blocks."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def _rows_at_once(problem: ConvProblem, params: Params, isa: Isa) -> int:
    """Rows of tiles of a piece that are computed one after the other: the next piece finds their lines in L1."""
    line = problem.w * WORD * isa.lanes
    return greatest(1, int(_L1_SHARE * machine().l1) // (line * problem.stride[0] * params.rows))


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Words of taps."""
    return _form(problem, params, isa)


def _form(problem: ConvProblem, params: Params, isa: Isa) -> TapWords:
    product = _product(problem.types, isa)
    assert product is not None
    form = _taps(problem, params.rows, isa)
    return TapWords(isa.lanes, _VECTORS, problem.k, problem.s, form, product.name, problem.types.w)


def bind(problem: ConvProblem, params: Params, isa: Isa, space: Space, operands: Operands) -> list[Step]:
    """One parallel call of the driver."""
    check_tile(params.rows, params.cols, problem.oh, problem.ow)
    lanes, types, x = isa.lanes, problem.types, operands.x
    form, epilogue = _form(problem, params, isa), Epilogue.of(problem)
    channels = _VECTORS * lanes
    full, rest = divmod(problem.k, channels)
    blocks, row_tiles = divide(problem.k, isa.block(types.x)), divide(problem.oh, params.rows)
    few = divide(row_tiles, _rows_at_once(problem, params, isa))
    row_blocks, _ = best_partition(problem.threads, few, Grid(problem.n * blocks, row_tiles))
    by_rows = problem.threads > 1 and problem.oh * problem.ow > problem.k

    def strip(present: int) -> MicroRef:
        tile = TapTile(
            lanes=lanes,
            vectors=_VECTORS,
            present=present,
            taps=form.taps,
            cols=params.cols,
            s=problem.s,
            stride=problem.stride[1],
            dilation=problem.dilation[1],
            edges=Edges.of(problem, params.cols, not is_closed(problem, params, isa)),
            checked=any(problem.pads[:2]),
            product=form.product,
            later=_later(isa),
            x=types.x,
            y=types.y,
            residual=operands.residual is not None,
            activation=problem.activation,
        )
        return MicroRef(tap_strip, tile)

    strips = tuple(strip(present) for present in (_VECTORS, divide(rest, lanes) or _VECTORS, 0))
    args: Args = {
        "strips": strips,
        "full": full,
        "present": full + (rest > 0),
        "tile_height": params.rows,
        "tile_width": params.cols,
        **operand_args(operands),
        **worker_args("zeros", space, lane_tiles.window(problem, 1, params.cols)[1] * WORD * lanes, problem.threads),
        "fill": words.FILL,
        "weight_bytes": form.piece,
        "bias_bytes": _VECTORS * len(epilogue.rows) * WORD * lanes,
        "blocks": blocks,
        "block_step": 1 if by_rows else row_blocks,
        "row_tiles": row_tiles,
        "row_blocks": row_blocks,
        "row_step": blocks if by_rows else 1,
        "column_tiles": divide(problem.ow, params.cols),
        "height": problem.oh,
        "width": problem.ow,
        **problem_args(taps, problem),
        "x_image": x.strides.n,
        "x_block": x.strides.cb,
        "x_line": x.strides.h,
        **output_args(operands.y),
    }
    tile = TapsTile(lanes, _VECTORS, isa.block(types.x) // channels, isa.block(types.y) // lanes)
    return [
        Step(taps, tile, args, parts_each(problem, problem.n * blocks * row_blocks), clears_tail=epilogue.requantizes)
    ]


SOLVER = Solver(
    name="depthwise_taps",
    params=Params,
    applicable=applicable,
    candidates=candidates,
    bound=bound,
    cost=cost,
    layouts=layouts,
    packing=packing,
    bind=bind,
    low_precision=True,
    offset=offset,
    shared_vectors=True,
    is_closed=is_closed,
)
