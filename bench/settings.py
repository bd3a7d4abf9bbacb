"""Settings of a comparison, its engines, and the groups of engines that cpuconv is compared with."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.machine.device import fingerprint
from bench.oracle import CPUCONV_TOLERANCE, PEER_TOLERANCE
from bench.peers import CPUCONV, OWN_F32, PEERS
from bench.typed import W_BITS
from cpuconv.problem.types import ALL_F32, Types

ALL = "all-five"
OWN = (CPUCONV, OWN_F32)
GROUPS: dict[str, tuple[str, ...]] = {  # each has a column: cpuconv against the best of the group
    "main-three": ("torch", "onnxruntime", "openvino"),
    ALL: tuple(key for key in PEERS if key not in OWN),
    "reordering-four": (
        "onnxruntime",
        "openvino",
        "ncnn",
        "mnn",
    ),  # engines that reorder NCHW to and from their own layout
}
TYPED = ("torch", "onnxruntime", "openvino")  # peers that are compared in other types than float32
PLAIN = "NCHW"
_NAMES = {"nchw": PLAIN, "nhwc": "NHWC"}


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement.

    Attributes
    ----------
    threads : int
        Threads of each engine.
    rounds : int
        Rounds per line; each engine is timed once in a round.
    seconds : float
        Duration of one timing, in seconds.
    runs : int
        Number of whole runs, with new processes.
    layouts : tuple[str, ...]
        Layouts of cpuconv.
    strategy, call : str
        cpuconv's selection strategy, and the call that is timed.
    peers : tuple[str, ...]
        Keys of the other engines.
    groups : tuple[str, ...]
        Keys of `GROUPS` that have a column; empty: the defaults.
    batch : int | None
        Replaces the batch of every line.
    timeout : float
        Seconds to wait for an engine.
    tolerance : float
        Error of a peer, relative to the output's largest value, above which its figure does not count.
    roofs : bool
        Whether to measure the machine's roofs.
    types : Types
        Types of every line.
    w_bits : int
        Bits of integer weights.
    own_tolerance : float
        Error of cpuconv above which its figure does not count, for float32 lines and networks.
    options : Mapping[str, Mapping[str, object]]
        Further keyword arguments of engines, by key.
    """

    threads: int = 1
    rounds: int = 5
    seconds: float = 0.2
    runs: int = 1
    layouts: tuple[str, ...] = ("auto",)
    strategy: str = "cached"
    call: str = "plan"
    peers: tuple[str, ...] = GROUPS[ALL]
    groups: tuple[str, ...] = ()
    batch: int | None = None
    timeout: float = 600.0
    tolerance: float = PEER_TOLERANCE
    roofs: bool = True
    types: Types = ALL_F32
    w_bits: int = W_BITS
    own_tolerance: float = CPUCONV_TOLERANCE
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether input and output are NCHW. If so, forms of other engines count only if they are NCHW, too."""
        return set(self.layouts) == {PLAIN}

    @property
    def columns(self) -> tuple[str, ...]:
        """Groups that have a column."""
        return self.groups or (("reordering-four" if self.plain else "main-three"), ALL)

    @property
    def title(self) -> str:
        """Title of the table, as in "2 threads, layouts auto, batch 8"."""
        parts = [f"{self.threads} thread{'s' * (self.threads > 1)}", f"layouts {','.join(self.layouts)}"]
        parts += [] if self.call == "plan" else [f"call {self.call}"]
        parts += [] if self.types == ALL_F32 else [f"types {self.types}"]
        parts += [] if self.w_bits == W_BITS else [f"weights of {self.w_bits} bits"]
        return ", ".join(parts if self.batch is None else [*parts, f"batch {self.batch}"])


@dataclass(frozen=True)
class Run:
    """Engines of a comparison (`names` and `versions` by key, cpuconv first) and its settings."""

    names: Mapping[str, str]
    versions: Mapping[str, str]
    settings: Settings

    @property
    def peers(self) -> tuple[str, ...]:
        """Keys of the other engines."""
        return tuple(key for key in self.names if key not in OWN)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Engines to compare with, by column title: the selected groups, then each peer; empty without cpuconv."""
        if CPUCONV not in self.names:
            return {}
        found: dict[str, tuple[str, ...]] = {}
        for name in self.settings.columns:
            group = tuple(key for key in self.peers if key in GROUPS[name])
            title = "best of all" if name == ALL else "best of " + ", ".join(self.names[key] for key in group)
            if len(group) > 1 and group not in found.values():
                found[title] = group
        return found | {self.names[key]: (key,) for key in self.names if key != CPUCONV}


def machine_name() -> str:
    """Return the processor's name as the system reports it."""
    return fingerprint().model or platform.machine()


def layout_names(text: str) -> tuple[str, ...]:
    """Parse the comma-separated layouts of an option, with their normal spelling."""
    return tuple(_NAMES.get(name.lower(), name) for name in text.split(","))
