"""Networks of the package onnx with random weights; its files have shapes instead of weights."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx

from bench.networks import Network, Shapes
from bench.networks.model import constants, drawn, replace, resize, settle

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
IMAGE = (1, 3, 224, 224)
IR_VERSION = 8


def model(name: str, inputs: Shapes) -> onnx.ModelProto:
    """Load the network of a file, with random weights."""
    made = onnx.load(FOLDER / f"light_{name}.onnx")
    resize(made, inputs)
    fill(made, np.random.default_rng(0))
    free_batch(made)
    modernise(made, inputs)
    settle(made, inputs)
    return made


def fill(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Replace the nodes that fill weights with one value by random weights."""
    shapes = {name: array.tolist() for name, array in constants(model).items()}
    fillers = [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    for node in fillers:
        model.graph.node.remove(node)
    replace(model, {node.output[0]: drawn(rng, shapes[node.input[0]]) for node in fillers})


def free_batch(model: onnx.ModelProto) -> None:
    """Open the batch of reshapes, which is 1 in the files; reshapes of weights are evaluated."""
    known = constants(model)
    for node in [node for node in model.graph.node if node.op_type == "Reshape"]:
        data, shape = node.input
        if data in known:
            model.graph.node.remove(node)
            replace(model, {node.output[0]: known[data].reshape(known[shape])})
        else:
            replace(model, {shape: np.array([0, *known[shape][1:]])})


def modernise(model: onnx.ModelProto, inputs: Iterable[str]) -> None:
    """Remove constants that no node reads, and constants from the inputs.

    The files are from a time when constants had to be inputs; an engine must then expect another value in every run.
    """
    model.ir_version = IR_VERSION
    read = {name for node in model.graph.node for name in node.input}
    for entries, kept in ((model.graph.initializer, read), (model.graph.input, set(inputs))):
        for at in reversed(range(len(entries))):
            if entries[at].name not in kept:
                del entries[at]


NETWORKS = tuple(
    Network(name, {source: IMAGE}, functools.partial(model, name), {"onnx": "onnx"}, small)
    for name, source, small in (
        ("bvlc_alexnet", "data_0", {}),
        ("densenet121", "data_0", {"data_0": (1, 3, 64, 64)}),
        ("inception_v1", "data_0", {}),
        ("inception_v2", "data_0", {}),
        ("resnet50", "gpu_0/data_0", {}),
        ("shufflenet", "gpu_0/data_0", {}),
        ("squeezenet", "data_0", {"data_0": (1, 3, 64, 64)}),
        ("vgg19", "data_0", {}),
        ("zfnet512", "gpu_0/data_0", {}),
    )
)
