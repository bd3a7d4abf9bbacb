"""Changes of ONNX models in memory: input sizes, and random weights with normal activations."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from bench.networks.feeds import feed
from cpuconv.graph.ir import Node
from cpuconv.network.interpret import run
from cpuconv.network.sizes.specialise import specialise
from cpuconv.reading.onnx_reader import read

Sizes = Mapping[str, Sequence[int | str]]  # open sizes are symbols
_BIAS = 0.1  # standard deviation of biases and shifts; that of a layer's output is one
_SPREAD = (0.5, 1.5)  # range of scales
_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # operators with the inputs data, weights and optional biases


def batched(inputs: Sizes, batch: int | str) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes with another batch, the first axis of every input."""
    return {name: (batch, *shape[1:]) for name, shape in inputs.items()}


def resize(model: onnx.ModelProto, inputs: Sizes) -> None:
    """Set the shapes of the model's inputs, and remove the shapes of other tensors."""
    del model.graph.value_info[:]
    for info in model.graph.input:
        if info.name in inputs:
            shape = info.type.tensor_type.shape
            del shape.dim[:]
            for size in inputs[info.name]:
                shape.dim.add(**{"dim_param" if isinstance(size, str) else "dim_value": size})
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return the initialisers by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def replace(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> None:
    """Set initialisers of the model, replacing those with the same names."""
    there = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, array in arrays.items():
        tensor = there.get(name) or model.graph.initializer.add()
        tensor.CopyFrom(numpy_helper.from_array(array, name))


def drawn(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Draw random weights: kernels and matrices (outputs first) with He's variance; vectors are biases."""
    scale = math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else _BIAS
    return rng.standard_normal(tuple(shape), np.float32) * np.float32(scale)


def settle(model: onnx.ModelProto, inputs: Mapping[str, Sequence[int]], seed: int = 0) -> None:
    """Rescale the weights so that random inputs give tensors of normal magnitude, as in a trained network.

    This is done layer by layer, on unit-normal inputs of these shapes. Weights are scaled so that their output has a
    standard deviation of one (Mishkin and Matas, "All you need is a good init", 2016), and statistics of batch
    normalisations are set to those of their inputs. Otherwise the softmax of a deep random network selects one class
    for every input or, after saturating activations, gives all classes the same value.
    """
    rng = np.random.default_rng(seed)
    graph, weights = specialise(read(model), inputs), constants(model)
    settled: dict[str, np.ndarray] = {}
    arrays = {**graph.constants, **feed(inputs, seed)}
    for node in graph.nodes:
        dtypes = [graph.value(name).dtype if name else None for name in node.outputs]
        own = set(node.inputs[1:]) <= weights.keys()
        if own and node.op == "BatchNormalization":
            settled |= _statistics(node, arrays[node.inputs[0]], rng)
        elif own and node.op in _LINEAR:
            x, weight, *bias = (arrays[name] for name in node.inputs)
            (y,) = run(node, [x, weight, *(None for _ in bias)], dtypes)
            spread = y.std() or 1.0
            settled[node.inputs[1]] = weight / spread
            arrays[node.outputs[0]] = y / spread + sum(each.reshape(-1, *[1] * (y.ndim - 2)) for each in bias)
            continue
        operands = [settled.get(name, arrays.get(name)) for name in node.inputs]
        arrays.update(zip(node.outputs, run(node, operands, dtypes), strict=True))
    replace(model, settled)


def _statistics(node: Node, x: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Make scales, shifts, means and variances for a batch normalisation of `x`."""
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    least, most = _SPREAD
    scale = rng.uniform(least, most, (x.shape[1],)).astype(np.float32)
    return dict(zip(node.inputs[1:], (scale, drawn(rng, x.shape[1:2]), x.mean(axes), x.var(axes)), strict=True))


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write the model to a file atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        onnx.save(model, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
