"""Probes of the machine's peak rates: FMA chains in registers, vector loads and vector stores over a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.isa.vector import I64, Vector
from cpuconv.kernels.emit.intrinsics import emitter, zero_vector
from cpuconv.runtime.kernel import kernel


@dataclass(frozen=True)
class ProbeTile:
    """Tile of a probe: independent chains in the loop, and steps of each chain per iteration."""

    lanes: int
    chains: int
    unroll: int

    @property
    def step(self) -> int:
        """Bytes that one iteration of the reading or writing loop moves."""
        return 4 * self.lanes * self.chains * self.unroll


def loop(
    vec: Vector, turns: Any, size: Any, step: int, starts: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Emit a loop of values = body(place, values), `turns` (1 or more) times from `starts`; return the last values.

    `place` advances by `step` bytes and wraps around after `size` bytes. All passes share one loop: a loop per pass
    would end in a branch misprediction.
    """
    builder = vec.builder
    entry = builder.block
    loop, done = builder.append_basic_block("turn"), builder.append_basic_block("turn.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    left, place, *phis = (builder.phi(value.type) for value in (turns, size, *starts))
    values = body(place, list(phis))
    next_left, next_place = builder.sub(left, I64(1)), builder.add(place, I64(step))
    next_place = builder.select(builder.icmp_signed("<", next_place, size), next_place, I64(0))
    firsts, nexts = (turns, I64(0), *starts), (next_left, next_place, *values)
    for phi, first, following in zip((left, place, *phis), firsts, nexts, strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed(">", next_left, I64(0)), loop, done)
    builder.position_at_end(done)
    return values


def _store_sum(vec: Vector, values: list[Any], target: Any) -> None:
    """Store the sum of the chains, so that the optimiser removes none of them."""
    total = values[0]
    for value in values[1:]:
        total = vec.add(total, value)
    vec.store(total, vec.pointer(target))


@emitter
def fma_chains(tile: Any, vec: Vector, turns: Any, seeds: Any, target: Any) -> None:
    """Run `turns` (1 or more) iterations of chains × unroll vector FMAs; chain i starts from vector i at `seeds`.

    A step multiplies the two vectors of `seeds` after the chains'. The sum of all chains is stored at `target`.
    """
    seeds = vec.pointer(seeds)
    *starts, factor, other = (vec.load(vec.offset(seeds, i * 4 * vec.lanes)) for i in range(tile.chains + 2))

    def body(_: Any, chains: list[Any]) -> list[Any]:
        for _ in range(tile.unroll):
            chains = [vec.fma(factor, other, chain) for chain in chains]  # updated in place on every instruction set
        return chains

    _store_sum(vec, loop(vec, turns, I64(0), 0, starts, body), target)


@emitter
def read_chains(tile: Any, vec: Vector, turns: Any, x: Any, size: Any, target: Any) -> None:
    """Read `tile.step` bytes `turns` (1 or more) times, cycling through the `size` bytes at x, into `chains` sums.

    `size` is a multiple of `tile.step`.
    """
    x = vec.pointer(x)

    def body(place: Any, chains: list[Any]) -> list[Any]:
        start = vec.offset(x, place)
        for i in range(tile.unroll * tile.chains):
            chain = i % tile.chains
            chains[chain] = vec.add(chains[chain], vec.load(vec.offset(start, 4 * vec.lanes * i)))
        return chains

    _store_sum(vec, loop(vec, turns, size, tile.step, [vec.constant(0.0)] * tile.chains, body), target)


@emitter
def write_vectors(tile: Any, vec: Vector, turns: Any, y: Any, size: Any, seed: Any) -> None:
    """Write the vector at `seed` to `tile.step` bytes, `turns` (1 or more) times, over and over the `size` bytes at y.

    `size` is a multiple of `tile.step`.
    """
    y, value = vec.pointer(y), vec.load(vec.pointer(seed))

    def body(place: Any, _: list[Any]) -> list[Any]:
        start = vec.offset(y, place)
        for i in range(tile.unroll * tile.chains):
            vec.store(value, vec.offset(start, 4 * vec.lanes * i))
        return []

    loop(vec, turns, size, tile.step, [], body)


@kernel("turns seeds y y_step")
def fma_peak(tile, worker, before, part, parts, args):
    """Run turns × chains × unroll vector FMAs per part; the result is stored at y + part·y_step."""
    fma_chains(tile, args.turns, args.seeds, args.y + part * args.y_step)


@kernel("turns x x_step size y y_step")
def read_sum(tile, worker, before, part, parts, args):
    """Read turns × `tile.step` bytes per part, from the `size` bytes at x + part·x_step."""
    read_chains(tile, args.turns, args.x + part * args.x_step, args.size, args.y + part * args.y_step)


@kernel("turns y y_step size seed")
def write_all(tile, worker, before, part, parts, args):
    """Write turns × `tile.step` bytes per part, to the `size` bytes at y + part·y_step."""
    write_vectors(tile, args.turns, args.y + part * args.y_step, args.size, args.seed)


@kernel("x x_step size")
def touch(tile, worker, before, part, parts, args):
    """Zero the part's `size` bytes at x + part·x_step: this allocates their pages near the core that reads them."""
    start = args.x + part * args.x_step
    for place in range(start, start + args.size, 4 * tile.lanes):
        zero_vector(tile, place)
