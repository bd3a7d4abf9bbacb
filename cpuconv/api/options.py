"""Options: what a convolution is asked for beside its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.data_classes import dataclass
from cpuconv.conv import session
from cpuconv.conv.choice import by_class, select
from cpuconv.conv.choice.model import AUTO, Choice, Limits, check_options
from cpuconv.conv.remembering.fingerprint import Fingerprint
from cpuconv.problem.arguments import problem_from_arguments
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.runtime.threads import maximum_threads, wanted_threads


@dataclass(frozen=True)
class Options:
    """The arguments that `conv2d`, `plan` and `explain` have in common, and the types; `plan` says what each may be."""

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    activation: Any = None
    residual: bool = False
    in_layout: str = "NCHW"
    out_layout: str = "NCHW"
    threads: int | str | None = None
    strategy: str = "cached"
    accuracy: str = "standard"
    workspace_limit: int | None = None
    reproducible: bool = False
    algorithm: str | None = None
    types: Types = ALL_F32

    @property
    def limits(self) -> Limits:
        """What a choice must keep to."""
        return Limits(self.accuracy, self.workspace_limit, self.reproducible)

    def problem(self, x_shape: Sequence[int], w_shape: Sequence[int]) -> ConvProblem:
        """The problem of these shapes, its layouts and threads decided.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An argument has a wrong value or type.
        """
        check_options(self.strategy, self.accuracy, self.workspace_limit, self.reproducible)
        wanted = self.in_layout, self.out_layout
        in_layout, out_layout = ("NCHW" if name == AUTO else name for name in wanted)
        threads = wanted_threads(self.threads)
        problem = problem_from_arguments(
            x_shape, w_shape, self.stride, self.padding, self.dilation, self.groups,
            activation=self.activation, residual=self.residual, in_layout=in_layout, out_layout=out_layout,
            threads=maximum_threads() if isinstance(threads, str) else threads,  # "auto": decided below
            types=self.types,
        )  # fmt: skip
        if AUTO in wanted:
            problem = select.resolve_layouts(problem, *wanted, self.limits)
        if threads == AUTO:
            problem = select.best_threads(problem, self.strategy, self.limits, tuner_for(self.strategy))
        return problem

    def choose(self, problem: ConvProblem, weight: Fingerprint | None = None) -> Choice:
        """The candidate for `problem`; one that reads a packed form of `weight` that exists is preferred."""
        if problem.n == 0:  # nothing will run: any algorithm will do
            return select.choose(replace(problem, n=1), "heuristic", self.limits, self.algorithm)
        if self.algorithm is None and self.strategy != "profile":
            choice = by_class.choose_in_class(problem, self.strategy, self.limits)
        else:
            choice = select.choose(problem, self.strategy, self.limits, self.algorithm, tuner_for(self.strategy))
        if weight is None or self.algorithm is not None:
            return choice
        return select.reusing(problem, self.limits, choice, session.current.weights.forms(weight))


def tuner_for(strategy: str) -> select.Tuner | None:
    """What times candidates during a call, for strategy "profile"; else None."""
    if strategy != "profile":
        return None
    from cpuconv.tuning import profile  # and with it all of the tuner

    return profile
