"""Number of logical cores for this process: the minimum of affinity and container quota."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def affinity_cores() -> int:
    """Return the number of logical cores in this process's affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_cores(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> float | None:
    """Return the CPU quota in cores, the lowest of nested control groups (v1 and v2), or None."""
    quotas = [quota for folder in groups("cpu", root, membership) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def allowed_cores() -> int:
    """Return the number of usable logical cores: whole cores within affinity and quota, at least 1.

    If threads exceed the quota, all are stopped together until its period ends: with 1.5 cores, two busy threads run
    for 75 ms and pause for 25 ms.
    """
    affinity, quota = affinity_cores(), quota_cores()
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def thread_counts(most: int) -> list[int]:
    """Return the thread counts worth trying: 1, 2, 4, … and `most`."""
    return sorted({1 << power for power in range(most.bit_length())} | {most})


def groups(controller: str, root: Path = CGROUP, membership: Path = MEMBERSHIP) -> list[Path]:
    """Return folders that may limit a controller: the process's own group and its ancestors, of either version."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root]
        elif controller in controllers.split(","):
            mounts = [root / controller, root / controllers]
        else:
            continue
        inner = Path(path.lstrip("/"))
        # Inside a container the path is often the host's, while the mount has the group itself as its root.
        folders += [mount / level for mount in mounts for level in (inner, *inner.parents)]
    return list(dict.fromkeys(folders))


def _quota(folder: Path) -> float | None:
    try:
        if (new := folder / "cpu.max").exists():
            quota, period = new.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return int(quota) / int(period) if quota not in ("max", "-1") and int(period) > 0 else None
    except (OSError, ValueError):
        return None
