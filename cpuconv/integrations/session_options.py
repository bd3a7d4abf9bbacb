"""Options of a session, with the interface of `onnxruntime.SessionOptions`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from baselib.text import suggested
from cpuconv.errors import ArgumentError, CpuconvWarning, must

CPU_PROVIDER = "CPUExecutionProvider"
_OWN = "session.cpuconv."
PRECISION = f"{_OWN}precision"
"""The session config entry for the `precision` of `compile`."""


class SessionOptions:
    """Session options: the attributes of ONNX Runtime's class, and two of cpuconv; others cannot be set.

    Attributes
    ----------
    intra_op_num_threads : int
        Max. threads of a run, at most the number of cores; 0: `get_num_threads()`; "auto": the fastest number for
        the network.
    async_threads : int
        Max. concurrent runs of `run_async`; 0: the number of cores.
    idle_bytes : int or None
        As for `compile`.

    Notes
    -----
    The other attributes of ONNX Runtime are stored and have no effect. A session warns where a user would miss the
    effect.

    Raises
    ------
    AttributeError
        An unknown attribute is set, as in ONNX Runtime.
    """

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.async_threads = 0
        self.idle_bytes: int | None = None
        self.inter_op_num_threads = 0
        self.graph_optimization_level: Any = 99
        self.execution_mode: Any = 0
        self.execution_order: Any = 0
        self.enable_cpu_mem_arena = self.enable_mem_pattern = self.enable_mem_reuse = True
        self.use_per_session_threads = True
        self.enable_profiling = self.use_deterministic_compute = False
        self.log_severity_level, self.log_verbosity_level, self.logid = -1, 0, ""
        self.optimized_model_filepath, self.profile_file_prefix = "", "onnxruntime_profile_"
        self.free_dimensions: dict[str, int] = {}
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if "_entries" in vars(self) and name not in vars(self):
            known = [each for each in vars(self) if not each.startswith("_")]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{suggested(name, known)}")
        super().__setattr__(name, value)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Set the size of a symbolic dimension of the model's inputs."""
        self.free_dimensions[name] = size

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store an entry; only "session.cpuconv.precision" has an effect: it is the `precision` of `compile`.

        Raises
        ------
        ArgumentError
            The entry starts with "session.cpuconv." and is unknown; entries of ONNX Runtime may have any name.
        """
        if key.startswith(_OWN) and key != PRECISION:
            raise ArgumentError(must("key", f"{PRECISION}, of those that start with {_OWN}", repr(key)))
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry that was added."""
        if key not in self._entries:
            raise ArgumentError(must("key", "one of an entry that was added", repr(key)))
        return self._entries[key]


NO_EFFECT = {  # options that request an unsupported feature, and its replacement
    "enable_profiling": "no profile is written: `cpuconv profile MODEL`, or `cpuconv.Model.profile`, times operators",
    "optimized_model_filepath": "no optimised model is written: `cpuconv compile MODEL -o FILE` writes one of its own",
}


def warn_of_no_effect(options: Any, providers: Sequence[Any] | None) -> None:
    """Warn of options and providers that have no effect."""
    texts = [f"{name} has no effect: {instead}" for name, instead in NO_EFFECT.items() if getattr(options, name, None)]
    names = [each if isinstance(each, str) else each[0] for each in providers or ()]
    if names and CPU_PROVIDER not in names:
        texts.append(f"everything runs on the CPU, none of the requested providers does: {', '.join(names)}")
    for text in texts:
        warnings.warn(text, CpuconvWarning, stacklevel=3)


def entry(options: Any, key: str) -> str | None:
    """Return an entry of cpuconv's or ONNX Runtime's options; None if it was not added."""
    try:
        return str(options.get_session_config_entry(key))
    except (AttributeError, ArgumentError, RuntimeError):  # ONNX Runtime's options raise RuntimeError
        return None
