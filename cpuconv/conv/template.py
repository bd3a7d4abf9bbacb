"""Templates of a convolution: its kernel calls as functions of batch, height and width, for a class of sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.errors import CpuconvError
from cpuconv.isa import current
from cpuconv.kernels.binding.word_table import TABLES, WordTable
from cpuconv.problem.arguments import Pads
from cpuconv.problem.arrays import address
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.solvers import why_not
from cpuconv.symbolic.sizes import Trace, tracing

Sizes = tuple[int, int, int]  # batch, height, width
Padding = Callable[[Any, Any], Pads]
"""The requested padding as a function of height and width."""
Patches = dict[str, list[tuple[memoryview, int, int]]]
"""Addresses to write, by base: argument block, index in it, and offset."""

Seconds = Callable[[ConvProblem, Candidate], float]
UNABLE = (CpuconvError, TypeError, ValueError, LookupError, ArithmeticError)  # raised by code without symbolic sizes


class Evaluated(NamedTuple):
    """The kernel calls of a template for given sizes.

    Attributes
    ----------
    template : ConvTemplate
    problem : ConvProblem
    workspace : int
        Size of the workspace, in bytes.
    numbers : list
        The numbers from which argument words are computed.
    """

    template: ConvTemplate
    problem: ConvProblem
    workspace: int
    numbers: list[Any]

    @property
    def nbytes(self) -> int:
        """Size of argument blocks and tables, in bytes."""
        return 2 * self.template.word_bytes

    def bound(self, known: dict[str, int], owned: list[Any]) -> tuple[Patches, Program]:
        """Bind the calls: fill in `known` bases, owned by `owned`; return later addresses, and the program."""
        words, tables = self.template.table.words(self.numbers)
        known = {**known, TABLES: address(tables)}
        blocks, patches = words.words, {}
        for base, places in words.relocations.items():
            if base in known:
                blocks[places] += known[base]
        data = blocks.data
        for base, places in words.relocations.items():
            if base not in known:
                patches[base] = [
                    (data, at, word) for at, word in zip(places.tolist(), blocks[places].tolist(), strict=True)
                ]
        table = np.empty((len(words.codes), 3), np.int64)
        table[:, 0], table[:, 1], table[:, 2] = words.entries, address(blocks) + 8 * words.starts[:-1], words.parts
        return patches, Program.of(table, self.template.threads, [*owned, words, tables])


class ConvTemplate:
    """The kernel calls of a candidate for all sizes with the same comparison results.

    Parameters
    ----------
    problem : ConvProblem
        The problem for one of the sizes.
    padding : Padding
    candidate : Candidate

    Attributes
    ----------
    table : WordTable
    threads : int
    word_bytes : int
    shared : dict
        Data that the users of the template share.

    Raises
    ------
    TypeError
        The candidate's calls cannot be computed from symbolic sizes, or it cannot run the problem.
    """

    def __init__(self, problem: ConvProblem, padding: Padding, candidate: Candidate) -> None:
        self.candidate, self.name, self.rounding = candidate, str(candidate), candidate.rounding
        self.packing = candidate.packing(problem)
        trace = Trace(_sizes(problem))
        with tracing():
            sized = _sized(problem, trace, padding)
            with trace.strictly():
                if why_not(candidate.solver, sized, current()) is not None:
                    raise TypeError(f"{candidate} cannot run {problem}")
                recipe = assemble(sized, candidate)
                self.table = WordTable(recipe.steps)
            self.threads = recipe.threads
            self._function = trace.function([recipe.workspace, *self.table.sizes])
        self.shared: dict[str, Any] = {}
        self.word_bytes = sum(step.nbytes for step in recipe.steps) + 8 * sum(len(step.args) for step in recipe.steps)

    def evaluated(self, problem: ConvProblem) -> Evaluated | None:
        """The calls for other sizes; None if some comparison has another result."""
        found = self._function(_sizes(problem))
        return None if found is None else Evaluated(self, problem, found[0], found[1:])


class Algorithm(NamedTuple):
    """A candidate for one size of a class, and its seconds per operation there."""

    candidate: Candidate
    rounding: str
    rate: float

    def seconds(self, problem: ConvProblem) -> float:
        """Estimate the time for another size, in proportion to its operations."""
        operations: float = self.candidate.solver.least_work(problem, self.candidate.params)[0]
        return self.rate * operations


class SizedProblem:
    """A convolution problem for all sizes with the same padded axes, and the algorithm per size.

    Parameters
    ----------
    problem : ConvProblem
        The problem for one of the sizes.
    padding : Padding
    algorithms : sequence of Algorithm
        Each size uses the one with the lowest estimate; empty: sums are exact, and all give the same bits.
    """

    def __init__(self, problem: ConvProblem, padding: Padding, algorithms: Sequence[Algorithm]) -> None:
        self._problem, self._roundings = problem, [each.rounding for each in algorithms]
        trace = Trace(_sizes(problem))
        with tracing():
            sized = _sized(problem, trace, padding)
            seconds = [each.seconds(sized) for each in algorithms] if len(algorithms) > 1 else []
            self._function = trace.function([*sized.pads, *seconds])

    def __call__(self, sizes: Sizes) -> tuple[ConvProblem, str | None] | None:
        """The problem for other sizes, and its `Candidate.rounding`.

        None if other axes are padded, or if the input is smaller than the kernel.
        """
        found = self._function(sizes)
        if found is None:
            return None
        (n, h, w), seconds = sizes, found[4:]
        problem = self._problem.changed(n=n, h=h, w=w, pads=tuple(found[:4]))
        if not seconds:
            return problem, self._roundings[0] if self._roundings else None
        return problem, self._roundings[seconds.index(min(seconds))]


def _sizes(problem: ConvProblem) -> Sizes:
    return problem.n, problem.h, problem.w


def _sized(problem: ConvProblem, trace: Trace, padding: Padding) -> ConvProblem:
    """The problem with symbolic sizes of a trace."""
    sizes: list[Any] = trace.inputs
    n, h, w = sizes
    made = ConvProblem(
        n, problem.c, h, w, problem.k, problem.r, problem.s, problem.stride, padding(h, w), problem.dilation,
        problem.groups, problem.in_layout, problem.out_layout, problem.activation, problem.residual,
        problem.threads, problem.types,
    )  # fmt: skip
    is_padded(made)
    return made


def is_padded(problem: ConvProblem) -> tuple[bool, bool]:
    """Whether rows and columns are padded."""
    top, bottom, left, right = problem.pads
    return bool(top + bottom > 0), bool(left + right > 0)


class SizeClass:
    """The templates of one convolution for a class of sizes.

    Parameters
    ----------
    pool : list of ConvTemplate
        The templates of all classes of the convolution.
    """

    _first = 3  # number of different sizes after which a class is treated as having ever new sizes
    _enough = 2  # consecutive sizes that templates served well, after which candidates are no longer searched
    _near = 1.1  # maximum ratio of a template's estimate to the best one's, or of its time per operation to the highest
    _most = 6  # templates per class
    _most_in_pool = 24
    _most_apart = 1024

    def __init__(self, pool: list[ConvTemplate]) -> None:
        self._pool, self._made = pool, list[ConvTemplate]()
        self._problems: dict[tuple[bool, bool], SizedProblem | None] = {}
        self._seen: set[Sizes] = set()
        self._apart: set[Sizes] = set()
        self._served: set[Sizes] = set()
        self._rate = 0.0
        self._able = True

    @property
    def _is_full(self) -> bool:
        return len(self._made) >= self._most or len(self._pool) >= self._most_in_pool

    def find(self, sizes: Sizes, seconds: Seconds) -> Evaluated | None:
        """The kernel calls for given sizes by the template that is fastest by the model; None: search candidates."""
        is_settled = len(self._served) >= self._enough or self._is_full
        if not is_settled or sizes in self._apart:
            return None
        for each in self._problems.values():
            known = None if each is None else each(sizes)
            if known is not None:
                made = _best(*known, self._made, seconds) or _best(*known, self._pool, seconds)
                may_lose = made is not None and made[1] > self._near * self._rate * known[0].flops
                return None if made is None or may_lose and not self._is_full else made[0]
        return None

    def like(self, problem: ConvProblem, rounding: str | None, seconds: Seconds) -> tuple[Evaluated, float] | None:
        """The kernel calls for a problem by a template of any class with this `rounding`, and the time estimate.

        The template that is fastest by the model is used.
        """
        return None if _sizes(problem) in self._apart else _best(problem, rounding, self._pool, seconds)

    def serves(self, found: tuple[Evaluated, float] | None, problem: ConvProblem, least: float) -> bool:
        """Whether the result of `like` is about as fast as the best candidate (`least` seconds); record it if so."""
        self._rate = max(self._rate, least / problem.flops)
        if found is None or found[1] > self._near * least:
            return False
        self._served = {*self._served, _sizes(problem)}
        if found[0].template not in self._made:
            self._made = [found[0].template, *self._made]
        return True

    def add(self, problem: ConvProblem, padding: Padding, candidate: Candidate) -> Evaluated | None:
        """The kernel calls for a problem by a new template of a candidate.

        None if that is impossible, or not worthwhile yet.
        """
        sizes = _sizes(problem)
        if len(self._seen) < self._first:
            self._seen.add(sizes)
        if not self._able or len(self._seen) < self._first or sizes in self._apart or self._is_full:
            return None
        try:
            template = ConvTemplate(problem, padding, candidate)
        except UNABLE:
            self._able = bool(self._made)
            return None
        self._served, self._made = set(), [template, *self._made]
        self._pool.insert(0, template)
        return template.evaluated(problem)

    def decide(
        self, problem: ConvProblem, padding: Padding, find_algorithms: Callable[[], Sequence[Algorithm] | None]
    ) -> None:
        """Select the algorithms for sizes with the padded axes of a problem.

        `find_algorithms` returns the algorithms, or None if each size is decided by itself.
        """
        padded = is_padded(problem)
        if padded not in self._problems:
            algorithms = find_algorithms()
            self._problems[padded] = None if algorithms is None else SizedProblem(problem, padding, algorithms)

    def leave_out(self, sizes: Sizes) -> None:
        """Exclude these sizes from templates, as they occur often."""
        if len(self._apart) < self._most_apart:
            self._apart.add(sizes)


def _best(
    problem: ConvProblem, rounding: str | None, templates: Sequence[ConvTemplate], seconds: Seconds
) -> tuple[Evaluated, float] | None:
    """The kernel calls for a problem by the fastest template with this `rounding` (None: any), and its estimate."""
    alike = [(seconds(problem, each.candidate), each) for each in templates if rounding in (None, each.rounding)]
    alike.sort(key=operator.itemgetter(0))
    for estimate, template in alike:
        found = template.evaluated(problem)
        if found is not None:
            return found, estimate
    return None
