"""What a peer is: prepacked forms of one convolution that can be run and timed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from bench.typed import Data
from cpuconv.problem.problem import ConvProblem


@dataclass
class Form:
    """One way in which an engine runs a convolution or a network, with everything prepared.

    Attributes
    ----------
    name : str
    run : Callable[[], object]
        One execution; it is what is timed.
    output : Callable[[], np.ndarray | list[np.ndarray]]
        The last result: of a convolution as NCHW, of a network a list of its outputs in order.
    plain : bool
        Whether it reads NCHW and leaves NCHW.
    algorithm, detail : str
        What runs, where the engine tells.
    keep : object
        What must live as long as the form, such as an array whose memory the engine only borrows.
    sample : Callable[[float], list[float]] | None
        Times in seconds, measured by the engine itself within about so many seconds, in place of those of `run`.
    """

    name: str
    run: Callable[[], object]
    output: Callable[[], np.ndarray | list[np.ndarray]]
    plain: bool = True
    algorithm: str = ""
    detail: str = ""
    keep: object = None
    sample: Callable[[float], list[float]] | None = None


class Peer(Protocol):
    """One engine. A peer is made and used inside the engine's own process."""

    name: str
    package: str

    def available(self) -> str | None:
        """The reason why this engine cannot run here, or None."""

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        """The engine's forms of a problem: `x` (N, C, H, W), `w` (K, C/g, R, S), `bias` (K,), all float32."""


@runtime_checkable
class TypedPeer(Peer, Protocol):
    """One engine that computes in other types, too."""

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        """The engine's forms of a problem that is not all float32; none where it lacks its types.

        Outputs are NCHW, of the NumPy dtype of the output's element.
        """


@runtime_checkable
class NetworkPeer(Protocol):
    """One engine that runs whole networks."""

    name: str
    package: str

    def converted(self, path: Path, folder: Path) -> Path:
        """What the engine loads in place of the ONNX file `path`: itself, or a file that is made in `folder`."""

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        """Load what `converted` gave, for inputs like these; its forms, first the one with arrays of NumPy."""


def missing(module: str) -> str | None:
    """A word on a module that is not installed, or None."""
    return None if importlib.util.find_spec(module) else f"{module} is not installed"


def version(package: str) -> str:
    """The installed version of a distribution, or 'unknown'."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def symmetric_pads(problem: ConvProblem) -> tuple[int, int] | None:
    """(ph, pw) when padding both sides alike gives the very same output, as most networks write it; else None."""
    p = problem
    top, bottom, left, right = p.pads
    oh = (p.h + 2 * top - (p.r - 1) * p.dilation[0] - 1) // p.stride[0] + 1
    ow = (p.w + 2 * left - (p.s - 1) * p.dilation[1] - 1) // p.stride[1] + 1
    return (top, left) if top >= bottom and left >= right and (oh, ow) == (p.oh, p.ow) else None
