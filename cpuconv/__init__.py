"""cpuconv: convolutional networks on the CPU, from Python: tuned kernels in pure Python and Numba."""

from __future__ import annotations

from cpuconv.api import clear_cache, compile, conv2d, explain, plan, set_cache_limit, tune_in_background
from cpuconv.errors import ArgumentError, ArgumentTypeError, CpuconvError, CpuconvWarning, SourceError, WorkspaceError
from cpuconv.graph.model import Model
from cpuconv.plan import Plan
from cpuconv.problem.problem import ConvProblem
from cpuconv.reorder import reorder
from cpuconv.runtime.threads import get_num_threads, set_num_threads

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ConvProblem",
    "CpuconvError",
    "CpuconvWarning",
    "Model",
    "Plan",
    "SourceError",
    "WorkspaceError",
    "clear_cache",
    "compile",
    "conv2d",
    "explain",
    "get_num_threads",
    "plan",
    "reorder",
    "set_cache_limit",
    "set_num_threads",
    "tune_in_background",
]
