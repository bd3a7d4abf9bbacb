"""Stand-in for ONNX Runtime's native session, which its Python classes call; cpuconv runs the network.

ONNX Runtime's own session is made where it alone can answer: for a model, options or a call that are not served here.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxruntime.capi import onnxruntime_pybind11_state as native

from baselib.locks import Lock
from cpuconv.errors import CpuconvWarning, RunStopped
from cpuconv.integrations.binding import IOBinding, view
from cpuconv.integrations.inference_session import InferenceSession, deliver
from cpuconv.integrations.native_binding import NativeBinding, values_of
from cpuconv.integrations.native_options import ServedOptions, reason_to_leave
from cpuconv.runtime.streams import reported

_CPU = "CPUExecutionProvider"
_PASSIVE = ("AzureExecutionProvider", _CPU)  # providers that run no node of a served model elsewhere


class NativeSession:
    """A session with the interface of `onnxruntime.capi.onnxruntime_pybind11_state.InferenceSession`.

    Attributes
    ----------
    threads, precision : class attributes
        Defaults of sessions whose options leave them open, as for `compile`; None: all cores, float32.
    """

    threads: int | None = None
    precision: str | None = None

    def __init__(self, options: Any, source: Any, is_path: bool, reads_config: bool = False) -> None:
        self._arguments = (options, source, is_path, reads_config)
        self._initialisation: tuple[Any, ...] = ()
        self._served: InferenceSession | None = None
        self._native: Any = None
        self._lock = Lock()
        self._providers = [_CPU]
        if not (isinstance(options, native.SessionOptions) and isinstance(source, (str, bytes))):
            native.InferenceSession(*self._arguments)  # raises

    @property
    def served(self) -> bool:
        """Whether cpuconv runs the network."""
        return self._served is not None

    def initialize_session(
        self, providers: Sequence[str], provider_options: Sequence[Mapping[str, str]], disabled_optimizers: set[str]
    ) -> None:
        """Load the model, here or else in ONNX Runtime."""
        self._initialisation = (providers, provider_options, disabled_optimizers)
        options, source, _, reads_config = self._arguments
        unknown = [name for name in providers if name not in native.get_all_providers()]
        reason = reason_to_leave(options)
        if unknown:
            reason = f"cpuconv does not know the provider {unknown[0]}"
        elif reads_config:
            reason = "its options are in the model"
        elif reason is None:
            try:
                self._served = InferenceSession(source, ServedOptions(options, self.threads, self.precision))
            except Exception as error:  # ONNX Runtime runs it, or raises its own error
                reason = str(error) or type(error).__name__
        if reason is not None:
            self._leave(reason)
            return
        self._providers = list(dict.fromkeys((*(name for name in providers if name in _PASSIVE), _CPU)))
        elsewhere = [name for name in native.get_available_providers() if name in providers and name not in _PASSIVE]
        if elsewhere or getattr(options, "has_providers", bool)():
            warn(f"everything runs on the CPU, nothing on {', '.join(elsewhere) or 'the devices of the options'}")

    # --- ONNX Runtime's own session ---------------------------------------------------------------------------------

    def native(self) -> Any:
        """Return ONNX Runtime's session of the same model and options; the first call makes it."""
        with self._lock:
            if self._native is None:
                made = native.InferenceSession(*self._arguments)
                made.initialize_session(*self._initialisation)
                self._native = made
        return self._native

    def _leave(self, reason: str) -> None:
        """Let ONNX Runtime run the network from now on, and warn with the reason."""
        self.native()
        self._served = None
        warn(f"ONNX Runtime runs {self._named()}: {reason}")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that ONNX Runtime's session alone has."""
        if name.startswith("__") or not hasattr(native.InferenceSession, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.own(name)

    def own(self, name: str) -> Any:
        """Return an attribute of ONNX Runtime's session, which is then made too."""
        if self._native is None:
            warn(f"ONNX Runtime loads {self._named()} too: the program uses {name}")
        return getattr(self.native(), name)

    def _named(self) -> str:
        _, source, is_path, _ = self._arguments
        return str(source) if is_path else "a model"

    def io_binding(self) -> IOBinding:
        """Return a new binding of the session that runs here."""
        assert self._served is not None
        return self._served.io_binding()

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle {native.InferenceSession.__module__ + '.InferenceSession'!r} object")

    def answer(self, name: str, serve: Callable[..., Any], *given: Any, translate: Any = tuple) -> Any:
        """Return the result of a call: here, or in ONNX Runtime where it is refused here.

        If ONNX Runtime refuses it too, its error is raised, and the session stays here. Else ONNX Runtime runs the
        network from then on.

        Parameters
        ----------
        name : str
            The method of ONNX Runtime's session.
        serve : callable
            The same here: called with the session that is served, and the arguments.
        *given
            The arguments of both.
        translate : callable
            Makes arguments for ONNX Runtime of them.
        """
        served = self._served
        options = next((each for each in given if isinstance(each, native.RunOptions)), None)
        if served is None or reason_to_leave(options) is not None:
            return getattr(self.native(), name)(*translate(given))
        try:
            return serve(served, *given)
        except RunStopped:
            raise
        except Exception as error:
            refusal = error
        try:
            made = self.native()
        except Exception:  # such as a file that has been deleted
            raise refusal from None
        result = getattr(made, name)(*translate(given))
        self._leave(str(refusal) or type(refusal).__name__)
        return result

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self, names: Any, feed: Any, options: Any = None) -> Any:
        """Run the network."""
        return self.answer("run", lambda served, *given: served.run(*given), names, feed, options)

    def run_async(self, names: Any, feed: Any, callback: Any, data: Any, options: Any = None) -> None:
        """Run the network in the background."""
        served = self._served
        if served is None:
            self.native().run_async(names, feed, callback, data, options)
        else:
            served.background.submit(reported, deliver, self.run, (names, feed, options), callback, data)

    def run_with_ort_values(self, feed: Any, names: Any, options: Any = None) -> Any:
        """Run the network on `OrtValue` objects; the results are `OrtValue` objects too."""

        def serve(served: InferenceSession, feed: Any, names: Any, options: Any) -> Any:
            return values_of(served.run(names, {name: view(value) for name, value in feed.items()}, options))

        return self.answer("run_with_ort_values", serve, feed, names, options)

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        """Run the network on bound inputs, and write the requested outputs."""

        if not isinstance(binding, NativeBinding) or binding.adopted is not None:
            made = binding.adopted if isinstance(binding, NativeBinding) else binding
            self.native().run_with_iobinding(made, options)
            return
        made = []

        def translate(given: tuple[Any, ...]) -> tuple[Any, ...]:
            made.append(binding.native())
            return made[0], options

        def serve(served: InferenceSession, binding: NativeBinding, options: Any) -> None:
            binding.run(served, options)

        self.answer("run_with_iobinding", serve, binding, options, translate=translate)
        if made:
            binding.adopted = made[0]

    # --- properties of a session -------------------------------------------------------------------------------------

    def get_providers(self) -> list[str]:
        """Return the execution providers."""
        return self._providers if self.served else list(self.native().get_providers())

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options per provider."""
        return {name: {} for name in self._providers} if self.served else self.native().get_provider_options()

    def is_webgpu_graph_capture_enabled(self) -> bool:
        """Whether runs are recorded on a GPU: never here."""
        return False

    def end_profiling(self) -> str:
        """Return the file name of the profile; empty if none was requested."""
        return "" if self.served else self.native().end_profiling()


class _Later(Sequence[Any]):
    """A list of ONNX Runtime's session, which is not made before the list is read."""

    def __init__(self, session: NativeSession, name: str) -> None:
        self._session, self._name = session, name

    def __getitem__(self, index: Any) -> Any:
        return self._session.own(self._name)[index]

    def __len__(self) -> int:
        return len(self._session.own(self._name))

    def __repr__(self) -> str:
        return repr(list(self))


def _property(name: str, serve: Callable[[NativeSession, InferenceSession], Any]) -> property:
    """Return a property of a session that is served here; of ONNX Runtime's session where it runs the network."""

    def read(self: NativeSession) -> Any:
        served = self._served
        return getattr(self.native(), name) if served is None else serve(self, served)

    return property(read, doc=name)


for _name, _serve in {
    "inputs_meta": lambda session, served: served.get_inputs(),
    "outputs_meta": lambda session, served: served.get_outputs(),
    "overridable_initializers": lambda session, served: served.get_overridable_initializers(),
    "model_meta": lambda session, served: served.get_modelmeta(),
    "session_options": lambda session, served: session._arguments[0],
    "get_profiling_start_time_ns": lambda session, served: 0,
    "input_meminfos": lambda session, served: _Later(session, "input_meminfos"),
    "output_meminfos": lambda session, served: _Later(session, "output_meminfos"),
    "input_epdevices": lambda session, served: _Later(session, "input_epdevices"),
}.items():
    setattr(NativeSession, _name, _property(_name, _serve))


def warn(text: str) -> None:
    """Warn, at the line of the program outside of both packages."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("onnxruntime.", "cpuconv.")):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, CpuconvWarning, stacklevel=depth)
