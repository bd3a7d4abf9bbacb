"""Options of one run, compatible with ONNX Runtime's `RunOptions`: they can terminate a run in progress."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cpuconv.errors import ArgumentError, RunStopped, must

_THEIRS = "onnxruntime.capi.onnxruntime_pybind11_state"  # the module of ONNX Runtime's exceptions
_TEXT = "[ONNXRuntimeError] : 1 : FAIL : Exiting due to terminate flag being set to true."


class RunOptions:
    """Options of a run; all attributes of ONNX Runtime's class exist, and any other may be set.

    Attributes
    ----------
    terminate : bool
        Set it from any thread to end all runs that use these options; they raise `RunStopped`. New runs end at once
        until it is False again.

    Notes
    -----
    The other attributes of ONNX Runtime are stored and have no effect.
    """

    def __init__(self) -> None:
        self.terminate = False
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.only_execute_path_to_fetches = False
        self._entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store an entry; no entry has an effect."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry that was added."""
        if key not in self._entries:
            raise ArgumentError(must("key", "one of an entry that was added", repr(key)))
        return self._entries[key]


def stop_of(run_options: Any) -> Callable[[], object] | None:
    """Return the stop condition of cpuconv's or ONNX Runtime's options: a callable that reads `terminate`, or None."""
    return (lambda: run_options.terminate) if hasattr(run_options, "terminate") else None


@contextmanager
def terminating() -> Iterator[None]:
    """Raise ONNX Runtime's error for a stopped run: a `RunStopped` that is also a `Fail` if ONNX Runtime is loaded."""
    try:
        yield
    except RunStopped as error:
        raise _kind(getattr(sys.modules.get(_THEIRS), "Fail", None))(_TEXT) from error


@functools.cache
def _kind(theirs: type[Exception] | None) -> type[RunStopped]:
    """Return the exception class of a stopped run, which also derives from `theirs`."""
    return RunStopped if theirs is None else type("Fail", (RunStopped, theirs), {"__doc__": RunStopped.__doc__})
