"""Whether something fits into memory: a file from anywhere must not take all of a machine's."""

from __future__ import annotations

from autotune.machine.memory import free_bytes
from cpuconv.errors import SourceError
from cpuconv.following.sizes import now

SMALL = 1 << 24  # bytes that are not worth a look at what is free


def check_bytes(size: int, what: str) -> None:
    """See that something fits into the memory that is free now.

    Raises
    ------
    SourceError
        It does not; `what` begins the message.
    """
    if now(size) > SMALL:
        check_room(now(size), free_bytes(), what)


def check_room(size: int, room: float, what: str) -> None:
    """See that something fits into so many bytes.

    Raises
    ------
    SourceError
        It does not; `what` begins the message.
    """
    if size > room:
        raise SourceError(f"{what} takes {size / 1e9:.4g} GB of memory, where {room / 1e9:.4g} GB may be taken.")
