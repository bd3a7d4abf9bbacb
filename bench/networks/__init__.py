"""The networks that whole models are tried and timed on: what each is, what it needs and how it is made."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import onnx

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Network:
    """One network. Its model takes any number of images.

    Attributes
    ----------
    name : str
        Name of its file, without ``.onnx``.
    inputs : Mapping[str, tuple[int, ...]]
        Shape of each input for one image; images are counted by the first axis.
    make : Callable[[Shapes], onnx.ModelProto]
        Makes the model, for inputs of these shapes.
    needs : Mapping[str, str]
        What must be installed: modules, and pip's arguments for them.
    small : Mapping[str, tuple[int, ...]]
        Smaller shapes that it takes too; none where it takes no others.
    reads : bool
        Whether it looks for text.
    """

    name: str
    inputs: Shapes
    make: Callable[[Shapes], onnx.ModelProto]
    needs: Mapping[str, str]
    small: Shapes = field(default_factory=dict)
    reads: bool = False

    def feed(self, inputs: Shapes, seed: int = 0) -> dict[str, np.ndarray]:
        """Arrays of float32 for inputs of these shapes: noise, or random letters for a network that reads."""
        from bench.networks import feeds

        return (feeds.page if self.reads else feeds.feed)(inputs, seed)

    def missing(self) -> str | None:
        """How to install what is not there, or None."""
        found = dict.fromkeys(pip for module, pip in self.needs.items() if importlib.util.find_spec(module) is None)
        return f"pip install {' '.join(found)}" if found else None


def networks() -> dict[str, Network]:
    """All networks by name, whether or not they can be made here."""
    from bench.networks import light, packaged, vision

    found = (*light.NETWORKS, *vision.NETWORKS, *packaged.NETWORKS)
    return {network.name: network for network in found}
