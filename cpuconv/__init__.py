"""cpuconv: fast convolutions and convolutional networks on CPUs, with autotuned kernels in pure Python and Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baselib.exports import lazily as _lazily
from cpuconv import origin as _origin  # noqa: F401, first import: it records the state of the source files

# isort: split
from cpuconv import interpreters as _interpreters  # noqa: F401, raises ImportError in unsupported interpreters
from cpuconv.api.caches import clear_cache, set_cache_limit, tune_in_background
from cpuconv.api.convolution import conv2d, explain, plan
from cpuconv.conv.plan import Plan
from cpuconv.errors import (
    ArgumentError,
    ArgumentTypeError,
    CpuconvError,
    CpuconvWarning,
    RunStopped,
    SourceError,
    WorkspaceError,
)
from cpuconv.problem.problem import ConvProblem
from cpuconv.problem.quantization import Quantization
from cpuconv.runtime.threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from cpuconv.api.from_torch import from_torch
    from cpuconv.api.network import compile, load
    from cpuconv.api.queue import Failed, Queue, map
    from cpuconv.conv.reorder import reorder
    from cpuconv.images.geometry import Geometry
    from cpuconv.images.image import Image
    from cpuconv.integrations.inference_session import InferenceSession
    from cpuconv.integrations.run_options import RunOptions
    from cpuconv.integrations.session_options import SessionOptions
    from cpuconv.network.model import Model
    from cpuconv.quantizing.quantize import quantize

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ConvProblem",
    "CpuconvError",
    "CpuconvWarning",
    "Failed",
    "Geometry",
    "Image",
    "InferenceSession",
    "Model",
    "Plan",
    "Quantization",
    "Queue",
    "RunOptions",
    "RunStopped",
    "SessionOptions",
    "SourceError",
    "WorkspaceError",
    "clear_cache",
    "compile",
    "conv2d",
    "explain",
    "from_torch",
    "get_num_threads",
    "load",
    "map",
    "plan",
    "quantize",
    "reorder",
    "set_cache_limit",
    "set_num_threads",
    "tune_in_background",
]

__getattr__ = _lazily(  # imported at first use: a single convolution does not need these
    __name__,
    {
        "cpuconv.api.from_torch": ("from_torch",),
        "cpuconv.api.network": ("compile", "load"),
        "cpuconv.api.queue": ("Failed", "Queue", "map"),
        "cpuconv.conv.reorder": ("reorder",),
        "cpuconv.images.geometry": ("Geometry",),
        "cpuconv.images.image": ("Image",),
        "cpuconv.integrations.inference_session": ("InferenceSession",),
        "cpuconv.integrations.run_options": ("RunOptions",),
        "cpuconv.integrations.session_options": ("SessionOptions",),
        "cpuconv.network.model": ("Model",),
        "cpuconv.quantizing.quantize": ("quantize",),
    },
    globals(),
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
