"""Layer: the cached plan of a `conv2d` call, which receives the weights at each call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from cpuconv.api.operands import Operands
from cpuconv.conv.caches.fingerprint import Fingerprint
from cpuconv.conv.caches.lru_cache import Entry
from cpuconv.conv.epilogue_block import epilogue_block
from cpuconv.conv.plan import Plan
from cpuconv.conv.recipe import Candidate
from cpuconv.conv.session import Session
from cpuconv.conv.template import ConvTemplate
from cpuconv.problem.arrays import kernel_view
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization

_MAX_CHANGES = 4  # consecutive calls with new weights, after which new weights are not cached
_MAX_EPILOGUES = 16  # cached epilogues, one per combination of weights, bias and scales


class LayerWeights:
    """Packed weights and epilogues of former calls, for one layer or for all layers of a template.

    Attributes
    ----------
    entries : dict
        Cache entries of packed weights, by fingerprint of the weights.
    blank : numpy.ndarray or None
        Placeholder epilogue of the layer; each run replaces it by its own.
    """

    def __init__(self) -> None:
        self.blank: np.ndarray | None = None
        self.entries: dict[Fingerprint, Entry] = {}
        self._epilogues: dict[tuple[Fingerprint, bytes | None, Quantization | None], np.ndarray] = {}

    @classmethod
    def of(cls, template: ConvTemplate) -> LayerWeights:
        """The instance that all layers with the kernel calls of one template share."""
        made: LayerWeights = template.shared.setdefault("weights", cls())
        return made

    def epilogue(
        self,
        problem: ConvProblem,
        candidate: Candidate,
        name: Fingerprint,
        given: Operands,
    ) -> np.ndarray:
        """Return the epilogue block for integer sums of the weights with fingerprint `name`.

        It is cached, because summing up the weights takes longer than many runs.
        """
        bias = given.bias
        content = None if bias is None else bias.dtype.char.encode() + bias.tobytes()
        key = name, content, given.quantization
        epilogue = self._epilogues.get(key)
        if epilogue is None:
            epilogue = epilogue_block(problem, candidate, bias, given.numbers())
            while len(self._epilogues) >= _MAX_EPILOGUES:
                self._epilogues.pop(next(iter(self._epilogues)), None)
            self._epilogues[key] = epilogue
        return epilogue


class Layer:
    """A plan, and the packed weights of its calls.

    Weights that change on every call would evict other cache entries. Therefore, after more than four consecutive
    changes, new weights are cached only when they occur a second time.
    """

    def __init__(self, plan: Plan, session: Session, kin: LayerWeights | None = None) -> None:
        """`kin`: weights shared with layers of other input sizes; None for the first layer."""
        self.plan, self.kin = plan, kin or LayerWeights()
        self._session = session
        self._threads = plan.problem.threads
        self._entries = self.kin.entries
        self._changes = 0
        self._scaled = plan.problem.types.sum.integer
        self._candidate = plan.candidate

    def solves(self, problem: ConvProblem) -> bool:
        """Whether this layer solves the problem, for any number of threads."""
        own = self.plan.problem
        return own == replace(problem, threads=own.threads)

    def run(self, given: Operands, residual: Any, out: np.ndarray | None) -> Any:
        """Run the plan with an input, unpacked weights and a bias."""
        weight, bias = given.weight, given.bias
        name = self._session.fingerprint(weight, self._threads)
        entry = self._entries.get(name)
        packed = None if entry is None else entry.use()
        if packed is None:
            packed = self._packed(name, weight)
        else:
            self._changes = 0
        if self._scaled:
            bias = self.kin.epilogue(self.plan.problem, self._candidate, name, given)
        return self.plan.run(given.x, residual, out, bias, packed)

    def _packed(self, name: Fingerprint, weight: np.ndarray) -> np.ndarray:
        weights, form = self._session.weights, self.plan.packing
        packed = weights.find(name, form)
        if packed is None:
            packed = weights.pack(name, form, kernel_view(weight), self._threads)
            self._changes += 1
            if self._changes > _MAX_CHANGES and not weights.was_seen(name):
                return packed
        entry = weights.remember(name, form, packed)
        if entry is not None:
            for forgotten in [known for known, other in list(self._entries.items()) if other.value is None]:
                self._entries.pop(forgotten, None)
            self._entries[name] = entry
        return packed


class TemplateLayer(Layer):
    """A layer that runs the kernel calls of a template.

    A size that has occurred often enough gets its own plan, as compiling kernels for it pays off.
    """

    often = 64  # runs of one size, after which it is planned by itself

    def __init__(self, plan: Plan, session: Session, kin: LayerWeights, leave: Callable[[], object]) -> None:
        """`leave` is called after `often` runs; it makes the next call plan this size without the template."""
        super().__init__(plan, session, kin)
        self._left, self._leave = self.often, leave

    def run(self, *arguments: Any) -> Any:
        """Run as `Layer.run`, and count the runs."""
        self._left -= 1
        if not self._left:
            self._leave()
        return super().run(*arguments)
