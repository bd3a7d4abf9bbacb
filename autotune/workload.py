"""What can be tuned: the protocol a workload follows, and how it is found."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from autotune.data_classes import dataclass
from autotune.machine.roofline import Work

GROUP = "autotune.workloads"
VARIABLE = "AUTOTUNE_WORKLOAD"
MISSED = "missed"  # the network that missed problems are put under

# The accuracy classes of candidates that a request for an accuracy admits.
ADMITS: dict[str, tuple[str, ...]] = {
    "exact": ("exact",),
    "standard": ("exact", "standard"),
    "fast": ("exact", "standard", "fast"),
}

# How a problem is timed: its weights in cache as the run before left them, or in memory as a whole network leaves them.
WEIGHTS = ("warm", "cold")


class SourceError(ValueError):
    """A source of problems, or a workload, cannot be loaded; the message says what and why."""


@dataclass(frozen=True)
class Problem:
    """One thing to solve fast.

    Attributes
    ----------
    key : str
        Canonical text, equal for equal problems.
    label : str
        A short name.
    count : int
        How often its network asks for it.
    flops : float
        Of one execution.
    network : str
        Where it comes from.
    threads : int
        Threads that will run it.
    weights : str
        How it is timed, one of `WEIGHTS`.
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
        """Equal for what is tuned once: the key, and the weights where it is not the usual one."""
        return self.key if self.weights == WEIGHTS[0] else f"{self.key} {self.weights}"


@dataclass(frozen=True)
class Reading:
    """How a source of problems is read: what it leaves open.

    Attributes
    ----------
    layouts : tuple of str or None
        Of inputs and outputs, by name; None for the usual ones.
    threads : int
        Threads that will run the problems.
    batches : sequence of int
        Sizes to take for the open batch axis of a model, each one a network of its own.
    inputs : mapping
        Shapes of a model's inputs by name, where it leaves axes open.
    types : str
        Element types of problems, in the workload's words, where the source does not state them; "" for the usual ones.
    precision : str
        What models are tuned in, in the workload's words; "" for the usual one.
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
    """One way to solve a problem.

    Attributes
    ----------
    name : str
        Stable and unique.
    bound, estimate : float
        Seconds: the least it can take, and what the model expects.
    workspace : int
        Bytes.
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
    """A way that does not apply to a problem, and why."""

    name: str
    reason: str


class Trial(Protocol):
    """A candidate bound to data, ready to run."""

    limit: float

    def run(self) -> None:
        """Execute once; nothing is allocated or looked up."""

    def move(self) -> None:
        """Put the data in another place in memory, drawn at random: a kernel's time depends on it.

        `run` may be timed until another trial of the problem moves its data, as that may use the same memory.
        """

    def check(self) -> float:
        """Largest error of the output over the largest value of the float64 reference."""


class Verdict(NamedTuple):
    """What came of trying a candidate: why it cannot be used, or ""; its error and the limit on it, NaN if not run."""

    reason: str = ""
    error: float = math.nan
    limit: float = math.nan


def check(trial: Trial) -> Verdict:
    """Run a trial and look at its output."""
    error, limit = float(trial.check()), float(trial.limit)
    wrong = not error <= limit  # NaN is over any limit
    return Verdict(f"wrong: relative error {error:.2e} over the limit {limit:.2e}" if wrong else "", error, limit)


class Searchable(Protocol):
    """What a search for the fastest candidate of a problem asks. Every method may raise."""

    @property
    def sources(self) -> frozenset[str]:
        """`sources_of` every candidate there may be: what is current."""

    def sources_of(self, name: str) -> str:
        """Hash of the sources that a candidate is made from, different for candidates of different solvers."""

    def kernels_hash(self, key: str, name: str) -> str:
        """Hash of the kernel calls of a candidate, equal as long as they do the same; empty where unknown."""

    def same_kernels(self, row: Any) -> bool:
        """Whether a `Row` of other sources was timed with the kernel calls of today."""

    def candidates(self, key: str, effort: str) -> tuple[list[Candidate], list[Rejected]]:
        """Candidates that can solve the problem, the model's choice first, then by estimate; and those that cannot."""

    def compile(self, key: str, name: str) -> None:
        """Compile a candidate into the disk cache."""

    def prepare(self, key: str, name: str, weights: str = "warm") -> Trial:
        """Bind a candidate to random data; cold: every run finds its weights in memory, not in a cache."""

    def speed_probe(self, key: str) -> Callable[[], None]:
        """Work of known length, arithmetic and stores, about 50 µs, on the threads of a problem: how long it takes
        tells how fast the machine is."""


class Workload(Searchable, Protocol):
    """A family of problems. Every method may raise; only `load` is expected to, with `SourceError`."""

    @property
    def name(self) -> str: ...

    @property
    def isa(self) -> str: ...

    @property
    def tables(self) -> Path | None:
        """Folder of device tables that come with the workload (`autotune.wisdom.tiers`), if any."""

    def load(self, source: str, reading: Reading = AS_IT_IS) -> list[Problem]:
        """The problems of a file or of one problem string."""

    def time_whole(self, source: str, reading: Reading = AS_IT_IS) -> list[tuple[str, int, float]]:
        """(name, threads, seconds) of what a source's problems are parts of, where that can be run as a whole."""

    def race_whole(
        self, source: str, store: Any, reading: Reading = AS_IT_IS, effort: str = "quick", again: bool = True
    ) -> Iterator[tuple[str, int, str]]:
        """Time the ways to put a source's problems together and store the fastest, where there are several: one after
        another (name, threads, what came of it). Unless `again` only those of which none is stored."""

    def with_threads(self, key: str, threads: int) -> str:
        """The key of the same problem for another number of threads."""

    def untuned(self, key: str, older: Sequence[str] = ()) -> tuple[str, str]:
        """The candidate that runs a problem of which nothing current is stored, and what decides, such as "model".

        `older` are the candidates that were best with older sources, best first; the first that the workload's model
        agrees with decides, as `tiers.OLDER`.
        """

    def work(self, key: str, name: str) -> Work | None:
        """What a candidate cannot avoid doing, for the roofline; None of a name that these sources do not know."""

    @property
    def dtypes(self) -> frozenset[str]:
        """The data types that its candidates multiply in, as in `Work.dtype`: of each `probe` measures the peak."""

    def probe(self, threads: int) -> Iterator[tuple[str, float]]:
        """Measure the roofs of so many threads: each figure as it is found, by its name.

        `<dtype>_gflops` of each data type, and of single products; `l1_gbs`, `l2_gbs`, `l3_gbs`, `dram_gbs`, reading;
        `store_gbs`.
        """

    def summary(self, key: str) -> str:
        """What a problem is, in a few words, such as its sizes; "" of a key that these sources do not know."""

    def describe(self) -> dict[str, Any]:
        """What the workload knows of this machine and of itself."""


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
        The spec, under which another process finds the same workload, and the workload.

    Raises
    ------
    SourceError
        None or several are installed, or it cannot be imported.
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
    from importlib import metadata  # which takes 20 ms

    specs = sorted({point.value for point in metadata.entry_points(group=GROUP)})
    if len(specs) == 1:
        return specs[0]
    what = "no workload is" if not specs else f"several workloads are ({', '.join(specs)})"
    raise SourceError(f"{what} registered under the entry point group '{GROUP}'; name one with --workload.")
