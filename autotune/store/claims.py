"""Who is tuning what: several warmups share a store, and none begins what another has begun and is still at.

A claim names the process that holds it. On its own machine the holder can be seen to live or not; elsewhere (a network
folder, a container's neighbour) a claim holds for as long as a problem may take.
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import sqlite3
import sys
import time
from pathlib import Path

LEASE_SECONDS = 1800.0

_numbers = itertools.count()
_SELECT = "SELECT owner, place, pid, started, renewed FROM claims WHERE device = ? AND problem = ? AND regime = ?"


def new_owner() -> str:
    """A name for a holder of claims that no other has."""
    return f"{place()} {os.getpid()} {_started(os.getpid())} {next(_numbers)}"


def claim(connection: sqlite3.Connection, key: tuple[str, str, str], owner: str) -> bool:
    """Take or renew the claim on (device, problem, regime), inside a transaction; False if another holds it."""
    found = connection.execute(_SELECT, key).fetchone()
    if found is not None and found[0] != owner and _holds(*found[1:]):
        return False
    pid = os.getpid()
    values = (*key, owner, place(), pid, _started(pid), time.time())
    connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    return True


def release(connection: sqlite3.Connection, key: tuple[str, str, str], owner: str) -> None:
    """Give the claim up, if the owner holds it."""
    connection.execute(
        "DELETE FROM claims WHERE device = ? AND problem = ? AND regime = ? AND owner = ?", (*key, owner)
    )


@functools.cache
def place() -> str:
    """Where process numbers mean the same: a machine since it started, and a container of it."""
    parts = [platform.node()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        try:
            parts.append(read())
        except OSError:
            continue
    return " ".join(parts)


def _holds(where: str, pid: int, started: str, renewed: float) -> bool:
    recent = isinstance(renewed, float) and abs(time.time() - renewed) < LEASE_SECONDS
    if where != place() or sys.platform == "win32":  # there, signal 0 is no question but an event
        return recent
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return recent
    except (ProcessLookupError, OverflowError):
        return False
    return _started(pid) == started  # else another process has got the number


def _started(pid: int) -> str:
    """When a process began, in the system's own count; "" where that is not told. A zombie has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if fields[0] in "ZX" else fields[19]
