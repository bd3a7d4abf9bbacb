"""Find and make templates for convolutions whose input sizes change from call to call."""

from __future__ import annotations

import marshal
from collections.abc import Hashable, Sequence
from typing import Any

from cpuconv.api.options import Options
from cpuconv.conv import session
from cpuconv.conv.choice.model import AUTO, MODELLED, Choice, modelled_cost
from cpuconv.conv.choice.query import Query
from cpuconv.conv.choice.select import decide, note_untuned
from cpuconv.conv.choice.sources.size_class import class_choice
from cpuconv.conv.choice.tuned import is_stored
from cpuconv.conv.recipe import Candidate
from cpuconv.conv.template import Algorithm, Evaluated, Padding, SizeClass
from cpuconv.problem.arguments import Pads, padding
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.threads import wanted_threads
from cpuconv.symbolic.classes import BATCH, size_class

PLAIN = 2  # marshal format version in which equal values of equal types serialise to equal bytes


class NewSize:
    """A convolution of given input sizes, and the templates of their class of sizes.

    Parameters
    ----------
    options : Options
    x_shape : (N, C, H, W)
    key : hashable
        All arguments of the convolution except the shape of its input and the values of its weights.
    """

    def __init__(self, options: Options, x_shape: Sequence[int], key: Hashable) -> None:
        n, c, h, w = x_shape
        self._options, self.sizes = options, (n, h, w)
        of = size_class(n, BATCH), size_class(h), size_class(w)
        self.of: SizeClass = session.current.size_classes.of((key, c), of)

    @classmethod
    def of_call(cls, options: Options, x_shape: Sequence[int], key: Hashable) -> NewSize | None:
        """Return the size, or None if templates cannot be used and each size is planned by itself."""
        able = (
            options.algorithm is None
            and wanted_threads(options.threads) != AUTO
            and options.strategy != "profile"
            and options.workspace_limit is None
            and not options.reproducible
            and AUTO not in (options.in_layout, options.out_layout)
        )
        return cls(options, x_shape, key) if able and x_shape[0] else None

    @classmethod
    def of_plan(
        cls, options: Options, x_shape: Any, w_shape: Sequence[int], types: tuple[Hashable, ...]
    ) -> NewSize | None:
        """As `of_call`, with the key of a call of `conv2d`; None also if the arguments need validation first."""
        if type(x_shape) is not tuple or any(type(size) is not int or size <= 0 for size in x_shape):
            return None
        fields = {**vars(options), "threads": wanted_threads(options.threads)}
        del fields["algorithm"], fields["types"]
        try:
            key = w_shape, marshal.dumps(tuple(fields.values()), PLAIN), *types
        except ValueError:  # an argument that is not of a built-in type
            return None
        return cls.of_call(options, x_shape, key) if len(x_shape) == len(w_shape) == 4 else None

    def find(self) -> Evaluated | None:
        """The kernel calls of an existing template, if the class has settled; None: plan this size by itself."""
        found = self.of.find(self.sizes, _seconds)
        if found is None or self._is_cached and is_stored(found.problem):
            return None
        if self._is_cached:
            note_untuned(found.problem, self._options.strategy, self._options.limits, choice_of(found))
        return found

    def chosen(self, problem: ConvProblem, choice: Choice) -> Evaluated | None:
        """The kernel calls of a (possibly new) template with the same rounding as a choice; None if impossible."""
        if choice.decided_by not in MODELLED or self._is_cached and is_stored(problem):
            return None
        own, wanted, is_free = choice.candidate, self._padding(problem), problem.types.sum.integer
        known = self.of.like(problem, None if is_free else own.rounding, _seconds)
        found = known[0] if known else None
        if not self.of.serves(known, problem, _seconds(problem, own)):
            found = self.of.add(problem, wanted, own) or found
        if found is not None:
            self.of.decide(problem, wanted, lambda: () if is_free else self._algorithms(problem))
        return found

    def _algorithms(self, problem: ConvProblem) -> Sequence[Algorithm] | None:
        of = class_choice(Query(problem, self._options.strategy, self._options.limits, decide))
        return None if of is None else of.algorithms

    @property
    def _is_cached(self) -> bool:
        return self._options.strategy == "cached"

    def _padding(self, problem: ConvProblem) -> Padding:
        wanted, kernel = self._options.padding, (problem.r, problem.s)

        def pads(h: int, w: int) -> Pads:
            return padding(wanted, kernel, problem.stride, problem.dilation, (h, w))

        return pads


def _seconds(problem: ConvProblem, candidate: Candidate) -> float:
    return modelled_cost(problem, candidate).estimate


def choice_of(found: Evaluated) -> Choice:
    """The choice that a template stands for, as decided by the model."""
    return Choice(found.template.candidate, "model")
