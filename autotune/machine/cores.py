"""How many logical cores this process may use: affinity and container quota, whichever is less."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def affinity_cores() -> int:
    """Logical cores that the scheduler may place this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_cores(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> float | None:
    """Cores' worth of time that the control groups grant (v1 and v2, the tightest of the nested ones), or None."""
    quotas = [quota for folder in groups("cpu", root, membership) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def allowed_cores() -> int:
    """Logical cores worth using: as many as affinity and quota grant whole, never less than one.

    With more threads than a quota grants cores, all are stopped together until its period ends: under 1.5 cores, two
    busy threads run for 75 ms and stand still for 25.
    """
    affinity, quota = affinity_cores(), quota_cores()
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, … and `most`, the counts worth trying."""
    return sorted({1 << power for power in range(most.bit_length())} | {most})


def groups(controller: str, root: Path = CGROUP, membership: Path = MEMBERSHIP) -> list[Path]:
    """Folders that may hold a limit of a controller: the process's own group and its ancestors, of either version."""
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
        # Inside a container the path is often the host's while the mount shows the group itself as its root.
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
