"""The strips of the closed set: GEMM tiles that read a problem's parameters from int64 words (`closed_tile.py`).

The reduction is the same as in `gemm.py`: a table of segments, the last of which may be shorter. The scalars of a
segment are a loop whose trip count is a word. Unrolled loops were not faster (Zen 4) and spilled sums: LLVM moves loads
of several scalars ahead of their use where the stride of pixels is in a register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, L1, L2, Vector
from cpuconv.kernels.emit.product import BY_NAME, JOINED, JOINED_WORDS
from cpuconv.kernels.emit.transpose import first_lanes
from cpuconv.kernels.products import gemm_halves, gemm_maddubs
from cpuconv.kernels.products.closed import closed_store
from cpuconv.kernels.products.closed.closed_tile import COMPLEX, LINES, MATRIX, PLACES, PLANES, ClosedTile
from cpuconv.kernels.products.tile_operands import State
from cpuconv.runtime.code.llvm import ir
from cpuconv.runtime.microkernel import MicroKernel

_LINE = 64  # bytes of a cache line
_AHEAD = 2048  # bytes of weights between prefetch and use
_FEW = 4  # columns up to which tiles read weights as one stream, which hardware prefetches
_ROWS_AHEAD = 8  # scalars between prefetch and use, where they are `kstep` apart
_GROUP, _NEAR = 14, (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)  # columns per group, and those addressed from the first one
_COMPLEX = {0: ((0, 0, False), (1, 1, False)), 1: ((0, 1, True), (1, 0, False))}  # as in `gemm.py`


@dataclass(frozen=True)
class Problem:
    """Arguments and words of a strip, as LLVM values."""

    xrow: Any
    table: Any
    segments: Any
    kstep: Any
    yrow: Any
    yvec: Any
    residual: Any
    fetch_step: Any
    words: dict[str, Any]
    valid: Any  # lanes of the last vector


@dataclass(frozen=True)
class Sums:
    """Loop-carried values: addresses of weights and of prefetches, and vectors of sums."""

    w: Any
    fetch: Any
    values: list[Any]

    @property
    def flat(self) -> list[Any]:
        """All values as a list."""
        return [self.w, self.fetch, *self.values]

    @classmethod
    def of(cls, flat: Sequence[Any]) -> Sums:
        """Restore from `flat`."""
        return cls(flat[0], flat[1], list(flat[2:]))


@contextmanager
def _turns(builder: ir.IRBuilder, first: Any, last: Any, flat: list[Any]) -> Iterator[tuple[Any, list[Any], list]]:
    """Emit a loop over first … last-1, at least one; yield its index, the carried values, and a list for new values."""
    before = builder.block
    loop, done = builder.append_basic_block("turn"), builder.append_basic_block("turns.done")
    builder.branch(loop)
    builder.position_at_end(loop)

    def carried(value: Any) -> Any:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        return phi

    index, now = carried(first), [carried(value) for value in flat]
    left: list[Any] = []
    yield index, now, left
    following = builder.add(index, I64(1))
    for phi, value in zip((index, *now), (following, *left), strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, last), loop, done)
    builder.position_at_end(done)


def _hidden(vec: Vector, value: Any) -> Any:
    """Copy a word to a register of its own, hidden from the optimiser."""
    kind = ir.FunctionType(I64, [I64])
    return vec.builder.asm(kind, "", "=r,0", [value], side_effect=False)


def _multiples(tile: ClosedTile, vec: Vector, step: Any) -> dict[int, Any]:
    """One, three and five times a step (those that are needed), in registers."""
    multiples = [times for times in (1, 3, 5) if times == 1 or times < tile.cols]
    return {times: _hidden(vec, vec.builder.mul(step, I64(times)) if times > 1 else step) for times in multiples}


def _columns(tile: ClosedTile, vec: Vector, start: Any, step: Any) -> list[Any]:
    """Addresses of the columns of a row that begins at `start`, `step` bytes apart; or `step` is `_multiples`.

    x86 addressing adds up to eight times a register to another. Of fourteen columns, those of `_NEAR` are addressed
    from the first, the others from the sixth.
    """
    if isinstance(step, int):
        return [vec.offset(start, step * col) for col in range(tile.cols)]
    builder = vec.builder

    def times(count: int) -> Any:
        power = (count & -count).bit_length() - 1
        return builder.shl(step[count >> power], I64(power))

    found: list[Any] = []
    while True:
        sixth = vec.offset(start, times(5)) if tile.cols - len(found) > 7 else None
        for col in range(min(_GROUP, tile.cols - len(found))):
            base, further = (start, col) if col in _NEAR else (sixth, col - 5)
            found.append(vec.offset(base, times(further)) if further else base)
        if len(found) == tile.cols:
            return found
        start = vec.opaque(vec.offset(vec.offset(sixth, times(8)), step[1]))


def _scalar(tile: ClosedTile, vec: Vector, problem: Problem, columns: Sequence[list[Any]], now: Sums) -> Sums:
    """Multiply a scalar of the pixels at `columns`, a list per row, by its weights, and add to the sums."""
    product, size, sums = BY_NAME[tile.product], 4 * vec.lanes, list(now.values)
    if product.half_sums:
        gemm_halves.add_group(tile, vec, None, columns[0], now.w, 0, sums)
        return Sums(vec.offset(now.w, tile.vectors * size), now.fetch, sums)
    cuts = 2 if tile.form == COMPLEX else product.cuts
    if tile.planar:
        line = vec.opaque(now.w)
        mask = first_lanes(vec, problem.valid) if tile.last else vec.first_lanes_mask(vec.lanes)
        whole = vec.first_lanes_mask(vec.lanes)
        weights = {
            j: vec.load_masked(vec.offset(line, size * j), mask if j == tile.v - 1 else whole) for j in range(tile.v)
        }
        w = vec.offset(line, problem.kstep)
    else:
        read = [part * tile.v + j for part in range(cuts) for j in range(tile.used)]
        weights = {each: product.load(vec, vec.offset(now.w, each * size), tile.v * size) for each in read}
        w = vec.offset(now.w, tile.vectors * size)
    for row, addresses in enumerate(columns):
        for col, address in enumerate(addresses):
            if tile.form == COMPLEX:
                word = product.word(vec, address, product.flips(tile.x))
                factors = [(target, part, word, negative) for target, part, negative in _COMPLEX[row]]
            else:
                parts = product.broadcast(vec, address, tile.x)
                factors = [(row, part, each, False) for part, each in enumerate(parts)]
            for target, part, word, negative in factors:
                for j in range(tile.used):
                    place = (target * tile.cols + col) * tile.used + j
                    weight = weights[part * tile.v + j]
                    sums[place] = product.add(vec, word, vec.negative(weight) if negative else weight, sums[place])
    return Sums(w, now.fetch, sums)


def _prefetched(tile: ClosedTile, vec: Vector, problem: Problem, now: Sums, starts: list[Any], ahead: Any) -> Sums:
    """Prefetch per scalar: weights, the weights of the next panel, pixels of the next segment."""
    if tile.planar:
        return now
    size = tile.vectors * 4 * vec.lanes
    for at in range(0, size, _LINE):
        vec.prefetch(vec.offset(now.w, at + _AHEAD), L1)
    if tile.form == LINES:
        far = vec.builder.mul(problem.kstep, I64(_ROWS_AHEAD))
        vec.prefetch(vec.offset(starts[0], far), L1)
        return now
    for row in range(tile.rows):
        vec.prefetch(vec.offset(ahead, vec.builder.mul(problem.xrow, I64(row))) if row else ahead, L1)
    if tile.cols <= _FEW:
        return now
    for at in range(0, size, _LINE):  # as many as a scalar has: few tiles fetch all of them, many tiles some twice
        vec.prefetch(vec.offset(now.fetch, at), L2)
    return Sums(now.w, vec.offset(now.fetch, problem.fetch_step), now.values)


def _ahead(tile: ClosedTile, vec: Vector, problem: Problem, x: Any, following: Any) -> Any:
    """Address of the pixels of segment `following`; past the last, of the next tile's first segment."""
    builder = vec.builder
    inside = builder.icmp_signed("<", following, problem.segments)
    entry = builder.load(builder.gep(problem.table, [builder.select(inside, following, I64(0))]))
    further = builder.mul(problem.words["column"], I64(tile.cols))
    return vec.offset(x, builder.add(entry, builder.select(inside, I64(0), further)))


def _sum(tile: ClosedTile, vec: Vector, problem: Problem, x: Any, start: Sums, step: Any) -> Sums:
    """Sum all segments of a tile whose pixels begin at `x`; in blocks where sums are float16."""
    if not BY_NAME[tile.product].half_sums:
        return _segments(tile, vec, problem, x, start, step, I64(0), problem.segments)
    memory = gemm_halves.reserve(tile, vec, start.values)

    def block(begin: Any, end: Any, state: State) -> State:
        found = _segments(tile, vec, problem, x, Sums(state.w, state.fetch, state.sums), step, begin, end)
        return State(found.w, found.fetch, found.values)

    each = gemm_halves.segments_of_block(vec.builder, problem.words["whole"])
    first = State(start.w, start.fetch, [])
    state = gemm_halves.sum_blocks(tile, vec, memory, each, I64(0), problem.segments, first, block)
    return Sums(state.w, state.fetch, gemm_halves.load(tile, vec, memory))


def _segments(
    tile: ClosedTile, vec: Vector, problem: Problem, x: Any, start: Sums, step: Any, begin: Any, end: Any
) -> Sums:
    """Sum segments begin … end-1, at least one, of a tile whose pixels begin at `x`."""
    builder, words = vec.builder, problem.words
    whole = builder.sub(problem.segments, words["tails"])
    apart = problem.kstep if tile.form == LINES else words["scalar"]
    with _turns(builder, begin, end, start.flat) as (index, now, left):
        first = vec.offset(x, builder.load(builder.gep(problem.table, [index])))
        starts = [first, *(vec.offset(first, builder.mul(problem.xrow, I64(row))) for row in range(1, tile.rows))]
        short = builder.icmp_signed(">=", index, whole)
        scalars = builder.select(short, words["scalars"], words["whole"])
        multiples = step if isinstance(step, int) else _multiples(tile, vec, step)
        ahead = first if tile.planar else _ahead(tile, vec, problem, x, builder.add(index, I64(1)))
        segment = _Segment(tile, vec, problem, multiples, apart)
        if BY_NAME[tile.product].flipped:
            left += _of_bytes(segment, scalars, [ahead, *starts, *now])[1 + len(starts) :]
        else:
            left += segment.scalars(I64(0), scalars, [ahead, *starts, *now])[1 + len(starts) :]
    return Sums.of(left)


@dataclass(frozen=True)
class _Segment:
    """The loop over the scalars of a segment.

    Its carried values, `flat`, are the address of the next segment's pixels, that of this segment's pixels in each row,
    and `Sums.flat`."""

    tile: ClosedTile
    vec: Vector
    problem: Problem
    step: Any  # stride of columns in bytes: an int, or `_multiples`
    apart: Any  # stride of scalars in bytes

    def scalars(self, first: Any, last: Any, flat: list[Any]) -> list[Any]:
        """Sum scalars first … last-1, at least one."""
        with _turns(self.vec.builder, first, last, flat) as (_, each, found):
            found += self.some(each, 1)
        return found

    def some(self, flat: list[Any], count: int) -> list[Any]:
        """Sum one scalar, or for sign-flipped int8 also two joined ones."""
        tile, vec, problem = self.tile, self.vec, self.problem
        ahead, rows, state = flat[0], flat[1 : 1 + tile.rows], Sums.of(flat[1 + tile.rows :])
        for _ in range(count):
            state = _prefetched(tile, vec, problem, state, rows, ahead)
        columns = [_columns(tile, vec, row, self.step) for row in rows]
        if BY_NAME[tile.product].flipped:
            words = [[vec.offset(pixel, 4 * at) for at in range(count)] for pixel in columns[0]]
            gemm_maddubs.add(tile, vec, words, state.w, state.values)  # type: ignore[arg-type]  # what it reads of a tile
            state = Sums(vec.offset(state.w, count * tile.vectors * vec.size), state.fetch, state.values)
        else:
            state = _scalar(tile, vec, problem, columns, state)
        ahead = vec.offset(ahead, self.step[1]) if isinstance(self.step, dict) else ahead
        for _ in range(count):  # hidden from the optimiser, which would use a register for each column
            rows = [vec.opaque(vec.offset(row, self.apart)) for row in rows]
        return [ahead, *rows, *state.flat]


def _of_bytes(segment: _Segment, scalars: Any, flat: list[Any]) -> list[Any]:
    """Sum the scalars of a sign-flipped int8 segment, two at a time where their weights are joined."""
    tile, vec, builder = segment.tile, segment.vec, segment.vec.builder
    several = builder.icmp_signed(">=", scalars, I64(JOINED_WORDS))
    flag = builder.select(several, I64(JOINED_WORDS * tile.vectors * vec.size - 1), I64(0))
    read = builder.load(vec.offset(flat[1 + tile.rows], flag))
    joined = builder.and_(several, builder.icmp_signed("==", read, ir.IntType(8)(JOINED)))
    pairs = builder.select(joined, builder.ashr(scalars, I64(1)), I64(0))

    def of_pairs() -> list[Any]:
        with _turns(builder, I64(0), pairs, flat) as (_, each, found):
            found += segment.some(each, JOINED_WORDS)
        return found

    flat = _unless(builder, joined, flat, of_pairs)
    done = builder.shl(pairs, I64(1))
    more = builder.icmp_signed("<", done, scalars)
    return _unless(builder, more, flat, lambda: segment.scalars(done, scalars, flat))


def _unless(builder: ir.IRBuilder, condition: Any, flat: list[Any], then: Callable[[], list[Any]]) -> list[Any]:
    """Run a branch if a condition holds, and merge its values with the old ones."""
    before = builder.block
    with builder.if_then(condition):
        left = then()
        after = builder.block
    merged = []
    for old, new in zip(flat, left, strict=True):
        phi = builder.phi(old.type)
        phi.add_incoming(old, before)
        phi.add_incoming(new, after)
        merged.append(phi)
    return merged


def _column_step(tile: ClosedTile, vec: Vector, problem: Problem) -> Any:
    """Stride of columns, in bytes."""
    if tile.form == MATRIX:
        return vec.builder.sdiv(problem.xrow, I64(tile.cols))
    return 4 if tile.form in (LINES, PLANES) else problem.words["column"]


@MicroKernel
def closed_strip(
    tile: ClosedTile,
    builder: ir.IRBuilder,
    x: Any,
    xrow: Any,
    table: Any,
    segments: Any,
    kstep: Any,
    w: Any,
    y: Any,
    yrow: Any,
    yvec: Any,
    bias: Any,
    residual: Any,
    suspended_sums: Any,
    prefetch_address: Any,
    turn: Any,
    fetch_step: Any,
    shares: Any,
    tails: Any,
    valid: Any,
    first: Any,
    last: Any,
    width: Any,
) -> None:
    """`gemm_strip` of the closed set: `tails` is the address of `Words`; sums are never suspended."""
    vec = Vector(builder, tile.lanes)
    pointer = builder.inttoptr(tails, I64.as_pointer())
    words = {name: builder.load(builder.gep(pointer, [I64(at)])) for name, at in PLACES.items()}
    fewer = builder.icmp_signed("<", segments, words["tails"])
    words["tails"] = builder.select(fewer, segments, words["tails"])
    counted = valid if tile.planar else words["valid"]
    problem = Problem(
        xrow, builder.inttoptr(table, I64.as_pointer()), segments, kstep, yrow, yvec, residual, fetch_step, words,
        counted,
    )  # fmt: skip
    step = _column_step(tile, vec, problem)
    short = builder.mul(words["tails"], builder.sub(words["whole"], words["scalars"]))
    scalars = builder.sub(builder.mul(segments, words["whole"]), short)
    share = builder.mul(scalars, fetch_step)
    limit = builder.sub(width, I64(tile.cols))
    out = yrow if tile.planar else words["out"]
    kind = vec.type if BY_NAME[tile.product].half_sums else BY_NAME[tile.product].sums_type(vec)
    nothing = [ir.Constant(kind, None)] * (tile.used * tile.cols * tile.rows)
    with _turns(builder, first, last, []) as (index, _, _left):
        start = builder.mul(index, I64(tile.cols))
        start = builder.select(builder.icmp_signed("<", start, limit), start, limit)
        apart = builder.mul(index, xrow) if tile.planar else builder.mul(start, _word(step))
        fetch = vec.pointer(prefetch_address)
        if not tile.planar and tile.form != LINES:
            passed = builder.urem(builder.add(index, turn), shares)
            fetch = vec.offset(fetch, builder.mul(passed, share))
        now = Sums(vec.pointer(w), fetch, nothing)
        now = _sum(tile, vec, problem, vec.pointer(builder.add(x, apart)), now, step)
        y_now = vec.pointer(builder.add(y, builder.mul(start, out)))
        bias_now = builder.add(bias, builder.mul(start, I64(4))) if tile.form == PLANES else bias
        closed_store.store(tile, vec, problem, now.values, y_now, vec.pointer(bias_now))


def _word(step: Any) -> Any:
    return I64(step) if isinstance(step, int) else step
