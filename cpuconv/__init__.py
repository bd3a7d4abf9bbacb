"""cpuconv: convolutional networks on the CPU, from Python: tuned kernels in pure Python and Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpuconv import origin as _origin  # noqa: F401, before all others: it notes what they are imported from
from cpuconv.api import clear_cache, compile, conv2d, explain, load, plan, set_cache_limit, tune_in_background
from cpuconv.conv.plan import Plan
from cpuconv.conv.reorder import reorder
from cpuconv.errors import (
    ArgumentError,
    ArgumentTypeError,
    CpuconvError,
    CpuconvWarning,
    RunStopped,
    SourceError,
    WorkspaceError,
)
from cpuconv.network.model import Model
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.runtime.threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from cpuconv.integrations.inference_session import InferenceSession, SessionOptions
    from cpuconv.integrations.run_options import RunOptions

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ConvProblem",
    "CpuconvError",
    "CpuconvWarning",
    "InferenceSession",
    "Model",
    "Plan",
    "Quantization",
    "RunOptions",
    "RunStopped",
    "SessionOptions",
    "SourceError",
    "WorkspaceError",
    "clear_cache",
    "compile",
    "conv2d",
    "explain",
    "get_num_threads",
    "load",
    "plan",
    "reorder",
    "set_cache_limit",
    "set_num_threads",
    "tune_in_background",
]


def __getattr__(name: str) -> Any:
    """What few programs need, imported when it is asked for."""
    if name in ("InferenceSession", "SessionOptions"):
        from cpuconv.integrations import inference_session

        return getattr(inference_session, name)
    if name == "RunOptions":
        from cpuconv.integrations.run_options import RunOptions

        return RunOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
