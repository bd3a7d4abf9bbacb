"""Arrays bound to the inputs and outputs of a session before it runs, as with ONNX Runtime's `IOBinding`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpuconv.errors import ArgumentError, ArgumentTypeError, kind_of, must
from cpuconv.integrations.element_types import dtype_of, number_of, text_of
from cpuconv.network.ports import Port


class OrtValue:
    """A tensor in CPU memory, with the CPU part of the interface of ONNX Runtime's `OrtValue`."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(cls, array: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Make a tensor that shares an array's memory."""
        _check_device(device_type)
        if not isinstance(array, np.ndarray):
            raise ArgumentTypeError(must("array", "a NumPy array", kind_of(array)))
        return cls(np.ascontiguousarray(array).reshape(array.shape))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Make a tensor with uninitialised elements."""
        _check_device(device_type)
        return cls(np.empty(tuple(shape), dtype_of(element_type)))

    def numpy(self) -> np.ndarray:
        """Return the elements as an array that shares the tensor's memory."""
        return self._array

    def update_inplace(self, array: np.ndarray) -> None:
        """Overwrite the elements with those of an array of the same shape and dtype."""
        if (array.shape, array.dtype) != (self._array.shape, self._array.dtype):
            own = f"of shape {self._array.shape} and dtype {self._array.dtype}"
            raise ArgumentError(must("array", own, f"{array.shape}, {array.dtype}"))
        self._array[...] = array

    def shape(self) -> list[int]:
        """Return the sizes."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type as text, such as ``tensor(float)``."""
        return text_of(self._array.dtype)

    def element_type(self) -> int:
        """Return ONNX's number of the type."""
        return number_of(self._array.dtype)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        """Return the size of all elements, in bytes."""
        return self._array.nbytes

    def device_name(self) -> str:
        """Return the device of the memory: ``cpu``."""
        return "cpu"

    def has_value(self) -> bool:
        """Whether it is a tensor: always True."""
        return True

    is_tensor = has_value


class IOBinding:
    """Arrays bound to a session's inputs and outputs; created by `InferenceSession.io_binding`.

    Memory that is bound by address must stay valid until the binding is cleared.
    """

    def __init__(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self._inputs = [port.name for port in inputs]
        self._outputs = [port.name for port in outputs]
        self.feed: dict[str, Any] = {}
        self.wanted: dict[str, np.ndarray | None] = {}
        self.results: list[np.ndarray] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array; a run reads its current elements."""
        self.feed[_known("name", name, self._inputs)] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory at an address."""
        _check_device(device_type)
        self.feed[_known("name", name, self._inputs)] = _at(buffer_ptr, shape, element_type)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an input to an `OrtValue` of cpuconv or ONNX Runtime."""
        self.bind_cpu_input(name, view(ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Request an output: in memory at an address, or in new memory.

        Raises
        ------
        ArgumentError
            There is no such output, the device is not the CPU, or an address is passed without type or shape.
        """
        _check_device(device_type)
        _known("name", name, self._outputs)
        if buffer_ptr is None:
            self.wanted[name] = None
        elif element_type is None or shape is None:
            raise ArgumentError(must("element_type", "given with a shape where memory is", "left out"))
        else:
            self.wanted[name] = _at(buffer_ptr, shape, element_type)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Bind an output to an `OrtValue` of cpuconv or ONNX Runtime."""
        self.wanted[_known("name", name, self._outputs)] = view(ortvalue)

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order of binding."""
        return [OrtValue(array) for array in self.results]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return copies of the outputs of the last run, in the order of binding."""
        return [array.copy() for array in self.results]

    def clear_binding_inputs(self) -> None:
        """Remove all input bindings."""
        self.feed.clear()

    def clear_binding_outputs(self) -> None:
        """Remove all output bindings."""
        self.wanted.clear()
        self.results = []

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs are in CPU memory."""

    synchronize_outputs = synchronize_inputs


def view(ortvalue: Any) -> np.ndarray:
    """Return the memory of an `OrtValue` of cpuconv or ONNX Runtime, as an array that keeps the value alive."""
    if isinstance(ortvalue, OrtValue):
        return ortvalue.numpy()
    try:
        _check_device(ortvalue.device_name())
        return _at(ortvalue.data_ptr(), ortvalue.shape(), ortvalue.data_type(), ortvalue)
    except AttributeError as error:
        raise ArgumentTypeError(must("ortvalue", "an OrtValue", kind_of(ortvalue))) from error


def _at(address: int, shape: Sequence[int], element_type: Any, owner: object = None) -> np.ndarray:
    """Return an array on external memory; the array and its views keep `owner` alive."""
    dtype, sizes = dtype_of(element_type), tuple(int(size) for size in shape)
    memory: Any = (ctypes.c_byte * (math.prod(sizes) * dtype.itemsize)).from_address(address)
    memory.owner = owner
    return np.ndarray(sizes, dtype, memory)


def _check_device(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise ArgumentError(must("device_type", "'cpu'", repr(device_type)))


def _known(argument: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ArgumentError(must(argument, f"one of {', '.join(names)}", repr(name)))
    return name
