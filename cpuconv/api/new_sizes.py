"""Convolutions that meet ever new sizes: found by templates of classes of sizes, which are made here."""

from __future__ import annotations

import marshal
from collections.abc import Hashable, Sequence

from cpuconv.api.options import Options
from cpuconv.conv import session
from cpuconv.conv.choice.by_class import ClassChoice, class_choice, is_stored
from cpuconv.conv.choice.model import AUTO, Choice, modelled_cost
from cpuconv.conv.choice.select import MODELLED, note_untuned
from cpuconv.conv.recipe import Candidate
from cpuconv.conv.template import Evaluated, Padding, SizeClass, Template, is_padded
from cpuconv.following.classes import BATCH, size_class
from cpuconv.problem.arguments import Pads, padding, pair
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.threads import wanted_threads

_NEAR = 1.1  # most of the estimate of a template's candidate, over that of the best one, to serve a size
PLAIN = 2  # version of marshal's format: equal values of equal types give equal bytes


class NewSize:
    """A convolution of some sizes, and the templates of their class.

    Parameters
    ----------
    options : Options
    x_shape : (N, C, H, W)
    key : hashable
        All that the convolution is beside the shape of its input, but for the content of its weights.
    """

    def __init__(self, options: Options, x_shape: Sequence[int], key: Hashable) -> None:
        n, c, h, w = x_shape
        self._options, self.sizes = options, (n, h, w)
        of = size_class(n, BATCH), size_class(h), size_class(w)
        self.of: SizeClass = session.current.size_classes.of((key, c), of)

    @classmethod
    def asked(cls, options: Options, x_shape: Sequence[int], key: Hashable) -> NewSize | None:
        """None where each size is decided by itself."""
        able = (
            options.algorithm is None
            and wanted_threads(options.threads) != AUTO
            and options.strategy != "profile"
            and options.workspace_limit is None
            and not options.reproducible
            and AUTO not in (options.in_layout, options.out_layout)
        )
        return cls(options, x_shape, key) if able and x_shape[0] else None

    def find(self) -> Evaluated | None:
        """The kernel calls by a template that is there, if the class is settled; None: decide by the size."""
        found = self.of.find(self.sizes, self._ranked) if self.of.is_settled else None
        if found is None or self._is_cached and is_stored(found.problem):
            return None
        if self._is_cached:
            note_untuned(found.problem, self._options.strategy, self._options.limits, choice_of(found))
        return found

    def chosen(self, problem: ConvProblem, choice: Choice) -> Evaluated | None:
        """The kernel calls by a template that gives the bits of a choice, perhaps a new one; None: there is none."""
        if choice.decided_by not in MODELLED or self._is_cached and is_stored(problem):
            return None
        own = choice.candidate

        def ranked(problem: ConvProblem, templates: Sequence[Template]) -> Sequence[Template]:
            return self._alike(problem, templates, own.rounding)

        found = self.of.find_elsewhere(problem, ranked)
        if found is not None and _seconds(problem, found.template.candidate) <= _NEAR * _seconds(problem, own):
            self.of.serve(found.template, problem, self._padding(problem))
            return found
        return self.of.add(problem, self._padding(problem), own) or found

    def _ranked(self, problem: ConvProblem, templates: Sequence[Template]) -> Sequence[Template]:
        """Templates that give the bits of the class, those that the model finds fastest first."""
        if problem.types.sum.integer:
            return self._alike(problem, templates, "")
        decided, padded = self.of.decided, is_padded(problem)
        if padded not in decided:
            decided[padded] = class_choice(problem, self._options.strategy, self._options.limits)
        of: ClassChoice | None = decided[padded]
        return () if of is None else self._alike(problem, templates, of.ordered(problem)[0].rounding)

    def _alike(self, problem: ConvProblem, templates: Sequence[Template], rounding: str) -> Sequence[Template]:
        is_free = problem.types.sum.integer  # sums are exact in any order
        alike = [each for each in templates if is_free or each.rounding == rounding]
        return alike if len(alike) < 2 else sorted(alike, key=lambda each: _seconds(problem, each.candidate))

    @property
    def _is_cached(self) -> bool:
        return self._options.strategy == "cached"

    def _padding(self, problem: ConvProblem) -> Padding:
        options, kernel = self._options, (problem.r, problem.s)
        steps, gaps = pair(options.stride, "stride"), pair(options.dilation, "dilation")

        def asked(h: int, w: int) -> Pads:
            return padding(options.padding, kernel, steps, gaps, (h, w))

        return asked


def _seconds(problem: ConvProblem, candidate: Candidate) -> float:
    return modelled_cost(problem, candidate).estimate


def choice_of(found: Evaluated) -> Choice:
    """The choice of a template."""
    return Choice(found.template.candidate, "model")


def key_of(options: Options) -> Hashable | None:
    """The options of a call of `conv2d` as bytes; None of arguments of other types than Python's own."""
    fields = {**vars(options), "threads": wanted_threads(options.threads)}
    del fields["algorithm"], fields["types"]
    try:
        return marshal.dumps(tuple(fields.values()), PLAIN)
    except ValueError:
        return None
