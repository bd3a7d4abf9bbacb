"""Tensors of a model as arrays: their elements lie in the model, or in files of its folder.

A file must be a plain one in the folder of the model's own file, or below, also behind links, and hold as many bytes as
the tensor needs. A model that came as bytes or as a message has no folder, and so no such files. The rule is for all
tensors: those within nodes that ONNX's evaluator computes are brought into the model, as it would look for files by
rules of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.graph.reading.skeleton import INSIDE, LONG
from cpuconv.memory.mapped_files import Data, contents
from cpuconv.memory.room import check_bytes

if TYPE_CHECKING:
    import onnx

_PACKED = {"INT2": 2, "INT4": 4, "E2M1": 4, "E2M3": 6, "E3M2": 6}  # bits of an element, by how types' names end


class Files:
    """Where the elements of a model's tensors lie: in the model's own data, and in files of its folder."""

    def __init__(self, data: Data | None = None, folder: Path | None = None) -> None:
        self._folder = folder
        self._opened: dict[Path | None, Data] = {} if data is None else {None: data}

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """The elements of a constant, which nobody may change.

        Raises
        ------
        SourceError
            It is no tensor of numbers, its elements cannot be read, or they lie where they must not.
        """
        from onnx import numpy_helper

        _check_type(tensor)
        try:
            array = _elements(tensor, *self._bytes(tensor)) if is_external(tensor) else numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as error:
            raise SourceError(f"the constant {tensor.name!r} cannot be read: {error}") from error
        array = array.view()
        array.flags.writeable = False
        return array

    def whole(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """A node with the elements of all tensors in it, which `array` would find elsewhere.

        Raises
        ------
        SourceError
            As of `array`.
        """
        import onnx

        if not any(map(is_external, tensors_in(node))):
            return node
        made = onnx.NodeProto()
        made.CopyFrom(node)
        for tensor in filter(is_external, tensors_in(made)):
            _check_type(tensor)
            try:
                data, offset, length = self._bytes(tensor)
            except (ValueError, TypeError, KeyError) as error:
                raise SourceError(f"the constant {tensor.name!r} cannot be read: {error}") from error
            del tensor.external_data[:]
            tensor.ClearField("data_location")
            tensor.raw_data = bytes(data[offset : offset + length])
        return made

    def _bytes(self, tensor: onnx.TensorProto) -> tuple[Data, int, int]:
        """What the elements of a tensor lie in, from where on, and how many bytes they are.

        Raises
        ------
        SourceError
            The file is not in the model's folder, is missing, or is shorter than the tensor says.
        """
        stated = {entry.key: entry.value for entry in tensor.external_data}
        location = stated.get("location", "")
        place = f"the constant {tensor.name!r}"
        if location != INSIDE:
            place += f" lies in the file {location!r}"
        offset, needed = int(stated.get("offset", 0)), _size(tensor)
        check_bytes(needed, place)
        data = self._data(location, place)
        length = int(stated.get("length", needed))
        if length != needed or offset < 0 or offset + length > len(data):
            which = "" if location == INSIDE else ", which"
            raise SourceError(f"{place}{which} must hold {needed} bytes of it behind byte {offset}.")
        return data, offset, length

    def _data(self, location: str, place: str) -> Data:
        """The data at a location that a tensor states; `place` begins messages."""
        if location == INSIDE and None in self._opened:
            return self._opened[None]
        if self._folder is None:
            raise SourceError(f"{place}: give the model by its path.")
        try:
            path = (self._folder / location).resolve()
            if not path.is_relative_to(self._folder.resolve()):
                raise SourceError(f"{place}, which must be in the model's folder.")
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise SourceError(f"{place}, which must be a plain file.")
            if path not in self._opened:
                self._opened[path] = contents(path)
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
            raise SourceError(f"{place}, which cannot be read: {error}") from error
        return self._opened[path]


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the elements of a tensor lie elsewhere."""
    return tensor.data_location == tensor.EXTERNAL


def tensors_in(message: Any) -> Iterator[onnx.TensorProto]:
    """All tensors of a node: in attributes of any kind, and in the graphs within them."""
    from google.protobuf.message import Message
    from onnx import TensorProto

    if isinstance(message, TensorProto):
        yield message
        return
    for _, value in message.ListFields():
        if isinstance(value, Message):
            yield from tensors_in(value)
        elif not isinstance(value, (int, float, str, bytes)) and len(value) and isinstance(value[0], Message):
            for each in value:
                yield from tensors_in(each)


def _check_type(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in (tensor.STRING, tensor.UNDEFINED):
        raise SourceError(f"the constant {tensor.name!r} must be a tensor of numbers.")


def _elements(tensor: onnx.TensorProto, data: Data, offset: int, length: int) -> np.ndarray:
    """The elements of a tensor where they lie; of short ones and of types that NumPy does not have, a copy."""
    import onnx
    from onnx import numpy_helper

    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if length < LONG or dtype.kind not in "biufc":
        raw = data[offset : offset + length]
        return numpy_helper.to_array(onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=raw))
    return np.frombuffer(data, dtype.newbyteorder("<"), math.prod(tensor.dims), offset).reshape(tensor.dims)


def _size(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's elements; those of less than a byte are packed.

    Raises
    ------
    ValueError
        A size is negative.
    """
    import onnx

    if min(tensor.dims, default=0) < 0:
        raise ValueError(f"its shape is {list(tensor.dims)}")
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    bits = next((bits for end, bits in _PACKED.items() if name.endswith(end)), None)
    bits = bits or 8 * np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
    return -(-math.prod(tensor.dims) * bits // 8)
