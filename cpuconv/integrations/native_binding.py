"""Stand-in for ONNX Runtime's native binding of values to the inputs and outputs of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as native

from cpuconv.errors import ArgumentTypeError, kind_of, must
from cpuconv.integrations.binding import IOBinding

if TYPE_CHECKING:
    from cpuconv.integrations.inference_session import InferenceSession
    from cpuconv.integrations.native_session import NativeSession


def values_of(arrays: Iterable[np.ndarray]) -> Any:
    """Return copies of arrays as ONNX Runtime's `OrtValueVector`."""
    made = native.OrtValueVector()
    for array in arrays:
        made.push_back(_value_of(array))
    return made


def _value_of(array: np.ndarray, shared: bool = False) -> Any:
    """Return an array as ONNX Runtime's native `OrtValue`: a copy, or the caller's memory itself."""
    cpu = native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0)
    if shared:
        return native.OrtValue.ortvalue_from_numpy(array, cpu)
    made = native.OrtValue.ortvalue_from_shape_and_type(list(array.shape), array.dtype.type, cpu)
    made.update_inplace(np.ascontiguousarray(array).reshape(array.shape))
    return made


class NativeBinding:
    """A binding with the interface of `onnxruntime.capi.onnxruntime_pybind11_state.SessionIOBinding`.

    Attributes
    ----------
    adopted : SessionIOBinding or None
        ONNX Runtime's own binding, once it alone holds the values: a call was refused here and not by it.
    """

    def __new__(cls, session: NativeSession) -> Any:
        """Return a binding here; ONNX Runtime's for a session that is its own, or that it runs."""
        if isinstance(session, native.InferenceSession):
            return native.SessionIOBinding(session)
        return super().__new__(cls) if session.served else native.SessionIOBinding(session.native())

    def __init__(self, session: NativeSession) -> None:
        self._session = session
        self._binding: IOBinding = session.io_binding()
        self._calls: dict[tuple[str, str], tuple[Any, ...]] = {}  # arguments by method and name
        self._values: dict[str, Any] = {}  # native values bound to outputs
        self._outputs: Any = native.OrtValueVector()
        self.adopted: Any = None

    def native(self) -> Any:
        """Return ONNX Runtime's binding of the same values."""
        if self.adopted is not None:
            return self.adopted
        made = native.SessionIOBinding(self._session.native())
        for (method, name), given in self._calls.items():
            getattr(made, method)(name, *given)
        return made

    def _do(self, method: str, serve: Callable[..., Any], *given: Any) -> Any:
        """Call a method here; where it is refused here, of ONNX Runtime's binding."""
        if self.adopted is not None:
            return getattr(self.adopted, method)(*given)
        try:
            return serve(*given)
        except Exception as error:
            refusal = error
        try:
            made = self.native()
        except Exception:
            raise refusal from None
        result = getattr(made, method)(*given)  # raises ONNX Runtime's error where the caller is at fault
        self.adopted = made
        return result

    def _bind(self, method: str, serve: Callable[..., Any], name: str, *given: Any) -> None:
        self._do(method, serve, name, *given)
        side = method.rpartition("_")[2]
        for each in [each for each in self._calls if each[1] == name and each[0].endswith(side)]:
            del self._calls[each]
        self._calls[method, name] = given

    def bind_input(self, name: str, *given: Any) -> None:
        """Bind an input to an array, or to memory: device, element type, shape and address."""

        def serve(name: str, *given: Any) -> None:
            if len(given) == 1:
                if not isinstance(given[0], np.ndarray):
                    raise ArgumentTypeError(must("arr_on_cpu", "a NumPy array", kind_of(given[0])))
                self._binding.bind_cpu_input(name, given[0])
            else:
                device, *memory = given
                self._binding.bind_input(name, _named(device), 0, *memory)

        self._bind("bind_input", serve, name, *given)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Bind an input to an `OrtValue`."""
        self._bind("bind_ortvalue_input", self._binding.bind_ortvalue_input, name, value)

    def bind_output(self, name: str, device: Any, *memory: Any) -> None:
        """Request an output, in new memory or by element type, shape and address."""

        def serve(name: str, device: Any, *memory: Any) -> None:
            self._binding.bind_output(name, _named(device), 0, *memory)
            self._values.pop(name, None)

        self._bind("bind_output", serve, name, device, *memory)

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        """Request an output in the memory of an `OrtValue`."""

        def serve(name: str, value: Any) -> None:
            self._binding.bind_ortvalue_output(name, value)
            self._values[name] = value

        self._bind("bind_ortvalue_output", serve, name, value)

    def run(self, served: InferenceSession, options: Any) -> None:
        """Run the network on bound inputs, and write the requested outputs."""
        served.run_with_iobinding(self._binding, options)
        made = native.OrtValueVector()
        for (name, memory), array in zip(self._binding.wanted.items(), self._binding.results, strict=True):
            value = self._values.get(name)
            made.push_back(_value_of(array, memory is not None) if value is None else value)
        self._outputs = made

    def get_outputs(self) -> Any:
        """Return the outputs of the last run, in the order of binding."""
        return self._outputs if self.adopted is None else self.adopted.get_outputs()

    def copy_outputs_to_cpu(self) -> Any:
        """Return copies of the outputs of the last run, in the order of binding."""
        return (self._binding if self.adopted is None else self.adopted).copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        """Remove all input bindings."""
        self._clear("input", self._binding.clear_binding_inputs)

    def clear_binding_outputs(self) -> None:
        """Remove all output bindings."""
        self._clear("output", self._binding.clear_binding_outputs)
        self._values.clear()
        self._outputs = native.OrtValueVector()

    def _clear(self, side: str, serve: Callable[[], None]) -> None:
        self._do(f"clear_binding_{side}s", serve)
        self._calls = {each: given for each, given in self._calls.items() if not each[0].endswith(side)}

    def synchronize_inputs(self) -> None:
        """Do nothing: values are in CPU memory."""

    synchronize_outputs = synchronize_inputs


def _named(device: Any) -> str:
    """Return the name of a device's type as the binding takes it."""
    return "cpu" if device.device_type() == native.OrtDevice.cpu() else "a device other than the CPU"
