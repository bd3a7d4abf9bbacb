"""Programs in saved models, and the conditions of their use: options, CPU, and packing of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from autotune.machine.device import fingerprint
from baselib.data_classes import dataclass, field_names
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.target import PRECISION_F32, Target
from cpuconv.isa import current
from cpuconv.kernels.packing import packed_formats
from cpuconv.kernels.packing.packing import Packing
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.sizes.prepared import Prepared, Rewriting
from cpuconv.runtime.code.sources.stamp import stamp
from cpuconv.runtime.microkernel import MicroKernel

Shapes = tuple[tuple[int, ...], ...]
_DIGEST = 16  # bytes of a form's digest


@dataclass(frozen=True)
class Settings:
    """Options with which a model was compiled."""

    threads: int
    strategy: str
    limits: Limits
    rewriting: Rewriting
    precision: str = PRECISION_F32
    node_precisions: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, target: Target, rewriting: Rewriting) -> Settings:
        """Collect the options of a model."""
        return cls(target.threads, target.strategy, target.limits, rewriting, target.precision, target.node_precisions)


@dataclass(frozen=True)
class SavedProgram:
    """A program as it is stored.

    Attributes
    ----------
    shapes : tuple of tuple of int
        Shapes of the inputs.
    prepared : Prepared
    decisions : Decisions
    """

    shapes: Shapes
    prepared: Prepared
    decisions: Decisions


def here() -> dict[str, str]:
    """Conditions for the use of packed weights and decisions: this CPU, and the current packing code."""
    return {"device": fingerprint().key, "isa": current().name, "packing": stamp(packed_formats.__name__)}


def packing_of(form: Any) -> Packing | None:
    """The solvers' packing of a form; None for other forms, which are made quickly from raw weights."""
    last = form[-1] if isinstance(form, tuple) and form else None
    return last if isinstance(last, Packing) else None


def form_digest(shape: tuple[int, ...], form: Any) -> str:
    """Identity of a form of weights with a shape, equal in all processes."""
    return hashlib.blake2b(_text((shape, form)).encode(), digest_size=_DIGEST).hexdigest()


_PLAIN = {bool, int, float, str, type(None)}


def _text(form: Any) -> str:
    if type(form) in _PLAIN:
        return repr(form)
    if (names := field_names(form)) is not None:
        return f"{type(form).__name__}({','.join([_text(getattr(form, name)) for name in names])})"
    if isinstance(form, tuple):
        return f"({','.join(map(_text, form))})"
    return form.name if isinstance(form, MicroKernel) else repr(form)
