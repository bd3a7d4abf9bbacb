"""A convolution for all sizes of a class: its kernel calls as functions of batch, height and width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.errors import CpuconvError
from cpuconv.following.sizes import Trace, following
from cpuconv.isa import current
from cpuconv.kernels.binding.word_table import TABLES, WordTable
from cpuconv.problem.arguments import Pads
from cpuconv.problem.arrays import address
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime import Program
from cpuconv.solvers import why_not

Sizes = tuple[int, int, int]  # batch, height, width
Padding = Callable[[Any, Any], Pads]
"""The padding that is asked for, of a height and a width."""
Patches = dict[str, list[tuple[memoryview, int, int]]]
"""By base: argument block, place in it, and offset of each address."""

Ranking = Callable[[ConvProblem, "list[Template]"], "Sequence[Template]"]
UNABLE = (CpuconvError, TypeError, ValueError, LookupError, ArithmeticError)  # of code that takes no size


class Evaluated(NamedTuple):
    """The kernel calls of a template for some sizes.

    Attributes
    ----------
    template : Template
    problem : ConvProblem
    workspace : int
        Bytes of workspace.
    numbers : list
        What the words are computed from.
    """

    template: Template
    problem: ConvProblem
    workspace: int
    numbers: list[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of argument blocks and tables."""
        return 2 * self.template.word_bytes

    def bound(self, known: dict[str, int], kept: list[Any]) -> tuple[Patches, Program]:
        """Addresses to be written, and the program; those of `known` bases are there, of what `kept` holds."""
        words, tables = self.template.table.words(self.numbers)
        known = {**known, TABLES: address(tables)}
        blocks, patches = words.words, {}
        for base, places in words.patches.items():
            if base in known:
                blocks[places] += known[base]
        data = blocks.data
        for base, places in words.patches.items():
            if base not in known:
                patches[base] = [(data, at, int(blocks[at])) for at in places.tolist()]
        table = np.empty((len(words.codes), 3), np.int64)
        table[:, 0], table[:, 1], table[:, 2] = words.entries, address(blocks) + 8 * words.starts[:-1], words.parts
        return patches, Program.of(table, self.template.threads, [*kept, words, tables])


class Template:
    """The kernel calls of a candidate for all sizes that answer as one does.

    Parameters
    ----------
    problem : ConvProblem
        Of one of the sizes.
    padding : Padding
    candidate : Candidate

    Attributes
    ----------
    table : WordTable
    threads : int
    word_bytes : int
    shared : dict
        What those who run its calls share.

    Raises
    ------
    TypeError
        The candidate's calls do not follow from sizes, or it cannot run the problem.
    """

    def __init__(self, problem: ConvProblem, padding: Padding, candidate: Candidate) -> None:
        self.candidate, self.name, self.rounding = candidate, str(candidate), candidate.rounding
        self.packing = candidate.packing(problem)
        trace = Trace(_sizes(problem))
        with following():
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
        """The calls for other sizes; None where they answer some question in another way."""
        found = self._function(_sizes(problem))
        return None if found is None else Evaluated(self, problem, found[0], found[1:])


class SizedProblem:
    """The problem of a convolution for all sizes that are padded as one is; arguments as of `Template`."""

    def __init__(self, problem: ConvProblem, padding: Padding) -> None:
        self._problem = problem
        trace = Trace(_sizes(problem))
        with following():
            self._pads = trace.function(_sized(problem, trace, padding).pads)

    def __call__(self, sizes: Sizes) -> ConvProblem | None:
        """The problem for other sizes; None where they are padded in another way, or smaller than the kernel."""
        pads = self._pads(sizes)
        n, h, w = sizes
        return None if pads is None else self._problem.changed(n=n, h=h, w=w, pads=tuple(pads))


def _sizes(problem: ConvProblem) -> Sizes:
    return problem.n, problem.h, problem.w


def _sized(problem: ConvProblem, trace: Trace, padding: Padding) -> ConvProblem:
    """The problem with sizes that a trace follows."""
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
    """The templates of a class of sizes of one convolution.

    Parameters
    ----------
    pool : list of Template
        Those of all classes of the convolution.

    Attributes
    ----------
    decided : dict
        By whether rows and columns are padded, what is chosen for the class.
    """

    _first = 3  # how many sizes a class has met when it counts as one of ever new sizes
    _enough = 2  # sizes in a row that templates served well, after which none is searched for
    _most = 6  # templates
    _most_in_pool = 24
    _most_apart = 1024

    def __init__(self, pool: list[Template]) -> None:
        self.decided: dict[tuple[bool, bool], Any] = {}
        self._pool, self._made = pool, list[Template]()
        self._problem: SizedProblem | None = None
        self._seen: set[Sizes] = set()
        self._apart: set[Sizes] = set()
        self._served = 0
        self._able = True

    @property
    def is_settled(self) -> bool:
        """Whether new sizes are no longer searched for."""
        return bool(self._made) and (self._served >= self._enough or self._is_full)

    @property
    def _is_full(self) -> bool:
        return len(self._made) >= self._most or len(self._pool) >= self._most_in_pool

    def find(self, sizes: Sizes, ranked: Ranking) -> Evaluated | None:
        """The kernel calls for some sizes by the first template that can, of the class or else of any; None: none can.

        `ranked` gives the templates to ask, by a problem and those that there are.
        """
        problem = None if self._problem is None or sizes in self._apart else self._problem(sizes)
        if problem is None:
            return None
        return _first(problem, ranked(problem, self._made)) or _first(problem, ranked(problem, self._pool))

    def find_elsewhere(self, problem: ConvProblem, ranked: Ranking) -> Evaluated | None:
        """As `find`, by a template of any class of the convolution."""
        return None if _sizes(problem) in self._apart else _first(problem, ranked(problem, self._pool))

    def serve(self, template: Template, problem: ConvProblem, padding: Padding) -> None:
        """Note that a template serves a problem about as well as the best candidate for it."""
        self._served += 1
        self._problem = self._problem or SizedProblem(problem, padding)
        if template not in self._made:
            self._made = [template, *self._made]

    def add(self, problem: ConvProblem, padding: Padding, candidate: Candidate) -> Evaluated | None:
        """The kernel calls for a problem by a new template of a candidate; None: there can be none, or it is not worth
        making yet."""
        sizes = _sizes(problem)
        if len(self._seen) < self._first:
            self._seen.add(sizes)
        if not self._able or len(self._seen) < self._first or sizes in self._apart or self._is_full:
            return None
        try:
            template = Template(problem, padding, candidate)
            self._problem = self._problem or SizedProblem(problem, padding)
        except UNABLE:
            self._able = bool(self._made)
            return None
        self._served, self._made = 0, [template, *self._made]
        self._pool.insert(0, template)
        return template.evaluated(problem)

    def leave_out(self, sizes: Sizes) -> None:
        """Serve these sizes no more: they come often."""
        if len(self._apart) < self._most_apart:
            self._apart.add(sizes)


def _first(problem: ConvProblem, templates: Sequence[Template]) -> Evaluated | None:
    """The kernel calls for a problem by the first template that can."""
    return next((found for each in templates if (found := each.evaluated(problem)) is not None), None)
