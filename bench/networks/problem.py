"""A network in a file with what it is fed and what it must give: what engines are asked to run."""

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
from bench.settings import words

_FED, _GIVEN = "fed/", "given/"


@dataclass(frozen=True)
class NetworkProblem:
    """A network for inputs of fixed sizes.

    Attributes
    ----------
    path : Path
        An ONNX file for `batch` images.
    arrays : Path
        What `keep` wrote, for one image.
    batch : int
        Images, all alike: what is right for one is right for all.
    full : NetworkProblem or None
        The network in float32, where this is one of integers.
    """

    path: Path
    arrays: Path
    batch: int = 1
    full: NetworkProblem | None = None

    def feed(self) -> dict[str, np.ndarray]:
        """Inputs by name."""
        return {name: np.repeat(array, self.batch, 0) for name, array in self._read(_FED).items()}

    def outputs(self) -> list[np.ndarray]:
        """The right outputs, in order."""
        return [np.repeat(array, self.batch, 0) for array in self._read(_GIVEN).values()]

    def _read(self, prefix: str) -> dict[str, np.ndarray]:
        with np.load(self.arrays) as file:
            return {name.removeprefix(prefix): file[name] for name in file.files if name.startswith(prefix)}


def keep(network: Network, path: Path) -> Path:
    """Write beside a network's file what it gives by the operators' references, for a random image, and the image."""
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


def asked(folder: Path, names: str) -> dict[str, Network]:
    """The networks in a folder that the words of the option --networks name; all that are there, where it has none.

    Raises
    ------
    SystemExit
        None is there, or not one that is named.
    """
    there = {name: each for name, each in networks().items() if (folder / f"{name}.onnx").is_file()}
    if not there:
        raise SystemExit(f"No network is in {folder}. Make some: python -m bench.networks {folder}")
    return {name: there[name] for name in words(names, there, "--networks") or there}


@contextlib.contextmanager
def problems(
    folder: Path, chosen: Mapping[str, Network], batch: int, integers: bool = False
) -> Iterator[dict[str, NetworkProblem]]:
    """The networks in a folder as problems, by name; files for other batches are there as long as the context.

    With `integers` those that `quantized` makes of them, whose right outputs are those of their own operators.

    Raises
    ------
    FileNotFoundError
        A network's file is not there.
    ModuleNotFoundError
        ONNX Runtime, which makes files of integers, is not installed, and one is not there.
    """
    with tempfile.TemporaryDirectory(prefix="bench-networks-") as other:
        found = {}
        for name, network in chosen.items():
            path = folder / f"{name}.onnx"
            found[name] = _problem(network, path, batch, Path(other))
            if integers:
                made = _problem(network, quantized(network, path), batch, Path(other))
                found[name] = replace(made, full=found[name])
        yield found


def _problem(network: Network, path: Path, batch: int, other: Path) -> NetworkProblem:
    """The network in a file, which is written to another folder where it is to take more images."""
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
    return NetworkProblem(path, arrays, batch)
