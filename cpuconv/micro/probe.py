"""What the machine gives at best: chains of FMAs in registers, and vector loads over a buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from cpuconv.isa.vector import I64, Vector
from cpuconv.micro.intrinsics import emitter, zero_vector
from cpuconv.runtime.kernel import kernel


@dataclass(frozen=True)
class ProbeTile:
    """Independent chains of the loop, and how many steps of each a turn of it makes."""

    lanes: int
    chains: int
    unroll: int

    @property
    def step(self) -> int:
        """Bytes that a turn of the reading loop reads."""
        return 4 * self.lanes * self.chains * self.unroll


def _phi(vec: Vector, value: Any, entry: Any) -> ir.PhiInstr:
    phi = vec.builder.phi(value.type)
    phi.add_incoming(value, entry)
    return phi


def _store_sum(vec: Vector, values: list[Any], target: Any) -> None:
    """Keep the chains' results, so that none of them can be left out."""
    total = values[0]
    for value in values[1:]:
        total = vec.add(total, value)
    vec.store(total, vec.pointer(target))


@emitter
def fma_chains(tile: Any, vec: Vector, turns: Any, seeds: Any, target: Any) -> None:
    """`turns` (1 or more) times chains × unroll vector FMAs; chain i starts from vector i at `seeds`.

    The sum of all chains is stored at `target`. The next two vectors of `seeds` are the factor and the summand.
    """
    builder = vec.builder
    size = 4 * vec.lanes
    seeds = vec.pointer(seeds)
    *starts, factor, summand = (vec.load(vec.offset(seeds, i * size)) for i in range(tile.chains + 2))
    entry = builder.block
    loop, done = builder.append_basic_block("fma"), builder.append_basic_block("fma.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    left = _phi(vec, turns, entry)
    phis = [_phi(vec, start, entry) for start in starts]
    chains: list[Any] = list(phis)
    for _ in range(tile.unroll):
        chains = [vec.fma(chain, factor, summand) for chain in chains]
    for phi, chain in zip(phis, chains, strict=True):
        phi.add_incoming(chain, loop)
    following = builder.sub(left, I64(1))
    left.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed(">", following, I64(0)), loop, done)
    builder.position_at_end(done)
    _store_sum(vec, chains, target)


@emitter
def read_chains(tile: Any, vec: Vector, turns: Any, x: Any, size: Any, target: Any) -> None:
    """Read `tile.step` bytes `turns` (1 or more) times, over and over the `size` bytes at x, into `chains` sums.

    `size` is a multiple of the step. There is one loop, not one a pass: its end would be mispredicted in each pass.
    """
    builder = vec.builder
    x = vec.pointer(x)
    entry = builder.block
    loop, done = builder.append_basic_block("read"), builder.append_basic_block("read.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    left = _phi(vec, turns, entry)
    place = _phi(vec, I64(0), entry)
    phis = [_phi(vec, vec.constant(0.0), entry) for _ in range(tile.chains)]
    chains: list[Any] = list(phis)
    start = vec.offset(x, place)
    for i in range(tile.unroll * tile.chains):
        chain = i % tile.chains
        chains[chain] = vec.add(chains[chain], vec.load(vec.offset(start, 4 * vec.lanes * i)))
    for phi, chain in zip(phis, chains, strict=True):
        phi.add_incoming(chain, loop)
    next_place = builder.add(place, I64(tile.step))
    place.add_incoming(builder.select(builder.icmp_signed("<", next_place, size), next_place, I64(0)), loop)
    following = builder.sub(left, I64(1))
    left.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed(">", following, I64(0)), loop, done)
    builder.position_at_end(done)
    _store_sum(vec, chains, target)


@kernel("turns seeds y y_step")
def fma_peak(tile, worker, workers, args):
    """turns × chains × unroll vector FMAs on each worker; the worker's result goes to y + worker·y_step."""
    fma_chains(tile, args.turns, args.seeds, args.y + worker * args.y_step)


@kernel("turns x x_step size y y_step")
def read_sum(tile, worker, workers, args):
    """turns × `tile.step` bytes read on each worker from the `size` bytes at x + worker·x_step."""
    read_chains(tile, args.turns, args.x + worker * args.x_step, args.size, args.y + worker * args.y_step)


@kernel("x x_step size")
def touch(tile, worker, workers, args):
    """The worker's `size` bytes at x + worker·x_step set to zero: its pages then lie near the core that reads them."""
    start = args.x + worker * args.x_step
    for place in range(start, start + args.size, 4 * tile.lanes):
        zero_vector(tile, place)
