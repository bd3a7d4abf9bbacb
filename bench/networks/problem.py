"""A network for engines to run: an ONNX file, its inputs and its expected outputs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.networks import Network, networks
from bench.networks.quantized import quantized
from bench.options import words

_FED, _GIVEN = "fed/", "given/"


@dataclass(frozen=True)
class NetworkProblem:
    """A network for inputs of fixed sizes.

    Attributes
    ----------
    path : Path
        An ONNX file for `batch` images.
    arrays : Path
        The file that `keep` wrote, for one image.
    batch : int
        Number of images, which are all equal, so that all outputs are equal.
    full : NetworkProblem or None
        The float32 network, if this is an int8 one.
    unordered : bool
        Whether the rows of its outputs have no fixed order.
    """

    path: Path
    arrays: Path
    batch: int = 1
    full: NetworkProblem | None = None
    unordered: bool = False

    def feed(self) -> dict[str, np.ndarray]:
        """Return the inputs by name."""
        return {name: np.repeat(array, self.batch, 0) for name, array in self._read(_FED).items()}

    def outputs(self) -> list[np.ndarray]:
        """Return the expected outputs, in order."""
        return [np.repeat(array, self.batch, 0) for array in self._read(_GIVEN).values()]

    def _read(self, prefix: str) -> dict[str, np.ndarray]:
        with np.load(self.arrays) as file:
            return {name.removeprefix(prefix): file[name] for name in file.files if name.startswith(prefix)}


def keep(network: Network, path: Path) -> Path:
    """Write a random image and the outputs of the reference operators for it next to a network's file."""
    from cpuconv.network.interpret import interpret
    from cpuconv.network.sizes.specialise import specialise
    from cpuconv.reading.onnx_reader import read

    arrays = network.feed(network.inputs)
    given = interpret(specialise(read(path), network.inputs), arrays)
    kept = path.with_suffix(".npz")
    named: dict[str, Any] = {_FED + name: array for name, array in arrays.items()}
    named |= {_GIVEN + name: array for name, array in given.items()}
    np.savez(kept, **named)
    return kept


def asked(folder: Path, names: str, of: str) -> dict[str, Network]:
    """Return the networks of a set in a folder that the option --networks names; all of them if it is empty.

    Raises
    ------
    SystemExit
        If the folder has no network, or lacks a named one.
    """
    there = {name: each for name, each in networks(of).items() if (folder / f"{name}.onnx").is_file()}
    if not there:
        raise SystemExit(f"No network is in {folder}. Make some: python -m bench.networks {folder} --set {of}")
    return {name: there[name] for name in words(names, there, "--networks") or there}


@contextlib.contextmanager
def problems(
    folder: Path, chosen: Mapping[str, Network], batch: int, integers: bool = False
) -> Iterator[dict[str, NetworkProblem]]:
    """Yield the networks in a folder as problems, by name; files for other batches exist within the context.

    With `integers` they are the int8 networks of `quantized`; expected outputs are those of their own operators.

    Raises
    ------
    FileNotFoundError
        If a network's file is missing.
    SystemExit
        If there are several images, and a network's file is for one.
    ModuleNotFoundError
        If an int8 file is missing, and ONNX Runtime, which makes it, is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-networks-") as other:
        found = {}
        for name, network in chosen.items():
            if network.fixed and batch > 1:
                raise SystemExit(f"{name} is for one image: --batch 1.")
            path = folder / f"{name}.onnx"
            found[name] = _problem(network, path, batch, Path(other))
            if integers:
                made = _problem(network, quantized(network, path), batch, Path(other))
                found[name] = replace(made, full=found[name])
        yield found


def _problem(network: Network, path: Path, batch: int, other: Path) -> NetworkProblem:
    """Return the network of a file; for a larger batch, write a resized file to the folder `other`."""
    import onnx

    from bench.networks.model import batched, resize, save

    arrays = path.with_suffix(".npz")
    if not arrays.is_file():
        keep(network, path)
    if batch > 1:
        more = other / path.name
        model = onnx.load(path)
        resize(model, batched(network.inputs, batch))
        save(model, more)
        path = more
    return NetworkProblem(path, arrays, batch, unordered=network.unordered)
