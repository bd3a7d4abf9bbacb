"""Layer: what `conv2d` remembers of a call: a plan that is given weights each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.conv.ending_block import Numbers, ending_block
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.conv.remembering.fingerprint import Fingerprint
from cpuconv.conv.remembering.remembered import Entry
from cpuconv.conv.session import Session
from cpuconv.conv.template import Template
from cpuconv.problem.arrays import inside
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization

_MOST_CHANGES = 4  # calls in a row with new weights, after which new weights are not remembered
_MOST_ENDINGS = 16  # of calls with other weights, biases or scales


class LayerWeights:
    """Packed weights of former calls, and endings: of a layer, or of all that a template gives the kernel calls of.

    Attributes
    ----------
    entries : dict
        By the weights' fingerprint.
    blank : numpy.ndarray or None
        The ending of a layer, which runs put theirs in the place of.
    """

    def __init__(self) -> None:
        self.blank: np.ndarray | None = None
        self.entries: dict[Fingerprint, Entry] = {}
        self._endings: dict[tuple[Fingerprint, bytes | None, Quantization | None], np.ndarray] = {}

    @classmethod
    def of(cls, template: Template) -> LayerWeights:
        """What all that run the kernel calls of a template share."""
        made: LayerWeights = template.shared.setdefault("weights", cls())
        return made

    def ending(
        self,
        problem: ConvProblem,
        candidate: Candidate,
        name: Fingerprint,
        weight: np.ndarray,
        bias: np.ndarray | None,
        quantization: Quantization | None,
    ) -> np.ndarray:
        """The ending of integer sums of weights with the fingerprint `name`; remembered, as to sum up the weights takes
        longer than many a run."""
        content = None if bias is None else bias.dtype.char.encode() + bias.tobytes()
        key = name, content, quantization
        ending = self._endings.get(key)
        if ending is None:
            ending = ending_block(problem, candidate, bias, Numbers.of(weight, quantization))
            while len(self._endings) >= _MOST_ENDINGS:
                self._endings.pop(next(iter(self._endings)), None)
            self._endings[key] = ending
        return ending


class Layer:
    """A plan, and the packed weights of its calls.

    Weights that change on every call would push others out of memory. So after a few changes in a row, weights are
    remembered only when they come a second time.
    """

    def __init__(self, plan: Plan, session: Session, kin: LayerWeights | None = None) -> None:
        """`kin`: what layers of other sizes know of weights; None: this is the first."""
        self.plan, self.kin = plan, kin or LayerWeights()
        self._session = session
        self._threads = plan.problem.threads
        self._entries = self.kin.entries
        self._changes = 0
        self._scaled = plan.problem.types.sum.integer
        self._candidate = plan.candidate

    def solves(self, problem: ConvProblem) -> bool:
        """Whether this is a layer of the problem, for any number of threads."""
        own = self.plan.problem
        return own == replace(problem, threads=own.threads)

    def run(
        self,
        x: Any,
        residual: Any,
        out: Any,
        bias: np.ndarray | None,
        weight: np.ndarray,
        quantization: Quantization | None = None,
    ) -> Any:
        """The plan's result for raw weights (K, C/groups, R, S), of integers less their zero points, and `bias` (K)."""
        name = self._session.fingerprint(weight, self._threads)
        entry = self._entries.get(name)
        packed = None if entry is None else entry.use()
        if packed is None:
            packed = self._packed(name, weight)
        else:
            self._changes = 0
        if self._scaled:
            bias = self.kin.ending(self.plan.problem, self._candidate, name, weight, bias, quantization)
        return self.plan.run(x, residual, out, bias, packed)

    def _packed(self, name: Fingerprint, weight: np.ndarray) -> np.ndarray:
        weights, form = self._session.weights, self.plan.packing
        packed = weights.find(name, form)
        if packed is None:
            packed = weights.pack(name, form, inside(weight), self._threads)
            self._changes += 1
            if self._changes > _MOST_CHANGES and not weights.was_seen(name):
                return packed
        entry = weights.remember(name, form, packed)
        if entry is not None:
            for forgotten in [known for known, other in list(self._entries.items()) if other.value is None]:
                self._entries.pop(forgotten, None)
            self._entries[name] = entry
        return packed


class TemplateLayer(Layer):
    """A layer whose kernel calls are those of a template, until its size has come so often that kernels of its own are
    worth compiling."""

    often = 64  # runs

    def __init__(self, plan: Plan, session: Session, kin: LayerWeights, leave: Callable[[], object]) -> None:
        """`leave` makes the next call of the size plan it by itself."""
        super().__init__(plan, session, kin)
        self._left, self._leave = self.often, leave

    def run(self, *arguments: Any) -> Any:
        """As `Layer.run`."""
        self._left -= 1
        if not self._left:
            self._leave()
        return super().run(*arguments)
