"""int8 depthwise convolution in channel blocks: one product sums four or two taps of a kernel column.

Dot-product instructions sum four adjacent int8. In channel blocks these belong to different channels, whose products
must not be summed. So input rows are interleaved byte by byte in registers: each 32-bit group holds one channel of
four rows, or of two rows widened to 16 bits where no instruction accumulates four int8 products. Sums are exact
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

_MAX_ROWS = 2
_MAX_COLUMNS = 16
_MAX_PRODUCTS = 640  # unrolled products per tile: limits code size and compile time
_MAX_INSTRUCTIONS = 900  # instructions of these products: edge and inner tiles together must fit into half of L1
_TILES_PER_ROW_COUNT = 3  # candidates with the same number of rows
_VECTORS = 2  # vectors of sums per pixel that are computed simultaneously
CLOSED_COLUMNS = (1, 2, 4, 7, 12)  # columns of tiles in networks with open sizes
_EPILOGUE_DELAY = 1  # columns by which the epilogue of an output is delayed, where registers allow
_MANY_REGISTERS = 32
_SUM_REGISTERS = (
    1 / 2
)  # share of many registers that holds sums; input rows, groups and epilogue operands need the others
_SUM_REGISTERS_IF_FEW = (
    3 / 4
)  # the same with few registers: sharing groups between two rows saves more than spilled sums cost
_ISSUE = 4  # vector instructions per cycle
_L1_SHARE = 0.5  # share of L1 for input rows that the vectors of a block share
_OVERHEAD = 40.0  # cycles per tile in addition to its instructions: latency of first products and last epilogues
_SHORT, _LONG = 7, 14  # epilogue instructions per vector of sums, by kind


@dataclass(frozen=True)
class Params:
    """Tile of a depthwise convolution by taps.

    Attributes
    ----------
    rows, cols : int
            Output rows and columns of the tile.
    """

    rows: int
    cols: int


@functools.lru_cache(maxsize=64)
def _product(types: Types, isa: Isa) -> Product | None:
    """Product of 32-bit groups of these types: four int8 by one instruction, else two int16; None without either."""
    if types.x not in (U8, S8) or types.w not in (S8, S16):
        return None
    able = [each for each in products.TABLE if each.takes(types) and products.usable(isa, each) and not each.paired]
    whole = [each for each in able if each.instruction and each.parts == 1]
    pairs = products.pair_product(isa)
    return max(whole, key=lambda each: (products.rate(isa, each), each.x == types.x), default=pairs)


def _taps_per_group(product: Product) -> int:
    """Taps per 32-bit group."""
    return WORD // product.x.bytes


def applicable(problem: ConvProblem, isa: Isa) -> str | None:
    """Require int8 or uint8, and one input and one output channel per group."""
    if _product(problem.types, isa) is None:
        return f"no product takes words of {problem.types.x} and {problem.types.w}"
    if (problem.cg, problem.kg) != (1, 1):
        return f"groups are of {problem.cg} input and {problem.kg} output channels, not 1 and 1"
    return None


def offset(problem: ConvProblem, isa: Isa) -> tuple[int, int]:
    """Offsets of input and weights, as `words.offset`."""
    return words.offset(problem, isa, _product(problem.types, isa))


def candidates(problem: ConvProblem, isa: Isa) -> Iterator[Params]:
    """Fastest tiles by the model, and the fastest one for open sizes."""
    shapes = itertools.product(range(1, min(_MAX_ROWS, problem.oh) + 1), range(1, min(_MAX_COLUMNS, problem.ow) + 1))
    able = [shape for shape in itertools.starmap(Params, shapes) if _fits(problem, shape, isa)]
    seen = collections.Counter[int]()
    closed = False
    for params in sorted(able, key=lambda shape: (_all_cycles(problem, shape, isa), -shape.cols)):
        seen[params.rows] += 1
        member = is_closed(problem, params, isa)
        if seen[params.rows] <= _TILES_PER_ROW_COUNT or member and not closed:
            yield params
            closed |= member


def is_closed(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether the micro-kernel is among those for networks with open sizes."""
    return params.cols in CLOSED_COLUMNS


def _instructions(product: Product | None) -> int:
    """Instructions per product: multiplication and addition where none does both."""
    return 1 if product and product.instruction else 2


def _taps(problem: ConvProblem, rows: int, isa: Isa) -> Taps:
    product = _product(problem.types, isa)
    assert product is not None
    return Taps(rows, problem.r, problem.stride[0], problem.dilation[0], _taps_per_group(product))


def _group_uses(problem: ConvProblem, rows: int, isa: Isa) -> int:
    """Pairs of an output row of the tile and a group that contributes to it."""
    form = _taps(problem, rows, isa)
    return sum(form.pattern(row, word) is not None for word in range(len(form.words)) for row in range(rows))


def _epilogue_delay(isa: Isa) -> int:
    return _EPILOGUE_DELAY if isa.registers >= _MANY_REGISTERS else 0


def _fits(problem: ConvProblem, params: Params, isa: Isa) -> bool:
    """Whether the sums fit into registers and the code is short; always true of the smallest tile."""
    columns = (problem.s - 1) * problem.dilation[1] + _epilogue_delay(isa)
    alive = min(params.cols, columns // problem.stride[1] + 1)
    sums = alive * params.rows * _VECTORS
    code = params.cols * problem.s * _VECTORS * _group_uses(problem, params.rows, isa)
    small = code <= _MAX_PRODUCTS and code * _instructions(_product(problem.types, isa)) <= _MAX_INSTRUCTIONS
    share = _SUM_REGISTERS if isa.registers >= _MANY_REGISTERS else _SUM_REGISTERS_IF_FEW
    return params == Params(1, 1) or sums <= share * isa.registers and small


def _cycles(problem: ConvProblem, params: Params, isa: Isa) -> float:
    """Modelled cycles of one tile."""
    product = _product(problem.types, isa)
    assert product is not None
    form, outputs = _taps(problem, params.rows, isa), params.rows * params.cols
    columns = min(lane_tiles.window(problem, 1, params.cols)[1], params.cols * problem.s)
    multiplied = outputs // params.rows * problem.s * _group_uses(problem, params.rows, isa) * _VECTORS * product.parts
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
    """Lower bound of `cost`, in seconds: products of whole groups, or traffic."""
    isa = machine.isa
    product = _product(problem.types, isa)
    assert product is not None
    pixels = problem.n * divide(problem.k, isa.lanes) * problem.oh * problem.ow
    each = problem.s * divide(problem.r, _taps_per_group(product)) * product.parts / products.rate(isa, product)
    return machine.seconds(lanewise.together(pixels * each, _traffic(problem, machine)), problem.threads)


def cost(problem: ConvProblem, params: Params, machine: Machine) -> Cost:
    """Modelled time: products, shuffles, epilogues, and traffic of activations."""
    compute = _all_cycles(problem, params, machine.isa)
    floor = problem.flops / (2 * WORD * machine.isa.lanes * machine.isa.fma_rate)
    return machine.cost(floor, lanewise.together(compute, _traffic(problem, machine)), problem.threads)


def _traffic(problem: ConvProblem, machine: Machine) -> float:
    return machine.moving(problem.in_bytes + problem.out_bytes)


def layouts(problem: ConvProblem, params: Params | None, isa: Isa) -> tuple[str | None, str | None]:
    """Supported layouts: channel blocks."""
    return blocked.layout(isa, problem.types.x), blocked.layout(isa, problem.types.y)


def _rows_per_pass(problem: ConvProblem, params: Params, isa: Isa) -> int:
    """Rows of tiles computed before the next vectors of the block: their input rows are then still in L1."""
    line = problem.w * WORD * isa.lanes
    return greatest(1, int(_L1_SHARE * machine().l1) // (line * problem.stride[0] * params.rows))


def packing(problem: ConvProblem, params: Params, isa: Isa) -> Packing:
    """Packed weights: 32-bit groups of taps."""
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
    few = divide(row_tiles, _rows_per_pass(problem, params, isa))
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
            later=_epilogue_delay(isa),
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
