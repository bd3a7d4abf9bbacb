"""Networks of the benchmarks: definitions, required packages, and how to make their models."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import onnx

Shapes = Mapping[str, tuple[int, ...]]
SETS = ("2022", "2026")  # networks by the year in which they were usual


@dataclass(frozen=True)
class Network:
    """A network of the benchmarks.

    Attributes
    ----------
    name : str
        Name of its file, without ``.onnx``.
    inputs : Mapping[str, tuple[int, ...]]
        Shape of each input for one image; the first axis is the batch.
    make : Callable[[Shapes], onnx.ModelProto]
        Function that makes the model for inputs of these shapes.
    needs : Mapping[str, str]
        Required modules, and pip's arguments to install them.
    small : Mapping[str, tuple[int, ...]]
        Smaller shapes that the model also accepts; empty if there are none.
    reads : bool
        Whether it detects or reads text.
    set : str
        Set of networks that it belongs to, one of `SETS`.
    fixed : bool
        Whether its model accepts one image only, not any number.
    unordered : bool
        Whether the rows of its outputs are a set, as a DETR's boxes, whose order rounding may change.
    """

    name: str
    inputs: Shapes
    make: Callable[[Shapes], onnx.ModelProto]
    needs: Mapping[str, str]
    small: Shapes = field(default_factory=dict)
    reads: bool = False
    set: str = SETS[0]
    fixed: bool = False
    unordered: bool = False

    def feed(self, inputs: Shapes, seed: int = 0) -> dict[str, np.ndarray]:
        """Make float32 arrays for inputs of these shapes: noise, or random letters for a text network."""
        from bench.networks import feeds

        return (feeds.page if self.reads else feeds.feed)(inputs, seed)

    def missing(self) -> str | None:
        """Return the pip command for missing packages, or None."""
        found = dict.fromkeys(pip for module, pip in self.needs.items() if importlib.util.find_spec(module) is None)
        return f"pip install {' '.join(found)}" if found else None


def networks(of: str = SETS[0]) -> dict[str, Network]:
    """Return the networks of a set by name, whether or not they can be made here."""
    from bench.networks import light, packaged, recent, vision

    found = (*light.NETWORKS, *vision.NETWORKS, *packaged.NETWORKS, *recent.NETWORKS)
    return {network.name: network for network in found if network.set == of}
