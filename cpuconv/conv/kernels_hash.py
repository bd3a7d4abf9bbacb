"""Hash of all that a candidate executes: versions of the sources with equal hashes run the same code."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np

from cpuconv.conv.caches.stored_hashes import stored_hash
from cpuconv.conv.recipe import Candidate, assemble
from cpuconv.isa import current
from cpuconv.kernels.binding.steps import MicroRef, Ref, Step
from cpuconv.problem.problem import ConvProblem
from cpuconv.runtime.kernel import Kernel
from cpuconv.runtime.microkernel import MicroKernel


def kernels_hash(problem: ConvProblem, candidate: Candidate) -> str:
    """Hash of the kernel calls of a candidate for C-contiguous arrays; empty if unknown.

    The hash includes, per call, the LLVM IR of its kernels without the names of functions and values, its argument
    words in order, and the number of its parts. Nothing is compiled.
    """
    key = f"{candidate.sources} {current().name} {problem.key} {candidate}"
    return stored_hash(hashlib.sha256(key.encode()).hexdigest()[:20], lambda: _computed(problem, candidate))


def _computed(problem: ConvProblem, candidate: Candidate) -> str:
    calls = [_call_identity(step) for step in assemble(problem, candidate).steps]
    return "" if None in calls else hashlib.sha256(repr(calls).encode()).hexdigest()[:16]


def _call_identity(step: Step) -> tuple[Any, ...] | None:
    """The identity of a call; None if Numba compiles its kernel."""
    words = [_word(step.args[name]) for name in step.kernel.fields]
    driver = _ir_hash(step.kernel, step.tile)
    return (driver, step.parts, words) if driver else None


@functools.lru_cache(maxsize=4096)
def _ir_hash(kernel: Kernel | MicroKernel, tile: Any) -> str:
    return kernel.ir_hash(tile)


def _word(value: Any) -> Any:
    if isinstance(value, MicroRef):
        return _ir_hash(value.kernel, value.tile)
    if isinstance(value, tuple):
        return [_word(each) for each in value]
    if isinstance(value, np.ndarray):
        return hashlib.sha256(value.tobytes()).hexdigest()
    return (value.name, value.offset) if isinstance(value, Ref) else int(value)
