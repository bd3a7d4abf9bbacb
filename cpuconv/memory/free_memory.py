"""Checks that data fits into memory, so that untrusted files cannot exhaust a machine's memory."""

from __future__ import annotations

from autotune.machine.memory import free_bytes
from cpuconv.errors import SourceError
from cpuconv.symbolic.sizes import now

SMALL = 1 << 24  # bytes below which free memory is not checked


def check_bytes(size: int, what: str) -> None:
    """Check that data fits into the currently free memory.

    Raises
    ------
    SourceError
        It does not fit; `what` is the start of the message.
    """
    if now(size) > SMALL:
        check_fits(now(size), free_bytes(), what)


def check_fits(size: int, free: float, what: str) -> None:
    """Check that data fits into a number of bytes.

    Raises
    ------
    SourceError
        It does not fit; `what` is the start of the message.
    """
    if size > free:
        raise SourceError(f"{what} needs {size / 1e9:.4g} GB of memory, but only {free / 1e9:.4g} GB are available.")
