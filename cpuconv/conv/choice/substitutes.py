"""Substitutes for a selected candidate: with kernels at hand, or with weights that are packed already.

Kernels are at hand in memory, in the user's cache folder or in a pack; compiling takes 50 to 100 ms per kernel.
Candidate lists contain the few best tiles for a problem, but the kernels at hand are from other sizes. Here, all tiles
that are possible for a plane are considered.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cpuconv.conv.choice.model import (
    AT_HAND,
    MODELLED,
    Choice,
    Limits,
    Ranked,
    modelled_cost,
    search,
    why_excluded,
    with_same_rounding,
)
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.isa import Isa, current
from cpuconv.kernels.binding.steps import MicroRef, Step
from cpuconv.kernels.packing.packing import Packing
from cpuconv.kernels.products.gemm import gemm_strip
from cpuconv.kernels.products.gemm_tile import GemmTile
from cpuconv.kernels.products.tiling import Tile, every_tile, tiles_among
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.code import at_hand, background, kernel_files
from cpuconv.runtime.tiles import tile_text

_MAX_PACKED_SLOWDOWN = 1.03  # maximum ratio of the estimate of a candidate with packed weights to the selected one's
_MAX_CHECKED = 256  # checked candidates; if none is at hand, this takes a tenth of the time to compile one
_SIZE_DEPENDENT: dict[str, Sequence[Any]] = {"stream": (False, True), "fetch": range(5)}
"""Fields of GEMM tiles that depend on the sizes of a plane, with their values."""
_PLAIN: dict[str, Any] = {"v": 1, "rows": 1, "cols": 1, "stream": False, "fetch": 0}

Wanted = tuple[Any, Any]
"""A kernel and a tile."""


class Substitute(NamedTuple):
    """The candidate that runs a problem.

    Attributes
    ----------
    candidate : Candidate
    missing : list of Wanted
        Kernels of the best candidate that are not at hand.
    loss : float
        Fraction of the candidate's time that the best one would save, by the model.
    """

    candidate: Candidate
    missing: list[Wanted]
    loss: float = 0.0


def with_kernels_at_hand(problem: ConvProblem, strategy: str, choice: Choice, limits: Limits) -> Choice:
    """Return the choice; if its kernels are missing, one with kernels at hand and the same rounding.

    If the choice is clearly faster by the model, its kernels are compiled in the background, for later programs.
    """
    if strategy == "profile" or choice.decided_by == "named":
        return choice
    found = find_substitute(problem, limits, choice.candidate)
    if found.candidate == choice.candidate:
        return choice
    awaited = found.loss > background.MIN_SAVING and background.request(found.missing)
    return Choice(found.candidate, AT_HAND, choice.candidate if awaited else None)


def with_packed_weights(problem: ConvProblem, limits: Limits, choice: Choice, forms: Collection[Packing]) -> Choice:
    """Return the choice, or a candidate that reads weights in one of the existing packed `forms`.

    That requires that nothing is stored, that the rounding is equal, and that the model finds it hardly slower. Packing
    would take longer than the slower candidate loses.
    """
    if choice.decided_by not in MODELLED or not forms or choice.candidate.packing(problem) in forms:
        return choice
    prefix = "" if problem.types.sum.integer else choice.candidate.rounding
    below = _MAX_PACKED_SLOWDOWN * modelled_cost(problem, choice.candidate).estimate
    packed = search(problem, limits, prefix, below, lambda candidate: candidate.packing(problem) in forms)
    return choice if packed is None else Choice(packed.candidate, "model")


def missing(problem: ConvProblem, candidate: Candidate, closed: bool = False) -> list[Wanted]:
    """The kernels to compile for a candidate with C-contiguous operands; `closed`: of the closed set."""
    steps = assemble(problem, candidate, closed=closed).steps
    return at_hand.missing(each for step in steps for each in step.kernels())


def find_substitute(problem: ConvProblem, limits: Limits, best: Candidate) -> Substitute:
    """Replace a candidate whose kernels are missing by one at hand with the same rounding, the fastest by the model.

    The best candidate stays if its kernels are at hand, or if no suitable candidate is. Results do not depend on which
    kernels are at hand.
    """
    lacking = missing(problem, best, limits.closed)
    if not lacking:
        return Substitute(best, [])
    found = _fastest_at_hand(problem, limits, best)
    if found is None:
        return Substitute(best, lacking)
    seconds = modelled_cost(problem, best, limits.closed).estimate
    return Substitute(found.candidate, lacking, 1 - seconds / found.cost.estimate)


def _fastest_at_hand(problem: ConvProblem, limits: Limits, best: Candidate) -> Ranked | None:
    made = dict.fromkeys(with_same_rounding(problem, best, limits.closed))
    if not limits.closed:
        with tiles_among(_tiles(current(), assemble(problem, best).steps)):
            made |= dict.fromkeys(with_same_rounding(problem, best))
    ranked = [Ranked(each, modelled_cost(problem, each, limits.closed)) for each in made]
    ranked.sort(key=lambda each: each.cost.estimate)
    known: dict[tuple[int, ...], bool] = {}
    for each in ranked:
        kernels = (*each.candidate.micro_kernels.values(),)
        if kernels not in known:  # candidates with equal micro-kernels differ only in argument words of the driver
            if len(known) == _MAX_CHECKED:
                return None
            able = why_excluded(problem, each, limits) is None
            known[kernels] = able and not missing(problem, each.candidate, limits.closed)
        if known[kernels] and why_excluded(problem, each, limits) is None:
            return each
    return None


def _tiles(isa: Isa, steps: Iterable[Step]) -> frozenset[Tile]:
    """The tiles of GEMM strips at hand that can replace those of the steps."""
    found: set[Tile] = set()
    for step in steps:
        ref = step.args.get("gemm") or step.args.get("gemm_last")
        if isinstance(ref, MicroRef) and ref.kernel is gemm_strip:
            found |= _replacements(isa, replace(ref.tile, **_PLAIN), at_hand.state())
    return frozenset(found)


@functools.lru_cache(maxsize=64)
def _replacements(isa: Isa, plain: GemmTile, state: tuple[object, ...]) -> frozenset[Tile]:
    names = _names(isa, plain)
    there = at_hand.among(itertools.chain.from_iterable(names.values()))
    return frozenset(tile for tile, each in names.items() if not there.isdisjoint(each))


@functools.lru_cache(maxsize=64)  # about 60 KB per entry; needed only for problems with missing kernels
def _names(isa: Isa, plain: GemmTile) -> dict[Tile, tuple[str, ...]]:
    """File names of the strips that differ from a plain one in tile size and size-dependent fields.

    Equal to those of `at_hand.name_of`, in a tenth of the time.
    """
    forms = itertools.product(*_SIZE_DEPENDENT.values())
    texts = [tile_text(replace(plain, **dict(zip(_SIZE_DEPENDENT, each, strict=True)))) for each in forms]
    found = {}
    for tile in every_tile(isa):
        size = f"v={tile.v},rows={tile.rows},cols={tile.cols}"
        own = (each.replace("v=1,rows=1,cols=1", size, 1) for each in texts)
        found[tile] = tuple(kernel_files.find(gemm_strip.name, gemm_strip.module, each).name for each in own)
    return found
