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
        self._problem = problem
        trace = Trace((problem.n, problem.h, problem.w))
        with following():
            sizes: list[Any] = trace.inputs
            n, h, w = sizes
            sized = ConvProblem(
                n, problem.c, h, w, problem.k, problem.r, problem.s, problem.stride, padding(h, w), problem.dilation,
                problem.groups, problem.in_layout, problem.out_layout, problem.activation, problem.residual,
                problem.threads, problem.types,
            )  # fmt: skip
            is_padded(sized)
            with trace.strictly():
                if why_not(candidate.solver, sized, current()) is not None:
                    raise TypeError(f"{candidate} cannot run {problem}")
                recipe = assemble(sized, candidate)
                self.table = WordTable(recipe.steps)
            self.threads = recipe.threads
            self._function = trace.function([*sized.pads, recipe.workspace, *self.table.sizes])
        self.shared: dict[str, Any] = {}
        self.word_bytes = sum(step.nbytes for step in recipe.steps) + 8 * sum(len(step.args) for step in recipe.steps)

    def evaluated(self, sizes: Sizes) -> Evaluated | None:
        """The calls for other sizes; None where they answer some question in another way."""
        found = self._function(sizes)
        if found is None:
            return None
        n, h, w = sizes
        problem = self._problem.changed(n=n, h=h, w=w, pads=tuple(found[:4]))
        return Evaluated(self, problem, found[4], found[5:])


def is_padded(problem: ConvProblem) -> tuple[bool, bool]:
    """Whether rows and columns are padded."""
    top, bottom, left, right = problem.pads
    return bool(top + bottom > 0), bool(left + right > 0)


class SizeClass:
    """The templates of a class of sizes of one convolution, made from the third size on.

    Attributes
    ----------
    settled : bool
        Whether all sizes of the class give the bits of its templates, whatever is chosen for them.
    made : list of Template
        The one that served last comes first.
    """

    most = 6  # templates; sizes that none of them serves are planned one by one
    _first = 3  # how many sizes a class has met when it counts as one of ever new sizes
    _most_apart = 1024

    def __init__(self) -> None:
        self.settled = False
        self.made: list[Template] = []
        self._seen: set[Sizes] = set()
        self._apart: set[Sizes] = set()
        self._able = True

    def find(self, sizes: Sizes, rounding: str | None = None) -> Evaluated | None:
        """The kernel calls for some sizes by a template that gives the bits of a `rounding`; None: of all sizes of a
        settled class."""
        if rounding is None and not self.settled or sizes in self._apart:
            return None
        for at, template in enumerate(self.made):
            if rounding is None or template.rounding == rounding:
                found = template.evaluated(sizes)
                if found is not None:
                    if at:  # others of the same class are likely next
                        self.made = [template, *(each for each in self.made if each is not template)]
                    return found
        return None

    def note(self, sizes: Sizes) -> bool:
        """Note that some sizes were asked for; whether a template for them is worth making."""
        if len(self._seen) < self._first:
            self._seen.add(sizes)
        return (
            self._able
            and len(self._seen) >= self._first > 0
            and len(self.made) < self.most
            and sizes not in self._apart
        )

    def add(
        self, problem: ConvProblem, padding: Padding, candidates: Sequence[Candidate], settled: bool
    ) -> Evaluated | None:
        """The kernel calls for a problem by a new template of the first of some candidates that can; None: none can."""
        sizes = problem.n, problem.h, problem.w
        for candidate in candidates:
            try:
                template = Template(problem, padding, candidate)
            except UNABLE:
                continue
            found = template.evaluated(sizes)
            if found is not None:
                self.settled = settled
                self.made = [template, *self.made]
                return found
        self._able = False
        return None

    def leave_out(self, sizes: Sizes) -> None:
        """Serve these sizes no more: they come often."""
        if len(self._apart) < self._most_apart:
            self._apart.add(sizes)
