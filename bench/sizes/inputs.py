"""Networks with open sizes and their inputs for measurements: different sizes, random elements."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np


@dataclasses.dataclass(frozen=True)
class SizedNetwork:
    """A network with one input of open sizes, and the range from which sizes are drawn.

    Attributes
    ----------
    name : str
    path : str
        ONNX file.
    port : str
        Name of the input.
    base : tuple of int
        Shape of the input; axes that are not drawn keep these sizes.
    axes : tuple of int
        Axes whose sizes are drawn.
    low, high : tuple of int
        Smallest and largest size along each of `axes`, or one for all of them.
    step : int
        Drawn sizes are multiples of it.
    count : int
        Number of inputs, all of different shapes; fewer if the range has fewer shapes.
    text : bool
        Whether inputs are lines of random letters, for text networks; noise otherwise.
    seed : int
        Seed of shapes and elements.
    """

    name: str
    path: str
    port: str
    base: tuple[int, ...]
    axes: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    step: int = 1
    count: int = 40
    text: bool = False
    seed: int = 1

    @property
    def title(self) -> str:
        """Sizes as text, as in "1x3x48x(40..1200)"."""
        by = f" by {self.step}" if self.step > 1 else ""
        spans = {axis: f"({low}..{high}{by})" for axis, (low, high) in self._spans.items()}
        return "x".join(spans.get(axis, str(size)) for axis, size in enumerate(self.base))

    @property
    def _spans(self) -> dict[int, tuple[int, int]]:
        """Smallest and largest size by axis."""
        ends = ([*each] * (1 if len(each) > 1 else len(self.axes)) for each in (self.low, self.high))
        return dict(zip(self.axes, zip(*ends, strict=True), strict=True))

    def shapes(self) -> list[tuple[int, ...]]:
        """Return `count` different shapes in random order."""
        choices = [range(-(-low // self.step), high // self.step + 1) for low, high in self._spans.values()]
        lengths = tuple(map(len, choices))
        possible = math.prod(lengths)
        picked = np.random.default_rng(self.seed).choice(possible, min(self.count, possible), replace=False)
        found = []
        for each in picked:
            shape = list(self.base)
            for axis, sizes, at in zip(self.axes, choices, np.unravel_index(each, lengths), strict=True):
                shape[axis] = self.step * sizes[int(at)]
            found.append(tuple(shape))
        return found

    def batches(self, count: int, largest: int) -> list[tuple[int, ...]]:
        """Return `count` shapes with random sizes and a batch (first axis) of 1 to `largest`."""
        images = np.random.default_rng(self.seed).integers(1, largest + 1, count)
        shapes = itertools.cycle(dataclasses.replace(self, count=count).shapes())
        return [(int(n), *shape[1:]) for n, shape in zip(images, shapes, strict=False)]

    def array(self, shape: Sequence[int], number: int) -> np.ndarray:
        """Make the float32 elements of input `number`."""
        from bench.networks.feeds import feed, page

        return (page if self.text else feed)({self.port: shape}, self.seed + number)[self.port]


def ocr_networks() -> dict[str, SizedNetwork]:
    """Return the text recogniser and detector of PP-OCRv4, from the package rapidocr-onnxruntime.

    Raises
    ------
    ModuleNotFoundError
        If the package is not installed.
    """
    from bench.networks.packaged import path

    rec, det = (str(path("rapidocr_onnxruntime", f"models/ch_PP-OCRv4_{each}_infer.onnx")) for each in ("rec", "det"))
    found = (
        SizedNetwork("recogniser", rec, "x", (1, 3, 48, 320), (3,), (40,), (1200,), 1, 200, text=True),
        SizedNetwork("detector", det, "x", (1, 3, 640, 640), (2, 3), (320,), (960,), 32, 40, text=True),
    )
    return {each.name: each for each in found}


def open_network(
    path: Path,
    folder: Path,
    base: Sequence[int],
    axes: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    step: int,
) -> SizedNetwork:
    """Return the network of an ONNX file; if sizes along `axes` or the batch are fixed, a copy in `folder` opens them.

    Parameters
    ----------
    path, folder : Path
    base, axes, low, high : sequence of int
    step : int
        As in `SizedNetwork`.

    Raises
    ------
    SystemExit
        If the network has several inputs, or one of another rank.
    """
    import onnx

    from bench.networks.model import resize

    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in constants]
    if len(inputs) != 1 or len(inputs[0].type.tensor_type.shape.dim) != len(base):
        stated = ", ".join(f"{each.name} of rank {len(each.type.tensor_type.shape.dim)}" for each in inputs)
        raise SystemExit(f"{path}: the network must have one input of rank {len(base)} (--base), not {stated}.")
    port, dims = inputs[0].name, inputs[0].type.tensor_type.shape.dim
    if any(dims[axis].HasField("dim_value") for axis in (0, *axes)):
        opened = [f"size{axis}" if axis in (0, *axes) else size for axis, size in enumerate(base)]
        resize(model, {port: opened})
        path = folder / path.name
        onnx.save(model, path)
    return SizedNetwork(path.stem, str(path), port, tuple(base), tuple(axes), tuple(low), tuple(high), step)
