"""A program as a saved model holds it, and where it may be used: its options, the CPU, how weights are packed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from autotune.data_classes import dataclass, field_names
from autotune.machine.device import fingerprint
from cpuconv.conv.choice.model import Limits
from cpuconv.conv.choice.target import FULL, Target
from cpuconv.isa import current
from cpuconv.kernels.packing import packed_formats
from cpuconv.kernels.packing.packing import Packing
from cpuconv.network.selection.decisions import Decisions
from cpuconv.network.sizes.prepared import Prepared, Rewriting
from cpuconv.runtime.code.sources.stamp import stamp
from cpuconv.runtime.microkernel import MicroKernel

Shapes = tuple[tuple[int, ...], ...]
_DIGEST = 16  # bytes of a form's


@dataclass(frozen=True)
class Settings:
    """What a model was compiled with."""

    threads: int
    strategy: str
    limits: Limits
    rewriting: Rewriting
    precision: str = FULL
    node_precisions: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, target: Target, rewriting: Rewriting) -> Settings:
        """Those of a model."""
        return cls(target.threads, target.strategy, target.limits, rewriting, target.precision, target.node_precisions)


@dataclass(frozen=True)
class SavedProgram:
    """A program as it is kept.

    Attributes
    ----------
    shapes : tuple of tuple of int
        Of the inputs.
    prepared : Prepared
    decisions : Decisions
    """

    shapes: Shapes
    prepared: Prepared
    decisions: Decisions


def here() -> dict[str, str]:
    """What packed weights and choices are good for: this CPU, and forms that are packed as they are now."""
    return {"device": fingerprint().key, "isa": current().name, "packing": stamp(packed_formats.__name__)}


def packing_of(form: Any) -> Packing | None:
    """The solvers' packing of a form; None where it is another, which is made quickly from raw weights."""
    last = form[-1] if isinstance(form, tuple) and form else None
    return last if isinstance(last, Packing) else None


def form_digest(shape: tuple[int, ...], form: Any) -> str:
    """What tells a form of weights of that shape from others, in any process."""
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
