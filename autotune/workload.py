"""What can be tuned: the protocol a workload follows, and how it is found."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from dataclasses import dataclass
from typing import Any, Protocol

GROUP = "autotune.workloads"
VARIABLE = "AUTOTUNE_WORKLOAD"

# The accuracy classes of candidates that a request for an accuracy admits.
ADMITS: dict[str, tuple[str, ...]] = {
    "exact": ("exact",),
    "standard": ("exact", "standard"),
    "fast": ("exact", "standard", "fast"),
}


class SourceError(ValueError):
    """A source of problems, or a workload, cannot be loaded; the message says what and why."""


@dataclass(frozen=True)
class Problem:
    """One thing to solve fast.

    key: canonical text, equal for equal problems.  label: a short name.  count: how often its network
    asks for it.  flops: of one execution.  network: where it comes from.
    """

    key: str
    label: str
    count: int
    flops: float
    network: str


@dataclass(frozen=True)
class Candidate:
    """One way to solve a problem.

    name: stable and unique.  bound, estimate: seconds, the least it can take and what the model expects.
    workspace: bytes.  accuracy: a key of `ADMITS`.
    """

    name: str
    bound: float
    estimate: float
    workspace: int
    accuracy: str


@dataclass(frozen=True)
class Rejected:
    """A way that does not apply to a problem, and why."""

    name: str
    reason: str


class Trial(Protocol):
    """A candidate bound to data, ready to run."""

    limit: float

    def run(self) -> None:
        """Execute once; nothing is allocated or looked up."""

    def check(self) -> float:
        """Largest error of the output over the largest value of the float64 reference."""


class Workload(Protocol):
    """A family of problems. Every method may raise; only `load` is expected to, with `SourceError`."""

    name: str
    sources: str
    isa: str

    def load(self, source: str, *, layouts: tuple[str, str] | None, threads: int) -> list[Problem]:
        """The problems of a file or of one problem string."""

    def candidates(self, key: str, effort: str) -> tuple[list[Candidate], list[Rejected]]:
        """What can solve the problem, best estimate first, and what cannot; the first is the model's choice."""

    def compile(self, key: str, name: str) -> None:
        """Compile a candidate into the disk cache."""

    def prepare(self, key: str, name: str) -> Trial:
        """Bind a candidate to random data."""

    def probe(self, threads: int) -> dict[str, float]:
        """Measured roofs: {"fma_gflops": …, "l1_gbs": …, "l2_gbs": …, "l3_gbs": …, "dram_gbs": …}."""

    def describe(self) -> dict[str, Any]:
        """What the workload knows of this machine and of itself."""


def discover(spec: str | None = None) -> tuple[str, Workload]:
    """Find the workload to tune.

    Arguments:
        spec: "module:attribute". Without it, the variable AUTOTUNE_WORKLOAD, then the only
            entry point of the group "autotune.workloads".

    Returns:
        The spec, under which another process finds the same workload, and the workload.

    Raises:
        SourceError: none or several are installed, or it cannot be imported.
    """
    spec = spec or os.environ.get(VARIABLE) or _installed()
    module, _, attribute = spec.partition(":")
    if not module or not attribute:
        raise SourceError(f"Argument 'workload' must be 'module:attribute', not {spec!r}.")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SourceError(f"Workload {spec!r} cannot be loaded: {error}") from error
    return spec, found() if isinstance(found, type) or not hasattr(found, "candidates") else found


def _installed() -> str:
    specs = sorted({point.value for point in importlib.metadata.entry_points(group=GROUP)})
    if len(specs) == 1:
        return specs[0]
    what = "no workload is" if not specs else f"several workloads are ({', '.join(specs)})"
    raise SourceError(f"{what} registered under the entry point group '{GROUP}'; name one with --workload.")
