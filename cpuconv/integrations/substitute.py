"""Sessions of cpuconv in programs that are not edited and call ONNX Runtime: `cpuconv exec` installs them.

ONNX Runtime's Python classes stay as they are, and so do their checks, errors and types: its native session and its
native binding, which these classes call, are replaced.
"""

from __future__ import annotations


def install(threads: int | None = None, precision: str | None = None) -> None:
    """Let cpuconv run the sessions that this process creates later.

    A model or options that are not served, and calls that cpuconv refuses, go to ONNX Runtime itself; a warning has
    the reason.

    Parameters
    ----------
    threads : int or None
        Max. threads of a session whose options leave the number open; None: all cores.
    precision : str or None
        As for `compile`, for sessions whose options do not have the entry `PRECISION`.

    Raises
    ------
    ImportError
        ONNX Runtime is not installed.
    """
    from onnxruntime.capi import _pybind_state as native  # the program's, not a dependency

    from cpuconv.integrations.native_binding import NativeBinding
    from cpuconv.integrations.native_options import record_calls
    from cpuconv.integrations.native_session import NativeSession

    record_calls()
    native.InferenceSession = type("InferenceSession", (NativeSession,), {"threads": threads, "precision": precision})
    native.SessionIOBinding = NativeBinding
