"""Tensors of a model as arrays: their elements lie in the model, or in files of its folder.

A file must be a plain one in the folder of the model's own file, or below, also behind links, and hold as many bytes as
the tensor needs. A model that came as bytes or as a message has no folder, and so no such files. The rule is for all
tensors: those within nodes that ONNX's evaluator computes are brought into the model, as it would look for files by
rules of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.graph.limits import check_rank
from cpuconv.memory.mapped_files import contents
from cpuconv.memory.room import check_bytes
from cpuconv.protos import elements
from cpuconv.protos.messages import EXTERNAL, Record, TensorProto

LONG = 1 << 12  # bytes of elements that are not copied


class Files:
    """Where the elements of a model's tensors lie, if not in the model: in files of its folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._opened: dict[Path, memoryview] = {}

    def array(self, tensor: Any) -> np.ndarray:
        """The elements of a constant, which nobody may change: of long ones a view of where they lie.

        Raises
        ------
        SourceError
            It is no tensor of numbers, its elements cannot be read, or they lie where they must not.
        """
        raw = self._outside(tensor)
        try:
            array = elements.array(tensor, raw)
        except (ValueError, TypeError, OverflowError) as error:
            raise _unreadable(tensor, error) from error
        array = array.view() if array.nbytes >= LONG else array.copy()
        array.flags.writeable = False
        return array

    def whole(self, message: Any) -> Any:
        """A message with the elements of all tensors in it, which `array` would find elsewhere.

        Raises
        ------
        SourceError
            As of `array`.
        """
        if isinstance(message, TensorProto):
            raw = self._outside(message)
            return message if raw is None else message.changed(raw_data=raw, external_data=None, data_location=None)
        changes: dict[str, Any] = {}
        for name, value in vars(message).items():
            if isinstance(value, Record):
                changes[name] = self.whole(value)
            elif isinstance(value, list) and value and isinstance(value[0], Record):
                changes[name] = [self.whole(each) for each in value]
        return message.changed(**changes)

    def _outside(self, tensor: Any) -> memoryview | None:
        """The bytes of the elements of a tensor that lie in a file, else None.

        Raises
        ------
        SourceError
            It is no tensor of numbers; or the file is not in the model's folder, is missing, or is shorter than the
            tensor says.
        """
        if tensor.data_type in (0, elements.STRINGS):
            raise SourceError(f"the constant {tensor.name!r} must be a tensor of numbers.")
        check_rank(len(tensor.dims), f"the constant {tensor.name!r}")
        if tensor.data_location != EXTERNAL:
            return None
        stated = {entry.key: entry.value for entry in tensor.external_data}
        location = stated.get("location", "")
        place = f"the constant {tensor.name!r} lies in the file {location!r}"
        try:
            offset, needed = int(stated.get("offset", 0)), elements.size(tensor)
            length = int(stated.get("length", needed))
            check_bytes(needed, place)
            data = self._data(location, place)
        except (ValueError, TypeError) as error:
            raise _unreadable(tensor, error) from error
        if length != needed or offset < 0 or offset + length > len(data):
            raise SourceError(f"{place}, which must hold {needed} bytes of it behind byte {offset}.")
        return data[offset : offset + length]

    def _data(self, location: str, place: str) -> memoryview:
        """The data at a location that a tensor states; `place` begins messages."""
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


class Unread(Files):
    """Zeros in the place of elements that lie in files: for who asks for shapes alone."""

    def _outside(self, tensor: Any) -> memoryview | None:
        if tensor.data_location != EXTERNAL or tensor.data_type in (0, elements.STRINGS):
            return super()._outside(tensor)
        check_rank(len(tensor.dims), f"the constant {tensor.name!r}")
        try:
            needed = elements.size(tensor)
            check_bytes(needed, f"the constant {tensor.name!r}")
            return np.zeros(needed, np.uint8).data  # memory that nobody reads is not taken
        except (ValueError, TypeError) as error:
            raise _unreadable(tensor, error) from error


def _unreadable(tensor: Any, error: Exception) -> SourceError:
    return SourceError(f"the constant {tensor.name!r} cannot be read: {error}")


def outside(message: Any) -> Iterator[Any]:
    """The tensors in a message that lie in files: in attributes of any kind, and in the graphs within them."""
    if isinstance(message, TensorProto):
        yield from [message] if message.data_location == EXTERNAL else []
        return
    for value in vars(message).values():
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Record):
                yield from outside(each)
