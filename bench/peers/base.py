"""Interface of a peer: it prepares forms of a convolution or network that can be run and timed."""

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
    """A variant in which an engine runs a convolution or a network, completely prepared.

    Attributes
    ----------
    name : str
    run : Callable[[], object]
        Function that runs once; the timed call.
    output : Callable[[], np.ndarray | list[np.ndarray]]
        Returns the last result: NCHW for a convolution, a list of the outputs in order for a network.
    plain : bool
        Whether input and output are NCHW.
    algorithm, detail : str
        Algorithm and details, if the engine reports them.
    keep : object
        Objects that the form needs, such as an array whose memory the engine borrows.
    sample : Callable[[float], list[float]] | None
        Function that replaces the timing of `run`: the engine's own measurement of about the given seconds, as a
        list of times in seconds.
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
    """An engine. A peer is created and used inside the engine's own process."""

    name: str
    package: str

    def available(self) -> str | None:
        """Return the reason why this engine cannot run here, or None."""

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        """Prepare the engine's forms of a problem: `x` (N, C, H, W), `w` (K, C/g, R, S), `bias` (K,), all float32."""


@runtime_checkable
class TypedPeer(Peer, Protocol):
    """An engine that also supports other types than float32."""

    def typed(self, problem: ConvProblem, given: Data, threads: int) -> list[Form]:
        """Prepare the engine's forms of a problem in other types; empty if it does not support them.

        Outputs are NCHW, of the NumPy dtype of the output's element.
        """


@runtime_checkable
class NetworkPeer(Protocol):
    """An engine that runs whole networks."""

    name: str
    package: str

    def converted(self, path: Path, folder: Path) -> Path:
        """Return the file that the engine loads for the ONNX file `path`: `path`, or a converted file in `folder`."""

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        """Load the file of `converted` for inputs like `feed`; return the forms, that with NumPy arrays first."""


class OnnxPeer:
    """An engine that runs ONNX files, and convolutions as files of one node.

    Attributes
    ----------
    needs : tuple of str
        Modules without which it cannot run.
    """

    name: str
    package: str
    needs: tuple[str, ...]

    def available(self) -> str | None:
        """Return the reason why this engine cannot run here, or None."""
        return next(filter(None, map(missing, self.needs)), None)

    def prepare(self, problem: ConvProblem, x: np.ndarray, w: np.ndarray, bias: np.ndarray, threads: int) -> list[Form]:
        """Prepare the engine's forms of a problem."""
        from bench.peers.onnx_model import convolution

        return convolution(self, problem, x, w, bias, threads)

    def converted(self, path: Path, folder: Path) -> Path:
        """Return the file that the engine loads."""
        return path

    def network(self, path: Path, feed: Mapping[str, np.ndarray], threads: int) -> list[Form]:
        """Load a file for inputs like `feed`."""
        raise NotImplementedError


def missing(module: str) -> str | None:
    """Return a message if a module is not installed, else None."""
    return None if importlib.util.find_spec(module) else f"{module} is not installed"


def version(package: str) -> str:
    """Return the installed version of a distribution, or 'unknown'."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def symmetric_pads(problem: ConvProblem) -> tuple[int, int] | None:
    """Return (ph, pw) if symmetric padding gives the same output, as in most networks; else None."""
    p = problem
    top, bottom, left, right = p.pads
    oh = (p.h + 2 * top - (p.r - 1) * p.dilation[0] - 1) // p.stride[0] + 1
    ow = (p.w + 2 * left - (p.s - 1) * p.dilation[1] - 1) // p.stride[1] + 1
    return (top, left) if top >= bottom and left >= right and (oh, ow) == (p.oh, p.ow) else None
