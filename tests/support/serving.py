"""ONNX Runtime's sessions served by cpuconv, as `cpuconv exec` does it, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cpuconv.integrations.substitute import install


@contextmanager
def serving(**options: Any) -> Iterator[None]:
    """Serve the sessions that are made inside; the arguments are those of `install`."""
    from onnxruntime.capi import _pybind_state as native

    originals = native.InferenceSession, native.SessionIOBinding
    install(**options)
    try:
        yield
    finally:
        native.InferenceSession, native.SessionIOBinding = originals


def is_served(session: Any) -> bool:
    """Whether cpuconv runs a session of ONNX Runtime."""
    return getattr(session._sess, "served", False)
