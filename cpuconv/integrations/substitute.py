"""Substitute for `onnxruntime.InferenceSession` in programs that are not edited: `cpuconv exec` installs it.

Sessions run here; a model that cannot be served, or options that request one of ONNX Runtime's files, go to ONNX
Runtime itself, with a warning that has the reason.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvError, CpuconvWarning, RunStopped
from cpuconv.integrations.inference_session import NO_EFFECT, PRECISION, InferenceSession

_DEFINED_IN = "onnxruntime.capi.onnxruntime_inference_collection"


class _Options:
    """A program's session options, with other defaults for the number of threads and the precision."""

    def __init__(self, given: Any, threads: int | None, precision: str | None) -> None:
        self._given, self._threads, self._precision = given, threads, precision

    def __getattr__(self, name: str) -> Any:
        if name == "intra_op_num_threads":
            return getattr(self._given, name, 0) or self._threads or 0
        return getattr(self._given, name)

    def get_session_config_entry(self, key: str) -> str:
        """Return the program's entry, or the default precision."""
        try:
            return str(self._given.get_session_config_entry(key))
        except (AttributeError, ArgumentError, RuntimeError):  # ONNX Runtime's options raise RuntimeError
            if key == PRECISION and self._precision is not None:
                return self._precision
            raise


def substitute(original: type, threads: int | None = None, precision: str | None = None) -> type:
    """Return a subclass of ONNX Runtime's `InferenceSession` whose sessions cpuconv runs.

    Parameters
    ----------
    original : type
        ``onnxruntime.InferenceSession``.
    threads : int or None
        Max. threads of a session whose options leave the number open; None: all cores.
    precision : str or None
        As for `compile`, for sessions whose options do not have the entry `PRECISION`.
    """

    class Substitute(original):
        def __init__(
            self,
            path_or_bytes: Any,
            sess_options: Any = None,
            providers: Any = None,
            provider_options: Any = None,
            **more: Any,
        ) -> None:
            self._model_path = path_or_bytes if isinstance(path_or_bytes, str) else None
            self._arguments = (path_or_bytes, sess_options, providers, provider_options), more
            self._served: InferenceSession | None = None
            files = [name for name in NO_EFFECT if getattr(sess_options, name, None)]
            if files:
                self._leave(f"its options request a file: {', '.join(files)}")
                return
            options = _Options(sess_options, threads, precision)
            try:
                self._served = InferenceSession(path_or_bytes, options, providers, provider_options, **more)
            except Exception as error:  # ONNX Runtime runs it, or says what is wrong in its own words
                self._leave(str(error) or type(error).__name__)

        def _leave(self, reason: str) -> None:
            """Let ONNX Runtime run this session."""
            warnings.warn(f"ONNX Runtime runs {self._model_path or 'a model'}: {reason}", CpuconvWarning, stacklevel=4)
            self._served = None
            given, more = self._arguments
            super().__init__(*given, **more)

        def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> list[Any]:
            """Run the network; where that fails without the caller's fault, in ONNX Runtime from then on."""
            if self._served is not None:
                try:
                    return self._served.run(output_names, input_feed, run_options)
                except (ArgumentError, ArgumentTypeError, RunStopped):
                    raise
                except CpuconvError as error:
                    self._leave(str(error))
            return super().run(output_names, input_feed, run_options)

    def delegating(name: str) -> Callable[..., Any]:
        def method(self: Any, *given: Any, **more: Any) -> Any:
            if self._served is not None:
                return getattr(self._served, name)(*given, **more)
            return getattr(original, name)(self, *given, **more)

        return functools.wraps(getattr(InferenceSession, name))(method)

    for name in vars(InferenceSession):
        if not name.startswith("_") and name != "run":
            setattr(Substitute, name, delegating(name))
    Substitute.__name__ = Substitute.__qualname__ = original.__name__
    Substitute.__module__, Substitute.__doc__ = original.__module__, original.__doc__
    return Substitute


def install(threads: int | None = None, precision: str | None = None) -> None:
    """Replace `onnxruntime.InferenceSession` in this process; modules that are imported later get the substitute.

    Raises
    ------
    ImportError
        ONNX Runtime is not installed.
    """
    import onnxruntime  # the program's, not a dependency

    made = substitute(onnxruntime.InferenceSession, threads, precision)
    for module in (onnxruntime, sys.modules[_DEFINED_IN]):
        vars(module)["InferenceSession"] = made
