"""Operators without an entry in the operator table: ONNX's reference evaluator computes them, slowly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.graph.ir import Node, Value
from cpuconv.graph.stopping import Stop, check
from cpuconv.protos import elements, wire
from cpuconv.protos.limits import check_rank
from cpuconv.protos.messages import NodeProto
from cpuconv.reading.tensors import outside

if TYPE_CHECKING:
    import onnx

_UNKNOWN = ("", "?", "-1", "None")  # written by exporters for unknown sizes


def value_of(info: Any) -> Value:
    """Convert type information of a model to a `Value`; an optional value counts as present.

    Sizes below 1 and the symbols of `_UNKNOWN` are unknown sizes.
    """
    stated = info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type
    tensor = stated.tensor_type
    if not stated.HasField("tensor_type"):
        return Value()
    if not tensor.HasField("shape"):
        return Value(None, dtype_of(tensor.elem_type))
    dims = tensor.shape.dim
    check_rank(len(dims), f"the value {info.name!r}")
    symbols = (None if dim.dim_param in _UNKNOWN else dim.dim_param for dim in dims)
    shape = tuple(dim.dim_value if dim.dim_value > 0 else symbol for dim, symbol in zip(dims, symbols, strict=True))
    return Value(shape, dtype_of(tensor.elem_type))


def dtype_of(number: int) -> np.dtype | None:
    """NumPy dtype of an ONNX type; None if it is not numeric."""
    return elements.DTYPES.get(number)


class Foreign:
    """Semantics of a node that ONNX's reference evaluator computes. It is slow, but supports all operators.

    Its names stay those of the model, even if a graph renames its inputs.

    Raises
    ------
    SourceError
        A tensor of the node has its elements in a file, which the evaluator would search for by other rules.
    """

    def __init__(self, proto: bytes, opsets: Mapping[str, int], inputs: Sequence[str]) -> None:
        for tensor in outside(wire.decode(proto, NodeProto)):
            raise SourceError(f"the constant {tensor.name!r} must be stored in the node itself, not in a file.")
        self.proto, self.opsets, self.inputs = proto, dict(opsets), tuple(inputs)

    def infer(self, node: Node, inputs: Sequence[Value | None]) -> list[Value]:
        """Infer shapes and dtypes by ONNX's shape inference; they are unknown if they depend on elements of an input.

        Raises
        ------
        SourceError
            The inputs do not fit the operator.
        """
        onnx = _package(node)
        from onnx import numpy_helper

        try:
            model = self._model(inputs)
            for name, value in zip(self.inputs, inputs, strict=True):
                if value is not None and value.array is not None:
                    model.graph.initializer.append(numpy_helper.from_array(value.array, name))
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except (onnx.shape_inference.InferenceError, RuntimeError, TypeError, ValueError, LookupError) as error:
            raise SourceError(f"{node.label}: its shapes cannot be inferred: {error}") from error
        found = iter([value_of(info) for info in inferred.graph.output])
        return [next(found) if name else Value() for name in node.outputs]

    def evaluate(
        self,
        node: Node,
        arrays: Sequence[np.ndarray | None],
        dtypes: Sequence[np.dtype | None],
        stop: Stop | None = None,
    ) -> list[Any]:
        """Compute the outputs for inputs of their own types; a sequence of tensors is a list. Checks `stop` first."""
        check(stop)
        _package(node)
        from onnx.reference import ReferenceEvaluator

        feed = {name: array for name, array in zip(self.inputs, arrays, strict=True) if name}
        try:
            model = self._model([None if array is None else _value(array) for array in arrays])
            results = iter(ReferenceEvaluator(model).run(None, feed))
        except Exception as error:  # an evaluator may raise any error
            raise SourceError(f"{node.label} fails in ONNX's reference evaluator: {error}") from error
        found = [next(results) if name else None for name in node.outputs]
        return [_as_stated(node, result, dtype) for result, dtype in zip(found, dtypes, strict=True)]

    def _model(self, inputs: Iterable[Value | None]) -> onnx.ModelProto:
        """Make a model of this node alone, with inputs of the given types."""
        import onnx
        from onnx import helper

        node = onnx.NodeProto.FromString(self.proto)
        typed = {
            name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            if value.dtype is not None
            else helper.make_tensor_sequence_value_info(name, onnx.TensorProto.FLOAT, None)
            for name, value in zip(self.inputs, inputs, strict=True)
            if value is not None
        }
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "node", list(typed.values()), outputs)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid(*item) for item in self.opsets.items()])


def _value(array: Any) -> Value:
    """Shape and dtype of an operand; unknown for a sequence."""
    return Value() if isinstance(array, list) else Value.of(array)


def _as_stated(node: Node, result: Any, dtype: np.dtype | None) -> Any:
    """Convert a result to the type that ONNX's shape inference gives."""
    if isinstance(result, list):
        return result
    array = np.asarray(result)
    if dtype is not None and array.dtype != dtype:
        if array.dtype.kind != dtype.kind:
            raise SourceError(f"{node.label} gives {array.dtype} in ONNX's reference evaluator, and must give {dtype}.")
        array = array.astype(dtype)
    return array


def _package(node: Node) -> Any:
    """Import the package onnx.

    Raises
    ------
    SourceError
        It is not installed, or cannot be imported.
    """
    return onnx_package(f"{node.label} has no kernel; the package onnx computes it")


def onnx_package(why: str) -> Any:
    """Import the package onnx with its shape inference.

    Parameters
    ----------
    why : str
        Purpose, for the message: a main clause that ends with the package's name or task.

    Raises
    ------
    SourceError
        It is not installed, or cannot be imported.
    """
    try:
        import onnx.shape_inference
    except Exception as error:  # protobuf versions may clash with an error of their own
        raise SourceError(f"{why}, which cannot be imported ({error}): pip install 'cpuconv[onnx]'") from error
    return onnx


def captured(attribute: Any) -> Iterator[str]:
    """Iterate over the names that an attribute's graphs read but do not define."""
    for graph in _graphs(attribute):
        yield from _captured(graph)


def _graphs(attribute: Any) -> Iterator[Any]:
    yield from [attribute.g] if attribute.HasField("g") else []
    yield from attribute.graphs


def _captured(graph: Any) -> Iterator[str]:
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = [name for node in graph.node for name in node.input]
    read += [name for node in graph.node for inner in node.attribute for name in captured(inner)]
    read += [info.name for info in graph.output]
    yield from (name for name in read if name and name not in own)
