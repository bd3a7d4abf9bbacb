"""Options of one run, compatible with ONNX Runtime's `RunOptions`: they can terminate a run in progress."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvError, RunStopped, must

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
def errors_of_both() -> Iterator[None]:
    """Raise errors that are also ONNX Runtime's if that is loaded: `Fail` of a stopped run, `InvalidArgument`."""
    try:
        yield
    except RunStopped as error:
        raise _kind(RunStopped, "Fail")(_TEXT) from error
    except (ArgumentError, ArgumentTypeError) as error:
        raise _kind(type(error), "InvalidArgument")(*error.args) from error


def _kind(ours: type[CpuconvError], name: str) -> type[CpuconvError]:
    """Return a subclass of one of cpuconv's exceptions and of ONNX Runtime's of this name."""
    theirs = getattr(sys.modules.get(_THEIRS), name, None)
    return ours if theirs is None else _both(ours, theirs)  # type: ignore[arg-type]  # classes are hashable


@functools.cache
def _both(ours: type[CpuconvError], theirs: type[Exception]) -> type[CpuconvError]:
    def reduced(self: CpuconvError) -> tuple[object, ...]:
        return ours, self.args  # a process without ONNX Runtime can read it

    return type(theirs.__name__, (ours, theirs), {"__doc__": ours.__doc__, "__reduce__": reduced})
