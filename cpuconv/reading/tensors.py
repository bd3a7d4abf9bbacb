"""Constants of a model as arrays; their elements are in the model or in external files.

An external file must be a regular file in the model's folder or below, also after resolving links. It must have at
least the bytes that the tensor needs. A model passed as bytes or as a message has no folder, and thus no external
files. The rule holds for all tensors: those in nodes that ONNX's evaluator computes are copied into the model, as the
evaluator would search for files by other rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cpuconv.errors import SourceError
from cpuconv.memory.free_memory import check_bytes
from cpuconv.memory.mapped_files import contents
from cpuconv.protos import elements
from cpuconv.protos.limits import check_rank
from cpuconv.protos.messages import EXTERNAL, Record, TensorProto

LONG = 1 << 12  # bytes from which elements are not copied


class Files:
    """External files with elements of a model's tensors."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._opened: dict[Path, memoryview] = {}

    def array(self, tensor: Any) -> np.ndarray:
        """Read a constant as a read-only array; large ones are views of the model or file.

        Raises
        ------
        SourceError
            It is not a numeric tensor, its elements cannot be read, or their location is not allowed.
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
        """Copy a message with the elements of all its external tensors inside.

        Raises
        ------
        SourceError
            As in `array`.
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
        """Bytes of an external tensor's elements; None if they are in the model.

        Raises
        ------
        SourceError
            It is not a numeric tensor; or the file is not in the model's folder, is missing, or is shorter than the
            tensor requires.
        """
        if tensor.data_type in (0, elements.STRINGS):
            raise SourceError(f"the constant {tensor.name!r} must be a tensor of numbers.")
        check_rank(len(tensor.dims), f"the constant {tensor.name!r}")
        if tensor.data_location != EXTERNAL:
            return None
        stated = {entry.key: entry.value for entry in tensor.external_data}
        location = stated.get("location", "")
        place = f"the constant {tensor.name!r} is stored in the file {location!r}"
        try:
            offset, needed = int(stated.get("offset", 0)), elements.size(tensor)
            length = int(stated.get("length", needed))
            check_bytes(needed, place)
            data = self._data(location, place)
        except (ValueError, TypeError) as error:
            raise _unreadable(tensor, error) from error
        if length != needed or offset < 0 or offset + length > len(data):
            raise SourceError(f"{place}, which must have {needed} bytes of it from offset {offset} on.")
        return data[offset : offset + length]

    def _data(self, location: str, place: str) -> memoryview:
        """Content of an external file; `place` starts error messages."""
        if self._folder is None:
            raise SourceError(f"{place}: give the model by its path.")
        try:
            path = (self._folder / location).resolve()
            if not path.is_relative_to(self._folder.resolve()):
                raise SourceError(f"{place}, which must be in the model's folder.")
            if path.exists() and not path.is_file():  # opening a pipe would block
                raise SourceError(f"{place}, which must be a plain file.")
            if path not in self._opened:
                self._opened[path] = contents(path)
        except (OSError, RuntimeError) as error:  # RuntimeError: circular links
            raise SourceError(f"{place}, which cannot be read: {error}") from error
        return self._opened[path]


class Unread(Files):
    """Zeros instead of the elements in external files, for readers that only need shapes."""

    def _outside(self, tensor: Any) -> memoryview | None:
        if tensor.data_location != EXTERNAL or tensor.data_type in (0, elements.STRINGS):
            return super()._outside(tensor)
        check_rank(len(tensor.dims), f"the constant {tensor.name!r}")
        try:
            needed = elements.size(tensor)
            check_bytes(needed, f"the constant {tensor.name!r}")
            return np.zeros(needed, np.uint8).data  # untouched memory is not allocated
        except (ValueError, TypeError) as error:
            raise _unreadable(tensor, error) from error


def _unreadable(tensor: Any, error: Exception) -> SourceError:
    return SourceError(f"the constant {tensor.name!r} cannot be read: {error}")


def outside(message: Any) -> Iterator[Any]:
    """Iterate over the external tensors of a message, including attributes and nested graphs."""
    if isinstance(message, TensorProto):
        yield from [message] if message.data_location == EXTERNAL else []
        return
    for value in vars(message).values():
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, Record):
                yield from outside(each)
