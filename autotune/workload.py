"""The protocol of a workload, a family of tunable problems, and its discovery."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from autotune.machine.roofline import Work
from baselib.data_classes import dataclass

GROUP = "autotune.workloads"
VARIABLE = "AUTOTUNE_WORKLOAD"
MISSED = "missed"  # network name of missed problems

# Accuracy classes of candidates that are admitted for a requested accuracy.
ADMITS: dict[str, tuple[str, ...]] = {
    "exact": ("exact",),
    "standard": ("exact", "standard"),
    "fast": ("exact", "standard", "fast"),
}

# Timing modes: weights in cache from the previous run (warm), or in memory, as a run of a whole network leaves them.
WEIGHTS = ("warm", "cold")


class SourceError(ValueError):
    """A source of problems, or a workload, cannot be loaded; the message names it and the reason."""


@dataclass(frozen=True)
class Problem:
    """A problem to tune.

    Attributes
    ----------
    key : str
        Canonical text, equal for equal problems.
    label : str
        A short name.
    count : int
        Number of occurrences in its network.
    flops : float
        Floating-point operations of one execution.
    network : str
        Name of its network.
    threads : int
        Number of threads that run it.
    weights : str
        Timing mode, one of `WEIGHTS`.
    """

    key: str
    label: str
    count: int
    flops: float
    network: str
    threads: int = 1
    weights: str = WEIGHTS[0]

    @property
    def task(self) -> str:
        """Identity of a tuning task: the key, with the weights where these are not warm."""
        return self.key if self.weights == WEIGHTS[0] else f"{self.key} {self.weights}"


@dataclass(frozen=True)
class Reading:
    """Settings for reading a source of problems: values that the source leaves open.

    Attributes
    ----------
    layouts : tuple of str or None
        Layouts of inputs and outputs, by name; None for the usual ones.
    threads : int
        Number of threads that run the problems.
    batches : sequence of int
        Sizes of a model's open batch axis; each one makes a network of its own.
    inputs : mapping
        Shapes of a model's inputs by name, where it leaves axes open.
    types : str
        Element types of problems in the workload's notation, where the source states none; "" for the usual ones.
    precision : str
        Precision in which models are tuned, in the workload's notation; "" for the usual one.
    """

    layouts: tuple[str, str] | None = None
    threads: int = 1
    batches: Sequence[int] = ()
    inputs: Mapping[str, Sequence[int]] = field(default_factory=dict)
    types: str = ""
    precision: str = ""


AS_IT_IS = Reading()


@dataclass(frozen=True)
class Candidate:
    """A method to solve a problem.

    Attributes
    ----------
    name : str
        Stable and unique name.
    bound, estimate : float
        Lower bound of its time and the model's estimate, in seconds.
    workspace : int
        Size of the workspace in bytes.
    accuracy : str
        A key of `ADMITS`.
    """

    name: str
    bound: float
    estimate: float
    workspace: int
    accuracy: str


@dataclass(frozen=True)
class Rejected:
    """A method that does not apply to a problem, and the reason."""

    name: str
    reason: str


class Trial(Protocol):
    """A candidate bound to data, ready to run."""

    limit: float

    def run(self) -> None:
        """Execute once, without allocations or look-ups."""

    def move(self) -> None:
        """Move the data to a random other place in memory, as a kernel's time depends on it.

        `run` may be timed until another trial of the problem moves its data, which may use the same memory.
        """

    def check(self) -> float:
        """Return the largest error of the output, relative to the largest value of the float64 reference."""


class Verdict(NamedTuple):
    """Result of a trial run: the reason for rejection or ""; the error and its limit, NaN if not run."""

    reason: str = ""
    error: float = math.nan
    limit: float = math.nan


def check(trial: Trial) -> Verdict:
    """Run a trial and check its output."""
    error, limit = float(trial.check()), float(trial.limit)
    wrong = not error <= limit  # NaN is over any limit
    return Verdict(f"wrong: relative error {error:.2e} over the limit {limit:.2e}" if wrong else "", error, limit)


class Searchable(Protocol):
    """The interface for a search of a problem's fastest candidate. Every method may raise."""

    @property
    def sources(self) -> frozenset[str]:
        """All values of `sources_of` for the current sources."""

    def sources_of(self, name: str) -> str:
        """Return a hash of the sources that a candidate depends on; it differs between solvers."""

    def kernels_hash(self, key: str, name: str) -> str:
        """Return a hash of a candidate's kernel calls, equal while these do the same; empty if unknown."""

    def same_kernels(self, row: Any) -> bool:
        """Whether a `Row` of other sources was timed with kernel calls identical to the current ones."""

    def candidates(self, key: str, effort: str) -> tuple[list[Candidate], list[Rejected]]:
        """Return the applicable candidates, the model's choice first, then by estimate; and those that do not apply."""

    def compile(self, key: str, name: str) -> None:
        """Compile a candidate into the disk cache."""

    def prepare(self, key: str, name: str, weights: str = "warm") -> Trial:
        """Bind a candidate to random data; cold: every run finds its weights in memory, not in a cache."""

    def speed_probe(self, key: str) -> Callable[[], None]:
        """Return a fixed amount of arithmetic and stores, about 50 µs, on a problem's threads; its time measures the
        machine's current speed."""


class Workload(Searchable, Protocol):
    """A family of problems. Every method may raise; only `load` is expected to, with `SourceError`."""

    @property
    def name(self) -> str: ...

    @property
    def isa(self) -> str: ...

    @property
    def tables(self) -> Path | None:
        """Folder of device tables shipped with the workload (`autotune.wisdom.tiers`), if any."""

    def load(self, source: str, reading: Reading = AS_IT_IS) -> list[Problem]:
        """Load the problems of a file or of one problem string."""

    def time_whole(self, source: str, reading: Reading = AS_IT_IS) -> list[tuple[str, int, float]]:
        """Return (name, threads, seconds) of whole runs, where a source's problems are parts of something runnable."""

    def race_whole(
        self, source: str, store: Any, reading: Reading = AS_IT_IS, effort: str = "quick", again: bool = True
    ) -> Iterator[tuple[str, int, str]]:
        """Time the alternative ways to combine a source's problems, and store the fastest.

        Yields (name, threads, result in words) one after another. Unless `again`, skips those that are stored.
        """

    def with_threads(self, key: str, threads: int) -> str:
        """Return the key of the same problem for another number of threads."""

    def untuned(self, key: str, older: Sequence[str] = ()) -> tuple[str, str]:
        """Return the candidate for a problem without current rows, and the deciding source, such as "model".

        `older` are the candidates that were best with older sources, best first. The first one that the workload's
        model agrees with decides, as `tiers.OLDER_KERNELS`.
        """

    def work(self, key: str, name: str) -> Work | None:
        """Return the necessary work of a candidate, for the roofline; None for an unknown name."""

    @property
    def dtypes(self) -> frozenset[str]:
        """Data types in which its candidates multiply, as in `Work.dtype`; `probe` measures the peak of each."""

    def probe(self, threads: int) -> Iterator[tuple[str, float]]:
        """Measure the roofs for a number of threads; yields each figure with its name.

        The names are `<dtype>_gflops` of each data type, and of single products; `l1_gbs`, `l2_gbs`, `l3_gbs`,
        `dram_gbs` for reads; `store_gbs`.
        """

    def summary(self, key: str) -> str:
        """Describe a problem in a few words, such as its sizes; "" for an unknown key."""

    def describe(self) -> dict[str, Any]:
        """Return information about this machine and the workload."""


def discover(spec: str | None = None) -> tuple[str, Workload]:
    """Find the workload to tune.

    Parameters
    ----------
    spec : str or None
        "module:attribute"; None: the variable AUTOTUNE_WORKLOAD, else the only entry point of the group
        "autotune.workloads".

    Returns
    -------
    tuple of str and Workload
        The spec, by which another process finds the same workload, and the workload.

    Raises
    ------
    SourceError
        No or several workloads are installed, or it cannot be imported.
    """
    spec = spec or os.environ.get(VARIABLE) or _installed()
    module, _, attribute = spec.partition(":")
    if not module or not attribute:
        raise SourceError(f"Argument 'workload' must be 'module:attribute', not {spec!r}.")
    try:
        workload: Any = importlib.import_module(module)
        for part in attribute.split("."):
            workload = getattr(workload, part)
    except (ImportError, AttributeError) as error:
        raise SourceError(f"Workload {spec!r} cannot be loaded: {error}") from error
    is_factory = isinstance(workload, type) or not hasattr(workload, "candidates")
    return spec, workload() if is_factory else workload


def _installed() -> str:
    from importlib import metadata  # the import takes 20 ms

    specs = sorted({point.value for point in metadata.entry_points(group=GROUP)})
    if len(specs) == 1:
        return specs[0]
    what = "no workload is" if not specs else f"several workloads are ({', '.join(specs)})"
    raise SourceError(f"{what} registered under the entry point group '{GROUP}'; name one with --workload.")
