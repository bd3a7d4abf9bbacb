"""Options of one run, as ONNX Runtime's `RunOptions` has them: a run may be ended through them while it runs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cpuconv.errors import ArgumentError, RunStopped, must

_THEIRS = "onnxruntime.capi.onnxruntime_pybind11_state"  # has ONNX Runtime's exceptions
_TEXT = "[ONNXRuntimeError] : 1 : FAIL : Exiting due to terminate flag being set to true."


class RunOptions:
    """What a run is started with; any attribute may be set, and those that ONNX Runtime has are there.

    Attributes
    ----------
    terminate : bool
        Set it, from any thread, to end all runs that were started with these options; they raise `RunStopped`. Until it
        is false again, new ones end at once.

    Notes
    -----
    The other attributes of ONNX Runtime's are kept and have no effect.
    """

    def __init__(self) -> None:
        self.terminate = False
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.only_execute_path_to_fetches = False
        self._entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; none has an effect."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added."""
        if key not in self._entries:
            raise ArgumentError(must("key", "one of an entry that was added", repr(key)))
        return self._entries[key]


def stop_of(run_options: Any) -> Callable[[], object] | None:
    """What ends a run that has these options, of ours or of ONNX Runtime: their `terminate`."""
    return (lambda: run_options.terminate) if hasattr(run_options, "terminate") else None


@contextmanager
def terminating() -> Iterator[None]:
    """Raise for a run that was ended what ONNX Runtime raises: ours, and where that is loaded, theirs too."""
    try:
        yield
    except RunStopped as error:
        raise _kind(getattr(sys.modules.get(_THEIRS), "Fail", None))(_TEXT) from error


@functools.cache
def _kind(theirs: type[Exception] | None) -> type[RunStopped]:
    """The exception of a run that was ended, which is one of theirs too."""
    return RunStopped if theirs is None else type("Fail", (RunStopped, theirs), {"__doc__": RunStopped.__doc__})
