"""Memory that this process may still allocate: the minimum of free memory, control groups and process limits."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.machine.cores import CGROUP, MEMBERSHIP, groups

PROC = Path("/proc")


def free_bytes(root: Path = CGROUP, membership: Path = MEMBERSHIP, proc: Path = PROC) -> int:
    """Return the bytes that may be allocated now, at least 0; 1 << 63 if nothing is known."""
    limits = [_left(folder) for folder in groups("memory", root, membership)]
    known = [limit for limit in (_available(proc), _address_space(proc), *limits) if limit is not None]
    return max(0, min(known)) if known else 1 << 63


def _available(proc: Path) -> int | None:
    """Return the machine's free memory with droppable caches; else all its memory."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return None


def _address_space(proc: Path) -> int | None:
    """Return the rest of the limit of the process's address space (``ulimit -v``)."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        return limit - int((proc / "self" / "statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):
        return None


def _left(folder: Path) -> int | None:
    """Return the rest of a control group's limit; droppable file caches count as free."""
    for most, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = int((folder / most).read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
            dropped = sum(int(line.split()[1]) for line in lines if line.startswith(f"{cached} "))
            return limit - int((folder / used).read_text()) + dropped
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
