"""Builder of the nodes that replace a node of another domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, must
from cpuconv.graph.ir import Node, trimmed
from cpuconv.reading.adapters import Reader


class Builder:
    """Builder of the nodes that replace one node."""

    def __init__(self, reader: Reader, node: Node) -> None:
        self.reader, self.node = reader, node
        self.nodes: list[Node] = []

    def input(self, position: int) -> str:
        """Name of an input; "" if it is absent."""
        return self.node.inputs[position] if position < len(self.node.inputs) else ""

    def add(self, op: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        """Append a node; return the name of its first output, a new one if `outputs` is empty."""
        outputs = outputs or (self.reader.fresh(f"{self.node.outputs[0]}.{op}"),)
        stated = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(Node(op, trimmed(inputs), tuple(outputs), stated, self.node.origin))
        return outputs[0]

    def last(self, op: str, *inputs: str, **attributes: Any) -> None:
        """Append the final node, which writes the outputs of the replaced node."""
        self.add(op, *inputs, outputs=self.node.outputs, **attributes)

    def dequantised(self, x: str, scale: str, zero: str = "", axis: int = 1) -> str:
        """Dequantise an int8 tensor."""
        return self.add("DequantizeLinear", x, scale, zero, axis=axis)

    def dequantised_input(self, position: int, axis: int = 1, channels_last: int = 0) -> str:
        """Dequantise the int8 input at `position`, to channels first; scale and zero point are the next two inputs."""
        x, scale, zero = (self.input(position + at) for at in range(3))
        return self.dequantised(self.channels_first(x) if channels_last else x, scale, zero, axis)

    def channels_first(self, x: str) -> str:
        """Transpose a tensor from channels last to channels first."""
        rank = self.reader.rank(x) or 4
        return self.add("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])

    @property
    def channels_last(self) -> list[int]:
        """Permutation of axes to channels last."""
        return [0, *range(2, self.reader.rank(self.input(0)) or 4), 1]

    def quantise_outputs(self, y: str, position: int, channels_last: int = 0) -> None:
        """Quantise the result to the outputs; scale and zero point are the inputs at `position` and the next."""
        y = self.add("Transpose", y, perm=self.channels_last) if channels_last else y
        self.last("QuantizeLinear", y, self.input(position), self.input(position + 1))

    def array(self, value: np.ndarray) -> str:
        """Add a constant of the array's own type."""
        return self.reader.array(np.array(value, order="C"), f"{self.node.outputs[0]}.constant")

    def dynamically_quantised(self, x: str) -> list[str]:
        """Quantise a float32 tensor dynamically; return the names of the tensor, its scale and its zero point."""
        parts = [self.reader.fresh(f"{self.node.outputs[0]}.{part}") for part in ("bytes", "scale", "zero")]
        self.add("DynamicQuantizeLinear", x, outputs=parts)
        return parts

    def activate(self, y: str, activation: str, numbers: Sequence[float]) -> None:
        """Append the activation with parameters `numbers`, which writes the outputs."""
        names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(activation, ())
        if activation == "Clip":
            self.last("Clip", y, *map(self.number, numbers))
        elif activation in ("", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid"):
            self.last(activation or "Identity", y, **dict(zip(names, numbers, strict=False)))
        else:
            raise ArgumentError(must("activation", "one that is known", activation))

    def number(self, value: float) -> str:
        """Add a float32 scalar constant."""
        return self.reader.constant(value, f"{self.node.outputs[0]}.constant")

    def integers(self, *values: int) -> str:
        """Add a 1-D int64 constant."""
        return self.reader.constant(values, f"{self.node.outputs[0]}.constant")

    def constant(self, position: int, called: str) -> np.ndarray:
        """Elements of an input that must be constant."""
        array = self.reader.constants.get(self.input(position))
        if array is None:
            raise ArgumentError(must(called, "constant", self.input(position)))
        return np.asarray(array)

    def arange(self, x: str, axis: int) -> str:
        """Indices 0, 1, … along an axis of a tensor."""
        size = self.add("Gather", self.add("Shape", x), self.array(np.array(axis)))
        return self.add("Range", self.array(np.array(0)), size, self.array(np.array(1)))

    def split(self, x: str, axis: int, count: int, sizes: str = "") -> list[str]:
        """Split a tensor along an axis; parts have equal sizes unless `sizes` is given."""
        parts = [self.reader.fresh(f"{self.node.outputs[0]}.part") for _ in range(count)]
        self.add("Split", x, sizes, outputs=parts, axis=axis, num_outputs=None if sizes else count)
        return parts

    def scaled_product(self, a: Sequence[str], b: Sequence[str]) -> str:
        """Multiply int8 matrices, each with its scale and zero point, to a float32 result."""
        sums = self.add("Cast", self.add("MatMulInteger", a[0], b[0], a[2], b[2]), to=np.dtype(np.float32))
        return self.add("Mul", sums, self.add("Mul", a[1], b[1]))
