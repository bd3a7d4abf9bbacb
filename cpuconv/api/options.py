"""Options: the non-array arguments of a convolution call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from baselib.data_classes import dataclass
from cpuconv.conv import session
from cpuconv.conv.caches.fingerprint import Fingerprint
from cpuconv.conv.choice import auto_settings, select, substitutes
from cpuconv.conv.choice.model import AUTO, Choice, Limits, check_options
from cpuconv.conv.choice.query import Tuner
from cpuconv.conv.choice.target import IDLE_BYTES
from cpuconv.errors import ArgumentError, ArgumentTypeError, must
from cpuconv.problem.arguments import problem_from_arguments
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.types import ALL_F32, Types
from cpuconv.runtime.threads import maximum_threads, wanted_threads


@dataclass(frozen=True)
class Options:
    """The arguments that `conv2d`, `plan` and `explain` share, and the types; see `plan` for their values."""

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
        """Limits that the selected algorithm must satisfy."""
        return Limits(self.accuracy, self.workspace_limit, self.reproducible)

    def problem(self, x_shape: Sequence[int], w_shape: Sequence[int]) -> ConvProblem:
        """The problem for these shapes, with its layouts and number of threads resolved.

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
            threads=maximum_threads() if isinstance(threads, str) else threads,  # "auto": resolved below
            types=self.types,
        )  # fmt: skip
        if AUTO in wanted:
            problem = auto_settings.resolve_layouts(problem, *wanted, self.limits)
        if threads == AUTO:
            problem = auto_settings.best_threads(problem, self.strategy, self.limits, tuner_for(self.strategy))
        return problem

    def choose(self, problem: ConvProblem, weight: Fingerprint | None = None) -> Choice:
        """Select a candidate for `problem`; prefer one that reads an existing packed form of `weight`."""
        if problem.n == 0:  # an empty batch runs nothing, so any algorithm will do
            return select.choose(replace(problem, n=1), "heuristic", self.limits, self.algorithm)
        by_class = self.algorithm is None and self.strategy != "profile"
        tuner = tuner_for(self.strategy)
        choice = select.choose(problem, self.strategy, self.limits, self.algorithm, tuner, by_class=by_class)
        if weight is None or self.algorithm is not None:
            return choice
        return substitutes.with_packed_weights(problem, self.limits, choice, session.current.weights.forms(weight))


def tuner_for(strategy: str) -> Tuner | None:
    """The module that times candidates during a call, for strategy "profile"; otherwise None."""
    if strategy != "profile":
        return None
    from cpuconv.tuning import profile  # deferred, because it imports the whole tuner

    return profile


def idle_limit(wanted: int | None) -> int:
    """Validate the limit of idle memory that a user gave, in bytes."""
    if wanted is None:
        return IDLE_BYTES
    if isinstance(wanted, bool) or not hasattr(wanted, "__index__"):
        raise ArgumentTypeError(must("idle_bytes", "an integer or None", repr(wanted)))
    if int(wanted) < 0:
        raise ArgumentError(must("idle_bytes", "0 or more bytes", repr(wanted)))
    return int(wanted)
