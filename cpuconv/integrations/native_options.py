"""Options of ONNX Runtime's own classes, as far as sessions that run here follow them.

ONNX Runtime's `SessionOptions` and `RunOptions` cannot be read back completely: what some of their methods were called
with is recorded here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from onnxruntime.capi import onnxruntime_pybind11_state as native

from cpuconv.errors import ArgumentError
from cpuconv.integrations.session_options import NO_EFFECT, PRECISION, entry

_SIZE = "add_free_dimension_override_by_name"
_LEFT = (  # methods of options that only ONNX Runtime follows
    "add_active_adapter",
    "add_external_initializers",
    "add_external_initializers_from_files_in_memory",
    "add_free_dimension_override_by_denotation",
    "add_initializer",
    "set_load_cancellation_flag",
)
_ENTRIES = {  # entries of session options that only ONNX Runtime follows, with the values that have an effect
    "ep.context_enable": ("1",),
    "session.collect_node_memory_stats_to_file": None,
    "session.disable_cpu_ep_fallback": ("1",),
    "session.record_ep_graph_assignment_info": ("1",),
}
_calls: WeakKeyDictionary[Any, dict[str, list[tuple[Any, ...]]]] = WeakKeyDictionary()


def record_calls() -> None:
    """Record later calls of the methods that set what cannot be read back."""
    for made in (native.SessionOptions, native.RunOptions):
        for name in (_SIZE, *_LEFT):
            method = vars(made).get(name)  # versions differ in their methods
            if method is not None and not hasattr(method, "__wrapped__"):
                setattr(made, name, _recording(name, method))


def _recording(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def recorded(self: Any, *given: Any, **more: Any) -> Any:
        result = method(self, *given, **more)
        _calls.setdefault(self, {}).setdefault(name, []).append(given)
        return result

    return recorded


def reason_to_leave(options: Any) -> str | None:
    """Return why only ONNX Runtime can follow the options of a session or of a run; None: sessions here do."""
    if options is None:
        return None
    files = [name for name in NO_EFFECT if getattr(options, name, None)]
    if files:
        return f"its options request a file: {', '.join(files)}"
    stated = {name: entry(options, name) for name in _ENTRIES} if isinstance(options, native.SessionOptions) else {}
    named = [name for name, value in stated.items() if value and value in (_ENTRIES[name] or (value,))]
    called = [name for name in _LEFT if name in _calls.get(options, ())]
    return f"its options have {', '.join(named + called)}" if named or called else None


class ServedOptions:
    """A program's session options, with other defaults for the number of threads and the precision."""

    def __init__(self, given: Any, threads: int | None, precision: str | None) -> None:
        self._given, self._threads, self._precision = given, threads, precision
        self.free_dimensions = dict(_calls.get(given, {}).get(_SIZE, ()))

    def __getattr__(self, name: str) -> Any:
        if name == "intra_op_num_threads":
            return self._given.intra_op_num_threads or self._threads or 0
        return getattr(self._given, name)

    def get_session_config_entry(self, key: str) -> str:
        """Return the program's entry, or the default precision."""
        stated = entry(self._given, key)
        if stated is None and key == PRECISION:
            stated = self._precision
        if stated is None:
            raise ArgumentError(key)
        return stated
